"""What each algorithm of a collective costs on a group: lines in bytes, of which the fastest is taken, as NCCL does.

The algorithms and the steps they count are NCCL's (ring, double binary tree, in-network reduction: `ncclTopoTuneModel`
in its src/graph/tuning.cc); rates and latencies are those of the group's links.
"""

from __future__ import annotations

import math
from functools import lru_cache

from estimator.communication.groups import Group
from estimator.communication.halving_doubling import halving_doubling
from estimator.communication.levels import Level, Uplinks
from estimator.communication.tables import bus_factor
from profiles.records import dataclass, replace
from profiles.vocabulary import CollectiveOp

TREE_SHARE = 0.92
"""Of a ring's bandwidth, what a tree's reaches: the factor of NCCL's own model; no row of ours tells it apart."""

HOP_IN_NODE_S, QUICK_HOP_IN_NODE_S = 3.4e-6, 1.9e-6
"""At least what a step inside a node takes a ring that goes on to other nodes, whose pieces are those of the network:
NCCL's constants for NVLink. With 14 us from node to node they make 37.8 us of a node of eight, as SimAI's nic_ratio
table has them: 4.7 us a rank on 64 to 1,024 Hopper ranks. A ring within a node is faster (nccl-tests in nodes)."""

EXCHANGED_AT_ONCE = 2
"""Peers that a rank of an all_to_all serves at the same time. Of 1, 2, 4 and 8 this comes nearest to 2 to 8 A100-like
devices (C00458-C00490, Hetu-Galvatron) and 64 H800 (C00736, nccl issue 1531) together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What one algorithm costs: `latency_s` + `seconds_per_byte` * bytes, or more than their sum where the links'
    `ramp_exponent` is below 1."""

    algorithm: str
    latency_s: float
    seconds_per_byte: float
    ramp_exponent: float = 1.0

    def seconds(self, size_bytes: float) -> float:
        """Return the seconds of a collective of that many bytes."""
        passing_s = self.seconds_per_byte * size_bytes
        if self.ramp_exponent == 1.0 or not self.latency_s or not passing_s:
            return self.latency_s + passing_s
        p = self.ramp_exponent
        shorter, longer = sorted((self.latency_s, passing_s))
        return float(longer * (1 + (shorter / longer) ** p) ** (1 / p))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A level in one protocol: seconds of a step, and bytes/s out of one of its parts, the weakest; `parts` has the
    ranks and the bytes/s of each kind of them."""

    level: Level
    latency_s: float
    bytes_per_s: float
    parts: tuple[tuple[int, float], ...]


@lru_cache(maxsize=16384)
def algorithm_lines(op: CollectiveOp, group: Group, concurrent_groups: int) -> tuple[Line, ...]:
    """Return what each algorithm that can run `op` costs while `concurrent_groups` groups like this one are busy.

    The first one, in the protocol of large messages, is what carries a measured table over to other ranks.
    """
    lines: list[Line] = []
    for protocol, steps in _protocols(group, concurrent_groups, message=op == "send_recv"):
        lines += _in_protocol(op, group, steps, protocol)
    if op == "all_reduce" and group.even:
        lines += _in_network(group, concurrent_groups)
    # How the outermost links' pipeline fills and drains is what counts: inner ones are part of it.
    exponent = group.levels[-1].ramp_exponent
    return tuple(lines) if exponent == 1.0 else tuple(replace(line, ramp_exponent=exponent) for line in lines)


@lru_cache(maxsize=1024)
def halving_doubling_lines(op: CollectiveOp, group: Group, concurrent_groups: int) -> tuple[Line, ...]:
    """Return what recursive halving and doubling costs, which gloo has and NCCL, whose algorithms `algorithm_lines`
    are, has not: a line for each order of the ranks that is the best at some number of bytes. Raise ValueError for
    another op than all_reduce, all_gather, reduce_scatter and broadcast."""
    return tuple(
        Line(
            algorithm="halving-doubling",
            latency_s=_startup_s(group) + latency_s,
            seconds_per_byte=seconds_per_byte,
            ramp_exponent=group.levels[-1].ramp_exponent,
        )
        for latency_s, seconds_per_byte in halving_doubling(op, group, concurrent_groups, _above(group).ring)
    )


def _protocols(group: Group, concurrent_groups: int, *, message: bool) -> list[tuple[str, list[_Step]]]:
    """The protocol of large messages, and the quick one where every link on the way has it."""
    steps = [_step(group, level, concurrent_groups, message=message) for level in group.levels]
    quick = [_quick(step, quick_s) for step in steps if (quick_s := step.level.quick_latency_s) is not None]
    return [("", steps), ("quick ", quick)] if len(quick) == len(steps) else [("", steps)]


def _step(group: Group, level: Level, concurrent_groups: int, *, message: bool) -> _Step:
    rate = level.available(concurrent_groups, message=message)
    boxes = group.boxes if level.kind == "fabric" else ()
    parts = [(each.ranks, each.of(level).available(concurrent_groups, message=message)) for each in boxes]
    return _Step(
        level=level,
        latency_s=level.latency_s,
        bytes_per_s=rate,
        parts=tuple(parts) or ((level.ranks_inside, rate),),
    )


def _quick(step: _Step, latency_s: float) -> _Step:
    share = step.level.quick_share
    return replace(
        step,
        latency_s=latency_s,
        bytes_per_s=step.bytes_per_s * share,
        parts=tuple((ranks, rate * share) for ranks, rate in step.parts),
    )


def _in_protocol(op: CollectiveOp, group: Group, steps: list[_Step], protocol: str) -> list[Line]:
    if op == "send_recv":
        return [_message(group, steps, protocol)]
    if op == "all_to_all":
        return [_exchange(group, steps, protocol)]
    ring = _ring(op, group, steps, protocol)
    return [ring, _tree(group, steps, protocol)] if op == "all_reduce" else [ring]


NOTHING_ABOVE = Uplinks()


def _above(group: Group) -> Uplinks:
    """What uplinks above the nodes hold back of the group."""
    return next((level.above for level in group.levels if level.above is not None), NOTHING_ABOVE)


def _startup_s(group: Group) -> float:
    return max(level.startup_s for level in group.levels)


def _message(group: Group, steps: list[_Step], protocol: str) -> Line:
    return Line(
        algorithm=f"{protocol}message",
        latency_s=_startup_s(group) + steps[-1].latency_s,
        seconds_per_byte=max(1 / steps[-1].bytes_per_s, _above(group).message),
    )


def _ring(op: CollectiveOp, group: Group, steps: list[_Step], protocol: str) -> Line:
    """A ring through all ranks, which leaves each part of a level once; all_reduce goes around twice.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. NCCL gathers and
    scatters over nodes in rings alone, so that their latency grows by the rank.
    """
    passes = 2 if op == "all_reduce" else 1
    over_nodes = steps[-1].level.kind in ("fabric", "site")
    hops_s = sum(step.level.crossings * _hop_s(step, protocol, over_nodes=over_nodes) for step in steps)
    return Line(
        algorithm=f"{protocol}ring",
        latency_s=_startup_s(group) + passes * hops_s,
        seconds_per_byte=max(
            bus_factor(op, group.ranks) / min(step.bytes_per_s for step in steps),
            bus_factor(op, group.ranks) * _above(group).ring,
        ),
    )


def _hop_s(step: _Step, protocol: str, *, over_nodes: bool) -> float:
    """Seconds of a ring's step; where it goes on to other nodes NVLink's, which alone have a quick protocol in an
    island, are those of the network's pieces."""
    if not over_nodes or step.level.kind != "island" or step.level.quick_latency_s is None:
        return step.latency_s
    return max(step.latency_s, QUICK_HOP_IN_NODE_S if protocol else HOP_IN_NODE_S)


def _tree(group: Group, steps: list[_Step], protocol: str) -> Line:
    """all_reduce in a double binary tree over the outermost level, with chains inside its parts, all of it in one
    pipeline: log2 hops there, the busiest links carry all bytes up and down (Sanders, Speck, Träff, "Two-tree
    algorithms for full bandwidth broadcast, reduction and scan", 2009).

    The quick protocol has a chain inside a node too: small sums of 2, 4, 8 devices behind an NVLink switch take the
    ring's steps (KC rows of comm.csv.gz), a rack's the chain in a node and a tree over nodes.
    """
    *inner, top = steps
    members = top.level.members
    chain = math.ceil(members / group.nodes) if protocol and top.level.kind in ("island", "host") else 1
    hops_s = sum((step.level.members - 1) * step.latency_s for step in inner)
    hops_s += (chain - 1 + math.ceil(math.log2(members / chain))) * top.latency_s
    return Line(
        algorithm=f"{protocol}tree",
        latency_s=_startup_s(group) + 2 * hops_s,
        seconds_per_byte=max(2 / TREE_SHARE / min(step.bytes_per_s for step in steps), _above(group).tree),
    )


def _exchange(group: Group, steps: list[_Step], protocol: str) -> Line:
    """all_to_all: each rank sends 1/ranks of its bytes to each of the others, a few at once.

    Out of a part of q ranks, a level carries q messages for every peer that the part reaches through that level; of
    unequal parts the one counts that is busy longest.
    """
    reach = [*(step.level.ranks_inside for step in steps[1:]), group.ranks]
    latency_s = _startup_s(group)
    seconds_per_byte = 0.0
    for step, outer in zip(steps, reach, strict=True):
        level = step.level
        latency_s += math.ceil((outer - level.ranks_inside) / EXCHANGED_AT_ONCE) * step.latency_s
        passing_s = max(
            (outer - ranks) * ranks / group.ranks / (rate * level.exchange_share) for ranks, rate in step.parts
        )
        seconds_per_byte += passing_s if level.above is None else max(passing_s, level.above.exchange)
    return Line(algorithm=f"{protocol}exchange", latency_s=latency_s, seconds_per_byte=seconds_per_byte)


def _in_network(group: Group, concurrent_groups: int) -> list[Line]:
    """all_reduce with switches that reduce: NVLink SHARP (NVLS) inside an island, SHARP in the fabric.

    Inside an island each rank lets the switch reduce its share of the bytes out of all n ranks and spreads the result
    through it: n + 1 shares of 1/n pass every link in either direction. Over a fabric that reduces every byte goes out
    and comes back once, over one that does not the islands are joined by a tree; the two parts are one pipeline, whose
    slower part counts (NVLS and NVLSTree, CollNet in NCCL). The latency is taken as a ring's of the
    island: it fits 8 H200 and 72 GB200, whose constant part grows by the rank.
    """
    *inner, top = group.levels
    if len(inner) > 1 or any(level.kind != "island" for level in inner):
        return []
    rates = {level.kind: level.available(concurrent_groups) for level in group.levels}
    steps_s = 2 * sum(level.crossings / _places(group, level) * level.latency_s for level in inner)
    inner_s = sum(
        _switched(level, rates[level.kind]) or bus_factor("all_reduce", level.members) / rates[level.kind]
        for level in inner
    )
    startup_s = _startup_s(group)
    if top.kind == "island":
        switched_s = _switched(top, rates["island"])
        if not switched_s:
            return []
        latency_s = startup_s + 2 * top.crossings * top.latency_s
        return [Line(algorithm="in-network", latency_s=latency_s, seconds_per_byte=switched_s)]
    lines = []
    if top.in_network_share:
        over_s = max(1 / (rates[top.kind] * top.in_network_share), _above(group).once)
        latency_s = startup_s + steps_s + 2 * top.latency_s
        lines.append(Line(algorithm="in-network fabric", latency_s=latency_s, seconds_per_byte=max(inner_s, over_s)))
    if any(level.in_network_share for level in inner):
        # Two members of a tree send each other all bytes once; from four on the busiest sends them up and down.
        volume = min(2.0, top.members / 2) / TREE_SHARE
        latency_s = startup_s + steps_s + 2 * math.ceil(math.log2(top.members)) * top.latency_s
        over_s = max(volume / rates[top.kind], _above(group).tree)
        lines.append(
            Line(algorithm="in-network islands + tree", latency_s=latency_s, seconds_per_byte=max(inner_s, over_s))
        )
    return lines


def _places(group: Group, level: Level) -> int:
    """At how many places the group has this level."""
    return max(1, group.ranks // (level.members * level.ranks_inside))


def _switched(level: Level, rate_bytes_per_s: float) -> float:
    """Seconds per byte of a reduction inside the switch of an island, 0 where it does not reduce."""
    if not level.in_network_share:
        return 0.0
    return (level.members + 1) / level.members / (rate_bytes_per_s * level.in_network_share)
