"""Who sat where when, as a trace that Perfetto opens: a process for each node, a row for each first device of a job."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.many_jobs.simulation.result import Result
from planner.one_job.running.traces import trace_text
from profiles.errors import InputError
from profiles.files import write_atomically

COUNTERS = ("throughput", "devices_held", "devices_working", "waiting", "running")
ENDINGS = (".json", ".json.gz")


def check_timeline(path: Path) -> None:
    """InputError unless the name ends as a trace does and its folder exists."""
    if not path.name.lower().endswith(ENDINGS):
        raise InputError(where="simulate", key="--timeline", found=path, expected="a name in .json or .json.gz")
    if not path.resolve().parent.is_dir():
        raise InputError(where="simulate", key="--timeline", found=path, expected="a path in an existing folder")


def save_timeline(path: Path, result: Result) -> None:
    """Write the trace, whole or not at all."""
    check_timeline(path)
    text = trace_text(timeline_events(result))
    write_atomically(path, gzip.compress(text.encode(), mtime=0) if path.name.lower().endswith(".gz") else text)


def timeline_events(result: Result) -> Iterator[dict[str, Any]]:
    """The events of the trace. A device has one job at a time, so slices in the row of a job's first device on a node
    never overlap; what is behind a restart's end is a slice of its own, called after the job."""
    places = sorted({(pool, node) for _, pool, node, *_ in result.slices})
    process = {place: number for number, place in enumerate(places, start=1)}
    yield _metadata("process_name", 0, 0, "cluster")
    for (pool, node), number in process.items():
        yield _metadata("process_name", number, 0, f"{pool} node {node}")
        yield {"name": "process_sort_index", "ph": "M", "pid": number, "tid": 0, "args": {"sort_index": number}}
    rows = sorted({(process[pool, node], _first(mask)) for _, pool, node, mask, *_ in result.slices})
    for number, row in rows:
        yield _metadata("thread_name", number, row, f"from device {row}")
    for job, pool, node, mask, start_s, restarted_s, end_s in result.slices:
        about = result.jobs[job]
        arguments = {
            "devices": [index for index in range(mask.bit_length()) if mask >> index & 1],
            "model": about.workload.model,
            "asked for": f"{about.devices} of {about.pool}",
        }
        place = (process[pool, node], _first(mask))
        if restarted_s > start_s:
            yield _slice(f"restart of {about.id}", "restart", place, (start_s, restarted_s), arguments)
        if end_s > restarted_s:
            yield _slice(about.id, "job", place, (restarted_s, end_s), arguments)
    for at, time_s in enumerate(result.series["time_s"]):
        for name in COUNTERS:
            yield {"name": name, "ph": "C", "ts": _us(time_s), "pid": 0, "args": {name: float(result.series[name][at])}}


def _slice(
    name: str, kind: str, place: tuple[int, int], span_s: tuple[float, float], arguments: dict[str, Any]
) -> dict[str, Any]:
    start, end = _us(span_s[0]), _us(span_s[1])
    length = round(end - start, 3)
    pid, tid = place
    return {"name": name, "cat": kind, "ph": "X", "ts": start, "dur": length, "pid": pid, "tid": tid, "args": arguments}


def _metadata(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": {"name": value}}


def _first(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
