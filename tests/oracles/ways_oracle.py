"""All ways between two NICs, by trying every link: no distance, no array."""

from __future__ import annotations

from fractions import Fraction

from estimator.network.links import Links

Way = tuple[int, ...]


def all_ways(links: Links, source: int, destination: int, *, up_down: bool = False) -> list[Way]:
    """Return the shortest ways from a NIC to a NIC over links that are up, no switch twice; of those alone that lead up
    and then down, where asked (of two switches of a tier the later is above)."""
    last = {int(link) ^ 1 for link in _ports(links, destination)}
    found: list[Way] = []

    def go(way: Way, falling: bool) -> None:
        at = int(links.ends[way[-1], 1])
        visited = {int(links.ends[link, 1]) for link in way}
        for link in range(links.count):
            start, end = links.ends[link].tolist()
            if start != at or links.bytes_per_s[link] == 0:
                continue
            if link in last:
                found.append((*way, link))
            elif end >= links.nodes and end not in visited:
                rises = (links.tier_of[end], end) > (links.tier_of[at], at)
                if not (up_down and falling and rises):
                    go((*way, link), falling or not rises)

    for link in _ports(links, source):
        if links.bytes_per_s[link] > 0:
            go((int(link),), False)
    # The host takes any of its NIC's cables; from the switch on the way is a shortest one.
    ways = []
    for first in {way[0] for way in found}:
        least = min(len(way) for way in found if way[0] == first)
        ways += [way for way in found if way[0] == first and len(way) == least]
    return sorted(ways)


def sprayed(ways: list[Way]) -> dict[int, Fraction]:
    """Return what share each link gets where every hop deals out equally over the links that lie on a shortest way on
    from there."""
    shares: dict[int, Fraction] = {}

    def deal(share: Fraction, rest: list[Way]) -> None:
        onward = sorted({way[0] for way in rest if way})
        for link in onward:
            part = share / len(onward)
            shares[link] = shares.get(link, Fraction(0)) + part
            deal(part, [way[1:] for way in rest if way and way[0] == link])

    deal(Fraction(1), ways)
    return shares


def _ports(links: Links, nic: int) -> list[int]:
    return [int(link) for link in links.ports[links.port_begins[nic] : links.port_begins[nic + 1]]]
