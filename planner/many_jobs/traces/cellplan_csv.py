"""Our own form of a trace: a CSV file (UTF-8, plain or gzip) with a header; the order of the columns is free.

    column             what it holds; * must be there and filled in
    job_id *           any text, once
    submit_time_s *    seconds on the trace's clock, from 0; mostly counted from the first submission
    duration_s *       seconds that the job ran, above 0
    gpus *             how many it asked for, above 0; a fraction is rounded up or refused
    nodes              on how many nodes
    cpus, mem_gb       CPU cores and GB (1e9 bytes) of memory, of all nodes together
    user               who
    vc_or_department   virtual cluster, department, account: what quotas are counted by
    job_type_or_name   type or name
    status             completed, failed, cancelled (or: killed), timeout, node_fail, or another word
    queue_s            seconds that it waited on the traced cluster
    model              what it trains: a name of the zoo, a path, or package.module:factory, as on the command line
    global_batch       samples an iteration
    iterations         how many, above 0: the work, whatever `duration_s` says
    device             type of device that it wants, such as a100-80gb
    deadline_s         when it must have ended: a time on the clock of submit_time_s (not a span), after it
    priority           a whole number; higher goes first
    planned_s          when it was announced, not after submit_time_s: known from then on to policies that reserve
    planned_for_s      for when it was announced, not before planned_s; without it, for submit_time_s
    cancelled_s        when its announcement was withdrawn, not before planned_s: it never comes
    preemptible        yes or no: it may run where others hold a reservation, and leaves when they come
    hosts              where it sat, in the order of its ranks: nodes by name with devices of each, `gpu7:8 gpu3:4`

A blank cell or a missing column says nothing. Columns with other names are not read. Rows may stand in any order:
they are sorted by submission, and jobs of one time keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from sys import intern
from typing import Any, TextIO

from planner.many_jobs.traces.cells import BadCell, any_whole, hosts_of, number, positive, status_of, whole, yes_or_no
from planner.many_jobs.traces.collect import Collector
from planner.many_jobs.traces.lines import Table
from planner.many_jobs.traces.records import Trace, TraceRow

PLANNING = frozenset({"planned_s", "planned_for_s", "cancelled_s"})
REQUIRED = ("job_id", "submit_time_s", "duration_s", "gpus")
COLUMNS = (
    *REQUIRED,
    "nodes",
    "cpus",
    "mem_gb",
    "user",
    "vc_or_department",
    "job_type_or_name",
    "status",
    "queue_s",
    "model",
    "global_batch",
    "iterations",
    "device",
    "deadline_s",
    "priority",
    "planned_s",
    "planned_for_s",
    "cancelled_s",
    "preemptible",
    "hosts",
)


@lru_cache(maxsize=4096)
def _text(cell: str, _: str) -> str:
    return intern(cell.strip())


def _status(cell: str, _: str) -> str:
    return status_of(cell)


@lru_cache(maxsize=4096)
def _amount(cell: str, name: str) -> float:
    return number(cell, name)


_READ: dict[str, Callable[[str, str], object]] = {
    "nodes": whole,
    "cpus": _amount,
    "mem_gb": _amount,
    "user": _text,
    "vc_or_department": _text,
    "job_type_or_name": _text,
    "status": _status,
    "queue_s": number,
    "model": _text,
    "global_batch": whole,
    "iterations": positive,
    "device": _text,
    "priority": any_whole,
    "planned_s": number,
    "planned_for_s": number,
    "cancelled_s": number,
    "preemptible": yes_or_no,
    "hosts": hosts_of,
}


def read(text: TextIO, into: Collector) -> Trace:
    """The trace in our own CSV; InputError where its header, or (unless lenient) a line, is wrong."""
    table = Table(text, into, form="csv")
    places = table.read_header(COLUMNS, REQUIRED)
    width = len(table.header)
    id_at, submit_at, duration_at, gpus_at = (places[name] for name in REQUIRED)
    deadline_at = places.get("deadline_s")
    plannable = not PLANNING.isdisjoint(places)
    others = [(places[name], name, read_cell) for name, read_cell in _READ.items() if name in places]

    def parse(line: int, cells: list[str]) -> None:
        job_id = cells[id_at].strip()
        if not job_id:
            raise BadCell("job_id", "nothing", "an id")
        submit_time_s = number(cells[submit_at], "submit_time_s")
        stated = {
            name: read_cell(cell, name)
            for place, name, read_cell in others
            if (cell := cells[place]) and not cell.isspace()
        }
        if deadline_at is not None and cells[deadline_at].strip():
            stated["deadline_s"] = _deadline(cells[deadline_at], submit_time_s)
        if plannable:
            _check_planned(stated, submit_time_s)
        into.add(
            TraceRow(
                line=line,
                job_id=job_id,
                submit_time_s=submit_time_s,
                duration_s=positive(cells[duration_at], "duration_s"),
                gpus=into.gpus(positive(cells[gpus_at], "gpus"), "gpus"),
                **stated,  # type: ignore[arg-type]
            )
        )

    table.each(width, parse, wanted="as the header has")
    ignored = tuple(name for name in table.header if name not in places)
    return into.trace("cellplan", ignored=ignored)


def _check_planned(stated: Mapping[str, Any], submit_time_s: float) -> None:
    """BadCell where a job is announced after it comes, or for before that, or withdrawn before; or where it was not."""
    planned_s = stated.get("planned_s")
    for name in ("planned_for_s", "cancelled_s"):
        time_s = stated.get(name)
        if time_s is not None and planned_s is None:
            raise BadCell("planned_s", "nothing", f"when it was announced, as {name} says {time_s:g}")
        if time_s is not None and time_s < planned_s:
            raise BadCell(name, f"{time_s:g}", f"a time of day not before planned_s ({planned_s:g})")
    if planned_s is not None and planned_s > submit_time_s:
        raise BadCell("planned_s", f"{planned_s:g}", f"a time of day not after submit_time_s ({submit_time_s:g})")


def _deadline(cell: str, submit_time_s: float) -> float:
    deadline_s = number(cell, "deadline_s")
    if deadline_s <= submit_time_s:
        raise BadCell("deadline_s", f"{cell}", f"a time of day after submit_time_s ({submit_time_s:g}), not a span")
    return deadline_s
