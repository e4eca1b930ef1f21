"""What each of several users gets of the links that they share: max-min fair inside a level, levels in their order.

A user is whatever moves as one: a connection, or all the flows of one step of a collective, which wait for each other.
At pace 1 it puts a known number of bytes a second on each link of its way; its pace is what is looked for. Max-min fair
means that nobody's pace (over its weight) can grow but by taking from somebody who has no more (Bertsekas and Gallager,
"Data Networks", section 6.5.2). A level gets what those before it leave: strict priorities, as switches serve their
queues and as Crux sets them ("Crux: GPU-Efficient Communication Scheduling", section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from profiles.records import dataclass

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

AS_FULL = 1e-12
"""Links whose fair shares differ by less than this, relatively, are full at the same time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ways:
    """What users put on links at pace 1, as the entries of a matrix that is not zero elsewhere: `amounts[i]` bytes/s of
    `users[i]` on `links[i]`, each pair once, all amounts above 0. Both are counted from 0; there are `user_count` and
    `link_count` of them."""

    user_count: int
    link_count: int
    users: Integers
    links: Integers
    amounts: Floats

    @cached_property
    def by_user(self) -> tuple[Integers, Integers]:
        """The entries in the order of their users, and where each user's begin, one past the last at the end."""
        return _in_order(self.users, self.user_count)


def make_ways(ways: Sequence[Sequence[tuple[int, float]]], link_count: int) -> Ways:
    """Return the ways of users of each of which the links are given, with the bytes/s at pace 1; a link that is named
    twice carries both.

    Raises:
        ValueError: a link that there is not, or an amount that is not above 0.
    """
    sums = [_summed(way) for way in ways]
    users = np.repeat(np.arange(len(sums), dtype=np.int64), [len(way) for way in sums])
    links = np.array([link for way in sums for link in way], dtype=np.int64)
    amounts = np.array([amount for way in sums for amount in way.values()], dtype=np.float64)
    if len(links) and not (links.min() >= 0 and links.max() < link_count and amounts.min() > 0):
        raise ValueError(f"links from {links.min()} to {links.max()}, least amount {amounts.min()}; of {link_count}")
    return Ways(user_count=len(sums), link_count=link_count, users=users, links=links, amounts=amounts)


def _summed(way: Sequence[tuple[int, float]]) -> dict[int, float]:
    sums: dict[int, float] = {}
    for link, amount in way:
        sums[link] = sums.get(link, 0.0) + amount
    return sums


def fair_paces(
    ways: Ways,
    bytes_per_s: Floats,
    *,
    most: Floats | None = None,
    weights: Floats | None = None,
    levels: Integers | None = None,
) -> Floats:
    """Return the pace of each user, (users,).

    Args:
        ways: what they put on which links.
        bytes_per_s: what each link carries, (links,); 0 for one that is down.
        most: no user's pace is above its own, (users,); unsaid: none is held but by links.
        weights: of a link that two share, a user of twice the weight gets twice the pace; unsaid: all 1.
        levels: which come first, 0 before 1 before 2, ...; unsaid: all the same.

    Returns:
        The one max-min fair solution; inf for a user that nothing holds.
    """
    most = np.full(ways.user_count, np.inf) if most is None else most
    weights = np.ones(ways.user_count) if weights is None else weights
    if levels is None or ways.user_count == 0:
        return _fair(ways, bytes_per_s, most, weights, np.arange(ways.user_count))
    paces, left = np.zeros(ways.user_count), bytes_per_s.astype(np.float64, copy=True)
    for level in np.unique(levels):
        members = np.flatnonzero(levels == level)
        paces[members] = _fair(ways, left, most, weights, members)
        entries = _entries_of(ways, members)
        used = ways.amounts[entries] * paces[ways.users[entries]]
        left -= np.bincount(ways.links[entries], used, minlength=ways.link_count)
        # What rounding leaves of a link that is full is nothing.
        left[left < bytes_per_s * 16 * AS_FULL] = 0.0
    return paces


def _fair(ways: Ways, bytes_per_s: Floats, most: Floats, weights: Floats, members: Integers) -> Floats:
    """The paces of `members` alone, in their order.

    In each round a link is full at the share at which its users, those not yet settled, would fill it together. A link
    that is full no later than any other on its users' ways holds them all for good: whatever settles elsewhere leaves
    other links more, never less. So many links settle in one round, not the thinnest alone.
    """
    number = np.full(ways.user_count, -1)
    number[members] = np.arange(len(members))
    entries = _entries_of(ways, members)
    users, amounts = number[ways.users[entries]], ways.amounts[entries]
    links, places = np.unique(ways.links[entries], return_inverse=True)
    left, ceiling = bytes_per_s[links].astype(np.float64, copy=True), (most / weights)[members]
    demands = amounts * weights[members][users]
    shares_of_users = np.full(len(members), np.nan)
    open_entries = np.arange(len(users))
    open_users = np.isnan(shares_of_users)
    while open_users.any():
        at, of, asked = places[open_entries], users[open_entries], demands[open_entries]
        load = np.bincount(at, asked, minlength=len(links))
        with np.errstate(divide="ignore"):
            share = np.where(load > 0, left / np.where(load > 0, load, 1.0), np.inf)
        held_at = ceiling.copy()
        np.minimum.at(held_at, of, share[at])
        # Of each link, how soon the soonest of its users is held anywhere: no sooner than by itself?
        soonest = np.full(len(links), np.inf)
        np.minimum.at(soonest, at, held_at[of])
        settles = np.zeros(len(members), dtype=bool)
        settles[of[(share <= soonest * (1 + AS_FULL))[at]]] = True
        # A user whose own ceiling comes before any of its links is full.
        settles |= open_users & (held_at >= ceiling * (1 - AS_FULL))
        settles &= open_users
        shares_of_users[settles] = held_at[settles]
        gone = settles[of]
        used = asked[gone] * held_at[of[gone]]
        left = np.maximum(left - np.bincount(at[gone], used, minlength=len(links)), 0.0)
        open_entries = open_entries[~gone]
        open_users &= ~settles
    return shares_of_users * weights[members]


def _entries_of(ways: Ways, members: Integers) -> Integers:
    """The entries of these users."""
    if len(members) == ways.user_count:
        return np.arange(len(ways.users))
    order, begins = ways.by_user
    counts = begins[members + 1] - begins[members]
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    entries: Integers = order[np.repeat(begins[members], counts) + offsets]
    return entries


def _in_order(keys: Integers, count: int) -> tuple[Integers, Integers]:
    order = np.argsort(keys, kind="stable")
    return order, np.searchsorted(keys[order], np.arange(count + 1))
