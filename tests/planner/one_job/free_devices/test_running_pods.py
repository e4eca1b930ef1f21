"""Pods that hold GPUs, as jobs that run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.one_job.free_devices.running_jobs import read_running
from profiles.errors import InputError


def pod(name: str, node: str | None, gpus: int, **more: Any) -> dict[str, Any]:
    """A pod of Kubernetes; `owner`: a controller starts it anew."""
    meta: dict[str, Any] = {"name": name, "namespace": more.get("namespace", "default")}
    if more.get("owner", True):
        meta["ownerReferences"] = [{"kind": "Job", "name": "j", "controller": True}]
    if "safe" in more:
        meta["annotations"] = {"cluster-autoscaler.kubernetes.io/safe-to-evict": more["safe"]}
    spec: dict[str, Any] = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}
    spec |= {"nodeName": node} if node else {}
    spec |= {"activeDeadlineSeconds": more["deadline"]} if "deadline" in more else {}
    status = {"phase": more.get("phase", "Running"), "startTime": more.get("start", "2026-05-01T12:00:00Z")}
    return {"kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def written(folder: Path, *items: dict[str, Any]) -> Path:
    """The List of these pods in a file."""
    path = folder / "pods.json"
    path.write_text(json.dumps({"kind": "List", "items": list(items)}), encoding="utf-8")
    return path


def test_bound_pods_that_want_gpus_are_jobs(tmp_path: Path) -> None:
    node = {"kind": "Node", "metadata": {"name": "n1"}}
    told = read_running(
        written(
            tmp_path,
            node,
            pod("a", "n1", 2, deadline=3600),
            pod("b", "n1", 3, namespace="team", owner=False),
            pod("c", "n2", 1, safe="false"),
            pod("waits", None, 8),
            pod("over", "n1", 8, phase="Succeeded"),
            pod("no-gpu", "n1", 0),
        )
    )
    first, second, third = told.jobs
    assert (first.job, first.hosts, first.count_on("n1"), first.gpus_on("n1")) == ("a", ("n1",), 2, None)
    assert first.start_s is not None
    assert first.limit_s == first.start_s + 3600
    assert (second.job, second.movable, second.limit_s) == ("team/b", False, None)
    assert (first.movable, third.movable) == (True, False)


@pytest.mark.parametrize(
    ("items", "match"),
    [
        ([pod("a", "n1", 1), pod("a", "n2", 1)], "found a twice, expected each pod once"),
        ([pod("a", "n1", 1, start="noon")], "status.startTime: found 'noon', expected a time"),
        ([pod("a", "n1", 1, deadline=-1)], "activeDeadlineSeconds"),
    ],
)
def test_wrong_pods_are_refused(tmp_path: Path, items: list[dict[str, Any]], match: str) -> None:
    with pytest.raises(InputError, match=match):
        read_running(written(tmp_path, *items))


def test_json_that_is_neither_says_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"squeue --json has, or the List of `kubectl get pods"):
        read_running(tmp_path / "x.json")
