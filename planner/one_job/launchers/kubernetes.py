"""A plan as a Kubernetes JobSet that Kueue admits.

Each node of the plan is a pod, each run of alike nodes a replicated job of its own, and the pods' headless service
gives torchrun its rendezvous. Where the plan names its nodes and the tree of its cluster is at hand, a run ends with
its part of the tree, too, and its pods go to nodes that carry that part's label; which of these is not said, since a
replicated job has one template. Fields are those of jobset.x-k8s.io/v1alpha2 (JobSet,
api/jobset/v1alpha2/jobset_types.go at commit 0336a8f) and of batch/v1 and core/v1 (Kubernetes 1.37); queue label and
topology annotations those of Kueue (apis/kueue/v1beta2/topology_types.go at commit 046d2ef, site/content/en/docs).
torchrun's arguments are those of torch.distributed.run 2.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from planner.one_job.launchers.gpu_names import PRODUCT_LABELS, is_amd
from planner.one_job.launchers.named_hosts import PartsOfHosts, cost_of_order, hosts_of, parts_of
from planner.one_job.launchers.node_layout import (
    MASTER_PORT,
    PLACEHOLDER,
    describe,
    device_notes,
    job_name,
    lay_out,
    nodes_of_tp,
    script_note,
    takes_whole_nodes,
)
from planner.one_job.tools.base.export_records import Export, ExportContext, ExportFile
from planner.one_job.tools.base.nodes import Layout, NodeRanks
from planner.shared.plan import Plan
from profiles.records import dataclass

TOOL = "kubernetes"

QUEUE = "user-queue"
IMAGE = "registry.example/training:latest"
BLOCK = "cloud.provider.com/topology-block"
RACK = "cloud.provider.com/topology-rack"
"""Node labels of the levels that Kueue's documentation gives as an example; a cluster's own stand in its Topology."""

_TORCHRUN = """\
exec torchrun --nnodes={nodes} --nproc-per-node={gpus} --node-rank=$((FIRST_NODE + JOB_COMPLETION_INDEX)) \\
  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
"""

_TASKS = """\
IFS=';' read -ra nodes <<< "$RANKS_OF_NODES"
ranks=(${nodes[JOB_COMPLETION_INDEX]})
export LOCAL_WORLD_SIZE=${#ranks[@]}
trap 'exit 1' USR1
for local in "${!ranks[@]}"; do
  (RANK=${ranks[local]} LOCAL_RANK=$local python "$@" || kill -USR1 $$) &
done
wait
"""


def export_kubernetes(plan: Plan, context: ExportContext) -> Export:
    """The manifest: `kubectl apply -f NAME.jobset.yaml`.

    CannotExpress for a plan over several sites, on this machine's own devices, or on TPUs.
    """
    layout = lay_out(plan, TOOL)
    name = job_name(plan)
    tree = parts_of(plan)
    runs = _runs(layout, hosts_of(plan, layout), tree)
    names = _run_names(runs)
    reach = nodes_of_tp(plan, layout)
    first = 0
    jobs = []
    for run, called in zip(runs, names, strict=True):
        jobs.append(_replicated_job(name, called, names[0], run, first, layout, context, reach))
        first += len(run.nodes)
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": jobs,
        },
    }
    text = f"# {describe(plan, layout)}\n{_yaml(manifest)}"
    placed = any(run.label is not None for run in runs)
    notes = (
        *_notes(plan, context, layout, reach, runs),
        *(_tree_notes(tree, runs, context) if placed and tree else ()),
    )
    return Export(files=(ExportFile(name=f"{name}.jobset.yaml", text=text),), notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Alike nodes that follow each other; `label` and `value` of the part of the tree that they are in, where that is
    known."""

    nodes: tuple[NodeRanks, ...]
    label: str | None = None
    value: str | None = None


def _runs(layout: Layout, hosts: Sequence[str] | None, tree: PartsOfHosts | None) -> list[_Run]:
    """The runs of alike nodes, cut where the part of the tree changes."""
    if hosts is None or tree is None:
        return [_Run(nodes=part) for part in layout.parts]
    runs, first = [], 0
    for part in layout.parts:
        values = [tree.value_of.get(host) for host in hosts[first : first + len(part)]]
        first += len(part)
        for value, members in groupby(zip(values, part, strict=True), key=lambda member: member[0]):
            nodes = tuple(node for _, node in members)
            runs.append(_Run(nodes=nodes, label=None if value is None else tree.label, value=value))
    return runs


def _run_names(runs: Sequence[_Run]) -> list[str]:
    """Each run's device, numbered from the second run of the same device on."""
    seen: Counter[str] = Counter()
    names = []
    for run in runs:
        device = run.nodes[0].device
        seen[device] += 1
        names.append(device if seen[device] == 1 else f"{device}-{seen[device]}")
    return names


def _replicated_job(
    name: str,
    called: str,
    first_part: str,
    run: _Run,
    first: int,
    layout: Layout,
    context: ExportContext,
    reach: int,
) -> dict[str, Any]:
    """The pods of a run. `first` nodes come before them, `reach` nodes share a replica's tensor parallelism."""
    part = run.nodes
    device, gpus = part[0].device, len(part[0].ranks)
    resource = "amd.com/gpu" if is_amd(device) else "nvidia.com/gpu"
    command, worker_variables = _command(part, first, layout)
    environment = {
        "MASTER_ADDR": f"{name}-{first_part}-0-0.{name}",
        "MASTER_PORT": str(MASTER_PORT),
        "WORLD_SIZE": str(layout.world_size),
        **worker_variables,
        **dict(context.environment),
    }
    pod = {
        "restartPolicy": "Never",
        **_node_selector(run),
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [
            {
                "name": "train",
                "image": IMAGE,
                "command": ["bash", "-c", command, "launch", context.script or PLACEHOLDER],
                "env": [{"name": key, "value": value} for key, value in environment.items()],
                "ports": [{"containerPort": MASTER_PORT}],
                "resources": {"limits": {resource: gpus}},
                "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }
    topology = _topology(len(part), reach) if run.label is None or reach > 1 else {}
    template = {"metadata": {"annotations": topology}, "spec": pod} if topology else {"spec": pod}
    pods = {"parallelism": len(part), "completions": len(part), "completionMode": "Indexed", "backoffLimit": 0}
    return {"name": called, "replicas": 1, "template": {"spec": {**pods, "template": template}}}


def _command(part: tuple[NodeRanks, ...], first: int, layout: Layout) -> tuple[str, dict[str, str]]:
    """What a pod runs, and the variables that only its part has."""
    if layout.node_major:
        command = _TORCHRUN.format(nodes=len(layout.nodes), gpus=len(part[0].ranks))
        return command, {"FIRST_NODE": str(first)}
    return _TASKS, {"RANKS_OF_NODES": ";".join(" ".join(map(str, node.ranks)) for node in part)}


def _node_selector(run: _Run) -> dict[str, Any]:
    """The labels of nodes that fit: the device's, and that of the part of the tree."""
    device, labels = run.nodes[0].device, {}
    if device in PRODUCT_LABELS:
        labels["amd.com/gpu.product-name" if is_amd(device) else "nvidia.com/gpu.product"] = PRODUCT_LABELS[device]
    if run.label is not None and run.value is not None:
        labels[run.label] = run.value
    return {"nodeSelector": labels} if labels else {}


def _topology(nodes: int, reach: int) -> dict[str, str]:
    """Near each other where that is to be had; where tensor parallelism reaches over nodes, each such run of nodes in
    one rack, or all of them where they are no such runs."""
    if nodes == 1:
        return {}
    if reach == 1:
        return {"kueue.x-k8s.io/podset-preferred-topology": BLOCK}
    if nodes % reach or nodes == reach:
        return {"kueue.x-k8s.io/podset-required-topology": RACK}
    return {
        "kueue.x-k8s.io/podset-preferred-topology": BLOCK,
        "kueue.x-k8s.io/podset-slice-required-topology": RACK,
        "kueue.x-k8s.io/podset-slice-size": str(reach),
    }


def _yaml(manifest: dict[str, Any]) -> str:
    """YAML with keys in the order given, and texts of several lines as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Safe, without anchors."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  (PyYAML's own signature)
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(manifest, Dumper=Dumper, sort_keys=False, width=120)


def _tree_notes(tree: PartsOfHosts, runs: Sequence[_Run], context: ExportContext) -> list[str]:
    """What Kubernetes does not promise of a plan in parts of a tree, and what that costs."""
    parts = len({run.value for run in runs})
    notes = [
        f"{len(runs)} replicated jobs, one for each run of ranks in one {tree.level} ({parts} in all), by the label"
        f" {tree.label}",
        f"which nodes of a {tree.level} a run gets, and their order, is not promised: with ranks by name inside each"
        f" {tree.level} {cost_of_order(context.orders, 'in_parts_s')}",
        "with Kueue's topology request alone, which keeps no order of ranks but that of names,"
        f" {cost_of_order(context.orders, 'by_name_s')}",
    ]
    if not tree.known_label:
        notes.insert(1, f"{tree.label} is ours: `cellplan hardware topology --to kueue` prints what labels the nodes")
    return notes


def _notes(plan: Plan, context: ExportContext, layout: Layout, reach: int, runs: Sequence[_Run]) -> tuple[str, ...]:
    notes = [
        *script_note(context.script),
        f"{IMAGE} stands for your image, {QUEUE} for your LocalQueue of Kueue",
        "CPUs, memory and network devices (rdma/...) beside the GPUs are the cluster's: add them to resources.limits",
    ]
    if any(len(run.nodes) > 1 and (run.label is None or reach > 1) for run in runs):
        levels = f"{BLOCK} and {RACK} are" if reach > 1 else f"{BLOCK} is"
        notes.append(f"{levels} the example of Kueue's documentation: put the levels of your Topology in place")
    unknown = sorted({node.device for node in layout.nodes if node.device not in PRODUCT_LABELS})
    if unknown:
        notes.append(f"no node label is known for {', '.join(unknown)}: add a nodeSelector that finds such nodes")
    if not takes_whole_nodes(plan):
        notes.append("several pods may come to share a node, which the plan has on nodes of their own")
    if len(runs) > 1 and any(run.label is None for run in runs):
        notes.append("Kueue places each replicated job by itself: how near one is to the next is not asked for")
    if not layout.node_major:
        notes.append("ranks do not follow the nodes: a process for each GPU in place of torchrun")
    return (*notes, *device_notes(plan, layout, "Kubernetes"))
