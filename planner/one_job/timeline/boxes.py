"""Which boxes a picture of tasks has: one for each task that is wide enough to be seen, the others in groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from estimator.schedules.records import Kind, Task
from profiles.records import dataclass

KINDS: tuple[Kind, ...] = ("forward", "backward", "weight")
"""Their order within a group, from above."""

LEAST_WIDTH = 2.5
"""In pixels: where the median task is narrower, tasks stand in groups."""

OF_MEDIAN = 2.5
"""Tasks up to so many medians long are grouped, so that forwards and backwards are alike in it."""

COARSER = 1.5
"""How much wider groups get while there are too many parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Tasks of one kind in a box, `seconds` long together. `chunk` None: of several; `gapless`: of all micro-batches
    from the first to the last."""

    kind: Kind
    chunk: int | None
    first_micro_batch: int
    last_micro_batch: int
    gapless: bool
    tasks: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A task, or several that follow each other with little between them."""

    start_s: float
    end_s: float
    parts: tuple[Part, ...]

    @property
    def tasks(self) -> int:
        """How many it stands for."""
        return sum(part.tasks for part in self.parts)


def boxes_of(
    rows: Sequence[Sequence[Task]], *, seconds_per_pixel: float, group_width: float, most_parts: int
) -> tuple[tuple[Box, ...], ...]:
    """Boxes of each row's tasks (in order of time, none over another): as fine as shows, and no finer than `most_parts`
    parts in all allow, or one box for a kind and row. Tasks of no length are left out.

    `group_width`: the pixels that a group fills, if it can, before the next one begins.
    """
    rows = [[task for task in row if task.end_s > task.start_s] for row in rows]
    lengths_s = [task.end_s - task.start_s for row in rows for task in row]
    median_s = median(lengths_s or [0.0])
    if median_s >= LEAST_WIDTH * seconds_per_pixel and len(lengths_s) <= most_parts:
        return tuple(tuple(_box([task]) for task in row) for row in rows)
    least_s = max(LEAST_WIDTH * seconds_per_pixel, OF_MEDIAN * median_s)
    group_s = max(group_width * seconds_per_pixel, least_s)
    end_s = max((row[-1].end_s for row in rows if row), default=0.0)
    while _parts(grouped := _grouped(rows, least_s, group_s)) > most_parts and least_s <= end_s:
        least_s, group_s = COARSER * least_s, COARSER * group_s
    return grouped


def _grouped(rows: Sequence[Sequence[Task]], least_s: float, group_s: float) -> tuple[tuple[Box, ...], ...]:
    return tuple(tuple(_group(row, least_s, group_s)) for row in rows)


def _parts(grouped: Sequence[Sequence[Box]]) -> int:
    return sum(len(box.parts) for row in grouped for box in row)


def _group(tasks: Sequence[Task], least_s: float, group_s: float) -> Iterator[Box]:
    """Neighbours shorter than `least_s`, with no more than that between them, until they are `group_s` long."""
    group: list[Task] = []
    for task in tasks:
        alone = task.end_s - task.start_s >= least_s
        if group and (alone or task.end_s - group[0].start_s > group_s or task.start_s - group[-1].end_s >= least_s):
            yield _box(group)
            group = []
        if alone:
            yield _box([task])
        else:
            group.append(task)
    if group:
        yield _box(group)


def _box(tasks: Sequence[Task]) -> Box:
    by_kind = ((kind, [task for task in tasks if task.kind == kind]) for kind in KINDS)
    return Box(
        start_s=tasks[0].start_s,
        end_s=tasks[-1].end_s,
        parts=tuple(_part(kind, tasks_of_kind) for kind, tasks_of_kind in by_kind if tasks_of_kind),
    )


def _part(kind: Kind, tasks: Sequence[Task]) -> Part:
    numbers = [task.micro_batch for task in tasks]
    chunks = {task.chunk for task in tasks}
    return Part(
        kind=kind,
        chunk=chunks.pop() if len(chunks) == 1 else None,
        first_micro_batch=min(numbers),
        last_micro_batch=max(numbers),
        gapless=len(set(numbers)) == max(numbers) - min(numbers) + 1,
        tasks=len(tasks),
        seconds=sum(task.end_s - task.start_s for task in tasks),
    )
