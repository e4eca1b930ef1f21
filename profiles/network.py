"""The fabric above a site's nodes: a tree of levels from the nodes up, each of named parts with their own uplinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from itertools import pairwise

from profiles.errors import InputError
from profiles.records import dataclass
from profiles.routing import Routing
from profiles.wiring import Wiring


def _require(holds: bool, *, key: str, found: object, expected: str) -> None:
    if not holds:
        raise InputError(where="site", key=key, found=found, expected=expected)


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for name, times in Counter(names).items() if times > 1), None)


LEVEL_NAMES = ("leaf", "pod", "core")
"""What levels are called that have no name, from the nodes up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadTable:
    """The share of a level's rate that a collective, and a message, reaches over 1, 2, ... of its parts; the last one
    over more. A fabric with as many ports up as down may lose so, too: flows that meet on one of them."""

    collective: tuple[float, ...]
    message: tuple[float, ...]
    source: str

    def __post_init__(self) -> None:
        for name, shares in (("collective", self.collective), ("message", self.message)):
            falls = all(later <= sooner for sooner, later in pairwise(shares))
            _require(
                bool(shares) and min(shares) > 0 and max(shares) <= 1 and falls,
                key=f"fabric.levels: spread.{name}",
                found=list(shares),
                expected="shares above 0 and up to 1 that do not grow, over 1, 2, ... parts",
            )

    def share(self, parts: int, *, message: bool = False) -> float:
        """Return the share over so many parts."""
        shares = self.message if message else self.collective
        return shares[min(parts, len(shares)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPart:
    """What hangs under one switch of a level. `oversubscription` is the line rate of all NICs below it over that of its
    uplinks: 1 where all of them can send up at full rate, below 1 where there is room to spare."""

    name: str
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        _require(bool(self.name), key="fabric.levels", found="a part without a name", expected="a name")
        _require(
            self.oversubscription > 0,
            key=f"fabric.levels: oversubscription of {self.name}",
            found=self.oversubscription,
            expected="more than 0",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricLevel:
    """Leaf, pod, core, or whatever the site calls it. `part_of` says for each part of the level below (for each node at
    the lowest level), in order, in which of `parts` it is. `hop_latency_s` is what a message waits longer for each of
    the two hops, out of one part and into another, that it makes at this level; `spread` what groups over several of
    its parts reach, where that was measured."""

    name: str
    parts: tuple[FabricPart, ...]
    part_of: tuple[int, ...]
    hop_latency_s: float = 0.0
    spread: SpreadTable | None = None

    def __post_init__(self) -> None:
        key = f"fabric.levels: {self.name}"
        _require(bool(self.name), key="fabric.levels", found="a level without a name", expected="a name")
        _require(self.hop_latency_s >= 0, key=key, found=f"{self.hop_latency_s} s a hop", expected="at least 0")
        twice = _repeated([part.name for part in self.parts])
        _require(twice is None, key=key, found=f"{twice!r} a second time", expected="each part's own name")
        outside = [number for number in set(self.part_of) if not 0 <= number < len(self.parts)]
        _require(not outside, key=key, found=f"part {outside}", expected=f"one of {len(self.parts)} parts")
        empty = sorted(set(range(len(self.parts))) - set(self.part_of))
        name = self.parts[empty[0]].name if empty else ""
        _require(not empty, key=key, found=f"nothing in {name!r}", expected="at least one node below each part")


@dataclass(frozen=True, kw_only=True)
class Network:
    """The tree of a site: `levels` from the nodes up, none for a fabric without parts, and the nodes' names, `hosts`,
    in the site's order where they have any. What is above the highest level joins all of its parts without limit.
    `wiring` are the switches and cables that the levels come from, `routing` how they choose among ways; None where
    nobody told them."""

    levels: tuple[FabricLevel, ...] = ()
    hosts: tuple[str, ...] = ()
    wiring: Wiring | None = None
    routing: Routing | None = None

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        twice = _repeated(names)
        _require(twice is None, key="fabric.levels", found=f"{twice!r} a second time", expected="each level's own name")
        for below, level in zip(self.levels[:-1], self.levels[1:], strict=True):
            _require(
                len(level.part_of) == len(below.parts),
                key=f"fabric.levels: {level.name}",
                found=f"the places of {len(level.part_of)} parts of {below.name}",
                expected=f"of each of its {len(below.parts)}",
            )
        twice = _repeated(self.hosts)
        _require(twice is None, key="nodes.names", found=f"{twice!r} a second time", expected="each node's own name")

    def check(self, nodes: int) -> None:
        """Raise InputError unless the tree is one of so many nodes."""
        if self.levels:
            _require(
                len(self.levels[0].part_of) == nodes,
                key=f"fabric.levels: {self.levels[0].name}",
                found=f"{len(self.levels[0].part_of)} nodes in all of its parts",
                expected=f"the site's {nodes}",
            )
        if self.hosts:
            _require(
                len(self.hosts) == nodes,
                key="nodes.names",
                found=f"{len(self.hosts)} names",
                expected=f"one for each of the site's {nodes} nodes, or none",
            )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Counted once: a tree of thousands of nodes is part of keys."""
        return hash((self.levels, self.hosts, self.wiring, self.routing))

    @cached_property
    def part_of_node(self) -> tuple[tuple[int, ...], ...]:
        """By level, for each node the number of the part that it is in."""
        rows: list[tuple[int, ...]] = []
        for level in self.levels:
            rows.append(tuple(level.part_of[part] for part in rows[-1]) if rows else level.part_of)
        return tuple(rows)

    def path(self, node: int) -> tuple[int, ...]:
        """Return the parts that a node is in, from the lowest level up."""
        return tuple(row[node] for row in self.part_of_node)

    @cached_property
    def period(self) -> int | None:
        """After so many nodes the tree repeats, up to fewer in the last part: every level has equal uplinks and cuts
        the nodes, in order, into runs of one size. 1 where all nodes stand alike; None where there is no such number.
        """
        size = 1
        for level, row in zip(self.levels, self.part_of_node, strict=True):
            run = row.count(row[0])
            even = run % size == 0 and all(part == node // run for node, part in enumerate(row))
            if not even or len({part.oversubscription for part in level.parts}) > 1:
                return None
            size = run
        return size

    @cached_property
    def most_oversubscribed(self) -> float:
        """The largest oversubscription of any uplink, at least 1."""
        return max((part.oversubscription for level in self.levels for part in level.parts), default=1.0)

    @cached_property
    def is_shared(self) -> bool:
        """Whether what groups reach depends on the parts they sit in: several nodes share an uplink that is thinner
        than their NICs, or a level has a spread table."""
        spread = any(level.spread for level in self.levels)
        return self.period != 1 and (spread or self.most_oversubscribed > 1)

    @cached_property
    def is_flat(self) -> bool:
        """Whether no price depends on which of alike nodes are taken: all stand alike, or parts hold nothing back."""
        return self.period == 1 or not (self.is_shared or any(level.hop_latency_s for level in self.levels))

    def alike_key(self, node: int) -> int:
        """Return what nodes have in common that may change places: the lowest part, where nodes differ at all."""
        return 0 if self.period == 1 else self.levels[0].part_of[node]

    def thinned(self, nodes: Collection[int], here: Collection[int]) -> float:
        """Return by what the way out of a NIC divides traffic among `nodes` that leaves `here`, some of them, where
        each has its own: at least 1. What several nodes share is counted by `estimator.communication.uplinks`."""
        if self.period != 1 or not self.levels or len(set(nodes)) == 1:
            return 1.0
        parts = (level.parts[node] for level in self.levels for node in here)
        return max(1.0, *(part.oversubscription for part in parts))

    def hops_s(self, nodes: Collection[int]) -> float:
        """Return the seconds that the hops above the nodes add to a message on the longest way among `nodes`."""
        seconds = 0.0
        for level, row in zip(self.levels, self.part_of_node, strict=True):
            if len({row[node] for node in nodes}) == 1:
                break
            seconds += 2 * level.hop_latency_s
        return seconds

    def crossing_key(self, first: int, second: int) -> Hashable:
        """Return what the way between two nodes depends on: the levels that it passes, and uplinks that it shares."""
        ways = ((row[first], row[second]) for row in self.part_of_node)
        if self.is_shared:
            return tuple(None if out == into else (out, into) for out, into in ways)
        return tuple(out == into for out, into in ways)


def level_names(depth: int) -> tuple[str, ...]:
    """Return names of so many levels, from the nodes up."""
    return (*LEVEL_NAMES[:depth], *(f"level{number}" for number in range(len(LEVEL_NAMES), depth)))


PLAIN = Network()
"""A fabric without parts, whose nodes have no names."""


def equal_pods(nodes: int, *, pods: int = 1, oversubscription: float = 1.0) -> Network:
    """Return the tree that a cluster file's short form means: `nodes` in order in so many equal pods (the last one may
    have fewer), whose uplinks are thinner than the NICs below them by `oversubscription`. One pod that is
    oversubscribed is a leaf for each node: any two nodes then meet above what is thin. Raise InputError for pods or
    oversubscription that cannot be.

    >>> [part.name for part in equal_pods(5, pods=2).levels[0].parts], equal_pods(4) == PLAIN
    (['pod0', 'pod1'], True)
    """
    _require(oversubscription >= 1, key="fabric.oversubscription", found=oversubscription, expected="at least 1")
    _require(1 <= pods <= nodes, key="fabric.pods", found=pods, expected=f"from 1 to the site's {nodes} nodes")
    if pods == 1 and oversubscription == 1:
        return PLAIN
    size, name = (-(-nodes // pods), "pod") if pods > 1 else (1, "leaf")
    level = FabricLevel(
        name=name,
        parts=tuple(
            FabricPart(name=f"{name}{number}", oversubscription=oversubscription) for number in range(-(-nodes // size))
        ),
        part_of=tuple(node // size for node in range(nodes)),
    )
    return Network(levels=(level,))


def pods_of(network: Network) -> tuple[int, float] | None:
    """Return pods and oversubscription whose short form the tree is; None where there are none."""
    if network.wiring is not None:
        return None
    if not network.levels:
        return (1, 1.0) if not network.hosts else None
    level = network.levels[0]
    pods = 1 if level.name == "leaf" else len(level.parts)
    nodes, over = len(level.part_of), level.parts[0].oversubscription
    if over < 1 or (pods == 1 and over == 1):
        return None
    return (pods, over) if equal_pods(nodes, pods=pods, oversubscription=over) == network else None
