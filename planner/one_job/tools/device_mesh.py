"""The plan's ranks as PyTorch DeviceMeshes: a Python file to import, which checks its groups when it is run.

Says every plan, uneven ones too: each stage has meshes of its own over its own ranks. API as in PyTorch 2.5 and later
(torch.distributed.device_mesh).
"""

from __future__ import annotations

from itertools import permutations
from typing import get_args

from estimator.pricing.recipe import ScheduleName
from planner.one_job.tools.base.export_records import ExportFile
from planner.one_job.tools.base.python_text import comment, literal
from planner.one_job.tools.base.tool import TrainingTool
from planner.one_job.tools.base.writing import Task, headline, launcher_lines
from planner.shared.plan import PlanStage, RankAxis
from profiles.vocabulary import RecomputeKind

TEMPLATE = '''"""{headline}

The plan's process groups as DeviceMeshes of torch.distributed. Import `build_meshes`, or check them:

    {command}
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

WORLD_SIZE = {world}

# A stage each: its ranks (the last axis counts fastest), and the model's layers [first, end) that it holds.
STAGES = [
{stages}]


def build_meshes(device_type):
    """For each stage its meshes by name: "compute" (dp, cp, tp), "state" (copies of what ZeRO or FSDP shards, and its
    shards), "experts" (copies of the experts, expert and expert-tensor parallelism). Every process must call this."""
    built = []
    for stage in STAGES:
        meshes = {{}}
        for name, (axes, sizes, order) in stage["meshes"].items():
            ranks = torch.tensor(stage["ranks"]).reshape(sizes)
            meshes[name] = DeviceMesh(device_type, ranks.permute(order), mesh_dim_names=axes)
        built.append(meshes)
    return built


def own_stage(rank):
    """The stage that a rank belongs to."""
    return next(number for number, stage in enumerate(STAGES) if rank in stage["ranks"])


def main():
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == WORLD_SIZE, f"{{dist.get_world_size()}} processes, the plan has {{WORLD_SIZE}}"
    meshes = build_meshes("cuda" if on_gpu else "cpu")
    number = own_stage(rank)
    said = []
    for name, mesh in meshes[number].items():
        for axis in mesh.mesh_dim_names:
            group = mesh.get_group(axis)
            count = torch.ones(1, device="cuda" if on_gpu else "cpu")
            dist.all_reduce(count, group=group)
            size = mesh.size(mesh.mesh_dim_names.index(axis))
            assert int(count) == size, f"{{name}}.{{axis}}: {{int(count)}} ranks answered, {{size}} expected"
            said.append(f"{{name}}.{{axis}} {{mesh.get_local_rank(axis)}}/{{size}}")
    print(f"rank {{rank}}: stage {{number}}, {{', '.join(said)}}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


DEVICE_MESH = TrainingTool(
    name="device-mesh",
    summary="PyTorch: the plan's DeviceMeshes as Python that runs",
    basis="PyTorch 2.5: any plan, uneven ones too; schedule, sharding and recomputation are the script's own",
    software="generic",
    schedules=get_args(ScheduleName),
    recompute=get_args(RecomputeKind),
    counts_recomputed_layers=True,
    zero=(0, 1, 2, 3),
    sharded_pipelines=(0, 1, 2, 3),
    alike=False,
    orders=tuple(permutations(("tp", "cp", "dp", "pp"))),
    trains_all=False,
    write="device_mesh:write_device_mesh",
)


def write_device_mesh(task: Task) -> tuple[ExportFile, ...]:
    """Return `device_mesh.py`."""
    plan, notes = task.plan, task.notes
    within: tuple[RankAxis, ...] = tuple(axis for axis in plan.rank_axis_order if axis != "pp")
    stages = "".join(_stage(stage, within) for stage in plan.stages)
    command = " ".join([*launcher_lines(plan, notes), task.context.script or "device_mesh.py"])
    notes.append("the meshes only: parallelize_module, fully_shard and the pipeline's schedule are the script's")
    text = TEMPLATE.format(headline=headline(plan), command=comment(command), world=len(plan.devices), stages=stages)
    return (ExportFile(name="device_mesh.py", text=text),)


def _stage(stage: PlanStage, within: tuple[RankAxis, ...]) -> str:
    """A stage's entry: sizes are those of the list of ranks, slowest first; order brings the axes to (dp, cp, tp)."""
    counted = within[::-1]
    sizes = {"dp": stage.dp, "cp": stage.cp, "tp": stage.tp}
    order = tuple(counted.index(axis) for axis in ("dp", "cp", "tp"))
    meshes: dict[str, tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]] = {
        "compute": (("dp", "cp", "tp"), tuple(sizes[axis] for axis in counted), order)
    }
    plain = counted == ("dp", "cp", "tp")
    if stage.sharding.zero and plain:
        sharding = stage.sharding
        meshes["state"] = (("replicate", "shard", "tp"), (sharding.replicate, sharding.shard, stage.tp), (0, 1, 2))
    if stage.ep * stage.etp > 1 and plain:
        copies = len(stage.ranks) // (stage.ep * stage.etp)
        meshes["experts"] = (("expert_dp", "ep", "etp"), (copies, stage.ep, stage.etp), (0, 1, 2))
    ranks = _ranks(stage.ranks)
    lines = "".join(f"            {literal(name)}: {literal(parts)},\n" for name, parts in meshes.items())
    return (
        "    {\n"
        f'        "ranks": {ranks},\n'
        f'        "layers": {literal(list(stage.chunks))},\n'
        f'        "meshes": {{\n{lines}        }},\n'
        "    },\n"
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    """A range where it is one.

    >>> _ranks((4, 5, 6)), _ranks((0, 2))
    ('list(range(4, 7))', '[0, 2]')
    """
    if ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"list(range({ranks[0]}, {ranks[0] + len(ranks)}))"
    return literal(list(ranks))
