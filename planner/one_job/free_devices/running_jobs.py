"""The jobs that run now, which hosts they hold, and when they end: `squeue --json`, or a table of job, hosts and end.

`squeue --json` is read as the data parsers of Slurm 22.05 to 24.11 write it: times as numbers or as objects of `set`,
`infinite` and `number`, states as a text or a list. A job without a time limit has an `end_time` in a year, which is
none. A table has a header of job, hosts, end (or JOBID, NODELIST, END_TIME, as `squeue -o "%i|%N|%e"` prints it) with
commas, bars or semicolons between; `end` is seconds since 1970 or a time such as 2026-05-01T12:00:00, without a zone in
that of this machine, as Slurm prints it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from planner.one_job.free_devices.schema import SlurmJob, SlurmJobs, SlurmNumber
from profiles.errors import InputError
from profiles.files import parse_json, read_text, text_lines
from profiles.host_lists import expand_hosts, split_outside_brackets
from profiles.records import dataclass
from profiles.schema import validate

HOLDING = {"running", "completing", "configuring", "suspended", "stopped", "signaling", "stage_out", "resizing"}
"""States and flags of jobs that hold nodes (squeue(1), JOB STATE CODES)."""
STOPPED = {"suspended", "stopped"}
NO_VALUE, INFINITE = 0xFFFFFFFE, 0xFFFFFFFF
"""Numbers by which Slurm means none, and no limit (slurm.h: NO_VAL, INFINITE)."""
YEAR_S = 365 * 86_400
COLUMNS = (("job", "jobid", "job_id"), ("hosts", "nodelist", "nodes"), ("end", "end_time"))
NO_END = {"", "n/a", "none", "unknown", "unlimited", "(null)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that holds `hosts`. `limit_s` is when its time limit ends it, in seconds since 1970 (None: it has none, or
    it stands still); `start_s` when it began, where that is said. What a learned predictor asks beside: when it was
    submitted, its name, user and partition."""

    job: str
    hosts: tuple[str, ...]
    limit_s: float | None
    start_s: float | None = None
    submit_s: float | None = None
    name: str = ""
    user: str = ""
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """The jobs of a file, and when it was written, in seconds since 1970, where it says so."""

    jobs: tuple[RunningJob, ...]
    written_s: float | None


def read_running(path: Path) -> RunningJobs:
    """Return the jobs that the file at `path` has running. Raise InputError with the line or the job for what is
    neither `squeue --json` nor a table of job, hosts and end."""
    where, text = str(path), read_text(path)
    if text.lstrip().startswith("{"):
        return _of_json(parse_json(text, where=where), where)
    jobs = tuple(_of_table(text, where))
    return RunningJobs(jobs=jobs, written_s=None)


# JSON


def _of_json(data: Mapping[str, Any], where: str) -> RunningJobs:
    if "jobs" not in data:
        raise InputError(where=where, found=", ".join(list(data)[:6]) or "{}", expected="`jobs`, as squeue --json has")
    told = validate(SlurmJobs, data, where=where)
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
    bar = next((mark for mark in "|;\t" if lines and mark in lines[0][1]), ",")
    header = [name.strip().lower() for name in lines[0][1].split(bar)] if lines else []
    places = [next((header.index(name) for name in names if name in header), None) for names in COLUMNS]
    if not lines or any(place is None for place in places):
        expected = '`squeue --json`, or a header job,hosts,end (or of squeue -o "%i|%N|%e")'
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
        yield RunningJob(job=job, hosts=expand_hosts(hosts, at, "hosts"), limit_s=_time_s(end, at))


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
