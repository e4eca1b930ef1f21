"""Links that connections take one after the other, turn after turn, and what is put on links by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from estimator.network.wires import Floats, Integers
from profiles.records import dataclass

Turn = tuple[Integers, Integers]
"""Connections, by number and none before a lower one, and the link that each takes next."""

Amounts = tuple[Integers, Integers, Floats]
"""Owners, links, and how much of each owner is on each link."""

NO_LINK = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loads:
    """What owners put on links: `amounts[i]` of `owners[i]` on `links[i]`, by owner, then link, each pair once."""

    owners: Integers
    links: Integers
    amounts: Floats


def summed(taken: Sequence[Amounts], link_count: int) -> Loads:
    """Return amounts with those of one owner on one link together, added in the order in which they stand."""
    owners, numbers, amounts = (
        (np.concatenate(column) for column in zip(*taken, strict=True))
        if taken
        else (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    )
    pairs, places = np.unique(owners * link_count + numbers, return_inverse=True)
    return Loads(
        owners=pairs // link_count,
        links=pairs % link_count,
        amounts=np.bincount(places, amounts, minlength=len(pairs)).astype(np.float64),
    )


def summed_by_turn(inside: Iterable[Amounts], turns: Iterable[Amounts], link_count: int) -> Loads:
    """Return the same of what is inside nodes and of turns, each of which is summed by itself first: what is sprayed is
    on many more links than there are connections."""
    loads = (summed([turn], link_count) for turn in turns)
    return summed([*inside, *((each.owners, each.links, each.amounts) for each in loads)], link_count)


def loads_on(
    turns: Iterable[Turn], link_count: int, *, amounts: Floats, owners: Integers, inside: Iterable[Turn] = ()
) -> Loads:
    """Return what owners of connections, which send so much each, put on the links that these take by turns, and
    `inside` nodes."""
    own, taken = (((owners[of], link, amounts[of]) for of, link in part) for part in (inside, turns))
    return summed_by_turn(own, taken, link_count)


def turns_at(turns: Iterable[Turn], places: Integers, count: int) -> tuple[Turn, ...]:
    """Return the turns of some of `count` connections, `places` in growing order, numbered from 0."""
    number = np.full(count, NO_LINK)
    number[places] = np.arange(len(places))
    kept = []
    for of, link in turns:
        here = number[of]
        its = here >= 0
        kept.append((here[its], link[its]))
    return tuple(kept)


def way_rows(turns: Sequence[Turn], count: int) -> Integers:
    """Return the links of each of `count` connections in the order in which it takes them, (count, longest way); after
    the last one `NO_LINK`."""
    lengths = np.zeros(count, dtype=np.int64)
    for of, _ in turns:
        lengths += np.bincount(of, minlength=count)
    rows = np.full((count, int(lengths.max(initial=0))), NO_LINK)
    at = np.zeros(count, dtype=np.int64)
    for of, link in turns:
        places = at[of]
        if (of[1:] == of[:-1]).any():
            places += np.arange(len(of)) - np.searchsorted(of, of)
        rows[of, places] = link
        at += np.bincount(of, minlength=count)
    return rows
