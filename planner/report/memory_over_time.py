"""Memory of a rank over an iteration: what stays, and the activations of the micro-batches that are under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimator.schedules.records import Task
from planner.one_job.timeline.events import Timeline

MOST_MOMENTS = 200
"""Of a stage; of more, the fullest of each of so many equal stretches is told."""

GIB = 2**30


def memory_steps(plan: Mapping[str, Any], timeline: Timeline) -> list[dict[str, Any]]:
    """Return moments with the memory from then on, of the first, the middle and the last stage.

    A forward's activations stay until the last task of their micro-batch and chunk; at the fullest moment they are what
    the plan says. Empty where the plan says nothing.
    """
    count = len(timeline.stages)
    rows: list[dict[str, Any]] = []
    for number in dict.fromkeys((0, count // 2, count - 1)):
        memory = plan["stages"][number]["memory"]
        if not memory:
            return []
        activations = memory["activation_bytes"]
        rest = sum(
            memory[key]
            for key in (
                "weight_bytes",
                "gradient_bytes",
                "optimizer_bytes",
                "temporary_bytes",
                "communication_bytes",
                "reserve_bytes",
            )
        )
        moments = _under_way(timeline.stages[number].tasks)
        most = max((under_way for _, under_way in moments), default=0) or 1
        levels = [(at, (rest + activations * under_way / most) / GIB) for at, under_way in moments]
        levels.append((timeline.end_s, levels[-1][1] if levels else rest / GIB))
        rows += [{"stage": f"stage {number}", "s": at, "GiB": level} for at, level in _fewer(levels, timeline.end_s)]
    return rows


def _under_way(tasks: tuple[Task, ...]) -> list[tuple[float, int]]:
    """Moments, and how many pairs of micro-batch and chunk are under way from then on."""
    begins: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    for task in tasks:
        key = (task.micro_batch, task.chunk)
        begins[key] = min(task.start_s, begins.get(key, task.start_s))
        ends[key] = max(task.end_s, ends.get(key, task.end_s))
    changes = sorted([(at, 1) for at in begins.values()] + [(at, -1) for at in ends.values()])
    moments, under_way = [(0.0, 0)], 0
    for at, change in changes:
        under_way += change
        moments.append((at, under_way))
    return moments


def _fewer(levels: list[tuple[float, float]], end_s: float) -> list[tuple[float, float]]:
    if len(levels) <= MOST_MOMENTS:
        return levels
    fullest: dict[int, tuple[float, float]] = {}
    for at, level in levels:
        place = int(MOST_MOMENTS * at / end_s) if end_s else 0
        if place not in fullest or level > fullest[place][1]:
            fullest[place] = (at, level)
    first = [] if 0 in fullest and fullest[0][0] == levels[0][0] else levels[:1]
    return [*first, *fullest.values()]
