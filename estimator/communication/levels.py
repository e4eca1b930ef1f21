"""A level of a group: the links that join its parts, as one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

from profiles.records import dataclass, replace
from profiles.vocabulary import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplinks:
    """What the uplinks above the nodes hold back of a group while all others that send with it are busy: seconds that
    the busiest of them takes for a byte of what each group is given (`exchange`, `once`, `message`), or of what one
    step of a ring or one tree carries."""

    ring: float = 0.0
    tree: float = 0.0
    exchange: float = 0.0
    once: float = 0.0
    message: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One kind of link that joins the parts of a group: devices of an island, islands of a node (host link), nodes of
    a site (NICs and fabric), sites.

    `members` is the largest number of parts joined at one place, `ranks_inside` the most ranks in one part,
    `crossings` the hops that a ring through all ranks makes here before it closes. `bandwidth_bytes_per_s` leaves the
    weakest part for this group alone; `shared_bytes_per_s` is what the groups on that part, at most `hosted`, share.
    `collective_reach`, `message_reach`: the share of its rate over so many parts of a fabric (`SpreadTable`). `above`:
    what uplinks that several nodes share hold back, of a fabric; None where nothing does. `hops_s`: what of the
    latencies the hops between parts take. The other fields are the link's (`Link`); a share is of
    `bandwidth_bytes_per_s`.
    """

    kind: Literal["island", "host", "fabric", "site"]
    link: str
    bandwidth_bytes_per_s: float
    latency_s: float
    shared_bytes_per_s: float = math.inf
    hosted: int = 1
    members: int = 1
    ranks_inside: int = 1
    crossings: int = 0
    startup_s: float = 0.0
    quick_latency_s: float | None = None
    quick_share: float = 1.0
    in_network_share: float | None = None
    exchange_share: float = 1.0
    ramp_exponent: float = 1.0
    collective_reach: float = 1.0
    message_reach: float = 1.0
    above: Uplinks | None = None
    hops_s: float = 0.0

    def available(self, concurrent_groups: int, *, message: bool = False) -> float:
        """Bytes/s out of a part while that many groups like this one are busy, for a collective or a message."""
        rate = min(self.bandwidth_bytes_per_s, self.shared_bytes_per_s / min(concurrent_groups, self.hosted))
        return rate * (self.message_reach if message else self.collective_reach)

    def inside_one_part(self) -> Level:
        """Return the same level of a group that meets one part of the fabric alone."""
        if not self.hops_s and self.collective_reach == self.message_reach == 1 and self.above is None:
            return self
        quick_s = self.quick_latency_s
        return replace(
            self,
            latency_s=self.latency_s - self.hops_s,
            quick_latency_s=None if quick_s is None else quick_s - self.hops_s,
            collective_reach=1.0,
            message_reach=1.0,
            above=None,
            hops_s=0.0,
        )


def effective(link: Link) -> float:
    """Bytes/s that copies reach."""
    return link.bandwidth_bytes_per_s * link.efficiency


def slowest_level(kind: Literal["island", "host"], links: Iterable[Link], members: int) -> Level:
    """A level of the slowest of `links`, which join `members` parts at one place.

    Out of an island goes one host link's worth, however many devices it has: their paths meet at the root complex
    (A100 in NVLink pairs over PCIe 4 reach a bus bandwidth of 20 GB/s: nccl-tests, issue 178).
    """
    distinct = sorted(set(links), key=lambda link: (effective(link) * _share(link, members), link.name))
    steps = max(torus_steps(members, link.torus_dimensions) if link.torus_dimensions > 1 else 0 for link in distinct)
    return replace(level_of(kind, distinct, members), crossings=steps)


def torus_steps(ranks: int, dimensions: int) -> int:
    """Steps of rings along each dimension in turn of a torus as near to a cube as `ranks` allow.

    >>> torus_steps(64, 3), torus_steps(8, 2), torus_steps(2, 3)
    (9, 4, 1)
    """
    steps = 0
    for left in range(dimensions, 0, -1):
        side = math.ceil(ranks ** (1 / left) - 1e-9)
        steps += side - 1
        ranks = math.ceil(ranks / side)
    return steps


def _share(link: Link, ranks: int) -> float:
    """Of a device's line rate, what a group of `ranks` can use (`Link.share_by_ranks`); all of it for 0 ranks."""
    return next((share for size, share in link.share_by_ranks if size >= ranks > 0), 1.0)


def level_of(kind: Literal["island", "host", "fabric"], links: Sequence[Link], members: int = 0) -> Level:
    """What `links` (the slowest first) decide of the level that they make up: of each rate the least, of each time the
    longest; what one of them lacks, the level lacks. `members` 0: the share of their rates is not theirs to say."""
    shares = [_share(link, members) for link in links]
    rate = min(effective(link) * share for link, share in zip(links, shares, strict=True))
    least = partial(_least_share, rate, links, shares)
    quick_s = [link.quick_latency_s for link in links if link.quick_latency_s is not None]
    return Level(
        kind=kind,
        link=links[0].name,
        bandwidth_bytes_per_s=rate,
        latency_s=max(link.latency_s for link in links),
        startup_s=max(link.startup_s for link in links),
        quick_latency_s=max(quick_s) if len(quick_s) == len(links) else None,
        quick_share=least([link.quick_efficiency or link.efficiency for link in links]) or 1.0,
        in_network_share=least([link.in_network_efficiency for link in links]),
        exchange_share=least([link.exchange_efficiency or link.efficiency for link in links]) or 1.0,
        ramp_exponent=min(link.ramp_exponent for link in links),
    )


def _least_share(
    rate: float, links: Sequence[Link], shares: list[float], efficiencies: list[float | None]
) -> float | None:
    """The least rate of `links` at these efficiencies over `rate`; None where one of them lacks its efficiency."""
    rates = [
        link.bandwidth_bytes_per_s * efficiency * share / rate
        for link, efficiency, share in zip(links, efficiencies, shares, strict=True)
        if efficiency is not None
    ]
    return min(rates) if len(rates) == len(links) else None
