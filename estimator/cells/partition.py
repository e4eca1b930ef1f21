"""The exact search behind `estimator.cells.stages`: the contiguous split of the smallest max F_i / n_i.

Two different bottlenecks F/n and F'/n' differ by at least 1/N^2, because n, n' <= N; so the integers
ceil(N^2 F / n), called levels here, keep their order, and no float decides anything. At a level, a range of layers
needs at least ceil(N^2 F / level) devices, rounded up to the next count it may have, and the fewest devices of a split
into S stages is a shortest path of S steps: O(S L^2). The lowest level whose fewest devices are within N is a lower
bound on the bottleneck, and it is reached if the devices to spare can be shared out over the stages of its best
split. They always can where every count is allowed, and where powers of two are and N is one: doubling the smallest
count never overshoots. Otherwise the sums themselves are searched, O(S L^2 counts) for each level tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from profiles.records import dataclass
from profiles.vocabulary import Infeasible

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Usable = Callable[[IntArray, IntArray, IntArray], BoolArray]
Bounds = tuple[tuple[int, int], ...]
Split = tuple[Bounds, tuple[int, ...]]
"""Layers [first, end) of each stage, and the devices of each."""

_NONE = 1 << 40  # stands for "no such count": above any number of devices, and a sum of many still fits int64


def search_partition(
    flops: Sequence[int],
    cut_bytes: Sequence[int],
    devices: int,
    stages: int,
    *,
    ranges: Sequence[tuple[int, int]],
    counts: Sequence[int],
    usable: Usable | None,
) -> Split | Infeasible:
    """The best split whose stages are among `ranges` (ascending) and have a count of `counts` (ascending).

    What is best, and what `usable` means, says `estimator.cells.stages.partition_exact`.
    """
    allowed = [n for n in counts if n <= devices - (stages - 1) * counts[0]]
    unit = gcd(*flops) or 1
    before = (0, *accumulate(f // unit * devices**2 for f in flops))
    # Whole FLOPs of large models on many devices are beyond an int64.
    kind = np.int64 if before[-1] < 1 << 62 else np.object_
    task = _Task(
        layers=len(flops),
        devices=devices,
        stages=stages,
        work_before=before,
        first=np.array([a for a, _ in ranges], dtype=np.int64),
        end=np.array([e for _, e in ranges], dtype=np.int64),
        work=np.array([before[e] - before[a] for a, e in ranges], dtype=kind),
        unit=unit,
        cut_before=np.array([0, *cut_bytes, 0], dtype=np.int64),
        counts=np.array(allowed, dtype=np.int64),
        usable=usable,
    )
    highest = max(1, before[-1])
    level = _lowest_level(task, _fewest_devices, max(1, before[-1] // devices), highest)
    if level is None:
        return Infeasible(reason=f"no {stages} stages are usable on at most {devices} devices", lacking="devices")
    bounds = _cheapest_bounds(task, level, exact=False)
    shares = _share_out(task, bounds, level)
    if shares is None:
        level = _lowest_level(task, _any_split, level, highest)
        if level is None:
            return Infeasible(
                reason=f"the counts usable by {stages} stages never add up to {devices} devices", lacking="divisibility"
            )
        bounds = _cheapest_bounds(task, level, exact=True)
        shares = _share_out(task, bounds, level)
    assert shares is not None, f"no shares of {devices} devices for {bounds} at level {level}"
    return bounds, shares


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What is searched. `first`, `end` (sorted by first) are the ranges a stage may be, `work` their N^2 F.

    `work_before[k]` is N^2 times the FLOPs of the layers before k, all in units of `unit` FLOPs.
    """

    layers: int
    devices: int
    stages: int
    work_before: tuple[int, ...]
    first: IntArray
    end: IntArray
    work: npt.NDArray[Any]
    unit: int
    cut_before: IntArray
    counts: IntArray
    usable: Usable | None


def _lowest_level(task: _Task, attempt: Callable[[_Task, int], Split | None], low: int, high: int) -> int | None:
    """The lowest level in [low, high] that `attempt` meets; None if it does not even meet `high`.

    Bisection, but each split found pulls the upper end down to its own level, and one step below it is tried first:
    a failure there proves it.
    """

    def met(level: int) -> int | None:
        split = attempt(task, level)
        if split is None:
            return None
        before = task.work_before
        return max(1, *(-((before[a] - before[e]) // n) for (a, e), n in zip(*split, strict=True)))

    best = met(high)
    while best is not None and best > low:
        lower = met(best - 1)
        if lower is None:
            break
        best = lower
        middle = (low + best) // 2
        lower = met(middle)
        if lower is None:
            low = middle + 1
        else:
            best = lower
    return best


def _is_usable(task: _Task, rows: IntArray, index: IntArray) -> BoolArray:
    """Whether each of the ranges `rows` is usable on its count, given by its index in `task.counts`."""
    if task.usable is None:
        return np.ones(len(rows), dtype=np.bool_)
    return task.usable(task.first[rows], task.end[rows], task.counts[index])


def _least_counts(task: _Task, level: int) -> IntArray:
    """For each range the smallest count it may have at `level`, or _NONE."""
    need = (-(-task.work // level)).astype(np.int64)
    index = np.searchsorted(task.counts, need)
    rows = np.flatnonzero(index < len(task.counts))
    while len(rows):
        rows = rows[~_is_usable(task, rows, index[rows])]
        index[rows] += 1
        rows = rows[index[rows] < len(task.counts)]
    least: IntArray = np.append(task.counts, _NONE)[index]
    return least


def _options(task: _Task, rows: IntArray, least: IntArray) -> tuple[IntArray, IntArray]:
    """All (range, count) that may be, ascending: each range of `rows` with its counts from its `least` on."""
    start = np.searchsorted(task.counts, least)
    sizes = len(task.counts) - start
    row = np.repeat(rows, sizes)
    index = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes - start, sizes)
    usable = _is_usable(task, row, index)
    return row[usable], task.counts[index[usable]]


def _path_sums(task: _Task, counts: IntArray, *, backward: bool = False) -> IntArray:
    """Table [s, k] of the smallest sum of counts over s stages that cover layers [0, k), or [k, layers) `backward`."""
    weights = np.full((task.layers + 1, task.layers + 1), _NONE)
    weights[task.first, task.end] = counts
    if backward:
        weights = weights.T.copy()
    table = np.full((task.stages + 1, task.layers + 1), _NONE)
    table[0, task.layers if backward else 0] = 0
    for s in range(task.stages):
        np.min(table[s][:, None] + weights, axis=0, out=table[s + 1])
    return table


def _fewest_devices(task: _Task, level: int) -> Split | None:
    """The split of fewest devices at `level`; None if they are more than there are. Its devices may sum to fewer."""
    least = _least_counts(task, level)
    table = _path_sums(task, least)
    if table[-1, -1] > task.devices:
        return None
    bounds, devices = [], []
    end = task.layers
    for s in range(task.stages, 0, -1):
        into = np.flatnonzero(task.end == end)
        best = into[np.argmin(table[s - 1, task.first[into]] + least[into])]
        bounds.append((int(task.first[best]), end))
        devices.append(int(least[best]))
        end = int(task.first[best])
    return tuple(bounds[::-1]), tuple(devices[::-1])


def _any_split(task: _Task, level: int) -> Split | None:
    """Some split at `level` whose devices sum to N; None if none does. Bit m of an integer stands for the sum m."""
    rows, counts = _options(task, np.arange(len(task.first)), _least_counts(task, level))
    arcs = list(zip(task.first[rows].tolist(), task.end[rows].tolist(), counts.tolist(), strict=True))
    keep = (1 << task.devices + 1) - 1
    reach = [[1] + [0] * task.layers]
    for _ in range(task.stages):
        row = [0] * (task.layers + 1)
        for a, e, n in arcs:
            if sums := reach[-1][a]:
                row[e] |= sums << n
        reach.append([sums & keep for sums in row])
    if not reach[-1][-1] >> task.devices & 1:
        return None
    bounds, devices = [], []
    end, left = task.layers, task.devices
    for s in range(task.stages - 1, -1, -1):
        a, n = next((a, n) for a, e, n in arcs if e == end and n <= left and reach[s][a] >> left - n & 1)
        bounds.append((a, end))
        devices.append(n)
        end, left = a, left - n
    return tuple(bounds[::-1]), tuple(devices[::-1])


def _cheapest_bounds(task: _Task, level: int, *, exact: bool) -> Bounds:
    """Bounds at `level` of the fewest cut bytes, then the least sum of squared counts.

    The counts are the smallest ones and sum to at most N, or, `exact`, any that sum to N. A label is a partial split:
    the layers it covers, its devices, cut bytes and squares; of two that cover as much, one is dropped if it is no
    better in (bytes, squares) and uses no fewer devices (`exact`: as many).
    """
    least = _least_counts(task, level)
    rows, count = np.arange(len(least)), least
    if exact:
        rows, count = _options(task, rows, least)
    first, end = task.first[rows], task.end[rows]
    fewest, fewest_after = _path_sums(task, least), _path_sums(task, least, backward=True)
    most = np.full(len(least), -_NONE)
    most[rows] = count  # the last of a range's counts, its largest, stays
    most_after = -_path_sums(task, -most, backward=True)

    layer = used = cut = squares = np.zeros(1, dtype=np.int64)
    trail: list[tuple[IntArray, IntArray]] = []
    for s in range(task.stages):
        rest, rest_most = fewest_after[task.stages - s - 1], most_after[task.stages - s - 1]
        fits = fewest[s, first] + count + rest[end] <= task.devices
        arc_first, arc_end, arc_count = first[fits], end[fits], count[fits]
        start = np.searchsorted(arc_first, layer)
        steps = np.searchsorted(arc_first, layer, side="right") - start
        parent = np.repeat(np.arange(len(layer)), steps)
        arc = np.arange(len(parent)) - np.repeat(np.cumsum(steps) - steps - start, steps)

        new_used = used[parent] + arc_count[arc]
        keep = new_used + rest[arc_end[arc]] <= task.devices
        if exact:
            keep &= new_used + rest_most[arc_end[arc]] >= task.devices
        parent, arc, used = parent[keep], arc[keep], new_used[keep]
        layer, cut = arc_end[arc], cut[parent] + task.cut_before[arc_first[arc]]
        squares = squares[parent] + arc_count[arc] ** 2

        segment = layer * (task.devices + 1)
        if exact:
            order = np.lexsort((squares, cut, segment + used))
            new = np.diff((segment + used)[order], prepend=-1) > 0
        else:
            order = np.lexsort((used, squares, cut, layer))
            fewer = (used - segment)[order]  # a later segment lies below all of an earlier one
            new = np.diff(np.minimum.accumulate(fewer), prepend=task.devices + 1) < 0
        order = order[new]
        trail.append((parent[order], layer[order]))
        layer, used, cut, squares = layer[order], used[order], cut[order], squares[order]
    ends, label = [], 0
    for parent, layer in reversed(trail):
        ends.append(int(layer[label]))
        label = int(parent[label])
    return tuple(pairwise([0, *ends[::-1]]))


def _share_out(task: _Task, bounds: Bounds, level: int) -> tuple[int, ...] | None:
    """Devices for the stages at `level` that sum to N, of the least sum of F_i / n_i; None if no counts do.

    A table over the devices given beyond the smallest counts; ties go to the fewest devices in the later stage.
    """
    work = [task.work_before[e] - task.work_before[a] for a, e in bounds]
    stage = np.array([np.flatnonzero((task.first == a) & (task.end == e))[0] for a, e in bounds])
    rows, counts = _options(task, stage, np.array([-(-w // level) for w in work]))
    options = [counts[rows == r].tolist() for r in stage]
    spare = task.devices - sum(ns[0] if ns else _NONE for ns in options)
    if spare < 0:
        return None
    cost = np.full(spare + 1, np.inf)
    cost[0] = 0.0
    choices: list[IntArray] = []
    for w, ns in zip(work, options, strict=True):
        best, choice = np.full(spare + 1, np.inf), np.zeros(spare + 1, dtype=np.int64)
        for n in ns:
            extra = n - ns[0]
            if extra > spare:
                break
            tried = cost[: spare + 1 - extra] + w * task.unit / n
            better = np.flatnonzero(tried < best[extra:]) + extra
            best[better], choice[better] = tried[better - extra], n
        cost = best
        choices.append(choice)
    if np.isinf(cost[spare]):
        return None
    devices = []
    for ns, choice in zip(options[::-1], choices[::-1], strict=True):
        devices.append(int(choice[spare]))
        spare -= devices[-1] - ns[0]
    return tuple(devices[::-1])
