"""The jobs that run now, which hosts they hold, and when they end: `squeue --json`, kubectl's pods, or a table of job,
hosts and end.

`squeue --json` is read as the data parsers of Slurm 22.05 to 24.11 write it: times as numbers or as objects of `set`,
`infinite` and `number`, states as a text or a list. A job without a time limit has an `end_time` in a year, which is
none. A table has a header of job, hosts, end (or JOBID, NODELIST, END_TIME, as `squeue -o "%i|%N|%e"` prints it) with
commas, bars or semicolons between; `end` is seconds since 1970 or a time such as 2026-05-01T12:00:00, without a zone in
that of this machine, as Slurm prints it. Which GPUs of its hosts a job holds is `gres_detail` of the JSON, and of a
table a column gpus: indices as Slurm writes them (`0-2,7`), those of several hosts in their order with a slash between,
one list for hosts that are alike. Whether it may be moved is `requeue` of the JSON, and a column movable (yes, no);
a column lost has the seconds of work since its last checkpoint. `kubectl get pods -A -o json` is read by
`planner.one_job.free_devices.running_pods`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from planner.one_job.free_devices.nodes import gpu_indices
from planner.one_job.free_devices.running_pods import is_kubernetes, running_pods
from planner.one_job.free_devices.running_records import RunningJob, RunningJobs
from planner.one_job.free_devices.schema import SlurmJob, SlurmJobs, SlurmNumber
from profiles.errors import InputError
from profiles.files import parse_json, read_text, text_lines
from profiles.host_lists import expand_hosts, split_outside_brackets
from profiles.limits import LIMITS
from profiles.schema import validate

HOLDING = {"running", "completing", "configuring", "suspended", "stopped", "signaling", "stage_out", "resizing"}
"""States and flags of jobs that hold nodes (squeue(1), JOB STATE CODES)."""
STOPPED = {"suspended", "stopped"}
NO_VALUE, INFINITE = 0xFFFFFFFE, 0xFFFFFFFF
"""Numbers by which Slurm means none, and no limit (slurm.h: NO_VAL, INFINITE)."""
YEAR_S = 365 * 86_400
COLUMNS = (("job", "jobid", "job_id"), ("hosts", "nodelist", "nodes"), ("end", "end_time"))
MORE_COLUMNS = ("gpus", "movable", "lost")
MOVABLE = {"yes": True, "true": True, "1": True, "": True, "no": False, "false": False, "0": False}
LONGEST_NAME = 253
"""Characters of a job's name: as many as Kubernetes allows."""
JSON_FORMS = "`jobs`, as squeue --json has, or the List of `kubectl get pods -A -o json`"
NO_END = {"", "n/a", "none", "unknown", "unlimited", "(null)"}


def read_running(path: Path) -> RunningJobs:
    """Return the jobs that the file at `path` has running. Raise InputError with the line or the job for what is
    neither `squeue --json` nor pods nor a table of job, hosts and end, and for a job with two ends."""
    where, text = str(path), read_text(path)
    if text.lstrip().startswith("{"):
        data = parse_json(text, where=where)
        told = running_pods(data, where) if is_kubernetes(data) else _of_json(data, where)
    else:
        told = RunningJobs(jobs=tuple(_of_table(text, where)), written_s=None)
    ends: dict[str, float | None] = {}
    for job in told.jobs:
        if ends.setdefault(job.job, job.limit_s) != job.limit_s:
            expected = "one end of each job, however many rows have its hosts"
            raise InputError(where=where, key=f"job {job.job}", found="two ends", expected=expected)
    return told


# JSON


def _of_json(data: Mapping[str, Any], where: str) -> RunningJobs:
    if "jobs" not in data:
        raise InputError(where=where, found=", ".join(list(data)[:6]) or "{}", expected=JSON_FORMS)
    told = validate(SlurmJobs, data, where=where)
    LIMITS.jobs.check(len(told.jobs), where=where)
    jobs = []
    for number, job in enumerate(told.jobs):
        states = {word.lower() for word in ([job.job_state] if isinstance(job.job_state, str) else job.job_state)}
        hosts = _hosts(job, where, f"jobs[{number}].nodes")
        if not states & HOLDING or not hosts:
            continue
        jobs.append(
            RunningJob(
                job=str(job.job_id),
                hosts=hosts,
                limit_s=None if states & STOPPED else _limit_s(job),
                start_s=_number(job.start_time) or None,
                gpus=_gpus_of_details(job.gres_detail or (), hosts, where, f"jobs[{number}].gres_detail"),
                movable=job.requeue is not False,
                submit_s=_number(job.submit_time) or None,
                name=job.name or "",
                user=job.user_name or "",
                partition=job.partition or "",
            )
        )
    return RunningJobs(jobs=tuple(jobs), written_s=_number(told.last_update) or None)


def _hosts(job: SlurmJob, where: str, key: str) -> tuple[str, ...]:
    text = job.nodes or ""
    if not text and job.job_resources is not None:
        listed = job.job_resources.nodes
        text = listed if isinstance(listed, str) else "" if listed is None else listed.list or ""
    return () if text.strip().lower() in NO_END else expand_hosts(text.strip(), where, key)


def _gpus_of_details(details: Sequence[str], hosts: Sequence[str], where: str, key: str) -> tuple[tuple[int, ...], ...]:
    """The indices on each host, from texts such as `gpu:a100:3(IDX:0-2)`, one for each; empty where one says none."""
    found = [re.findall(r"gpu(?::[^(),]*)?\(IDX:([\d,-]+)\)", detail) for detail in details]
    if len(found) != len(hosts) or not all(found):
        return ()
    return tuple(gpu_indices(",".join(texts), None, where, key) for texts in found)


def _limit_s(job: SlurmJob) -> float | None:
    """When its time limit ends the job; None where it has no limit: Slurm then says a year after its start."""
    limit, end_s, start_s = job.time_limit, _number(job.end_time) or None, _number(job.start_time)
    endless = limit.infinite if isinstance(limit, SlurmNumber) else limit == INFINITE
    said = _number(limit) is not None
    if endless or (not said and end_s is not None and start_s is not None and end_s - start_s >= YEAR_S):
        return None
    return end_s


def _number(value: int | SlurmNumber | None) -> float | None:
    """A number of Slurm's; None for one that is not set, or infinite."""
    if isinstance(value, SlurmNumber):
        return float(value.number) if value.set and not value.infinite and value.number is not None else None
    return None if value is None or value >= NO_VALUE else float(value)


# A table


def _of_table(text: str, where: str) -> Iterator[RunningJob]:
    lines = [(number, line) for number, line in enumerate(text_lines(text, where=where), 1) if line.strip()]
    LIMITS.jobs.check(len(lines) - 1, where=where)
    bar = next((mark for mark in "|;\t" if lines and mark in lines[0][1]), ",")
    header = [name.strip().lower() for name in lines[0][1].split(bar)] if lines else []
    places = [next((header.index(name) for name in names if name in header), None) for names in COLUMNS]
    once = all(sum(name in header for name in names) == 1 for names in COLUMNS) and len(set(header)) == len(header)
    if not lines or not once:
        expected = '`squeue --json`, or a header job,hosts,end, each once (or of squeue -o "%i|%N|%e")'
        raise InputError(where=f"{where}, line 1", found=lines[0][1][:60] if lines else "nothing", expected=expected)
    for number, line in lines[1:]:
        at = f"{where}, line {number}"
        try:
            cells = _cells(line, bar, len(header))
        except csv.Error as error:
            raise InputError(where=at, found=str(error), expected=f"values of {', '.join(header)}") from None
        if len(cells) != len(header):
            expected = f"{len(header)} ({', '.join(header)}), host lists with commas in quotes"
            raise InputError(where=at, found=f"{len(cells)} values", expected=expected)
        job, hosts, end = (cells[place] for place in places if place is not None)
        if hosts.lower() in NO_END:
            continue
        if not 0 < len(job) <= LONGEST_NAME or not job.isprintable():
            expected = f"a name of at most {LONGEST_NAME} characters, none of them a control character"
            raise InputError(where=at, key="job", found=repr(job[:60]), expected=expected)
        gpus, movable, lost = (cells[header.index(name)] if name in header else "" for name in MORE_COLUMNS)
        names = expand_hosts(hosts, at, "hosts")
        yield RunningJob(
            job=job,
            hosts=names,
            limit_s=_time_s(end, at),
            gpus=_gpus_of_hosts(gpus, len(names), at),
            movable=_movable(movable, at),
            lost_s=_lost_s(lost, at),
        )


def _gpus_of_hosts(text: str, hosts: int, where: str) -> tuple[tuple[int, ...], ...]:
    """The indices on each of so many hosts; empty where the column says nothing."""
    if text.lower() in NO_END:
        return ()
    lists = [gpu_indices(part, None, where, "gpus") for part in text.split("/")]
    if len(lists) not in (1, hosts):
        expected = f"indices for each of {hosts} hosts with a slash between, or one list for all"
        raise InputError(where=where, key="gpus", found=repr(text), expected=expected)
    return tuple(lists * hosts if len(lists) == 1 else lists)


def _movable(text: str, where: str) -> bool:
    if text.lower() not in MOVABLE:
        raise InputError(where=where, key="movable", found=repr(text), expected="yes or no")
    return MOVABLE[text.lower()]


def _lost_s(text: str, where: str) -> float:
    if text and not re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text, re.ASCII):
        expected = "seconds of work since the last checkpoint"
        raise InputError(where=where, key="lost", found=repr(text), expected=expected)
    return float(text or 0)


def _cells(line: str, bar: str, count: int) -> Sequence[str]:
    """The values of a line; commas inside brackets of a host list part none."""
    cells = next(csv.reader([line], delimiter=bar))
    if len(cells) != count and bar == "," and '"' not in line:
        cells = split_outside_brackets(line)
    return [cell.strip() for cell in cells]


def _time_s(word: str, where: str) -> float | None:
    if word.lower() in NO_END:
        return None
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", word, re.ASCII):
        return float(word)
    try:
        return datetime.fromisoformat(word).timestamp()
    except (ValueError, OverflowError, OSError):
        expected = "seconds since 1970, a time such as 2026-05-01T12:00:00, or N/A"
        raise InputError(where=where, key="end", found=repr(word), expected=expected) from None
