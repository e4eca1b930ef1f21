"""Who sat where when, as a trace that Perfetto opens: a process for each node, a row for each first device of a job."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.many_jobs.simulation.result import Result
from planner.one_job.running.traces import metadata_event, slice_event, trace_text
from profiles.errors import InputError
from profiles.files import check_folder, write_atomically

if TYPE_CHECKING:
    from planner.many_jobs.simulation.run_state import Slice

COUNTERS = ("throughput", "devices_held", "devices_working", "waiting", "running", "nodes_in_use")
MOST_DEVICES = 1024
"""No node has more: rows of turns are so many apart."""
ENDINGS = (".json", ".json.gz")


def check_timeline(path: Path) -> None:
    """InputError unless the name ends as a trace does and its folder exists."""
    if not path.name.lower().endswith(ENDINGS):
        raise InputError(where="simulate", key="--timeline", found=path, expected="a name in .json or .json.gz")
    check_folder(path, where="simulate", key="--timeline")


def save_timeline(path: Path, result: Result) -> None:
    """Write the trace, whole or not at all."""
    check_timeline(path)
    text = trace_text(timeline_events(result))
    write_atomically(path, gzip.compress(text.encode(), mtime=0) if path.name.lower().endswith(".gz") else text)


def timeline_events(result: Result) -> Iterator[dict[str, Any]]:
    """The events of the trace. A device has one job at a time, so slices in the row of a job's first device on a node
    never overlap; jobs that take turns there have rows of their own beside it (`_rows`). What is behind a restart's end
    is a slice of its own, called after the job. A restart is called a move where one was its reason."""
    places = sorted({(pool, node) for _, pool, node, *_ in result.slices})
    process = {place: number for number, place in enumerate(places, start=1)}
    yield metadata_event("process_name", 0, 0, "cluster")
    for (pool, node), number in process.items():
        yield metadata_event("process_name", number, 0, f"{pool} node {node}")
        yield {"name": "process_sort_index", "ph": "M", "pid": number, "tid": 0, "args": {"sort_index": number}}
    row_of = _rows(result.slices)
    for number, row in sorted(
        {(process[pool, node], row_of[at]) for at, (_, pool, node, *_) in enumerate(result.slices)}
    ):
        turn, device = divmod(row, MOST_DEVICES)
        yield metadata_event(
            "thread_name", number, row, f"from device {device}" + (f", turn {turn + 1}" if turn else "")
        )
    moved = {(job, time_s) for job, time_s, _ in result.moves}
    for at, (job, pool, node, mask, start_s, restarted_s, end_s) in enumerate(result.slices):
        about = result.jobs[job]
        arguments = {
            "devices": [index for index in range(mask.bit_length()) if mask >> index & 1],
            "model": about.workload.model,
            "asked for": f"{about.devices} of {about.pool}",
        }
        place = (process[pool, node], row_of[at])
        if restarted_s > start_s:
            why = "move" if (job, start_s) in moved else "restart"
            yield slice_event(f"{why} of {about.id}", why, place, (start_s, restarted_s), arguments)
        if end_s > restarted_s:
            yield slice_event(about.id, "job", place, (restarted_s, end_s), arguments)
    for at, time_s in enumerate(result.series["time_s"]):
        for name in COUNTERS:
            yield {
                "name": name,
                "ph": "C",
                "ts": round(time_s * 1e6, 3),
                "pid": 0,
                "args": {name: float(result.series[name][at])},
            }


def _rows(slices: Sequence[Slice]) -> list[int]:
    """The row of each slice on its node: that of its first device, or where another's slice is not over there, who
    takes turns with it, the next of `MOST_DEVICES` further down that is free."""
    rows = [0] * len(slices)
    ends_s: dict[tuple[str, int, int], float] = {}
    for at in sorted(range(len(slices)), key=lambda at: (slices[at][4], at)):
        _, pool, node, mask, from_s, _, to_s = slices[at]
        row = _first(mask)
        while ends_s.get((pool, node, row), from_s) > from_s:
            row += MOST_DEVICES
        rows[at], ends_s[pool, node, row] = row, to_s
    return rows


def _first(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
