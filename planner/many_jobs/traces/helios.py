"""SenseTime Helios's `cluster_log.csv` (github.com/S-Lab-System-Group/HeliosData): CSV with a header,

    job_id, user, vc, gpu_num, cpu_num, node_num, state, submit_time, start_time, end_time, duration, queue

and in some releases `jobname`. Times are dates like 2020-06-09 18:41:01, local; `duration` and `queue` are seconds
(end - start, start - submit; computed from the dates where a cell or the column lacks). States are Slurm's. Jobs with
0 GPUs (more than half of that trace) are skipped, so are those that never started.
"""

from __future__ import annotations

from sys import intern
from typing import TextIO

from planner.many_jobs.traces.cells import BadCell, date_s, number, status_of, whole
from planner.many_jobs.traces.collect import NEVER_RAN, NO_GPUS, UNFINISHED, Collector
from planner.many_jobs.traces.lines import Table
from planner.many_jobs.traces.records import Trace, TraceRow

REQUIRED = ("job_id", "gpu_num", "submit_time", "start_time", "end_time")
COLUMNS = (*REQUIRED, "user", "vc", "jobname", "cpu_num", "node_num", "state", "duration", "queue")
"""In the order in which `_add` takes them apart."""

_RUNNING = frozenset({"running", "pending", "suspended", "requeued"})


def read(text: TextIO, into: Collector) -> Trace:
    """The trace; InputError where its header, or (unless lenient) a line, is wrong."""
    ignored = Table(text, into, form="csv").each_of(COLUMNS, REQUIRED, lambda line, cells: _add(line, cells, into))
    return into.trace("helios", ignored=ignored)


def _add(line: int, cells: list[str], into: Collector) -> None:
    job_id, gpus, submit, start, end, user, vc, name, cpus, nodes, state, duration, queue = cells
    asked = number(gpus, "gpu_num")
    if asked == 0:
        return into.skip(line, NO_GPUS)
    submit_s, status = date_s(submit, "submit_time"), status_of(state)
    if not start:
        return into.skip(line, NEVER_RAN)
    if status in _RUNNING or not end:
        return into.skip(line, UNFINISHED)
    start_s, end_s = date_s(start, "start_time"), date_s(end, "end_time")
    duration_s = number(duration, "duration") if duration else end_s - start_s
    if end_s < start_s:
        raise BadCell("end_time", repr(end), f"a time after start_time ({start})")
    if start_s < submit_s:
        raise BadCell("start_time", repr(start), f"a time after submit_time ({submit})")
    if duration_s == 0:
        return into.skip(line, NEVER_RAN)
    if not job_id.strip():
        raise BadCell("job_id", "nothing", "an id")
    return into.add(
        TraceRow(
            line=line,
            job_id=job_id.strip(),
            submit_time_s=into.since_first(submit_s),
            duration_s=duration_s,
            gpus=into.gpus(asked, "gpu_num"),
            nodes=whole(nodes, "node_num") if nodes else None,
            cpus=number(cpus, "cpu_num") if cpus else None,
            user=intern(user),
            vc_or_department=intern(vc),
            job_type_or_name=intern(name),
            status=status,
            queue_s=number(queue, "queue") if queue else start_s - submit_s,
        )
    )
