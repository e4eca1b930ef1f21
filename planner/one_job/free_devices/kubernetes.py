"""Kubernetes' word on its nodes: `kubectl get nodes -o json`, and the pods that take GPUs of them.

`kubectl get nodes,pods -A -o json` has both in one List. A node's GPUs are `status.allocatable` of the device plugins'
resources (nvidia.com/gpu, amd.com/gpu), what is taken the requests of the pods bound to it that have not ended
(Kubernetes 1.31: Node, Pod; "Schedule GPUs"). Its type is the label that NVIDIA's GPU feature discovery, AMD's node
labeller, or Google's or Amazon's node pools put on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.one_job.free_devices.nodes import FreeNode, FreeNodes, all_free_nodes, device_type, is_slice
from planner.one_job.free_devices.schema import Container, KubernetesNode, Pod
from profiles.errors import InputError
from profiles.limits import LIMITS
from profiles.schema import validate

RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
"""What device plugins call a whole GPU. A taint of that key keeps off only pods that want none."""

TYPE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-gpu-name",
)

NO_PODS = (
    "no pods in the file: all GPUs of nodes that are ready count as free"
    " (kubectl get nodes,pods -A -o json says what is taken)"
)

_PARTS = re.compile(r"(nvidia|amd)\.com/(mig-.+|gpu\.shared)")
_ENDED = {"Succeeded", "Failed"}
_KEEPS_OFF = {"NoSchedule", "NoExecute"}


def read_kubernetes(
    data: Mapping[str, Any], where: str, pods: tuple[Mapping[str, Any], str] | None = None
) -> FreeNodes:
    """The nodes of a List (or of one Node), less what its pods request, and those of the List `pods` (it and its
    file). InputError names item and key."""
    items = _items(data, where)
    told = _of_kind(items, "Pod") + (_of_kind(_items(*pods), "Pod") if pods else [])
    stated = _of_kind(items, "Node")
    LIMITS.nodes.check(len(stated), where=where, key="items")
    nodes = [validate(KubernetesNode, item, where=at) for at, item in stated]
    if not nodes:
        kinds = ", ".join(sorted({str(item.get("kind")) for _, item in items})) or "no item"
        expected = "nodes, as `kubectl get nodes -o json` has them"
        raise InputError(where=where, key="items", found=kinds, expected=expected)
    twice = next((name for name, times in Counter(node.metadata.name for node in nodes).items() if times > 1), None)
    if twice is not None:
        raise InputError(where=where, key=f"node {twice}", found="it twice", expected="each node once")
    taken = _requests([(at, validate(Pod, item, where=at)) for at, item in told])
    free_nodes: list[FreeNode] = []
    barred: list[str] = []
    left_out: list[str] = []
    without = 0
    for node in nodes:
        gpus, parts = _offered(node, where)
        name, said = node.metadata.name, _type_label(node)
        left_out += [f"{name} ({part})" for part in parts]
        if gpus and is_slice(said):
            left_out.append(f"{name} ({said})")
            continue
        without += not gpus
        why = _why_barred(node)
        barred += [f"{name} ({why})"] if why and gpus else []
        free_nodes += [
            FreeNode(
                name=name,
                device=device_type(said) if said else "",
                said=said,
                devices=count,
                free=0 if why else max(0, count - taken[name, resource]),
                barred=why is not None,
            )
            for resource, count in gpus.items()
        ]
    return all_free_nodes(
        free_nodes,
        ((barred, "not free"), (left_out, "slices of GPUs and shared ones are left out")),
        without=without,
        where=where,
        expected=f"{' or '.join(RESOURCES)} in some node's status.allocatable",
        more=() if told or pods else (NO_PODS,),
    )


def _items(data: Mapping[str, Any], where: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Each object of a List, with where it stands."""
    if data.get("kind") in ("Node", "Pod"):
        return [(where, data)]
    items = data.get("items")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        stated = "nothing" if items is None else f"{type(items).__name__} {str(items)[:40]}"
        expected = "a list of objects, as `kubectl get -o json` has it"
        raise InputError(where=where, key="items", found=stated, expected=expected)
    return [(f"{where}, items[{number}]", item) for number, item in enumerate(items)]


def _of_kind(items: Sequence[tuple[str, Mapping[str, Any]]], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(at, item) for at, item in items if item.get("kind") == kind]


def _offered(node: KubernetesNode, where: str) -> tuple[dict[str, int], list[str]]:
    """A node's whole GPUs by resource, and the resources that are parts of GPUs."""
    allocatable = node.status.allocatable
    key = f"node {node.metadata.name}: status.allocatable"
    counts = {
        resource_name: _count(allocatable[resource_name], where, f"{key}.{resource_name}")
        for resource_name in RESOURCES
        if resource_name in allocatable
    }
    parts = [
        resource_name
        for resource_name, count in allocatable.items()
        if _PARTS.fullmatch(resource_name) and str(count) != "0"
    ]
    return {resource: count for resource, count in counts.items() if count}, parts


def _type_label(node: KubernetesNode) -> str:
    labels = node.metadata.labels or {}
    return next((labels[label] for label in TYPE_LABELS if labels.get(label)), "")


def pods_with_gpus(data: Mapping[str, Any], where: str) -> list[tuple[str, Pod, int]]:
    """Return the pods of a List that hold GPUs of a node: where each stands, the pod, and how many. Raise InputError
    with item and key for what is no pod, and for more pods than jobs can be."""
    items = _of_kind(_items(data, where), "Pod")
    LIMITS.jobs.check(len(items), where=where, key="items")
    pods = [(at, validate(Pod, item, where=at)) for at, item in items]
    counted = ((at, pod, sum(requested(pod, resource, at) for resource in RESOURCES)) for at, pod in pods)
    return [(at, pod, count) for at, pod, count in counted if count]


def _requests(pods: Iterable[tuple[str, Pod]]) -> Counter[tuple[str, str]]:
    """GPUs taken by (node, resource)."""
    taken: Counter[tuple[str, str]] = Counter()
    for at, pod in pods:
        for resource in RESOURCES:
            if wanted := requested(pod, resource, at):
                taken[pod.spec.nodeName or "", resource] += wanted
    return taken


def requested(pod: Pod, resource: str, where: str) -> int:
    """Return how many GPUs a pod takes of its node, what its containers take together or one init container alone: 0
    where it is on none, or has ended."""
    if not pod.spec.nodeName or pod.status.phase in _ENDED:
        return 0
    first = [
        (container.restartPolicy, _wanted(container, resource, where)) for container in pod.spec.initContainers or ()
    ]
    beside = sum(_wanted(container, resource, where) for container in pod.spec.containers)
    beside += sum(count for policy, count in first if policy == "Always")
    return max([beside, *(count for _, count in first)])


def _wanted(container: Container, resource: str, where: str) -> int:
    for part, amounts in (("requests", container.resources.requests), ("limits", container.resources.limits)):
        if amounts and resource in amounts:
            return _count(amounts[resource], where, f"resources.{part}.{resource}")
    return 0


def _why_barred(node: KubernetesNode) -> str | None:
    """What keeps a GPU job off a node: cordoned, not ready, or a taint; None where nothing does."""
    if node.spec.unschedulable:
        return "cordoned"
    if ("Ready", "True") not in [(condition.type, condition.status) for condition in node.status.conditions or ()]:
        return "not ready"
    taints = [taint for taint in node.spec.taints or () if taint.effect in _KEEPS_OFF and taint.key not in RESOURCES]
    return f"taint {taints[0].key}:{taints[0].effect}" if taints else None


def _count(value: object, where: str, key: str) -> int:
    """A whole number of GPUs: Kubernetes writes it as text."""
    text = str(value)
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise InputError(where=where, key=key, found=repr(value), expected="a whole number of GPUs")
    return int(text)
