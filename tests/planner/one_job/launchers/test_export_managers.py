"""Plans as a Slurm script, a JobSet and a Ray script: words that the managers document, and every rank in its place.

The scripts were also run once for real, which no test can: on Slurm 22.05.8 with six nodes, on Ray 2.60 with three
nodes, and each Job of the JobSet through the strict OpenAPI schemas of Kubernetes 1.31 and 1.37.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.one_job.explicit.recording import record_plan
from planner.one_job.exporting.exporting import Variables
from planner.one_job.launchers.kubernetes import export_kubernetes
from planner.one_job.launchers.node_layout import job_name, lay_out, takes_whole_nodes, tp_groups
from planner.one_job.launchers.ray import export_ray
from planner.one_job.launchers.slurm import export_slurm
from planner.one_job.tools.base.export_records import CannotExpress, Export, ExportContext
from planner.one_job.tools.base.nodes import Layout
from planner.shared.plan import Plan
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate, setup_of
from tests.processes import HANGS_S, running

DATA = Path(__file__).parents[3] / "data"
EXPORTERS: tuple[Callable[[Plan, ExportContext], Export], ...] = (export_slurm, export_kubernetes, export_ray)
BASH = shutil.which("bash") or "bash"


def _plan(cluster: str = "h100:2x8", **options: Any) -> Plan:
    setup = setup_of("gpt-tiny", cluster, global_batch=48, **options)
    return record_plan(setup, fake_evaluate(setup), reference="gpt-tiny", assumptions=())


def _moved(plan: Plan, order: list[int]) -> Plan:
    """The plan with rank r on the device that rank order[r] had."""
    devices = tuple(replace(plan.devices[place], rank=rank) for rank, place in enumerate(order))
    return replace(plan, devices=devices)


def _on_nodes(plan: Plan, counts: list[int]) -> Plan:
    """The plan with so many ranks on each node, in order."""
    places = [(node, index) for node, count in enumerate(counts) for index in range(count)]
    devices = [replace(one, node=node, index=index) for one, (node, index) in zip(plan.devices, places, strict=True)]
    return replace(plan, devices=tuple(devices))


HOMOGENEOUS = _plan(tp=4, pp=2, dp=2)
ONE_NODE = _plan("h100:1x8", tp=2, pp=2, dp=2)
MIXED = _plan("a100-80gb:2x2+a10:1x4", tp=2, pp=2, dp=2)
UNEVEN = _plan("h100:2x8", tp=2, pp=1, dp=2, devices=4)
SCATTERED = _moved(_plan("h100:2x4", tp=2, pp=2, dp=2), [4, 5, 0, 1, 2, 3, 6, 7])
MIXED_SCATTERED = _moved(MIXED, [0, 2, 1, 3, 5, 4, 6, 7])
THREE_KINDS = _on_nodes(_plan("h100:3x8", tp=2, pp=1, dp=6, devices=12), [4, 2, 6])
RACK = _plan("gb200:4x2", tp=4, pp=1, dp=2)
PLANS = {
    "homogeneous": HOMOGENEOUS,
    "one-node": ONE_NODE,
    "mixed": MIXED,
    "half-a-node": UNEVEN,
    "scattered": SCATTERED,
    "mixed-scattered": MIXED_SCATTERED,
    "three-kinds": THREE_KINDS,
    "rack": RACK,
}


@pytest.fixture(params=PLANS.values(), ids=list(PLANS))
def plan(request: pytest.FixtureRequest) -> Plan:
    return request.param  # type: ignore[no-any-return]


LEVEL = (("NCCL_IB_TC", "160"), ("UCX_IB_TRAFFIC_CLASS", "160"), ("NCCL_IB_QPS_PER_CONNECTION", "8"))
"""Of a job on its network, as `export --network` gives them."""


def _text(export: Export) -> str:
    (file,) = export.files
    return file.text


# Layout


def test_a_layout_counts_nodes_by_rank_and_alike_ones_together_where_ranks_are_scattered() -> None:
    layout = lay_out(MIXED, "test")
    assert [(node.node, node.device, node.ranks) for node in layout.nodes] == [
        (0, "a100-80gb", (0, 1)),
        (1, "a100-80gb", (2, 3)),
        (2, "a10", (4, 5, 6, 7)),
    ]
    assert layout.node_major
    assert takes_whole_nodes(MIXED) is True
    scattered = lay_out(SCATTERED, "test")
    assert not scattered.node_major
    assert [(node.node, node.ranks) for node in scattered.nodes] == [(1, (0, 1, 6, 7)), (0, (2, 3, 4, 5))]
    assert [len(part) for part in lay_out(THREE_KINDS, "test").parts] == [1, 1, 1]
    assert takes_whole_nodes(UNEVEN) is False
    assert takes_whole_nodes(replace(MIXED, cluster="mine.yaml")) is None


def test_every_rank_has_one_place_and_rank_0_is_on_the_first_node(plan: Plan) -> None:
    layout = lay_out(plan, "test")
    assert sorted(rank for node in layout.nodes for rank in node.ranks) == list(range(len(plan.devices)))
    assert layout.places[0][0] == 0
    for rank, (number, local) in enumerate(layout.places):
        device = plan.devices[rank]
        on_node = sorted(one.index for one in plan.devices if one.node == device.node)
        assert layout.nodes[number].node == device.node
        assert on_node[local] == device.index


def test_tensor_parallel_groups_follow_the_rank_order() -> None:
    (stage,) = UNEVEN.stages
    assert tp_groups(UNEVEN, stage) == [(0, 1), (2, 3)]
    other = replace(UNEVEN, rank_axis_order=("dp", "tp", "cp", "pp"))
    assert tp_groups(other, stage) == [(0, 2), (1, 3)]


def test_names_are_fit_for_hosts() -> None:
    assert job_name(replace(HOMOGENEOUS, model=replace(HOMOGENEOUS.model, name="Llama 3.1/8B"))) == "llama-3-1-8b"
    assert job_name(replace(HOMOGENEOUS, model=replace(HOMOGENEOUS.model, name="3B_x" + "y" * 50))).startswith(
        "train-3b-x"
    )
    long = replace(HOMOGENEOUS, model=replace(HOMOGENEOUS.model, name="m" * 200))
    assert len(job_name(long)) == 32
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job_name(long))


@pytest.mark.parametrize("export", EXPORTERS)
def test_what_no_manager_can_do_is_refused(export: Callable[[Plan, ExportContext], Export]) -> None:
    apart = replace(HOMOGENEOUS.devices[-1], site="south")
    with pytest.raises(CannotExpress, match=r"devices\[\].site: found site and south"):
        export(replace(HOMOGENEOUS, devices=(*HOMOGENEOUS.devices[:-1], apart)), ExportContext())
    with pytest.raises(CannotExpress, match="cluster: found local:1x8"):
        export(replace(HOMOGENEOUS, cluster="local:1x8"), ExportContext())
    with pytest.raises(CannotExpress, match="found tpu-v5e"):
        export(_plan("tpu-v5e:1x8", tp=2, dp=4), ExportContext())


@pytest.mark.parametrize("export", EXPORTERS)
def test_the_same_plan_gives_the_same_bytes_and_says_what_is_a_placeholder(
    export: Callable[[Plan, ExportContext], Export], plan: Plan
) -> None:
    once, again = export(plan, ExportContext()), export(plan, ExportContext())
    assert once == again
    assert any("train.py stands for your training script" in note for note in once.notes)
    assert not any(
        "stands for your training script" in note for note in export(plan, ExportContext(script="x.py")).notes
    )
    assert max(map(len, _text(once).splitlines())) <= 130


# Slurm


@pytest.mark.parametrize("environment", [(), LEVEL])
def test_slurm_scripts_are_bash_and_say_only_what_sbatch_documents(plan: Plan, environment: Variables) -> None:
    text = _text(export_slurm(plan, ExportContext(script="my dir/train it.py", environment=environment)))
    done = subprocess.run([BASH, "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    known = json.loads((DATA / "slurm_options.json").read_text(encoding="utf-8"))
    said = re.findall(r"^#SBATCH (\S+?)(?:=\S+)?$", text, re.MULTILINE)
    assert said
    assert set(said) <= {*known["sbatch"], *known["not_an_option"]}
    assert len(said) == text.count("#SBATCH")
    srun = text[text.index("\nsrun ") :]
    assert set(re.findall(r" (--[a-z-]+)", srun)) <= set(known["srun"])
    assert "'my dir/train it.py'" in srun
    exported = dict(re.findall(r"^export (\w+)=(\S+)$", text[: text.index("\nsrun ")], re.MULTILINE))
    assert dict(environment).items() <= exported.items(), "before the ranks start, which srun hands them"


def test_slurm_asks_for_the_plan_s_nodes_and_gpus() -> None:
    text = _text(export_slurm(HOMOGENEOUS, ExportContext()))
    for line in ("--nodes=2", "--ntasks-per-node=1", "--gres=gpu:h100:8", "--exclusive", "--mem=0"):
        assert f"#SBATCH {line}\n" in text
    mixed = _text(export_slurm(MIXED, ExportContext()))
    first, second = mixed.split("#SBATCH hetjob\n")
    assert "#SBATCH --nodes=2\n" in first
    assert "#SBATCH --gres=gpu:a100:2\n" in first
    assert "#SBATCH --nodes=1\n" in second
    assert "#SBATCH --gres=gpu:a10:4\n" in second
    half = export_slurm(UNEVEN, ExportContext())
    assert "--exclusive" not in _text(half)
    assert any("CPUs and memory beside the GPUs" in note for note in half.notes)


SRUN = """\
import os, subprocess, sys
tasks = dict(part.split("=") for part in os.environ["STUB_TASKS"].split())
step, parts, number = [], [[]], 0
for word in sys.argv[1:]:
    parts.append([]) if word == ":" else parts[-1].append(word)
hosts = None
if any(word == "--distribution=arbitrary" for word in sys.argv):
    with open(os.environ["SLURM_HOSTFILE"]) as file:
        hosts = file.read().split()
for part in parts:
    options = dict(word.partition("=")[::2] for word in part if word.startswith("--"))
    command = part[part.index("bash"):]
    places = hosts or tasks[options.get("--het-group", "0")].split(",")
    if "--ntasks" in options:
        assert len(places) == int(options["--ntasks"])
    for at, place in enumerate(places):
        local = str(places[:at].count(place))
        env = dict(os.environ, SLURM_PROCID=str(number), SLURM_LOCALID=local, SLURMD_NODENAME=place)
        subprocess.run(command, env=env, check=True)
        number += 1
"""

DUMP = """\
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "SLURMD_NODENAME")
print(json.dumps([*(os.environ.get(name) for name in names), sys.argv[1:]]))
"""


def _run_slurm(plan: Plan, folder: Path, *arguments: str) -> list[list[Any]]:
    """What each process of the script finds, where Slurm's commands are stand-ins that do as the real ones did."""
    layout = lay_out(plan, "test")
    text = _text(export_slurm(plan, ExportContext(script=str(folder / "dump.py"))))
    (folder / "dump.py").write_text(DUMP, encoding="utf-8")
    (folder / "srun.py").write_text(SRUN, encoding="utf-8")
    words = {
        "srun": f'exec "{sys.executable}" "{folder}/srun.py" "$@"',
        "scontrol": 'echo "$3" | tr , "\\n"',
        "python": f'exec "{sys.executable}" "$@"',
        "torchrun": 'echo "[\\"torchrun\\", \\"$SLURMD_NODENAME\\", \\"$*\\"]"',
    }
    for name, command in words.items():
        (folder / name).write_text(f"#!{BASH}\n{command}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    hosts = [[f"part{part}-node{node}" for node in range(len(nodes))] for part, nodes in enumerate(layout.parts)]
    per_node = re.findall(r"--ntasks-per-node=(\d+)", text)
    tasks = [
        f"{part}={','.join(host for host in names for _ in range(int(count)))}"
        for part, (names, count) in enumerate(zip(hosts, per_node, strict=True))
    ]
    variables = {f"SLURM_JOB_NODELIST_HET_GROUP_{part}": ",".join(names) for part, names in enumerate(hosts)}
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": ",".join(hosts[0]),
        "STUB_TASKS": " ".join(tasks),
        **variables,
    }
    script = folder / "plan.sbatch"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run([BASH, str(script), *arguments], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _host_of(layout: Layout, rank: int) -> str:
    """What `_run_slurm` calls the node of a rank."""
    number = layout.places[rank][0]
    for part, nodes in enumerate(layout.parts):
        if number < len(nodes):
            return f"part{part}-node{number}"
        number -= len(nodes)
    raise AssertionError(rank)


def test_slurm_starts_torchrun_on_each_node_or_a_task_for_each_rank(plan: Plan, tmp_path: Path) -> None:
    layout = lay_out(plan, "test")
    said = _run_slurm(plan, tmp_path, "--lr", "1e-4", "a b")
    if layout.node_major:
        assert [line[1] for line in said] == [_host_of(layout, node.ranks[0]) for node in layout.nodes]
        for number, (line, node) in enumerate(zip(said, layout.nodes, strict=True)):
            words = f"--nnodes={len(layout.nodes)} --nproc-per-node={len(node.ranks)} --node-rank={number}"
            assert line[2].startswith(f"{words} --master-addr=part0-node0 --master-port=20017 ")
            assert line[2].endswith("dump.py --lr 1e-4 a b")
        return
    assert len(said) == layout.world_size
    for rank, local, world, beside, master, host, arguments in said:
        number, at = layout.places[int(rank)]
        assert (int(local), int(world)) == (at, layout.world_size)
        assert int(beside) == len(layout.nodes[number].ranks)
        assert (master, host) == ("part0-node0", _host_of(layout, int(rank)))
        assert arguments == ["--lr", "1e-4", "a b"]
    assert sorted(int(line[0]) for line in said) == list(range(layout.world_size))


# Kubernetes


def _check(value: Any, kind: Any, objects: dict[str, Any], path: str) -> None:
    """`value` has the documented fields of `kind` and their types."""
    if isinstance(kind, list):
        assert isinstance(value, list), path
        for number, one in enumerate(value):
            _check(one, kind[0], objects, f"{path}[{number}]")
    elif isinstance(kind, dict):
        for key, one in value.items():
            assert isinstance(key, str), path
            _check(one, kind["*"], objects, f"{path}.{key}")
    elif kind in objects:
        assert isinstance(value, dict), path
        assert not set(value) - set(objects[kind]["fields"]), path
        assert not set(objects[kind]["required"]) - set(value), path
        for key, one in value.items():
            _check(one, objects[kind]["fields"][key], objects, f"{path}.{key}")
    else:
        types: dict[str, Any] = {
            "string": str,
            "integer": int,
            "boolean": bool,
            "quantity": (int, str),
            "other": object,
        }
        assert isinstance(value, types[kind]), path
        assert kind != "integer" or not isinstance(value, bool), path


@pytest.mark.parametrize("environment", [(), LEVEL])
def test_the_jobset_has_documented_fields_alone(plan: Plan, environment: Variables) -> None:
    known = json.loads((DATA / "jobset_fields.json").read_text(encoding="utf-8"))
    manifest = yaml.safe_load(_text(export_kubernetes(plan, ExportContext(environment=environment))))
    _check(manifest, "JobSet", known["objects"], "JobSet")
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert list(manifest["metadata"]["labels"]) == [known["queue_label"]]
    names = [job["name"] for job in manifest["spec"]["replicatedJobs"]]
    assert len(set(names)) == len(names)
    for job in manifest["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        annotations = spec["template"].get("metadata", {}).get("annotations", {})
        assert set(annotations) <= set(known["pod_annotations"])
        assert bool(annotations) == (spec["parallelism"] > 1)
        pod_host = f"{manifest['metadata']['name']}-{job['name']}-0-{spec['parallelism'] - 1}"
        assert len(pod_host) <= 63
        for container in spec["template"]["spec"]["containers"]:
            pairs = [(each["name"], each["value"]) for each in container["env"] if "value" in each]
            assert set(environment) <= set(pairs)
            assert len({name for name, _ in pairs}) == len(pairs)
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", pod_host)


def test_the_jobset_asks_for_the_plan_s_nodes_gpus_and_devices() -> None:
    manifest = yaml.safe_load(_text(export_kubernetes(MIXED, ExportContext(script="x.py"))))
    jobs = manifest["spec"]["replicatedJobs"]
    assert [(job["name"], job["template"]["spec"]["completions"]) for job in jobs] == [("a100-80gb", 2), ("a10", 1)]
    pods = [job["template"]["spec"]["template"]["spec"] for job in jobs]
    assert [pod["nodeSelector"] for pod in pods] == [
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
        {"nvidia.com/gpu.product": "NVIDIA-A10"},
    ]
    assert [pod["containers"][0]["resources"]["limits"] for pod in pods] == [
        {"nvidia.com/gpu": 2},
        {"nvidia.com/gpu": 4},
    ]
    addresses = {env["value"] for pod in pods for env in pod["containers"][0]["env"] if env["name"] == "MASTER_ADDR"}
    assert addresses == {"gpt-tiny-a100-80gb-0-0.gpt-tiny"}
    amd = yaml.safe_load(_text(export_kubernetes(_plan("mi300x:1x8", tp=2, dp=4), ExportContext())))
    pod = amd["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"amd.com/gpu": 8}
    assert pod["nodeSelector"] == {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}


def test_topology_is_required_where_tensor_parallelism_needs_it() -> None:
    def annotations(plan: Plan) -> dict[str, str]:
        manifest = yaml.safe_load(_text(export_kubernetes(plan, ExportContext())))
        template = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        return template.get("metadata", {}).get("annotations", {})  # type: ignore[no-any-return]

    prefix, levels = "kueue.x-k8s.io/podset", "cloud.provider.com/topology"
    assert annotations(ONE_NODE) == {}
    assert annotations(HOMOGENEOUS) == {f"{prefix}-preferred-topology": f"{levels}-block"}
    assert annotations(RACK) == {
        f"{prefix}-preferred-topology": f"{levels}-block",
        f"{prefix}-slice-required-topology": f"{levels}-rack",
        f"{prefix}-slice-size": "2",
    }
    whole = _plan("gb200:2x2", tp=4, pp=1)
    assert annotations(whole) == {f"{prefix}-required-topology": f"{levels}-rack"}


def test_pods_start_torchrun_or_a_process_for_each_rank(plan: Plan, tmp_path: Path) -> None:
    layout = lay_out(plan, "test")
    manifest = yaml.safe_load(_text(export_kubernetes(plan, ExportContext(script="my train.py"))))
    for name, command in (
        ("torchrun", "torchrun $*"),
        ("python", "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $*"),
    ):
        (tmp_path / name).write_text(f'#!{BASH}\necho "{command}"\n', encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    number = 0
    for job in manifest["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        container = spec["template"]["spec"]["containers"][0]
        for index in range(spec["completions"]):
            env = {one["name"]: one["value"] for one in container["env"]}
            env |= {"JOB_COMPLETION_INDEX": str(index), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
            done = subprocess.run(
                [BASH, *container["command"][1:]], env=env, capture_output=True, text=True, check=True
            )
            ranks = layout.nodes[number].ranks
            assert container["resources"]["limits"] == {"nvidia.com/gpu": len(ranks)}
            if layout.node_major:
                words = f"torchrun --nnodes={len(layout.nodes)} --nproc-per-node={len(ranks)} --node-rank={number} "
                assert done.stdout.startswith(words)
                assert done.stdout.endswith("my train.py\n")
            else:
                beside = f"{len(ranks)} {layout.world_size} my train.py"
                assert sorted(done.stdout.splitlines()) == sorted(
                    f"{rank} {local} {beside}" for local, rank in enumerate(ranks)
                )
            number += 1
    assert number == len(layout.nodes)


def test_a_pod_ends_as_soon_as_one_of_its_ranks_fails(tmp_path: Path) -> None:
    manifest = yaml.safe_load(_text(export_kubernetes(SCATTERED, ExportContext())))
    container = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    (tmp_path / "python").write_text(f"#!{BASH}\n[ $LOCAL_RANK != 2 ] && exec sleep 600\nexit 3\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    env = {one["name"]: one["value"] for one in container["env"]}
    env |= {"JOB_COMPLETION_INDEX": "0", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with running(
        [BASH, *container["command"][1:]],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            assert process.wait(timeout=HANGS_S) == 1
        finally:
            with suppress(ProcessLookupError):  # its other ranks may have ended already
                os.killpg(process.pid, 9)


# Ray


def _assigned(text: str) -> dict[str, Any]:
    """The constants at the top of a script."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


@pytest.mark.parametrize("environment", [(), LEVEL])
def test_ray_scripts_call_ray_as_it_documents(plan: Plan, environment: Variables) -> None:
    text = _text(export_ray(plan, ExportContext(environment=environment)))
    known = json.loads((DATA / "ray_names.json").read_text(encoding="utf-8"))
    calls = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    used = {call.func.id: {word.arg for word in call.keywords} for call in calls if isinstance(call.func, ast.Name)}
    for name in ("placement_group", "PlacementGroupSchedulingStrategy"):
        assert used[name]
        assert used[name] <= set(known[name])
    said = _assigned(text)
    assert said["STRATEGY"] in known["strategies"]
    assert said.get("ENVIRONMENT", {}) == dict(environment)
    types = {key.removeprefix("accelerator_type:") for bundle in said["BUNDLES"] for key in bundle} - {"CPU", "GPU"}
    assert types <= set(known["accelerator_types"])


def test_ray_bundles_are_the_plan_s_nodes_and_ranks_sit_on_theirs(plan: Plan) -> None:
    layout = lay_out(plan, "test")
    said = _assigned(_text(export_ray(plan, ExportContext())))
    assert [bundle["GPU"] for bundle in said["BUNDLES"]] == [len(node.ranks) for node in layout.nodes]
    assert said["RANK_TO_BUNDLE"] == [node for node, _ in layout.places]
    assert said["STRATEGY"] == ("STRICT_PACK" if len(layout.nodes) == 1 else "STRICT_SPREAD")
    for number, stage in enumerate(plan.stages):
        assert {said["RANK_TO_STAGE"][rank] for rank in stage.ranks} == {number}


RAY = """\
import types, sys
ray = types.ModuleType("ray")
ray.util = types.ModuleType("ray.util")
ray.util.get_node_ip_address = lambda: "10.0.0.1"
groups = types.ModuleType("ray.util.placement_group")
def placement_group(bundles, strategy, name):
    return types.SimpleNamespace(ready=lambda: None, bundles=bundles)
groups.placement_group = placement_group
groups.remove_placement_group = lambda group: print("REMOVED")
ways = types.ModuleType("ray.util.scheduling_strategies")
class PlacementGroupSchedulingStrategy:
    def __init__(self, placement_group, placement_group_bundle_index):
        placement_group.bundles[placement_group_bundle_index]["GPU"] -= 1
        assert placement_group.bundles[placement_group_bundle_index]["GPU"] >= 0
        self.bundle = placement_group_bundle_index
ways.PlacementGroupSchedulingStrategy = PlacementGroupSchedulingStrategy
def remote(**options):
    def wrap(kind):
        class Handle:
            def __getattr__(self, name):
                return types.SimpleNamespace(remote=getattr(kind(), name))
        kind.options = classmethod(lambda cls, scheduling_strategy: types.SimpleNamespace(remote=Handle))
        return kind
    return wrap
ray.remote, ray.init, ray.get = remote, lambda: None, lambda value: value
sys.modules.update({"ray": ray, "ray.util": ray.util, groups.__name__: groups, ways.__name__: ways})
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_ray_runs_every_rank_and_gives_the_group_back(plan: Plan, tmp_path: Path) -> None:
    """With a stand-in for Ray that runs everything in one process."""
    (tmp_path / "dump.py").write_text(DUMP, encoding="utf-8")
    (tmp_path / "stand_in.py").write_text(RAY, encoding="utf-8")
    export = export_ray(plan, ExportContext(script=str(tmp_path / "dump.py")))
    script = tmp_path / export.files[0].name
    script.write_text(_text(export), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "stand_in.py"), str(script), "--lr", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    assert last == "REMOVED"
    count = len(plan.devices)
    assert [json.loads(line)[:3] for line in lines] == [[str(rank), "0", str(count)] for rank in range(count)]
    assert all(json.loads(line)[4] == "10.0.0.1" and json.loads(line)[6] == ["--lr", "1"] for line in lines)
