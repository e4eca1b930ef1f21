"""A level's spread table out of runs of nccl-tests over 1, 2, ... of its parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import fsum

from estimator.communication.nccl_tests import NcclRun
from profiles.errors import InputError
from profiles.network import SpreadTable
from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadPoint:
    """Runs of `op` over so many ranks, nodes and parts: `seconds` of the largest size, in bytes, that was run over one
    part too, and the share of that run's rate."""

    op: CollectiveOp
    ranks: int
    nodes: int
    parts: int
    size_bytes: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSpread:
    """The table, what it was made of, and sentences about what in it was not measured."""

    table: SpreadTable
    points: tuple[SpreadPoint, ...]
    notes: tuple[str, ...]


Shape = tuple[CollectiveOp, int, int]
"""Collective, ranks, nodes: runs alike in them differ in where their nodes are."""


def fit_spread(runs: Sequence[NcclRun], part_of: Callable[[str], object], *, source: str) -> FittedSpread:
    """Return the spread table of the level whose part of each host `part_of` says.

    A share is the time over one part over that over several, of the same collective on as many ranks and nodes, at the
    largest size of both; the least time of each counts, and of several collectives the mean. Shares that were not
    measured lie on the line between their neighbours, and none is above the one before it. Raise InputError for runs
    without the names of their hosts, without any over one part to compare with, or over one part alone.
    """
    times: defaultdict[Shape, dict[int, dict[int, float]]] = defaultdict(dict)
    for run in runs:
        if not run.hosts:
            expected = "`Rank` lines, which say on what hosts it ran"
            raise InputError(where=source, key="Rank", found=f"a run of {run.op} without hosts", expected=expected)
        by_size = times[run.op, run.ranks, len(run.hosts)].setdefault(len({part_of(host) for host in run.hosts}), {})
        for size, seconds in run.seconds:
            by_size[size] = min(seconds, by_size.get(size, seconds))
    points = tuple(point for shape, by_parts in times.items() for point in _points(shape, by_parts, source))
    if all(point.parts == 1 for point in points):
        expected = "runs over 2 parts or more beside those over 1"
        raise InputError(where=source, key="parts", found="runs inside one part alone", expected=expected)
    notes: list[str] = []
    collective = _shares([point for point in points if point.op != "send_recv"], "collectives", notes)
    message = _shares([point for point in points if point.op == "send_recv"], "messages (sendrecv_perf)", notes)
    return FittedSpread(
        table=SpreadTable(collective=collective, message=message, source=source), points=points, notes=tuple(notes)
    )


def _points(shape: Shape, by_parts: Mapping[int, Mapping[int, float]], source: str) -> list[SpreadPoint]:
    op, ranks, nodes = shape
    if 1 not in by_parts:
        found = f"{op} of {ranks} ranks on {nodes} nodes over {min(by_parts)} parts"
        raise InputError(where=source, key="parts", found=found, expected="the same run inside one part beside it")
    points = []
    for parts, by_size in sorted(by_parts.items()):
        common = by_size.keys() & by_parts[1].keys()
        if not common:
            found = f"no size of {op} of {ranks} ranks over both 1 and {parts} parts"
            raise InputError(where=source, key="size", found=found, expected="the same sizes in both runs")
        size = max(common)
        points.append(
            SpreadPoint(
                op=op,
                ranks=ranks,
                nodes=nodes,
                parts=parts,
                size_bytes=size,
                seconds=by_size[size],
                share=min(1.0, by_parts[1][size] / by_size[size]),
            )
        )
    return points


def _shares(points: Sequence[SpreadPoint], what: str, notes: list[str]) -> tuple[float, ...]:
    """The shares over 1, 2, ... parts, up to the most that were run over."""
    measured: defaultdict[int, list[float]] = defaultdict(list)
    for point in points:
        measured[point.parts].append(point.share)
    known = {parts: fsum(shares) / len(shares) for parts, shares in measured.items()} | {1: 1.0}
    most = max(known)
    if most == 1:
        notes.append(f"no {what} over several parts were run: taken to lose nothing")
    left_out = [parts for parts in range(2, most) if parts not in known]
    if left_out:
        notes.append(f"{what} over {', '.join(map(str, left_out))} parts: on the line between those measured")
    shares = [_between(known, parts) for parts in range(1, most + 1)]
    falling = tuple(accumulate(shares, min))
    if list(falling) != shares:
        notes.append(f"{what} reached more over more parts in some runs: taken as over fewer")
    return falling


def _between(known: Mapping[int, float], parts: int) -> float:
    """The share over so many parts, or on the line between those around it."""
    if parts in known:
        return known[parts]
    low, high = max(one for one in known if one < parts), min(one for one in known if one > parts)
    return known[low] + (known[high] - known[low]) * (parts - low) / (high - low)
