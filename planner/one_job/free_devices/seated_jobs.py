"""Who sits where: the hosts and GPUs of running jobs, by what managers print of them.

`squeue --json` and tables are read as `read_running` reads them; beside them `scontrol show job -d` (Slurm 20.11 and
later: the lines `Nodes=... GRES=gpu:...(IDX:...)` of each job) and `kubectl get pods -o json`. A pod belongs to the job
that its operator's label names; which GPUs of a node it has Kubernetes does not say.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.one_job.free_devices.kubernetes import pods_with_gpus
from planner.one_job.free_devices.nodes import gpu_indices
from planner.one_job.free_devices.running_jobs import HOLDING, LONGEST_NAME, NO_END, read_running
from planner.one_job.free_devices.running_records import RunningJob
from planner.one_job.free_devices.schema import Pod
from profiles.errors import InputError
from profiles.files import parse_json, read_text
from profiles.host_lists import expand_hosts
from profiles.limits import LIMITS
from profiles.records import dataclass

JOB_LABELS = (
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
RANK_LABELS = (
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
    "volcano.sh/task-index",
)
FIRST_FREE = "which GPUs of a node a pod has is not said: each has the first that the pods before it leave"


@dataclass(frozen=True, kw_only=True)
class SeatedJobs:
    """Running jobs by their ids, with their hosts and GPUs in the order of their ranks, and what was assumed."""

    jobs: Mapping[str, RunningJob]
    notes: tuple[str, ...] = ()


def read_seated(path: Path) -> SeatedJobs:
    """Return who sits where by the file at `path`. Raise InputError for what is none of these formats, or names a job
    that none can be."""
    where, text = str(path), read_text(path)
    if text.lstrip().startswith("JobId="):
        return SeatedJobs(jobs={job.job: job for job in _of_scontrol(text, where)})
    if text.lstrip().startswith("{"):
        data = parse_json(text, where=where)
        if isinstance(data, dict) and "jobs" not in data:
            return _of_pods(data, where)
    return SeatedJobs(jobs={job.job: job for job in read_running(path).jobs})


def _of_scontrol(text: str, where: str) -> Iterator[RunningJob]:
    blocks = [block for block in re.split(r"(?m)^\s*(?=JobId=)", text) if block.strip()]
    LIMITS.jobs.check(len(blocks), where=where)
    for block in blocks:
        fields = dict(re.findall(r"(?m)(?:^|\s)(\w+)=(\S*)", block.partition("Nodes=")[0]))
        job = fields.get("JobId", "")
        if not re.fullmatch(r"\d{1,12}", job, re.ASCII):
            raise InputError(where=where, key="JobId", found=repr(job[:60]), expected="a whole number")
        hosts_text = fields.get("NodeList", "")
        if fields.get("JobState", "").lower() not in HOLDING or hosts_text.lower() in NO_END:
            continue
        hosts = expand_hosts(hosts_text, where, f"job {job}: NodeList")
        yield RunningJob(job=job, hosts=hosts, limit_s=None, gpus=_gpus_of_block(block, hosts, where, job))


def _gpus_of_block(block: str, hosts: Sequence[str], where: str, job: str) -> tuple[tuple[int, ...], ...]:
    """The indices on each host; empty where a host has no line that says them."""
    key, indices = f"job {job}: GRES", dict[str, tuple[int, ...]]()
    for names, gres in re.findall(r"(?m)^\s*Nodes=(\S+)\s.*?GRES=(\S*)", block):
        lists = re.findall(r"gpu(?::[^(),]*)?\(IDX:([\d,-]+)\)", gres)
        if lists:
            held = gpu_indices(",".join(lists), None, where, key)
            indices |= dict.fromkeys(expand_hosts(names, where, f"job {job}: Nodes"), held)
    return tuple(indices[host] for host in hosts) if set(hosts) <= indices.keys() else ()


def _of_pods(data: Mapping[str, Any], where: str) -> SeatedJobs:
    pods = [(pod, count) for _, pod, count in pods_with_gpus(data, where)]
    if not pods:
        expected = "squeue --json, or kubectl get pods -o json with pods that have GPUs"
        raise InputError(where=where, found="no job and no pod that holds a GPU", expected=expected)
    places: defaultdict[str, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    given: defaultdict[str, int] = defaultdict(int)
    for pod, count in sorted(pods, key=lambda each: (_job_of(each[0]), _rank_of(each[0]), each[0].metadata.name)):
        node = str(pod.spec.nodeName)
        places[_job_of(pod)].append((node, tuple(range(given[node], given[node] + count))))
        given[node] += count
    jobs = {}
    for job, held in places.items():
        if not 0 < len(job) <= LONGEST_NAME or not job.isprintable():
            raise InputError(where=where, key="metadata", found=repr(job[:60]), expected="a job's name")
        on: dict[str, tuple[int, ...]] = {}
        for node, indices in held:
            on[node] = on.get(node, ()) + indices
        jobs[job] = RunningJob(job=job, hosts=tuple(on), limit_s=None, gpus=tuple(on.values()))
    return SeatedJobs(jobs=jobs, notes=(FIRST_FREE,))


def _job_of(pod: Pod) -> str:
    labels = pod.metadata.labels or {}
    return next((labels[label] for label in JOB_LABELS if labels.get(label)), pod.metadata.name)


def _rank_of(pod: Pod) -> int:
    labels = pod.metadata.labels or {}
    said = next((labels[label] for label in RANK_LABELS if labels.get(label)), "")
    return int(said) if re.fullmatch(r"\d{1,9}", said, re.ASCII) else 0
