"""Alibaba PAI's tables (github.com/alibaba/clusterdata, cluster-trace-gpu-v2020): CSV without a header.

    pai_task_table.csv  job_name, task_name, inst_num, status, start_time, end_time, plan_cpu, plan_mem, plan_gpu,
                        gpu_type
    pai_job_table.csv   job_name, inst_id, user, status, start_time, end_time

`plan_cpu` and `plan_gpu` are percent (50.0 is half a GPU) and `plan_mem` is GB, each of ONE of the task's `inst_num`
instances. Times are seconds, moved by a constant that keeps day of week and time of day in UTC+8.

A job is all tasks of one name: its GPUs are their sum over instances, rounded up once for the job. The path may be of
either table or of the folder that holds both. The task table is needed. Where the job table stands beside it, a job
was submitted at its job's `start_time` (which is what that table calls the submission) and has a user; else it was
submitted when its first task started, and has none. It ran from its first task's start to its last task's end.
`gpu_type` T4, P100, V100 (16 GB) and V100M32 (32 GB) become names of our catalogue; MISC says nothing.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from sys import intern
from typing import TextIO

from planner.many_jobs.traces.cells import BLANK, BadCell, number, status_of
from planner.many_jobs.traces.collect import NEVER_RAN, NO_GPUS, UNFINISHED, Collector
from planner.many_jobs.traces.lines import Table, open_text
from planner.many_jobs.traces.records import Trace, TraceRow
from profiles.errors import InputError
from profiles.records import dataclass

TASK_COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
JOB_COLUMNS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
DEVICES = {"T4": "t4", "P100": "p100", "V100": "v100-16gb", "V100M32": "v100-32gb", "MISC": ""}

_UTC_8_S = 8 * 3600.0
_STATUS = {"terminated": "completed"}


@dataclass(slots=True)
class _Job:
    """What the tasks of a job add up to."""

    line: int
    tasks: list[str] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    gpus: float = 0.0
    cpus: float = 0.0
    mem_gb: float = 0.0
    by_device: dict[str, float] = field(default_factory=dict)
    unfinished: bool = False
    malformed: bool = False


@dataclass(frozen=True, slots=True)
class _Submitted:
    submit_s: float | None
    user: str
    status: str


def find_tables(path: Path) -> tuple[Path, Path | None]:
    """The task table, and the job table where there is one, of a path to either or to their folder; InputError where
    there is no task table."""
    folder, ending = (path, "") if path.is_dir() else (path.parent, "")
    if not path.is_dir():
        if "job_table" not in path.name:
            beside = path.with_name(path.name.replace("task_table", "job_table"))
            return path, beside if beside != path and beside.exists() else None
        ending = path.name.partition("job_table")[2]
    for end in [ending] if ending else [".csv", ".csv.gz"]:
        tasks, jobs = folder / f"pai_task_table{end}", folder / f"pai_job_table{end}"
        if tasks.exists():
            return tasks, jobs if jobs.exists() else None
    raise InputError(
        where=str(path), found="no pai_task_table.csv in that folder", expected="it: it says how many GPUs a job has"
    )


def read(text: TextIO, into: Collector, *, jobs: Path | None) -> Trace:
    """The trace in a task table, with what the job table at `jobs` adds; InputError where (unless lenient) a line is
    wrong."""
    by_name: dict[str, _Job] = {}
    table = Table(text, into, form="csv")

    def parse(line: int, cells: list[str]) -> None:
        if line == 1 and tuple(cells) == TASK_COLUMNS:
            return
        name = cells[0].strip()
        if not name:
            raise BadCell("job_name", "nothing", "a name")
        job = by_name.setdefault(name, _Job(line))
        try:
            _add_task(job, cells)
        except BadCell:
            job.malformed = True
            raise

    table.each(len(TASK_COLUMNS), parse, wanted="of a pai_task_table")
    submitted = _read_jobs(jobs, into) if jobs is not None else {}
    for name, job in by_name.items():
        if not job.malformed:
            _add(name, job, submitted.get(name), into)
    return into.trace("pai")


def _add_task(job: _Job, cells: list[str]) -> None:
    _, task, instances, status, start, end, cpu, mem, gpu, device = (
        "" if cell in BLANK else cell.strip() for cell in cells
    )
    if task in job.tasks:
        raise BadCell("task_name", f"{task!r} again (the job's first line is {job.line})", "each task of a job once")
    job.tasks.append(task)
    count = number(instances, "inst_num")
    if gpu:
        gpus = count * number(gpu, "plan_gpu") / 100
        job.gpus += gpus
        job.by_device[device] = job.by_device.get(device, 0.0) + gpus
    job.cpus += count * number(cpu, "plan_cpu") / 100 if cpu else 0.0
    job.mem_gb += count * number(mem, "plan_mem") if mem else 0.0
    job.statuses.append(status_of(status))
    start_s = number(start, "start_time") if start else 0.0
    end_s = number(end, "end_time") if end else 0.0
    if start_s:
        job.starts_s.append(start_s)
    if not end_s or job.statuses[-1] in ("running", "waiting"):
        job.unfinished = True
    elif start_s and end_s < start_s:
        raise BadCell("end_time", repr(end), f"a time after start_time ({start})")
    else:
        job.ends_s.append(end_s)


def _read_jobs(path: Path, into: Collector) -> dict[str, _Submitted]:
    """When, and by whom, each job was submitted."""
    submitted: dict[str, _Submitted] = {}
    notes = Collector(where=str(path), lenient=into.lenient, fractional=into.fractional)

    def parse(line: int, cells: list[str]) -> None:
        if line == 1 and tuple(cells) == JOB_COLUMNS:
            return
        name, _, user, status, start, _ = ("" if cell in BLANK else cell.strip() for cell in cells)
        if name in submitted:
            raise BadCell("job_name", f"{name!r} again", "each job once")
        submit_s = number(start, "start_time") if start else 0.0
        submitted[name] = _Submitted(submit_s or None, intern(user), status_of(status))

    with open_text(path) as text:
        Table(text, notes, form="csv").each(len(JOB_COLUMNS), parse, wanted="of a pai_job_table")
    into.skipped += [(line, f"{reason} ({path.name})") for line, reason in notes.skipped]
    return submitted


def _add(name: str, job: _Job, submitted: _Submitted | None, into: Collector) -> None:
    if job.gpus == 0:
        return into.skip(job.line, NO_GPUS)
    if not job.starts_s:
        return into.skip(job.line, NEVER_RAN)
    if job.unfinished:
        return into.skip(job.line, UNFINISHED)
    start_s = min(job.starts_s)
    duration_s = max(job.ends_s) - start_s
    if duration_s <= 0:
        return into.skip(job.line, NEVER_RAN)
    submit_s = submitted.submit_s if submitted is not None else None
    gpu_type = max(sorted(job.by_device), key=lambda device: job.by_device[device])
    status = submitted.status if submitted is not None and submitted.status else _worst(job.statuses)
    try:
        gpus = into.gpus(job.gpus, "plan_gpu")
    except BadCell as bad:
        return into.malformed(job.line, bad)
    return into.add(
        TraceRow(
            line=job.line,
            job_id=name,
            submit_time_s=into.since_first((start_s if submit_s is None else submit_s) + _UTC_8_S),
            duration_s=duration_s,
            gpus=gpus,
            cpus=job.cpus,
            mem_gb=job.mem_gb,
            user=submitted.user if submitted is not None else "",
            job_type_or_name=intern("+".join(job.tasks)),
            status=intern(_STATUS.get(status, status)),
            queue_s=start_s - submit_s if submit_s is not None and start_s >= submit_s else None,
            device=intern(DEVICES.get(gpu_type, gpu_type.lower())),
        )
    )


def _worst(statuses: list[str]) -> str:
    """Failed where a task failed; else the first task's."""
    return "failed" if "failed" in statuses else statuses[0]
