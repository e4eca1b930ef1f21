"""Reading a trace in whichever form it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TextIO, get_args

from planner.many_jobs.traces import acme, cellplan_csv, helios, lingjun, pai, philly, sacct
from planner.many_jobs.traces.collect import Collector
from planner.many_jobs.traces.lines import open_text
from planner.many_jobs.traces.records import Trace
from planner.shared.garbage import collection_paused
from planner.shared.options.simulate import Fractional, TraceFormat
from profiles.errors import InputError

FORMATS: tuple[str, ...] = get_args(TraceFormat)

SMALL_TRACE = Path(__file__).with_name("small.csv")
"""The trace that comes with the project: 60 jobs of our own making (`bench.scheduling.small_trace`)."""

READERS: dict[str, Callable[[TextIO, Collector], Trace]] = {
    "cellplan": cellplan_csv.read,
    "philly": philly.read,
    "helios": helios.read,
    "acme": acme.read,
    "sacct": sacct.read,
}


def read_trace(
    path: str | Path, *, format: TraceFormat = "auto", lenient: bool = False, fractional: Fractional = "round-up"
) -> Trace:
    """Return the trace in a file (plain or gzip; for PAI and lingjun also the folder of their tables).

    Args:
        path: the file.
        format: its form; "auto" goes by its first line.
        lenient: skip and count malformed lines instead of stopping at the first. What is wrong with the whole file
            (no such file, its header, a damaged gzip, broken JSON) stops in any case.
        fractional: "round-up" takes 0.5 GPUs for 1 and counts such rows; "refuse" takes them for malformed.

    Raises:
        InputError: with file, line and column, what was found there and what was expected.
    """
    place = Path(path)
    for key, value, allowed in (("format", format, FORMATS), ("fractional", fractional, get_args(Fractional))):
        if value not in allowed:
            raise InputError(where="trace", key=key, found=repr(value), expected="one of " + ", ".join(allowed))
    with collection_paused():
        return _read(place, format, lenient=lenient, fractional=fractional)


def _read(path: Path, form: str, *, lenient: bool, fractional: Fractional) -> Trace:
    if form == "auto":
        form = _form_of_tables(path) if path.is_dir() else _detect(path)
    jobs, workers = None, path
    if form == "pai":
        path, jobs = pai.find_tables(path)
    elif form == "lingjun":
        path, workers = lingjun.find_tables(path)
    into = Collector(where=str(path), lenient=lenient, fractional=fractional)
    with open_text(path, lines=form != "philly") as text:
        if form == "pai":
            return pai.read(text, into, jobs=jobs)
        return lingjun.read(text, into, workers=workers) if form == "lingjun" else READERS[form](text, into)


def _form_of_tables(folder: Path) -> str:
    """The form whose tables a folder holds."""
    return "lingjun" if any((folder / f"worker.csv{ending}").exists() for ending in ("", ".gz")) else "pai"


def _detect(path: Path) -> str:
    """The form that the first line speaks of."""
    with open_text(path, lines=False) as text:
        line = text.readline(100_000).strip()
        while not line and (more := text.readline(100_000)):
            line = more.strip()
    names = [name.strip().strip('"').lower() for name in line.split("|" if "|" in line else ",")]
    if line.startswith("["):
        return "philly"
    if "|" in line and "jobid" in names:
        return "sacct"
    if lingjun.OF_LINGJUN_ALONE in names:
        return "lingjun"
    if "gpu_num" in names and set(names) >= acme.OF_ACME_ALONE:
        return "acme"
    if "gpu_num" in names or ("job_id" in names and "submit_time" in names):
        return "helios"
    if {"job_id", "submit_time_s", "duration_s"} & set(names):
        return "cellplan"
    if "job_table" in path.name or "task_table" in path.name or _is_task(names):
        return "pai"
    first_line = repr(line if len(line) <= 80 else line[:77] + "...") if line else "an empty file"
    others = "Philly, Helios, Acme, PAI, lingjun or sacct -P"
    forms = f"our CSV (job_id,submit_time_s,duration_s,gpus,...) or the form of {others}"
    raise InputError(where=f"{path}, line 1", found=first_line, expected=f"{forms}; or name it (format=...)")


def _is_task(cells: list[str]) -> bool:
    """Whether a line without a header looks like one of PAI's task table."""
    if tuple(cells) == pai.TASK_COLUMNS:
        return True
    return len(cells) == len(pai.TASK_COLUMNS) and cells[3] in ("terminated", "failed", "running", "waiting")
