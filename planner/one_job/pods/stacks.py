"""Placements of small spread in both directions: stacks of pods by column groups.

The columns are cut into p groups; each group has its own pods, at most d of them, which fill it from the first row
down, a pod of room n on w columns floor(n / w) rows. A row meets one pod of every group, p in all, a column the pods of
its group, d at most. With rows and columns exchanged it is the other way round. p = 1 are rows that stay whole, d = 1
columns that do; between these lie the mixed placements, which Arnold's eq. 4 does not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, islice

import numpy as np

from planner.one_job.pods.records import Cells

Widths = tuple[int, ...]
Block = tuple[int, tuple[tuple[int, int], ...]]
"""Columns, and the (pod, rows) that fill them from the first row down."""

MOST_PARTITIONS = 300
MOST_GREEDY = 240
MOST_PODS_TO_CHOOSE = 12
MOST_STEPS = 20_000


def widths_of(columns: int, groups: int) -> Iterator[Widths]:
    """Return the ways to cut so many columns into groups, widest first in each, the most even ways first."""
    for widest in range(-(-columns // groups), columns - groups + 2):
        for rest in _partitions(columns - widest, groups - 1, widest):
            yield (widest, *rest)


def _partitions(total: int, parts: int, most: int) -> Iterator[Widths]:
    if parts == 0:
        if total == 0:
            yield ()
        return
    for width in range(min(most, total - parts + 1), 0, -1):
        if width * parts < total:
            break
        for rest in _partitions(total - width, parts - 1, width):
            yield (width, *rest)


def greedy_stack(room: Sequence[int], rows: int, columns: int, groups: int, *, most: int | None = None) -> Cells | None:
    """Return a placement by so many column groups with few pods in the fullest, at most `most`; None where that does
    not come out.

    Pods are shared out in two ways: every group in turn takes the fewest pods that it needs, and of these the smallest
    neighbours by size; or the largest pods go, one after another, to the group that lacks most cells.
    """
    if groups > columns:
        return None
    left = sorted(((pod, size) for pod, size in enumerate(room) if size), key=lambda pair: -pair[1])
    held = np.cumsum([size for _, size in left])
    best: tuple[int, list[tuple[int, list[int]]]] | None = None
    most = len(left) if most is None else most
    for widths in islice(widths_of(columns, groups), max(4, MOST_GREEDY // groups)):
        pods = _greedy_groups(list(left), rows, widths, most)
        if pods is not None:
            most = max(map(len, pods)) - 1
            best = most + 1, list(zip(widths, pods, strict=True))
        fewest = -(-(int(np.searchsorted(held, rows * columns)) + 1) // groups)
        for d in range(fewest, most + 1):
            pods = _even_groups(left[: groups * d], rows, widths, d)
            if pods is not None:
                best, most = (d, list(zip(widths, pods, strict=True))), d - 1
                break
    return None if best is None else _stacked(room, rows, best[1])


def _even_groups(left: list[tuple[int, int]], rows: int, widths: Widths, d: int) -> list[list[int]] | None:
    """At most `d` pods for each group out of `left`, largest first, each to the group that lacks most cells."""
    lacking, groups = [rows] * len(widths), [list[int]() for _ in widths]
    for pod, size in left:
        open_groups = [number for number in range(len(widths)) if lacking[number] > 0 and len(groups[number]) < d]
        if not open_groups:
            break
        number = max(open_groups, key=lambda number: lacking[number] * widths[number])
        groups[number].append(pod)
        lacking[number] -= size // widths[number]
    return groups if max(lacking) <= 0 else None


def _greedy_groups(left: list[tuple[int, int]], rows: int, widths: Widths, d: int) -> list[list[int]] | None:
    """The pods of each group, at most `d`, out of `left`, largest first."""
    groups = []
    for width in widths:
        held = np.array([size // width for _, size in left], np.int64)
        sums = np.concatenate([[0], np.cumsum(held)])
        if sums[min(d, len(held))] < rows:
            return None
        count = int(np.argmax(sums >= rows))
        start = int(np.flatnonzero(sums[count:] - sums[:-count] >= rows)[-1])
        groups.append([pod for pod, _ in left[start : start + count]])
        del left[start : start + count]
    return groups


def chosen_stack(room: Sequence[int], rows: int, columns: int, d: int, p: int) -> Cells | None:
    """Return a placement by `p` column groups with at most `d` pods each, over all ways to share the largest pods out
    to the groups; None where there is none, or none within a fixed number of steps."""
    order = sorted(range(len(room)), key=lambda pod: -room[pod])[:MOST_PODS_TO_CHOOSE]
    sizes = tuple(room[pod] for pod in order)
    sharing = _Sharing(MOST_STEPS)
    for widths in islice(widths_of(columns, p), MOST_PARTITIONS) if p <= columns else ():
        chosen = sharing.disjoint(widths, [_smallest_sets(sizes, width, rows, d) for width in widths])
        if chosen is not None:
            groups = [[order[place] for place in range(len(order)) if pods >> place & 1] for pods in chosen]
            return _stacked(room, rows, list(zip(widths, groups, strict=True)))
    return None


class _Sharing:
    """A search for disjoint sets of pods, one for each group, that ends after so many steps in all."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def disjoint(self, widths: Widths, sets: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        """Return a set for each group, none in common; groups of one width take theirs in order."""
        return self._from(0, 0, 0, widths, sets) if all(sets) else None

    def _from(
        self, number: int, used: int, first: int, widths: Widths, sets: Sequence[tuple[int, ...]]
    ) -> tuple[int, ...] | None:
        if number == len(widths):
            return ()
        same = number > 0 and widths[number] == widths[number - 1]
        for place in range(first if same else 0, len(sets[number])):
            self.steps -= 1
            if self.steps <= 0:
                return None
            pods = sets[number][place]
            if not pods & used:
                others = self._from(number + 1, used | pods, place, widths, sets)
                if others is not None:
                    return (pods, *others)
        return None


@lru_cache(maxsize=4096)
def _smallest_sets(sizes: tuple[int, ...], width: int, rows: int, d: int) -> tuple[int, ...]:
    """Sets of at most `d` pods, as bit masks, that fill `rows` rows at this width and need each of theirs; those of the
    least room first."""
    held = [min(rows, size // width) for size in sizes]
    sets = []
    for count in range(1, min(d, len(sizes)) + 1):
        for pods in combinations(range(len(sizes)), count):
            total = sum(held[pod] for pod in pods)
            if total >= rows and total - min(held[pod] for pod in pods) < rows:
                sets.append((sum(sizes[pod] for pod in pods), sum(1 << pod for pod in pods)))
    return tuple(pods for _, pods in sorted(sets))


def _stacked(room: Sequence[int], rows: int, groups: list[tuple[int, list[int]]]) -> Cells:
    """The cells of column groups, each filled by its pods from the first row down."""
    columns: list[list[int]] = []
    for width, pods in groups:
        column = [pod for pod in pods for _ in range(room[pod] // width)][:rows]
        columns += [column] * width
    return tuple(zip(*columns, strict=True))
