"""A stage's tasks in its schedule's order."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.schedules.orders import Shape, follower, leader, order_of
from planner.one_job.running.program import Way
from profiles.records import dataclass

Place = tuple[int, int]
"""Stage and chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Micro-batch `k` through a chunk of a stage, forward or backward. What it takes comes from `source`, what it makes
    goes to `target`: None at the model's ends."""

    way: Way
    stage: int
    chunk: int
    k: int
    source: Place | None
    target: Place | None


def tasks_of(shape: Shape, stage: int) -> Iterator[Task]:
    """Yield the tasks of one stage in their order."""
    for step in order_of(shape, stage):
        for kind, chunk, k in step.actions:
            assert kind != "weight", "a schedule that splits backward"
            before, after = leader(shape, stage, chunk), follower(shape, stage, chunk)
            source, target = (before, after) if kind == "forward" else (after, before)
            yield Task(way=kind, stage=stage, chunk=chunk, k=k, source=source, target=target)
