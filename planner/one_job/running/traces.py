"""Traces in the Chrome format, which Perfetto opens: a run as it was measured, and as it was estimated, in one form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from estimator.pricing.outcome import Evaluation
from estimator.schedules.records import Task
from estimator.schedules.simulate import simulate_schedule
from planner.one_job.running.program import Program
from planner.one_job.running.record import RunRecord
from planner.one_job.running.spans import Span, SpanKind
from profiles.files import write_atomically

ROWS: dict[SpanKind, tuple[int, str]] = {
    "forward": (1, "schedule"),
    "backward": (1, "schedule"),
    "weight": (1, "schedule"),
    "sync": (1, "schedule"),
    "optimizer": (1, "schedule"),
    "offload": (1, "schedule"),
    "wait": (1, "schedule"),
    "layer": (2, "layers"),
    "collective": (3, "collectives"),
}
"""The row (thread) of a rank (process) that a kind of span stands in."""

NAMES_AFTER: dict[SpanKind, str] = {"sync": "gradients"}
"""What a span after the schedule is called, where not as its kind."""

ESTIMATED_RANKS_FROM = 1_000_000
"""Process numbers of estimated ranks where both traces share a file."""

Afterwards = Iterable[tuple[SpanKind, float]]
"""What all stages do once the schedule is done, with its seconds."""

RankSpans = Mapping[int, tuple[Span, ...]]


def measured_spans(record: RunRecord) -> RankSpans:
    """Every rank's spans in the typical iteration."""
    return {rank: iteration.spans for rank, iteration in enumerate(record.typical)}


def estimated_spans(program: Program, evaluation: Evaluation) -> RankSpans:
    """The estimate's schedule event by event, the same for all ranks of a stage, then gradients and optimizer.

    It ends with the estimated iteration, but for what the closed form of an interleaved schedule is off
    (`estimator.schedules.closed_form`).
    """
    pipeline = evaluation.pipeline
    if pipeline is None:
        return {}
    shape = program.shape
    simulated = simulate_schedule(shape.schedule, pipeline.stages, pipeline.transfers, shape.micro_batches)
    spans: dict[int, tuple[Span, ...]] = {}
    for stage in program.stages:
        tasks = [task for task in simulated.tasks if task.stage == stage.number]
        after: Afterwards = (("sync", pipeline.sync_s), ("optimizer", pipeline.optimizer_s))
        spans |= dict.fromkeys(stage.ranks, schedule_spans(tasks, simulated.total_s, after))
    return spans


def schedule_spans(tasks: Iterable[Task], end_s: float, after: Afterwards) -> tuple[Span, ...]:
    """A stage's tasks, and what comes after the schedule's end `end_s`, in its order."""
    spans = [
        Span(
            kind=task.kind,
            name=f"{task.kind} {task.micro_batch}",
            phase="forward" if task.kind == "forward" else "backward",
            start_s=task.start_s,
            end_s=task.end_s,
            chunk=task.chunk,
            micro_batch=task.micro_batch,
        )
        for task in tasks
    ]
    for kind, seconds in after:
        spans.append(Span(kind=kind, name=NAMES_AFTER.get(kind, kind), start_s=end_s, end_s=end_s + seconds))
        end_s += seconds
    return tuple(spans)


def trace_events(program: Program, ranks: RankSpans, basis: str, *, first_process: int = 0) -> Iterator[dict[str, Any]]:
    """The events of a trace: a process for each rank, `basis` (measured, estimated) in its name, and a row for each of
    schedule, layers and collectives."""
    for rank, spans in sorted(ranks.items()):
        stage = program.stage_of(rank)
        yield from process_events(first_process + rank, f"{basis}: rank {rank}, stage {stage.number}", spans)


def process_events(process: int, name: str, spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """The events of one process."""
    spans = tuple(spans)
    yield metadata_event("process_name", process, 0, name)
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for row, title in dict.fromkeys(ROWS[span.kind] for span in spans):
        yield metadata_event("thread_name", process, row, title)
    for span in spans:
        place = (process, ROWS[span.kind][0])
        yield slice_event(span.name, span.kind, place, (span.start_s, span.end_s), _arguments(span))


def slice_event(
    name: str, kind: str, place: tuple[int, int], span_s: tuple[float, float], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the event of something that lasts from one time to another (s), in a row (process, thread) of a trace."""
    # Whole nanoseconds, of both ends: rounded lengths would let neighbours overlap by one.
    start_us, end_us = round(span_s[0] * 1e6, 3), round(span_s[1] * 1e6, 3)
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": start_us,
        "dur": round(end_us - start_us, 3),
        "pid": place[0],
        "tid": place[1],
        "args": arguments,
    }


def metadata_event(name: str, process: int, thread: int, value: str) -> dict[str, Any]:
    """Return the event that names a process or a thread of a trace."""
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": {"name": value}}


def _arguments(span: Span) -> dict[str, Any]:
    shown: dict[str, Any] = {"phase": span.phase}
    if span.kind in ("forward", "backward", "weight"):
        shown |= {"micro_batch": span.micro_batch, "chunk": span.chunk}
    if span.layer is not None:
        shown["layer"] = span.layer
    if span.bytes:
        shown |= {"bytes": span.bytes, "axis": span.axis}
    return shown


def save_traces(path: Path, program: Program, record: RunRecord, evaluation: Evaluation | None) -> tuple[Path, ...]:
    """Writes what was measured, what was estimated, and both laid over each other; returns the files.

    `path` run.json gives run.json (both), run.measured.json and run.estimated.json (where there is an estimate).
    """
    measured = list(trace_events(program, measured_spans(record), "measured"))
    files = {path.with_suffix(".measured.json"): measured}
    if evaluation is not None:
        ranks = estimated_spans(program, evaluation)
        files[path.with_suffix(".estimated.json")] = list(trace_events(program, ranks, "estimated"))
        beside = trace_events(program, ranks, "estimated", first_process=ESTIMATED_RANKS_FROM)
        files[path] = [*measured, *beside]
    else:
        files[path] = measured
    for file, events in files.items():
        write_atomically(file, trace_text(events))
    return tuple(sorted(files))


def trace_text(events: Iterable[dict[str, Any]]) -> str:
    """The text of a trace file, a line for each event."""
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'
