"""Reading a trace into the columns of `jobs`: the documented CSV fast, other forms by `planner.many_jobs.traces`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from planner.many_jobs.jct.jobs import Floats, Jobs, make_jobs
from planner.many_jobs.traces.collect import Collector
from planner.many_jobs.traces.lines import Table, open_text
from planner.many_jobs.traces.read import read_trace
from profiles.errors import InputError
from profiles.numerals import read_number
from profiles.records import dataclass

NUMBERS = ("nodes", "cpus", "mem_gb")
WORDS = {"vc": "vc_or_department", "user": "user", "name": "job_type_or_name"}
"""Our name of a column of words: the trace's."""
NEEDED = "the columns submit_time_s, duration_s and gpus at least"


@dataclass(frozen=True, kw_only=True)
class _Columns:
    ids: Sequence[str]
    submit_s: Floats
    duration_s: Floats
    gpus: Floats
    queue_s: Floats
    numbers: Mapping[str, Floats]
    words: Mapping[str, Sequence[str]]
    status: Sequence[str]


def load_jobs(*paths: Path) -> Jobs:
    """Return the jobs of one trace, or of several files that make up one. Raise InputError with the line that is wrong.

    The documented CSV columns, plain or gzip: `submit_time_s, duration_s, gpus` are needed, a blank duration is a job
    that has not finished, `iterations` and `iteration_time_s` together are the product. Other forms as of
    `planner.many_jobs.traces.read_trace`.
    """
    parts = [_load(path) for path in paths]

    def joined(name: str) -> Floats:
        return np.concatenate([getattr(part, name) for part in parts])

    numbers = {name: None for part in parts for name in part.numbers}
    words = {name: None for part in parts for name in part.words}
    return make_jobs(
        ids=[id_ for part in parts for id_ in part.ids],
        submit_s=joined("submit_s"),
        duration_s=joined("duration_s"),
        gpus=joined("gpus"),
        queue_s=joined("queue_s"),
        numbers={
            name: np.concatenate([part.numbers.get(name, np.full(len(part.ids), np.nan)) for part in parts])
            for name in numbers
        },
        words={
            name: [word for part in parts for word in part.words.get(name, ("",) * len(part.ids))] for name in words
        },
        status=[word for part in parts for word in part.status],
    )


def _load(path: Path) -> _Columns:
    if path.is_dir() or _is_slurms(path):
        return _load_other(path)
    header, rows = _read_rows(path)
    if "submit_time_s" not in header and "duration_s" not in header:
        return _load_other(path)
    if not rows:
        raise InputError(where=str(path), found="no rows", expected="at least one job")
    lines = [line for line, _ in rows]
    table = dict(zip(header, zip(*(row for _, row in rows), strict=True), strict=True))
    where, count = str(path), len(rows)

    def numbers(name: str, *, blank: float | None = None, least: float = 0.0) -> Floats:
        if name not in table:
            raise InputError(where=where, key=name, found="no such column", expected=NEEDED)
        return _numbers(table[name], lines, where=where, name=name, blank=blank, least=least)

    held = {name: numbers(name, blank=np.nan) for name in NUMBERS if name in table}
    if "iterations" in table and "iteration_time_s" in table:
        held["product_s"] = numbers("iterations", blank=np.nan) * numbers("iteration_time_s", blank=np.nan)
    return _Columns(
        ids=table.get("job_id", tuple(map(str, range(count)))),
        submit_s=numbers("submit_time_s", least=-np.inf),
        duration_s=numbers("duration_s", blank=np.nan),
        gpus=numbers("gpus"),
        queue_s=numbers("queue_s", blank=0.0) if "queue_s" in table else np.zeros(count),
        numbers=held,
        words={ours: table[theirs] for ours, theirs in WORDS.items() if theirs in table},
        status=table.get("status", ("",) * count),
    )


def _is_slurms(path: Path) -> bool:
    """Whether the first line parts its columns as `sacct -P` does, which no CSV of ours can be read by."""
    with open_text(path) as text:
        return "|" in text.readline(100_000)


def _load_other(path: Path) -> _Columns:
    """Philly's, Helios's, PAI's and Slurm's own forms."""
    rows = read_trace(path).rows
    if not rows:
        raise InputError(where=str(path), found="no jobs", expected="at least one")

    def column(name: str) -> Floats:
        return np.array([getattr(row, name) for row in rows], dtype=np.float64)  # None becomes NaN

    return _Columns(
        ids=[row.job_id for row in rows],
        submit_s=column("submit_time_s"),
        duration_s=column("duration_s"),
        gpus=column("gpus"),
        queue_s=np.nan_to_num(column("queue_s")),
        numbers={name: column(name) for name in NUMBERS},
        words={ours: [getattr(row, theirs) for row in rows] for ours, theirs in WORDS.items()},
        status=[row.status for row in rows],
    )


def _read_rows(path: Path) -> tuple[tuple[str, ...], list[tuple[int, list[str]]]]:
    """The header; the rows, each with its line and as long as the header."""
    rows = list[tuple[int, list[str]]]()
    with open_text(path) as text:
        table = Table(text, Collector(where=str(path), lenient=False, fractional="round-up"), form="csv")
        table.read_header((), ())
        table.each(len(table.header), lambda line, cells: rows.append((line, cells)), wanted="as the header has")
    return table.header, rows


def _numbers(
    words: Sequence[str], lines: Sequence[int], *, where: str, name: str, blank: float | None, least: float
) -> Floats:
    """A column of finite numbers of at least `least`; `blank` stands for an empty field, None: there must be none."""
    together = "".join(words)
    try:
        if not together.isascii() or "_" in together:  # NumPy takes 1_000 and digits of other scripts
            raise ValueError(name)
        figures = np.array([word or "nan" for word in words], dtype=np.float64)
    except ValueError:
        figures = np.array([_number_or_infinity(word) for word in words])
    empty = np.array([not word for word in words])
    wrong = np.where(empty, blank is None, ~np.isfinite(figures) | (figures < least))
    if wrong.any():
        row = int(np.argmax(wrong))
        bound = "" if least == -np.inf else f" of at least {least:g}"
        raise InputError(
            where=f"{where}, line {lines[row]}", key=name, found=repr(words[row]), expected=f"a finite number{bound}"
        )
    return np.where(empty, np.nan if blank is None else blank, figures)


def _number_or_infinity(word: str) -> float:
    try:
        return read_number(word or "nan")
    except ValueError:
        return np.inf
