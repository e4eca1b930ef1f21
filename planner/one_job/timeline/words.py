"""What a picture of a timeline says: title and figures, legend, labels of the stages, boxes and notes."""

from __future__ import annotations

from collections.abc import Sequence

from planner.one_job.timeline.axis import TimeAxis, say_length
from planner.one_job.timeline.boxes import Box, Part
from planner.one_job.timeline.events import After, Timeline, TimelineStage
from planner.one_job.timeline.palette import Mark

WORTH_SAYING = 0.005
"""Of an iteration: a smaller difference is not mentioned."""

AFTER_NAMES: dict[After, str] = {"sync": "gradient sync", "optimizer": "optimizer", "offload": "offloaded state"}


def title_of(timeline: Timeline) -> str:
    """Model, cluster, schedule and micro-batches."""
    batches = f"{timeline.micro_batches} micro-batch{'es' if timeline.micro_batches > 1 else ''}"
    return f"{timeline.model} on {timeline.cluster}: {timeline.schedule}, {batches} of {timeline.micro_batch}"


def figures_of(timeline: Timeline) -> str:
    """Iteration time, bubble, and the parts of the picture."""
    total_s = timeline.iteration_time_s
    parts = [
        f"iteration {say_length(total_s)} (estimated)",
        f"bubble {timeline.bubble_s / total_s:.1%} of it",
        f"schedule {say_length(timeline.pipeline_s)}",
    ]
    parts += [f"{AFTER_NAMES[name]} {say_length(seconds)}" for name, seconds in timeline.after_s.items() if seconds]
    return ", ".join(parts)


def legend_of(timeline: Timeline) -> list[tuple[Mark | None, str]]:
    """What is drawn and what it is called; None: nothing is."""
    chunks = len(timeline.stages[0].planned.chunks)
    split = any(task.kind == "weight" for stage in timeline.stages for task in stage.tasks)
    again = " and recomputation" if any(stage.planned.recompute.kind != "none" for stage in timeline.stages) else ""
    of = f" (chunk 0 to {chunks - 1})" if chunks > 1 else ""
    entries: list[tuple[Mark | None, str]] = [("forward", f"forward{of}")]
    if split:
        entries.append(("backward", f"backward, gradients of inputs{again}{of}"))
        entries.append(("weight", f"backward, gradients of weights{of}"))
    else:
        entries.append(("backward", f"backward{again}{of}"))
    if any(seconds for stage in timeline.stages for seconds in stage.stopped_s.values()):
        entries.append(("stopped", "collectives that stop them"))
    for name, seconds in timeline.after_s.items():
        if seconds:
            entries.append((name, f"{AFTER_NAMES[name]}{' that nothing hides' if name == 'sync' else ''}"))
    return [*entries, (None, "waiting: bubble and messages")]


def layers_of(stage: TimelineStage, most: int = 3) -> str:
    """The layers of at most `most` chunks, both ends in."""
    spans = [f"{first}-{end - 1}" if end - first > 1 else f"{first}" for first, end in stage.planned.chunks]
    single = len(spans) == 1 and "-" not in spans[0]
    more = ", ..." if len(spans) > most else ""
    return f"layer{'' if single else 's'} {', '.join(spans[:most])}{more}"


def devices_of(stage: TimelineStage) -> str:
    """Devices and degrees of parallelism."""
    planned = stage.planned
    degrees = [f"dp {planned.dp}", f"tp {planned.tp}"]
    degrees += [f"{name} {count}" for name, count in (("cp", planned.cp), ("ep", planned.ep)) if count > 1]
    return f"{len(planned.ranks)} x {planned.device}, {' x '.join(degrees)}"


def describe_stage(stage: TimelineStage) -> str:
    """All of a stage in a line."""
    recompute = stage.planned.recompute.kind
    return f"stage {stage.number}: {layers_of(stage, most=24)}; {devices_of(stage)}; recompute {recompute}"


def numbers_of(part: Part) -> str:
    """Its micro-batches: one, or the first and the last; with dots where some between them are elsewhere."""
    first, last = part.first_micro_batch, part.last_micro_batch
    return f"{first}" if first == last else f"{first}{'-' if part.gapless else '...'}{last}"


def describe_part(box: Box, part: Part, chunks: int, axis: TimeAxis, stopped: float) -> str:
    """What a part of a box is, when, and which share of it are collectives that stop it."""
    name = "backward of weights" if part.kind == "weight" else part.kind
    chunk = f", chunk {part.chunk}" if chunks > 1 and part.chunk is not None else ""
    count = f" ({part.tasks} tasks)" if part.tasks > 1 else ""
    waits = f", {stopped:.1%} of it collectives" if stopped else ""
    span = f"{axis.say_moment(box.start_s)} to {axis.say_moment(box.end_s)}"
    return f"{name} {numbers_of(part)}{chunk}{count}: {span}{waits}"


def notes_of(timeline: Timeline, boxes: Sequence[Sequence[Box]]) -> list[str]:
    """What the picture leaves out, and where it is not what another figure says."""
    chunked = "; a chunk is a part of a stage's layers" if len(timeline.stages[0].planned.chunks) > 1 else ""
    notes = [
        f"Numbers are micro-batches, from 0{chunked}. The foot of a box is as high as the share of it that"
        " collectives stop. Messages between stages are not drawn."
    ]
    grouped = [box for row in boxes for box in row if box.tasks > 1]
    if grouped:
        tasks = sum(box.tasks for row in boxes for box in row)
        together = sum(box.tasks for box in grouped)
        notes.append(
            f"Of {tasks:,} tasks {together:,} are not drawn one by one but in {len(grouped):,} groups, kind over kind,"
            " each as high as its share of the group's time; the rest of a group is waiting. The trace (--timeline"
            " FILE.json) has every task."
        )
    total_s = timeline.iteration_time_s
    if abs(timeline.end_s - total_s) > WORTH_SAYING * total_s:
        notes.append(
            f"Drawn event by event, which ends at {say_length(timeline.end_s)}; the estimate of {say_length(total_s)}"
            " takes this schedule's closed form."
        )
    if abs(timeline.planned_time_s - total_s) > WORTH_SAYING * total_s:
        notes.append(
            f"The plan itself states {say_length(timeline.planned_time_s)} an iteration: it was estimated in another"
            " way, as Cells are, or from other measurements."
        )
    return notes
