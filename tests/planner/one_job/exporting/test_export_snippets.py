"""The snippets that are code: run as they stand, on processes and devices of this machine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.exports.plans import make_plan
from models_zoo.catalogue import load_model
from planner.one_job.explicit.recording import record_plan
from planner.one_job.tools.base.export_records import Export, ExportContext
from planner.one_job.tools.base.shape import stage_shape
from planner.one_job.tools.base.writing import write_plan
from planner.one_job.tools.catalogue import TOOLS
from planner.one_job.tools.jax_mesh import JAX_MESH, stage_axes
from planner.shared.model_sizes import model_sizes
from planner.shared.plan import Plan, PlanStage, Sharding
from planner.shared.plan_checks import load_plan_model
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate, setup_of
from tests.planner.shared.plan_examples import example_plan, example_stage
from tests.processes import HANGS_S, running

ON_A_FAKE_GROUP = """
import json, runpy, sys
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

world = int(sys.argv[2])
module = runpy.run_path(sys.argv[1])
dist.init_process_group("fake", rank=int(sys.argv[3]), world_size=world, store=FakeStore())
meshes = module["build_meshes"]("cpu")[module["own_stage"](int(sys.argv[3]))]
print(json.dumps({name: {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in mesh.mesh_dim_names}
                  for name, mesh in meshes.items()}))
"""


def export_to(tool: str, plan: Plan) -> Export:
    return write_plan(plan, TOOLS[tool], ExportContext())


def small_plan(**options: Any) -> Plan:
    """gpt-tiny on one node of four devices."""
    setup = setup_of(cluster="h100:1x4", global_batch=64, **options)
    return record_plan(setup, fake_evaluate(setup), reference="gpt-tiny", assumptions=())


def uneven_plan() -> Plan:
    """Stage 0 has dp 2, stage 1 tp 2; the sizes are gpt-tiny's own."""
    plan = example_plan()
    sizes = model_sizes(load_model("gpt-tiny"), parameters=4_240_896)
    return replace(plan, model=replace(plan.model, sizes=sizes, seq_len=128))


def write(export: Export, folder: Path) -> Path:
    file = folder / export.files[0].name
    file.write_text(export.files[0].text, encoding="utf-8")
    return file


def run_ranks(file: Path, world: int) -> list[str]:
    """What each of `world` processes printed."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = str(bound.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                running(
                    [sys.executable, str(file)],
                    env={**os.environ, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(world)
        ]
        ends = [(worker, *worker.communicate(timeout=HANGS_S)) for worker in workers]
    for worker, _, err in ends:
        assert worker.returncode == 0, err[-2000:]
    return [out.strip() for _, out, _ in ends]


def groups_of(file: Path, world: int, rank: int) -> dict[str, dict[str, list[int]]]:
    """The ranks of each group that `rank` is in, by mesh and axis, with nothing sent."""
    words = [sys.executable, "-c", ON_A_FAKE_GROUP, str(file), str(world), str(rank)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, list[int]]] = json.loads(done.stdout)
    return found


def test_device_meshes_run(tmp_path: Path) -> None:
    """tp 2: each rank's group answers with as many ranks as its axis has."""
    setup = setup_of(cluster="h100:1x2", global_batch=64, tp=2)
    plan = record_plan(setup, fake_evaluate(setup), reference="gpt-tiny", assumptions=())
    said = run_ranks(write(export_to("device-mesh", plan), tmp_path), 2)
    assert said == [f"rank {rank}: stage 0, compute.dp 0/1, compute.cp 0/1, compute.tp {rank}/2" for rank in (0, 1)]


def test_device_meshes_of_uneven_stages(tmp_path: Path) -> None:
    """Stage 0 has dp 2, stage 1 tp 2."""
    file = write(export_to("device-mesh", uneven_plan()), tmp_path)
    assert groups_of(file, 4, 1)["compute"] == {"dp": [0, 1], "cp": [1], "tp": [1]}
    assert groups_of(file, 4, 3)["compute"] == {"dp": [3], "cp": [3], "tp": [2, 3]}


def test_device_meshes_of_a_plan_have_its_groups(tmp_path: Path) -> None:
    """32 ranks: tp 2, ep 4 over tp and half of dp, optimizer state over all replicas."""
    file = write(export_to("device-mesh", make_plan("mixtral ep4")), tmp_path)
    groups = groups_of(file, 32, 5)
    assert groups["compute"]["tp"] == [4, 5]
    assert groups["compute"]["dp"] == groups["state"]["shard"] == list(range(1, 32, 2))
    assert groups["experts"] == {"expert_dp": list(range(1, 32, 4)), "ep": [4, 5, 6, 7], "etp": [5]}


def test_device_meshes_follow_the_order_of_ranks(tmp_path: Path) -> None:
    """With dp counted fastest, ranks 2 and 3 are replicas."""
    plan = replace(small_plan(tp=2), rank_axis_order=("dp", "tp", "cp", "pp"))
    groups = groups_of(write(export_to("device-mesh", plan), tmp_path), 4, 3)
    assert groups["compute"] == {"dp": [2, 3], "cp": [3], "tp": [1, 3]}


def run_jax(plan: Plan, folder: Path) -> str:
    """What the snippet prints, on as many devices as the plan has."""
    file = write(export_to("jax-mesh", plan), folder)
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={len(plan.devices)}", "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, str(file)]
    done = subprocess.run(words, env={**os.environ, **flags}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_jax_meshes_shard_as_the_plan_does(tmp_path: Path) -> None:
    """tp 2, dp 2 of ZeRO 3: weights and their state are held in quarters."""
    out = run_jax(small_plan(tp=2, zero=3, sequence_parallel=False), tmp_path)
    assert "stage 0: {'dp': 2, 'tp': 2}, activations P('dp', None)" in out
    assert "query (256, 256): weight (128, 128) by P('dp', 'tp'), optimizer state (128, 128)" in out
    assert "feed_forward_down (1024, 256): weight (512, 128) by P('tp', 'dp')" in out


def test_jax_optimizer_state_alone_is_sharded_by_zero_1(tmp_path: Path) -> None:
    out = run_jax(small_plan(dp=4, zero=1), tmp_path)
    assert "query (256, 256): weight (256, 256) by P(None, None), optimizer state (64, 256)" in out


def test_jax_meshes_of_experts(tmp_path: Path) -> None:
    """ep 4 over tp 2 and half of dp: the dp axis is cut where the experts' groups end."""
    out = run_jax(make_plan("mixtral ep4"), tmp_path)
    assert "stage 0: {'dp1': 8, 'dp0': 2, 'tp': 2}, activations P(('dp1', 'dp0'), 'tp')" in out
    assert re.search(
        r"expert_up \(8, 4096, 14336\): weight \(2, 4096, 14336\) by P\(\('dp0', 'tp'\), None, None\)", out
    )


def test_jax_meshes_of_uneven_stages(tmp_path: Path) -> None:
    out = run_jax(uneven_plan(), tmp_path)
    assert "stage 0: {'dp': 2}" in out
    assert "stage 1: {'tp': 2}" in out


def test_a_model_without_blocks_has_meshes_and_no_specs(tmp_path: Path) -> None:
    plan = make_plan("vision")
    assert any("no PartitionSpecs" in note for note in export_to("jax-mesh", plan).notes)
    assert run_jax(plan, tmp_path) == "stage 0: {'dp': 8}, activations P('dp', None)\n"


def stage_of(*, dp: int, tp: int, ep: int) -> PlanStage:
    """A stage that shards its optimizer state over all replicas."""
    plain = replace(example_stage(0, 4, (0,), dp=1, tp=1), sharding=Sharding(zero=1, shard=1, replicate=1))
    sharding = Sharding(zero=1, shard=dp, replicate=1)
    return replace(plain, ranks=tuple(range(dp * tp)), sharding=sharding, dp=dp, tp=tp, ep=ep)


def test_axes_are_cut_where_expert_groups_end() -> None:
    axes, roles = stage_axes(stage_of(dp=8, tp=4, ep=8))
    assert axes == [("dp1", 4), ("dp0", 2), ("tp", 4)]
    assert roles["ep"] == ("dp0", "tp")
    assert roles["state"] == roles["dp"] == ("dp1", "dp0")


def test_expert_groups_that_do_not_line_up_are_refused() -> None:
    plan = make_plan("mixtral ep4")
    refusal = JAX_MESH.refusal(stage_shape(stage_of(dp=6, tp=4, ep=6), plan, load_plan_model(plan)))
    assert refusal is not None
    assert refusal.key == "stages[].ep"
