"""Who sat where when, as a picture: a row for each node, time from left to right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf

from planner.many_jobs.jobs.records import Job
from planner.many_jobs.simulation.run_state import Slice
from planner.one_job.timeline.axis import LONG_UNITS, TimeAxis
from planner.report.charts import colours
from planner.report.svg import box, label, picture, time_marks
from profiles.records import dataclass

WIDTH, LEFT = 1000.0, 116.0
MOST_SLICES = 2500
MOST_ROWS = 96
BINS, GROUPS = 120, 32
HUES = 7

Place = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class _Stays:
    """What is drawn: who held what when, the nodes that anybody ever held, and how many devices a node of each pool
    has."""

    slices: Sequence[Slice]
    jobs: Sequence[Job]
    places: tuple[Place, ...]
    devices_per_node: Mapping[str, int]
    begins_s: float
    axis: TimeAxis


def draw_gantt(slices: Sequence[Slice], jobs: Sequence[Job], devices_per_node: Mapping[str, int]) -> str:
    """Return the SVG: each job's devices on each node; of very many nodes or stays, which share of groups of nodes was
    held in each of 120 equal stretches."""
    begins_s = min((start for *_, start, _, _ in slices), default=0.0)
    ends_s = max((end for *_, end in slices), default=1.0)
    stays = _Stays(
        slices=slices,
        jobs=jobs,
        places=tuple(sorted({(pool, node) for _, pool, node, *_ in slices})),
        devices_per_node=devices_per_node,
        begins_s=begins_s,
        axis=TimeAxis(end_s=max(ends_s - begins_s, 1e-9), width=WIDTH, units=LONG_UNITS),
    )
    if len(slices) <= MOST_SLICES and len(stays.places) <= MOST_ROWS:
        height, size, body = 18.0, 1, _each(stays, 18.0)
    else:
        height, size = 12.0, -(-len(stays.places) // GROUPS)
        body = _shares(stays, size, height)
    names = [_span(stays.places[first : first + size]) for first in range(0, len(stays.places), size)]
    bottom = len(names) * height
    labels = [label(LEFT - 6, row * height + 0.7 * height, name, anchor="end") for row, name in enumerate(names)]
    marks = time_marks(stays.axis, left=LEFT, top=0, bottom=bottom)
    return picture(LEFT + WIDTH + 20, bottom + 22, f"{len(stays.places):,} nodes over time", [*labels, marks, *body])


def _each(stays: _Stays, height: float) -> Iterator[str]:
    """A box for each stay of a job on a node, as high as its share of the devices; of one that takes turns with others
    who came before it, the lower half of theirs."""
    fills, axis = colours(HUES), stays.axis
    rows = {place: row for row, place in enumerate(stays.places)}
    for (number, pool, node, mask, start_s, restarted_s, end_s), alone_s in _by_start(stays.slices):
        share = (height - 2) / stays.devices_per_node[pool]
        first, count = (mask & -mask).bit_length() - 1, mask.bit_count()
        from_s, to_s = restarted_s - stays.begins_s, end_s - stays.begins_s
        half = 0.5 if alone_s > start_s else 1.0
        job, span = stays.jobs[number], f"{axis.say_moment(from_s)} to {axis.say_moment(to_s)}"
        yield box(
            LEFT + axis.pixels(start_s - stays.begins_s),
            rows[pool, node] * height + 1 + (first + (1 - half) * count) * share,
            max(0.4, axis.pixels(end_s - start_s)),
            max(0.8, half * count * share),
            fills[number % HUES],
            said=f"job {job.id}: {count} of {job.devices} devices, {span}",
        )


def _by_start(slices: Sequence[Slice]) -> Iterator[tuple[Slice, float]]:
    """Each stay, with the time up to which others have been drawn on just these devices: those who take turns there."""
    until_s: dict[tuple[str, int, int], float] = {}
    for stay in sorted(slices, key=lambda stay: stay[4]) if _overlap(slices) else slices:
        devices = stay[1:4]
        yield stay, until_s.get(devices, -inf)
        until_s[devices] = max(until_s.get(devices, -inf), stay[6])


def _overlap(slices: Sequence[Slice]) -> bool:
    """Whether two jobs ever took turns on the same devices."""
    spans: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for _, pool, node, mask, from_s, _, to_s in slices:
        spans.setdefault((pool, node, mask), []).append((from_s, to_s))
    return any(one[1] > other[0] for stays in spans.values() for one, other in pairwise(sorted(stays)))


def _shares(stays: _Stays, size: int, height: float) -> Iterator[str]:
    """A box for each group of nodes and stretch, as dark as its devices were held."""
    group_of = {place: number // size for number, place in enumerate(stays.places)}
    rooms = [0] * (-(-len(stays.places) // size))
    for place in stays.places:
        rooms[group_of[place]] += stays.devices_per_node[place[0]]
    wide_s = stays.axis.end_s / BINS
    held = [[0.0] * BINS for _ in rooms]
    for (_, pool, node, mask, start_s, _, end_s), alone_s in _by_start(stays.slices):
        row, count = held[group_of[pool, node]], mask.bit_count()
        from_s, to_s = max(start_s, alone_s) - stays.begins_s, end_s - stays.begins_s
        for stretch in range(int(from_s / wide_s), min(BINS - 1, int(to_s / wide_s)) + 1):
            inside_s = min(to_s, (stretch + 1) * wide_s) - max(from_s, stretch * wide_s)
            row[stretch] += count * max(0.0, inside_s)
    (fill,) = colours(1)
    for number, row in enumerate(held):
        for stretch, amount in enumerate(row):
            share = min(1.0, amount / (rooms[number] * wide_s))
            if share > 0.005:
                x = LEFT + stretch * WIDTH / BINS
                yield box(x, number * height + 1, WIDTH / BINS, height - 2, fill, opacity=share)


def _span(places: Sequence[Place]) -> str:
    (pool, first), (_, last) = places[0], places[-1]
    return f"{pool} {first}" if first == last else f"{pool} {first}-{last}"
