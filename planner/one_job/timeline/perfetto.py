"""A timeline in the Chrome format that Perfetto opens, as `planner.one_job.running.traces` writes the estimate of a
run."""

from __future__ import annotations

from planner.one_job.running.traces import process_events, schedule_spans, trace_text
from planner.one_job.timeline.events import Timeline, TimelineStage


def write_trace(timeline: Timeline) -> str:
    """The text of the trace. The ranks of a stage are alike: one process for all, numbered and named by the first."""
    return trace_text(
        event
        for stage in timeline.stages
        for event in process_events(
            stage.planned.ranks[0],
            _name(stage),
            schedule_spans(stage.tasks, timeline.pipeline_s, timeline.after_s.items()),
        )
    )


def _name(stage: TimelineStage) -> str:
    alike = f" ({len(stage.planned.ranks)} ranks alike)" if len(stage.planned.ranks) > 1 else ""
    return f"estimated: rank {stage.planned.ranks[0]}, stage {stage.number}{alike}"
