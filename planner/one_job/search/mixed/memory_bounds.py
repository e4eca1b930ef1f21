"""Bounds of frames by what their devices can hold: in the order of these the frames come.

Within T, where the stages before take S for a micro-batch and a stage takes c, S + m c is no more than T. By a rule
that takes t_r for all layers a stage holds at most the share x_r of the model that fits; so c seconds hold no more than
the lower of c / t_r and x_r under the best rule, and that is no more than

    a + l c,    a = max(0, max_r x_r (1 - l t_r)),   for any l > 0.

All shares together are 1, and l c sums to no more than T v (`planner.one_job.search.mixed.frames`, with the rates l):
so T >= (1 - sum of a) / v. The l that are tried are 1 / t_r, and one so small that only what fits matters.

And a stage holds whole layers: of the heaviest kind no more than fit, and within T / m no more than pass; all stages
together hold all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np

from estimator.pricing.amounts import Floats
from planner.one_job.search.mixed.columns import SCALES, Column, Columns, Integers
from planner.one_job.search.mixed.frames import Frames, Lister, Rows
from planner.one_job.search.spaces.found import ROUNDING
from profiles.records import dataclass

AT_ONCE = (256, 4096)
"""So many frames are bounded in one go, those with the least bounds first: at first few, then twice as many each time
up to the most."""
PARTS = 4
"""A segment's stages in so many runs, each bounded by its last stage, which has the fewest micro-batches under way."""
SLOW = 1e-3
"""The small l, times the rate of the slowest rule."""
HALVINGS = 12
"""Of the seconds between none and all layers on one stage."""
MOST_PRODUCTS = 3
"""Of at most so many segments each has its own l; of more all have that of the same rule."""


def in_order(frames: Frames, lister: Lister) -> Iterator[tuple[float, int]]:
    """(bound, number) of the frames, the least bound first, each bounded anew once its turn comes; of those that can
    fit."""
    order = np.argsort(frames.bounds, kind="stable")
    waiting: list[tuple[float, int]] = []
    start, size = 0, AT_ONCE[0]
    while start < len(order) or waiting:
        if start < len(order) and (not waiting or waiting[0][0] > frames.bounds[order[start]]):
            chosen = order[start : start + size]
            start, size = start + len(chosen), min(2 * size, AT_ONCE[1])
            bounds = np.maximum(frames.bounds[chosen], bound_by_memory(frames, chosen, lister))
            for bound, number in zip(bounds.tolist(), chosen.tolist(), strict=True):
                if bound < np.inf:
                    heapq.heappush(waiting, (bound, number))
        else:
            yield heapq.heappop(waiting)


def bound_by_memory(frames: Frames, chosen: Integers, lister: Lister) -> Floats:
    """Of each of the chosen frames: its value is no less."""
    bounds = np.zeros(len(chosen))
    part = np.searchsorted(frames.place, chosen, side="right") - 1
    for number in sorted(set(part.tolist())):
        mine = np.flatnonzero(part == number)
        rows = frames.rows[number]
        passes_s = _least_s(rows, rows.numbers[chosen[mine] - frames.place[number]], lister.columns)
        bounds[mine] = lister.value(frames.weights[chosen[mine]], passes_s)
    return bounds


@dataclass(frozen=True, kw_only=True)
class _Run:
    """Stages of a segment, of each frame: how many, the most that fits by scale and rule (frames, scales, rules), and
    how many layers of the heaviest kind by rule (frames, rules)."""

    count: Integers
    share: Floats
    layers: Floats


def _least_s(rows: Rows, numbers: Integers, columns: Columns) -> Floats:
    """Seconds of the passes of frames, at least; infinite where layers do not fit."""
    m = rows.micro_batches
    later = np.zeros(len(numbers), dtype=np.int64)
    runs: list[list[_Run]] = []
    rates: list[Floats] = []
    layer_s: list[Floats] = []
    for place in reversed(range(len(rows.columns))):
        column, segments = rows.columns[place], numbers[:, place]
        pp = column.pp[segments]
        edges = [pp * part // PARTS for part in range(PARTS + 1)]
        runs.append(
            [
                _run(column, segments, end - first, np.minimum(m, later + first + 1), columns)
                for first, end in pairwise(edges)
            ]
        )
        rule_s = column.rule_s[segments]  # (frames, scales, rules)
        rates.append(np.concatenate([1 / rule_s, SLOW / rule_s.max(axis=2, keepdims=True)], axis=2))
        layer_s.append(column.heaviest_s[segments])
        later = later + pp
    options = range(rates[0].shape[2])
    held = [_held(segment, rate) for segment, rate in zip(runs, rates, strict=True)]
    waits = [(1 - 1 / m) ** np.add.reduce([run.count for run in segment])[:, None] for segment in runs]
    alike = ((same,) * len(runs) for same in options)
    every = product(options, repeat=len(runs)) if len(runs) <= MOST_PRODUCTS else alike
    best = np.zeros((len(numbers), SCALES))
    for picked in every:
        speed, whole = np.zeros_like(best), np.zeros_like(best)
        for place, option in enumerate(picked):
            whole += held[place][option]
            rate = rates[place][:, :, option]
            speed = np.where(rate > speed, rate - (rate - speed) * waits[place], speed)
        best = np.maximum(best, (1 - whole) / speed)
    count = int(columns.counts[columns.heaviest])
    every_run = [run for segment in runs for run in segment]
    shares = sum((run.count[:, None] * run.share.max(axis=2) for run in every_run), np.zeros_like(best))
    layers = sum((run.count * run.layers.max(axis=1) for run in every_run), np.zeros(len(numbers)))
    fits = (shares.min(axis=1) >= 1 - ROUNDING) & (layers >= count)
    return np.where(fits, np.maximum(best.max(axis=1), m * _slowest_layers_s(runs, layer_s, count)), np.inf)


def _held(segment: list[_Run], rate: Floats) -> list[Floats]:
    """For each rate that is tried the sum of a over a segment's stages, (frames, scales)."""
    sums = []
    for option in range(rate.shape[2]):
        spared = 1 - rate[:, :, option, None] / rate[:, :, :-1]
        each = (run.count[:, None] * np.maximum(0.0, (run.share * spared).max(axis=2)) for run in segment)
        sums.append(sum(each, np.zeros(rate.shape[:2])))
    return sums


def _slowest_layers_s(runs: list[list[_Run]], layer_s: list[Floats], count: int) -> Floats:
    """Seconds of a micro-batch within which stages of whole layers hold `count` of the heaviest kind, nearly."""
    low = np.zeros(len(layer_s[0]))
    high = np.full(len(layer_s[0]), count * max(float(by_rule_s.max()) for by_rule_s in layer_s))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        held = np.zeros_like(low)
        for segment, by_rule_s in zip(runs, layer_s, strict=True):
            passing = np.floor(middle[:, None] / by_rule_s)
            held += sum(run.count * np.minimum(passing, run.layers).max(axis=1) for run in segment)
        enough = held >= count
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return low


def _run(column: Column, segments: Integers, count: Integers, flying: Integers, columns: Columns) -> _Run:
    """With so many micro-batches under way. At a price p for memory a stage's share is no more than p times the room
    and what each kind of layer is worth beyond its price; p is what the heaviest kind needs."""
    weights, counts, heaviest = columns.scales, columns.counts, columns.heaviest
    # (frames, groups, rules, kinds)
    needed = column.standing_bytes[segments][:, :, None, :] + flying[:, None, None, None] * column.saved_bytes[segments]
    price = weights[:, heaviest] / needed[..., heaviest][..., None]  # (frames, groups, rules, scales)
    worth = weights[None, None, None, :, :] - price[..., None] * needed[:, :, :, None, :]
    room = column.room_bytes[segments][:, :, None]
    share = price * room[..., None] + (counts * np.maximum(0.0, worth)).sum(axis=4)
    return _Run(
        count=count,
        share=np.clip(share.min(axis=1), 0.0, 1.0).transpose(0, 2, 1),
        layers=np.floor(room / needed[..., heaviest]).min(axis=1),
    )
