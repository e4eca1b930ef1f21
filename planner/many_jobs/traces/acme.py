"""The job traces of Shanghai AI Laboratory's two clusters (AcmeTrace, github.com/InternLM/AcmeTrace, its README; Hu et
al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024): CSV with a header,

    trace_seren.csv  job_id, user, node_num, gpu_num, cpu_num, type, state, submit_time, start_time, end_time, duration,
                     queue, gpu_time
    trace_kalos.csv  job_id, user, node_num, gpu_num, cpu_num, mem_per_pod_GB, shared_mem_per_pod, type, state,
                     submit_time, start_time, end_time, fail_time, stop_time, duration, queue, gpu_time

Times are dates with their zone, 2023-03-01 00:18:22+08:00, and are brought to UTC. How long a job ran and waited is
taken from them: `duration` is end - start by the README's notes, but end - submit in its own rows of Kalos. A pod is a
node's share of a job: its memory is `node_num` times `mem_per_pod_GB`. `type` (Pretrain, SFT, Evaluation, Debug, ...)
is the job's type. Jobs with 0 GPUs are skipped, so are those that never started. The two clusters are two traces.
"""

from __future__ import annotations

from sys import intern
from typing import TextIO

from planner.many_jobs.traces.cells import BadCell, date_s, number, status_of, whole
from planner.many_jobs.traces.collect import NEVER_RAN, NO_GPUS, UNFINISHED, Collector
from planner.many_jobs.traces.lines import Table
from planner.many_jobs.traces.records import Trace, TraceRow

REQUIRED = ("job_id", "gpu_num", "type", "state", "submit_time", "start_time", "end_time")
COLUMNS = (*REQUIRED, "user", "node_num", "cpu_num", "mem_per_pod_gb")
"""In the order in which `_add` takes them apart."""

OF_ACME_ALONE = frozenset({"type", "gpu_time"})
"""Columns by which its header is told from Helios's."""

_RUNNING = frozenset({"running", "pending", "suspended", "requeued"})


def read(text: TextIO, into: Collector) -> Trace:
    """The trace; InputError where its header, or (unless lenient) a line, is wrong."""
    ignored = Table(text, into, form="csv").each_of(COLUMNS, REQUIRED, lambda line, cells: _add(line, cells, into))
    return into.trace("acme", ignored=ignored)


def _add(line: int, cells: list[str], into: Collector) -> None:
    job_id, gpus, type_, state, submit, start, end, user, nodes, cpus, pod_gb = cells
    asked = number(gpus, "gpu_num")
    if asked == 0:
        return into.skip(line, NO_GPUS)
    submit_s, status = date_s(submit, "submit_time"), status_of(state)
    if not start:
        return into.skip(line, NEVER_RAN)
    if status in _RUNNING or not end:
        return into.skip(line, UNFINISHED)
    start_s, end_s = date_s(start, "start_time"), date_s(end, "end_time")
    if end_s < start_s:
        raise BadCell("end_time", repr(end), f"a time after start_time ({start})")
    if start_s < submit_s:
        raise BadCell("start_time", repr(start), f"a time after submit_time ({submit})")
    if end_s == start_s:
        return into.skip(line, NEVER_RAN)
    if not job_id.strip():
        raise BadCell("job_id", "nothing", "an id")
    pods = whole(nodes, "node_num") if nodes else None
    return into.add(
        TraceRow(
            line=line,
            job_id=job_id.strip(),
            submit_time_s=into.since_first(submit_s),
            duration_s=end_s - start_s,
            gpus=into.gpus(asked, "gpu_num"),
            nodes=pods,
            cpus=number(cpus, "cpu_num") if cpus else None,
            mem_gb=pods * number(pod_gb, "mem_per_pod_GB") if pods and pod_gb else None,
            user=intern(user),
            job_type_or_name=intern(type_),
            status=status,
            queue_s=start_s - submit_s,
        )
    )
