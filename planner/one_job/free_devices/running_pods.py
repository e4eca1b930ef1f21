"""The pods that hold GPUs now, as jobs that run: `kubectl get pods -A -o json`, or nodes and pods in one List.

Each pod is a job of its own, called NAMESPACE/POD (POD in the default namespace). It holds as many GPUs of its node as
it requests: Kubernetes does not say which. It ends `spec.activeDeadlineSeconds` after its start; without one nobody
knows when. It may be moved where something starts it anew (`ownerReferences` with a controller) and the annotation
cluster-autoscaler.kubernetes.io/safe-to-evict does not say false (Kubernetes 1.31: Pod; "API-initiated Eviction").
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from planner.one_job.free_devices.kubernetes import pods_with_gpus
from planner.one_job.free_devices.running_records import RunningJob, RunningJobs
from planner.one_job.free_devices.schema import Pod
from profiles.errors import InputError

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def is_kubernetes(data: Mapping[str, Any]) -> bool:
    """Return whether a file's JSON is kubectl's."""
    return "items" in data or data.get("kind") == "Pod"


def running_pods(data: Mapping[str, Any], where: str) -> RunningJobs:
    """Return the pods of a List that are bound to a node, have not ended and request GPUs. Raise InputError with the
    item and key for what is no pod, and for a pod that is there twice."""
    jobs: dict[str, RunningJob] = {}
    for at, pod, devices in pods_with_gpus(data, where):
        job = _job(pod, devices, at)
        if job.job in jobs:
            raise InputError(where=at, key="metadata.name", found=f"{job.job} twice", expected="each pod once")
        jobs[job.job] = job
    return RunningJobs(jobs=tuple(jobs.values()), written_s=None)


def _job(pod: Pod, devices: int, where: str) -> RunningJob:
    assert pod.spec.nodeName is not None, "it requests GPUs of a node"
    meta, start_s = pod.metadata, _time_s(pod.status.startTime, where)
    namespace = meta.namespace or "default"
    deadline_s = pod.spec.activeDeadlineSeconds
    restarts = any(owner.controller for owner in meta.ownerReferences or ())
    return RunningJob(
        job=meta.name if namespace == "default" else f"{namespace}/{meta.name}",
        hosts=(pod.spec.nodeName,),
        limit_s=None if deadline_s is None or start_s is None else start_s + deadline_s,
        start_s=start_s,
        counts=(devices,),
        movable=restarts and (meta.annotations or {}).get(SAFE_TO_EVICT) != "false",
        name=meta.name,
    )


def _time_s(text: str | None, where: str) -> float | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        expected = "a time such as 2026-05-01T12:00:00Z"
        raise InputError(where=where, key="status.startTime", found=repr(text[:60]), expected=expected) from None
