"""The bandwidth monitor: measurements of links between sites, smoothed and aged, as the state table's topology.

SpiderFlow's monitor probes the links and records what it finds (section 4.1.2); it does not say how figures age. Here a
measurement weighs `2 ** (-age / half_life)`, and what the cluster file says weighs as much as one measurement that is
`4 * half_life` old, always: a link that nobody measures any more goes back to the file's figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.many_jobs.sites.topology import Topology, make_topology
from profiles.errors import InputError
from profiles.vocabulary import LinkTable

FILE_WEIGHT = 2.0**-4
Basis = Literal["measured", "file", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """What a probe of a link between two sites found at a time: bytes/s (0: nothing came through) and one way's
    latency (None: it was not measured)."""

    between: tuple[str, str]
    at_s: float
    bandwidth_bytes_per_s: float
    latency_s: float | None = None

    def __post_init__(self) -> None:
        figures = (self.at_s, self.bandwidth_bytes_per_s, self.latency_s or 0.0)
        first, second = self.between
        if first == second or not all(map(math.isfinite, figures)) or min(figures[1:]) < 0:
            raise InputError(
                where="link measurement", found=self, expected="two sites, and finite figures of at least 0"
            )


@dataclass(frozen=True, slots=True)
class Smoothed:
    """A weighted mean of measurements, its weight as of the latest."""

    mean: float = 0.0
    weight: float = 0.0

    def add(self, value: float, *, older_s: float, newer_s: float, half_life_s: float) -> Smoothed:
        """With a measurement `older_s` before the latest so far, or `newer_s` after it."""
        fresh, before = _weight(older_s, half_life_s), self.weight * _weight(newer_s, half_life_s)
        weight = fresh + before
        return Smoothed(self.mean + (value - self.mean) * (fresh / weight), weight)

    def at(self, age_s: float, half_life_s: float, filed: float | None) -> float:
        """The mean `age_s` after the latest measurement, with the file's figure where there is one."""
        weight = self.weight * _weight(age_s, half_life_s)
        if filed is None:
            return self.mean
        return (self.mean * weight + filed * FILE_WEIGHT) / (weight + FILE_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """What is known of a link: `filed` is the cluster file's (bytes/s, s), None if the file has no such link. Nothing
    measured up to `since_s` counts, when it was last found down."""

    filed: tuple[float, float] | None
    bandwidth: Smoothed = Smoothed()
    latency: Smoothed = Smoothed()
    latest_s: float = -math.inf
    since_s: float = -math.inf
    down: bool = False


class BandwidthMonitor:
    """The links between sites, kept current. The same measurements give the same figures. Those of a link that is up
    may come in any order, but for rounding; that it is down counts if it is the latest."""

    def __init__(self, topology: Topology, *, half_life_s: float = 600.0) -> None:
        if not 0 < half_life_s < math.inf:
            raise ValueError(f"bandwidth monitor: a half-life of {half_life_s} s, expected more than 0")
        self.half_life_s = half_life_s
        self.topology = topology
        rows = zip(
            topology.ends.tolist(), topology.bandwidth_bytes_per_s.tolist(), topology.latency_s.tolist(), strict=True
        )
        self.links = {tuple(sorted(ends)): LinkState(filed=(width, far)) for ends, width, far in rows}

    def observe(self, measured: LinkMeasurement) -> None:
        """Count a measurement in. InputError if a site is unknown.

        One of 0 bytes/s says that the link is down: it stays so until a later one of more, and what was measured before
        is forgotten. A link that the file does not have is added.
        """
        numbers = []
        for name in measured.between:
            if name not in self.topology.number:
                some_names = ", ".join(self.topology.names[:20])
                raise InputError(
                    where="link measurement", key="between", found=repr(name), expected=f"one of {some_names}"
                )
            numbers.append(self.topology.number[name])
        ends = tuple(sorted(numbers))
        self.links[ends] = _counted(self.links.get(ends, LinkState(filed=None)), measured, self.half_life_s)

    def observe_all(self, measurements: Iterable[LinkMeasurement]) -> None:
        """Count these in, by time; those of one time in their order."""
        for measured in sorted(measurements, key=lambda measured: measured.at_s):
            self.observe(measured)

    def figures(self, between: tuple[str, str], now_s: float) -> tuple[float, float, Basis]:
        """Bytes/s and s of a link at a time, and where they come from; 0 and `down` for one that nobody knows."""
        ends = tuple(sorted(self.topology.number[name] for name in between))
        state = self.links.get(ends)
        return (0.0, 0.0, "down") if state is None else _figures(state, now_s, self.half_life_s)

    def current(self, now_s: float) -> Topology:
        """The topology at a time. Paths that no measurement changed are taken over from the last one."""
        ends = sorted(self.links)
        figures = [_figures(self.links[pair], now_s, self.half_life_s) for pair in ends]
        width, far = [row[0] for row in figures], [row[1] for row in figures]
        if [tuple(pair) for pair in self.topology.ends.tolist()] != ends:
            rows = [(*pair, *row) for pair, row in zip(ends, zip(width, far, strict=True), strict=True)]
            self.topology = make_topology(self.topology.names, rows)
        else:
            self.topology = self.topology.with_figures(width, far)
        return self.topology


def measurement_of(table: LinkTable, between: tuple[str, str], at_s: float) -> LinkMeasurement:
    """What a link table of `cellplan comm measure`, with its ranks at two sites, says of their link at a time.

    Of its line alpha + beta * bytes: bytes/s are the bus bandwidth of nccl-tests, factor / beta (2 (r - 1) / r for
    all_reduce, (r - 1) / r for the other collectives, 1 for send_recv), latency is alpha over the steps of a ring.
    """
    ranks = table.ranks
    steps = {"all_reduce": 2 * (ranks - 1), "send_recv": 1}.get(table.op, ranks - 1)
    factor = 1.0 if table.op == "send_recv" else steps / ranks
    beta, largest = table.beta_s_per_byte, table.points[-1]
    if beta <= 0:
        beta = largest[1] / largest[0]
    return LinkMeasurement(
        between=between,
        at_s=at_s,
        bandwidth_bytes_per_s=factor / beta,
        latency_s=max(table.alpha_s, 0.0) / max(steps, 1),
    )


def measurements_of(
    tables: Sequence[LinkTable], times_s: Mapping[str, float], names: Sequence[str]
) -> tuple[LinkMeasurement, ...]:
    """Measurements from the tables whose link is called after two sites, as `north--south`; others are passed over.

    `times_s` says when a table was measured, by its id; one that is not in it was measured at 0 s. Of a link's tables
    that of send_recv counts, else that of the fewest ranks.
    """
    tables_of: dict[tuple[str, str], list[LinkTable]] = {}
    for table in tables:
        first, _, second = table.link.partition("--")
        if first in names and second in names and first != second:
            low, high = sorted((first, second))
            tables_of.setdefault((low, high), []).append(table)
    chosen = []
    for pair, of_pair in sorted(tables_of.items()):
        for at_s in sorted({times_s.get(table.id, 0.0) for table in of_pair}):
            best = min(
                (table for table in of_pair if times_s.get(table.id, 0.0) == at_s),
                key=lambda table: (table.op != "send_recv", table.ranks, table.op, table.id),
            )
            chosen.append(measurement_of(best, pair, at_s))
    return tuple(chosen)


def _weight(age_s: float, half_life_s: float) -> float:
    return math.pow(2.0, -age_s / half_life_s)


def _counted(state: LinkState, measured: LinkMeasurement, half_life_s: float) -> LinkState:
    if measured.at_s <= state.since_s:
        return state
    if not measured.bandwidth_bytes_per_s:
        if measured.at_s < state.latest_s:
            return state
        return LinkState(filed=state.filed, since_s=measured.at_s, latest_s=measured.at_s, down=True)
    fresh = state.latest_s if state.bandwidth.weight else measured.at_s
    older_s, newer_s = max(0.0, fresh - measured.at_s), max(0.0, measured.at_s - fresh)
    latency = Smoothed(state.latency.mean, state.latency.weight * _weight(newer_s, half_life_s))
    if measured.latency_s is not None:
        latency = state.latency.add(measured.latency_s, older_s=older_s, newer_s=newer_s, half_life_s=half_life_s)
    return LinkState(
        filed=state.filed,
        bandwidth=state.bandwidth.add(
            measured.bandwidth_bytes_per_s, older_s=older_s, newer_s=newer_s, half_life_s=half_life_s
        ),
        latency=latency,
        latest_s=max(measured.at_s, fresh),
        since_s=state.since_s,
    )


def _figures(state: LinkState, now_s: float, half_life_s: float) -> tuple[float, float, Basis]:
    filed_width, filed_far = state.filed or (None, None)
    if state.down:
        return 0.0, filed_far or 0.0, "down"
    if not state.bandwidth.weight:
        return filed_width or 0.0, filed_far or 0.0, "file"
    age_s = max(0.0, now_s - state.latest_s)
    width = state.bandwidth.at(age_s, half_life_s, filed_width or None)
    far = state.latency.at(age_s, half_life_s, filed_far) if state.latency.weight else filed_far or 0.0
    return width, far, "measured"
