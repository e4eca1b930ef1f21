"""Alibaba's lingjun tables (github.com/alibaba/alibaba-lingjun-dataset-2023; Cao et al., "Crux: GPU-Efficient
Communication Scheduling for Deep Learning Training", SIGCOMM 2024, section 2.2): CSV with a header,

    job.csv     id, uid, job_name, kind, namespace, model, status, ..., user_id, ..., gmt_job_submitted,
                gmt_job_running, gmt_job_stopped, gmt_job_finished, gmt_created, ..., workspace_id, priority, ...
    worker.csv  id, job_name, worker_name, replica_type, host_ip, gmt_created, gmt_pod_running, gmt_pod_finished, RES
    topo.csv    ip, DSW, PSW, ASW (a tree of hosts: `--topology` reads it)

Times are local dates by the minute, 2023/7/15 00:47. `RES` is JSON, {"cpu": "96", "memory": "1600Gi",
"nvidia.com/gpu": "8"}, of one worker. The path may be of `job.csv` or of the folder that holds both; columns that are
not named here are not read.

A job's GPUs are the sum over its workers, its hosts theirs: the master's first, then by the workers' numbers, which is
the order of the ranks. A worker that stands there twice was started anew, and counts with its last row. It ran from
`gmt_job_running` to `gmt_job_finished` (else `gmt_job_stopped`), and waited from `gmt_job_submitted` (else
`gmt_created`) on; one that ran before it was submitted counts from `gmt_created`, and where that is later too from its
start. `model` (llama_30b, gpt, ...; mostly unknown) is a word, no model of the zoo: it becomes the job's type, by which
`--job-models` says what it stands for. Hosts are those of `topo.csv`; a seventh of them stand in no row there.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from sys import intern
from typing import TextIO

from planner.many_jobs.traces.cells import BadCell, date_s, number, status_of, whole
from planner.many_jobs.traces.collect import NEVER_RAN, NO_GPUS, UNFINISHED, Collector
from planner.many_jobs.traces.lines import Table, open_text
from planner.many_jobs.traces.records import Trace, TraceRow
from profiles.errors import InputError
from profiles.host_lists import HOST_NAMES, is_host_name
from profiles.records import dataclass

REQUIRED = ("job_name", "model", "status", "gmt_job_submitted", "gmt_job_running", "gmt_job_finished")
COLUMNS = (*REQUIRED, "gmt_job_stopped", "gmt_created", "user_id", "workspace_id", "priority")
WORKER_COLUMNS = ("job_name", "worker_name", "replica_type", "host_ip", "RES")
"""In the order in which they are taken apart."""

OF_LINGJUN_ALONE = "gmt_job_running"
"""A column by which `job.csv` is told from other forms."""

GPU = "nvidia.com/gpu"
_DATE = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2}) (\d{1,2}):(\d{2})", re.ASCII)
_BYTES = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGTP]i?)?", re.ASCII)
_STATUS = {"stopped": "cancelled"}
_NO_WORKERS = "has no worker"


@dataclass(slots=True, kw_only=True)
class _Worker:
    """A worker of a job: its place among the ranks, and what it has."""

    place: tuple[bool, int, str]
    host: str
    gpus: float
    cpus: float
    mem_gb: float


def find_tables(path: Path) -> tuple[Path, Path]:
    """Return the table of jobs and that of workers, of a path to the first or to the folder of both; InputError where
    one lacks."""
    folder, name = (path, "job.csv") if path.is_dir() else (path.parent, path.name)
    endings = [name.partition("job.csv")[2]] if not path.is_dir() else ["", ".gz"]
    for ending in endings:
        jobs, workers = folder / f"job.csv{ending}", folder / f"worker.csv{ending}"
        if jobs.exists() and workers.exists():
            return jobs, workers
    expected = "job.csv and worker.csv: one says when a job ran, the other on how many GPUs"
    raise InputError(where=str(path), found="not both tables in that folder", expected=expected)


def read(text: TextIO, into: Collector, *, workers: Path) -> Trace:
    """Return the trace in a table of jobs with the workers in another; InputError where a header, or (unless lenient) a
    line, is wrong."""
    by_job = _read_workers(workers, into)

    def parse(line: int, cells: list[str]) -> None:
        _add(line, cells, by_job, into)

    ignored = Table(text, into, form="csv").each_of(COLUMNS, REQUIRED, parse)
    return into.trace("lingjun", ignored=tuple(name for name in ignored if name))


def _read_workers(path: Path, into: Collector) -> dict[str, dict[str, _Worker]]:
    """The workers of each job by their names; none of one of whose workers a line is wrong."""
    by_job: dict[str, dict[str, _Worker]] = {}
    wrong: set[str] = set()
    notes = Collector(where=str(path), lenient=into.lenient, fractional=into.fractional)

    def parse(line: int, cells: list[str]) -> None:
        del line
        job, worker, kind, host, stated = (cell.strip() for cell in cells)
        if not job or not worker:
            raise BadCell("worker_name" if job else "job_name", "nothing", "a name")
        if host and not is_host_name(host):
            raise BadCell("host_ip", repr(host)[:60], HOST_NAMES)
        workers = by_job.setdefault(job, {})
        try:
            gpus, cpus, mem_gb = _resources(stated)
        except BadCell:
            wrong.add(job)
            raise
        last = worker.rpartition("-")[2]
        place = (kind.lower() != "master", int(last) if last.isdecimal() and len(last) < 10 else 0, worker)
        workers[worker] = _Worker(place=place, host=intern(host), gpus=gpus, cpus=cpus, mem_gb=mem_gb)

    with open_text(path) as text:
        Table(text, notes, form="csv").each_of(WORKER_COLUMNS, WORKER_COLUMNS, parse)
    into.skipped += [(line, f"{reason} ({path.name})") for line, reason in notes.skipped]
    return {job: {} if job in wrong else workers for job, workers in by_job.items()}


def _resources(cell: str) -> tuple[float, float, float]:
    """GPUs, CPU cores and GB of memory of a worker; nothing of one of which nothing is said."""
    if not cell:
        return 0.0, 0.0, 0.0
    try:
        stated = json.loads(cell)
    except (ValueError, RecursionError):
        stated = None
    if not isinstance(stated, dict):
        raise BadCell("RES", repr(cell)[:60], 'JSON such as {"cpu": "96", "memory": "1600Gi", "nvidia.com/gpu": "8"}')
    gpus, cpus = (number(str(stated.get(key, 0)), f"RES.{key}") for key in (GPU, "cpu"))
    return gpus, cpus, _gigabytes(str(stated.get("memory", 0)))


def _gigabytes(text: str) -> float:
    """GB (1e9 bytes) of Kubernetes' quantities: 1600Gi, 512G, or bytes."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise BadCell("RES.memory", repr(text)[:60], "a quantity such as 1600Gi")
    unit = match[2] or ""
    power = " KMGTP".index(unit[0]) if unit else 0
    return float(match[1]) * math.pow(1024 if unit.endswith("i") else 1000, power) / 1e9


def _time_s(cell: str, key: str) -> float | None:
    """Seconds from 1970 to a date like 2023/7/15 00:47; None where there is none."""
    if not cell.strip():
        return None
    match = _DATE.fullmatch(cell.strip())
    if match is None:
        raise BadCell(key, repr(cell)[:60], "a date like 2023/7/15 00:47")
    year, month, day, hour, minute = match.groups()
    return date_s(f"{year}-{month:0>2}-{day:0>2} {hour:0>2}:{minute}", key)


def _add(line: int, cells: list[str], by_job: dict[str, dict[str, _Worker]], into: Collector) -> None:
    name, model, status, submitted, running, finished, stopped, created, user, workspace, priority = (
        cell.strip() for cell in cells
    )
    if not name:
        raise BadCell("job_name", "nothing", "a name")
    if name not in by_job:
        return into.skip(line, _NO_WORKERS)
    if not by_job[name]:
        raise BadCell("job_name", repr(name), "a job all of whose workers can be read")
    workers = sorted(by_job[name].values(), key=lambda worker: worker.place)
    asked = sum(worker.gpus for worker in workers)
    if asked == 0:
        return into.skip(line, NO_GPUS)
    start_s = _time_s(running, "gmt_job_running")
    end_s = _time_s(finished, "gmt_job_finished") or _time_s(stopped, "gmt_job_stopped")
    if start_s is None:
        return into.skip(line, NEVER_RAN)
    if end_s is None or status.lower() == "running":
        return into.skip(line, UNFINISHED)
    if end_s < start_s:
        raise BadCell("gmt_job_finished", repr(finished or stopped), f"a time after gmt_job_running ({running})")
    if end_s == start_s:
        return into.skip(line, NEVER_RAN)
    created_s = _time_s(created, "gmt_created")
    submit_s = _time_s(submitted, "gmt_job_submitted") or created_s or start_s
    if submit_s > start_s:
        submit_s = min(start_s, start_s if created_s is None else created_s)
    return into.add(
        TraceRow(
            line=line,
            job_id=name,
            submit_time_s=into.since_first(submit_s),
            duration_s=end_s - start_s,
            gpus=into.gpus(asked, f"RES.{GPU}"),
            nodes=len({worker.host for worker in workers if worker.gpus and worker.host}) or None,
            cpus=sum(worker.cpus for worker in workers),
            mem_gb=sum(worker.mem_gb for worker in workers),
            user=intern(user),
            vc_or_department=intern(workspace),
            job_type_or_name=intern(model),
            status=intern(_STATUS.get(status_of(status), status_of(status))),
            queue_s=start_s - submit_s,
            priority=whole(priority, "priority", least=0) if priority else None,
            hosts=_hosts(workers),
        )
    )


def _hosts(workers: list[_Worker]) -> tuple[tuple[str, int], ...]:
    """Where the workers sat: hosts in the order of the ranks, each with its GPUs; empty where a worker has no host or
    part of a GPU."""
    if any(worker.gpus and (not worker.host or not worker.gpus.is_integer()) for worker in workers):
        return ()
    counts: Counter[str] = Counter()
    for worker in workers:
        if worker.gpus:
            counts[worker.host] += int(worker.gpus)
    return tuple(counts.items())
