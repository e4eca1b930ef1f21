"""What Slurm's `sacct` prints with `-P` (or `-p`): a header and cells between `|`. A good call is

    sacct -a -X -P -S 2024-01-01 -E now --format=JobID,JobName,User,Account,Partition,State,Submit,Start,End,\
ElapsedRaw,NNodes,AllocCPUS,ReqTRES,AllocTRES,Priority

Needed are JobID, Submit, Start, State, one of AllocTRES and ReqTRES, and one of ElapsedRaw, Elapsed and End.

    GPUs      `gres/gpu=8` of AllocTRES, else of ReqTRES; without it the sum of `gres/gpu:a100=8` and its like
    device    the type that most of the GPUs are of, where a type is written
    duration  ElapsedRaw (seconds), else Elapsed ([days-]hours:minutes:seconds), else End - Start
    queue     Start - Submit
    quota     Account, else Partition, is `vc_or_department`
    memory    `mem=512G` of the TRES, Slurm's G being 2^30

Job steps (`123.batch`, `123.extern`, `123.0`) are skipped: their job stands in a line of its own. Each element of an
array (`123_4`) and of a heterogeneous job (`123+1`) is a job. What never started, runs still, or has no GPU is skipped.
Where `sacct` was called with `--duplicates`, a requeued job stands there twice, which is an error. Times are local;
an hour lost or won by summer time is not put right.
"""

from __future__ import annotations

import re
from sys import intern
from typing import TextIO

from planner.many_jobs.traces.cells import BLANK, BadCell, any_whole, date_s, number, size_gb, span_s, status_of
from planner.many_jobs.traces.collect import NEVER_RAN, NO_GPUS, UNFINISHED, Collector
from planner.many_jobs.traces.lines import Table
from planner.many_jobs.traces.records import Trace, TraceRow

REQUIRED = ("JobID", "State", "Submit", "Start")
_ONE_OF = (("AllocTRES", "ReqTRES"), ("ElapsedRaw", "Elapsed", "End"))
COLUMNS = (
    *REQUIRED,
    *_ONE_OF[0],
    *_ONE_OF[1],
    "JobName",
    "User",
    "Account",
    "Partition",
    "NNodes",
    "AllocCPUS",
    "NCPUS",
    "Priority",
)
STEP = "a step of a job"

_RUNNING = frozenset({"pending", "running", "suspended", "requeued", "requeue_hold", "resizing", "completing"})
_STATES = {"out_of_memory": "failed", "boot_fail": "node_fail", "out_of_me": "failed"}
_GPU = re.compile(r"gres/gpu(?::([^=]+))?=(.*)")


def read(text: TextIO, into: Collector) -> Trace:
    """The trace; InputError where its header, or (unless lenient) a line, is wrong."""
    table = Table(text, into, form="pipes")
    places = table.read_header(COLUMNS, REQUIRED)
    for names in _ONE_OF:
        if not any(name in places for name in names):
            into.refuse(f"none of {', '.join(names)} in the header", "one of them", line=1)

    def parse(line: int, cells: list[str]) -> None:
        filled = {name: "" if cells[place] in BLANK else cells[place].strip() for name, place in places.items()}
        _add(line, filled, into)

    table.each(len(table.header), parse, wanted="as the header has; is there a '|' in a job's name?")
    ignored = tuple(name for name in table.header if name and name not in places)
    return into.trace("sacct", ignored=ignored)


def _add(line: int, filled: dict[str, str], into: Collector) -> None:
    job_id = filled["JobID"]
    if not job_id:
        raise BadCell("JobID", "nothing", "an id")
    if "." in job_id:
        return into.skip(line, STEP)
    gpus, device, mem_gb = _resources(filled)
    if gpus == 0:
        return into.skip(line, NO_GPUS)
    submit_s = date_s(filled["Submit"], "Submit")
    status = status_of(filled["State"])
    if not status:
        raise BadCell("State", "nothing", "a state such as COMPLETED")
    if status in _RUNNING:
        return into.skip(line, UNFINISHED)
    if not filled["Start"]:
        return into.skip(line, NEVER_RAN)
    start_s = date_s(filled["Start"], "Start")
    duration_s = _duration(filled, start_s)
    if duration_s == 0:
        return into.skip(line, NEVER_RAN)
    nodes, cpus, priority = (
        filled.get("NNodes"),
        filled.get("AllocCPUS") or filled.get("NCPUS"),
        filled.get("Priority"),
    )
    return into.add(
        TraceRow(
            line=line,
            job_id=job_id,
            submit_time_s=into.since_first(submit_s),
            duration_s=duration_s,
            gpus=into.gpus(gpus, "AllocTRES"),
            nodes=int(number(nodes, "NNodes")) or None if nodes else None,
            cpus=number(cpus, "AllocCPUS") if cpus else None,
            mem_gb=mem_gb,
            user=intern(filled.get("User", "")),
            vc_or_department=intern(filled.get("Account") or filled.get("Partition") or ""),
            job_type_or_name=intern(filled.get("JobName", "")),
            status=intern(_STATES.get(status, status)),
            queue_s=start_s - submit_s if start_s >= submit_s else None,
            device=intern(device),
            priority=any_whole(priority, "Priority") if priority else None,
        )
    )


def _resources(filled: dict[str, str]) -> tuple[float, str, float | None]:
    """GPUs, the type of most of them, and GB of memory, of AllocTRES or else of ReqTRES."""
    for key in _ONE_OF[0]:
        total, typed, mem_gb = 0.0, dict[str, float](), None
        for part in filled.get(key, "").split(","):
            if part.startswith("mem="):
                mem_gb = size_gb(part[4:], key)
            elif match := _GPU.fullmatch(part):
                if match[1]:
                    typed[match[1]] = typed.get(match[1], 0.0) + number(match[2], key)
                else:
                    total += number(match[2], key)
        total = total or sum(typed.values())
        if total:
            return total, max(sorted(typed), key=lambda name: typed[name], default=""), mem_gb
    return 0.0, "", None


def _duration(filled: dict[str, str], start_s: float) -> float:
    if raw := filled.get("ElapsedRaw"):
        return number(raw, "ElapsedRaw")
    if elapsed := filled.get("Elapsed"):
        return span_s(elapsed, "Elapsed")
    end = filled.get("End", "")
    duration_s = date_s(end, "End") - start_s
    if duration_s < 0:
        raise BadCell("End", repr(end), "a time after Start")
    return duration_s
