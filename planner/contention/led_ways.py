"""The ways that sets of queue pairs take and may take, those of many jobs at once, and the paths that policies see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from estimator.network.fabric import Fabric
from estimator.network.queue_pairs import Connections
from estimator.network.routes import Flows, turns_taken
from estimator.network.turns import NO_LINK, Turn
from estimator.network.wires import Integers
from planner.contention.policies.records import Path
from planner.contention.port_ways import Offer, PairWays, ways_by_port
from profiles.records import dataclass

AT_ONCE = 1 << 12
"""So many queue pairs are led at once: 64 ports are tried of each, whose arrays stay in a processor's cache."""


class _Entries(dict[int, tuple[int, float]]):
    """Links of which a path has all bytes, each made once."""

    def __missing__(self, link: int) -> tuple[int, float]:
        entry = self[link] = (link, 1.0)
        return entry


class _Paths:
    """Paths of the ways of a table, by pair."""

    def __init__(self, entries: _Entries) -> None:
        self._entries = entries
        self._made: dict[tuple[object, ...], tuple[Path, ...]] = {}
        self._rows: list[Path] = []
        self._table: PairWays | None = None

    def of(self, offer: Offer, inside: tuple[int, ...]) -> tuple[Path, ...]:
        """Return a path for each way of an offer, by the numbers of links, those `inside` nodes last, as they are."""
        key = (offer.pair, None if offer.is_there else offer.own.way, inside)
        paths = self._made.get(key)
        if paths is None:
            paths = self._made[key] = self._of(offer, inside)
        return paths

    def _of(self, offer: Offer, inside: tuple[int, ...]) -> tuple[Path, ...]:
        if self._table is not offer.table:
            self._table, self._rows = offer.table, self._of_table(offer.table.links)
        begins = offer.table.begins
        paths = self._rows[begins[offer.pair] : begins[offer.pair + 1]]
        if not offer.is_there:
            paths.insert(offer.place, self._path(sorted(offer.own.way)))
        if inside:
            lanes = self._path(inside)
            return tuple((*path, *lanes) for path in paths)
        return tuple(paths)

    def _of_table(self, links: Integers) -> list[Path]:
        rows = np.sort(links, axis=1)
        if (rows[:, :1] != NO_LINK).all():
            return list(map(self._path, rows.tolist()))
        return [self._path([link for link in row if link != NO_LINK]) for row in rows.tolist()]

    def _path(self, links: Sequence[int]) -> Path:
        return tuple(map(self._entries.__getitem__, links))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Led:
    """A set of queue pairs: the links that they take, turn after turn (None where they are sprayed), and what each is
    offered, which is nothing where they are sprayed."""

    turns: tuple[Turn, ...] | None
    offers: Sequence[Offer]
    made: _Paths | None = None

    def paths(self, place: int, inside: tuple[int, ...]) -> tuple[Path, ...]:
        """Return the paths that the queue pair at this place is offered, each by the numbers of its links, with those
        `inside` nodes, which have the highest numbers."""
        assert self.made is not None, "what is sprayed is offered no path"
        return self.made.of(self.offers[place], inside)


def lead(fabric: Fabric, sets: Sequence[Connections], most_paths: int) -> list[Led]:
    """Return the ways of sets of queue pairs; no more than `most_paths` and its own are offered to each. Raise
    NoWayError where none leads."""
    if fabric.routing.kind == "spray" and not fabric.links.dimensions:
        return [Led(turns=None, offers=())] * len(sets)
    entries, led = _Entries(), []
    for some in _at_once(sets):
        counts = [len(queue_pairs) for queue_pairs in some]
        ends = np.cumsum([0, *counts])
        flows = _joined([queue_pairs.flows for queue_pairs in some])
        turns = turns_taken(fabric.links, fabric.routing, flows)
        of = np.repeat(np.arange(len(some)), counts).tolist()
        offers = ways_by_port(fabric, flows, turns, most_paths, of)
        bounds = [np.searchsorted(of, ends).tolist() for of, _ in turns]
        made = _Paths(entries)
        for number, first in enumerate(ends[:-1].tolist()):
            own = tuple(
                (of[at[number] : at[number + 1]] - first, link[at[number] : at[number + 1]])
                for (of, link), at in zip(turns, bounds, strict=True)
            )
            led.append(Led(turns=own, offers=offers[first : first + counts[number]], made=made))
    return led


def _at_once(sets: Sequence[Connections]) -> Iterator[list[Connections]]:
    """Sets one after the other, so many of them together that they have enough queue pairs."""
    some: list[Connections] = []
    for queue_pairs in sets:
        some.append(queue_pairs)
        if sum(map(len, some)) >= AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def _joined(flows: Sequence[Flows]) -> Flows:
    sources, destinations, ports = (
        np.concatenate([getattr(each, name) for each in flows]) for name in ("sources", "destinations", "ports")
    )
    return Flows(sources=sources, destinations=destinations, ports=ports)
