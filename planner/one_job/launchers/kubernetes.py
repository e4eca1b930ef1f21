"""A plan as a Kubernetes JobSet that Kueue admits.

Each node of the plan is a pod, each run of alike nodes a replicated job of its own, and the pods' headless service
gives torchrun its rendezvous. Fields are those of jobset.x-k8s.io/v1alpha2 (JobSet,
api/jobset/v1alpha2/jobset_types.go at commit 0336a8f) and of batch/v1 and core/v1 (Kubernetes 1.37); queue label and
topology annotations those of Kueue (apis/kueue/v1beta2/topology_types.go at commit 046d2ef, site/content/en/docs).
torchrun's arguments are those of torch.distributed.run 2.5.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from planner.one_job.launchers.gpu_names import PRODUCT_LABELS, is_amd
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
    parts = _part_names(layout)
    reach = nodes_of_tp(plan, layout)
    first = 0
    jobs = []
    for part, called in zip(layout.parts, parts, strict=True):
        jobs.append(_replicated_job(name, called, parts[0], part, first, layout, context, reach))
        first += len(part)
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
    notes = _notes(plan, context, layout, reach)
    return Export(files=(ExportFile(name=f"{name}.jobset.yaml", text=text),), notes=notes)


def _part_names(layout: Layout) -> list[str]:
    """Each part's device, numbered from the second part of the same device on."""
    seen: Counter[str] = Counter()
    names = []
    for part in layout.parts:
        device = part[0].device
        seen[device] += 1
        names.append(device if seen[device] == 1 else f"{device}-{seen[device]}")
    return names


def _replicated_job(
    name: str,
    called: str,
    first_part: str,
    part: tuple[NodeRanks, ...],
    first: int,
    layout: Layout,
    context: ExportContext,
    reach: int,
) -> dict[str, Any]:
    """The pods of alike nodes. `first` nodes come before them, `reach` nodes share a replica's tensor parallelism."""
    device, gpus = part[0].device, len(part[0].ranks)
    resource = "amd.com/gpu" if is_amd(device) else "nvidia.com/gpu"
    command, worker_variables = _command(part, first, layout)
    environment = {
        "MASTER_ADDR": f"{name}-{first_part}-0-0.{name}",
        "MASTER_PORT": str(MASTER_PORT),
        "WORLD_SIZE": str(layout.world_size),
        **worker_variables,
    }
    pod = {
        "restartPolicy": "Never",
        **_node_selector(device),
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
    topology = _topology(len(part), reach)
    template = {"metadata": {"annotations": topology}, "spec": pod} if topology else {"spec": pod}
    pods = {"parallelism": len(part), "completions": len(part), "completionMode": "Indexed", "backoffLimit": 0}
    return {"name": called, "replicas": 1, "template": {"spec": {**pods, "template": template}}}


def _command(part: tuple[NodeRanks, ...], first: int, layout: Layout) -> tuple[str, dict[str, str]]:
    """What a pod runs, and the variables that only its part has."""
    if layout.node_major:
        command = _TORCHRUN.format(nodes=len(layout.nodes), gpus=len(part[0].ranks))
        return command, {"FIRST_NODE": str(first)}
    return _TASKS, {"RANKS_OF_NODES": ";".join(" ".join(map(str, node.ranks)) for node in part)}


def _node_selector(device: str) -> dict[str, Any]:
    if device not in PRODUCT_LABELS:
        return {}
    label = "amd.com/gpu.product-name" if is_amd(device) else "nvidia.com/gpu.product"
    return {"nodeSelector": {label: PRODUCT_LABELS[device]}}


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


def _notes(plan: Plan, context: ExportContext, layout: Layout, reach: int) -> tuple[str, ...]:
    notes = [
        *script_note(context.script),
        f"{IMAGE} stands for your image, {QUEUE} for your LocalQueue of Kueue",
        "CPUs, memory and network devices (rdma/...) beside the GPUs are the cluster's: add them to resources.limits",
    ]
    if any(len(part) > 1 for part in layout.parts):
        levels = f"{BLOCK} and {RACK} are" if reach > 1 else f"{BLOCK} is"
        notes.append(f"{levels} the example of Kueue's documentation: put the levels of your Topology in place")
    unknown = sorted({node.device for node in layout.nodes if node.device not in PRODUCT_LABELS})
    if unknown:
        notes.append(f"no node label is known for {', '.join(unknown)}: add a nodeSelector that finds such nodes")
    if not takes_whole_nodes(plan):
        notes.append("several pods may come to share a node, which the plan has on nodes of their own")
    if len(layout.parts) > 1:
        notes.append("Kueue places each replicated job by itself: how near one is to the next is not asked for")
    if not layout.node_major:
        notes.append("ranks do not follow the nodes: a process for each GPU in place of torchrun")
    return (*notes, *device_notes(plan, layout, "Kubernetes"))
