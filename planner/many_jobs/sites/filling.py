"""What sites give of what they have, one after another."""

from __future__ import annotations

from collections.abc import Sequence

Shares = tuple[tuple[int, int], ...]
"""Sites by number with how many devices each gives."""


def fill_in_order(order: Sequence[int], free: Sequence[int], wanted: int) -> Shares | None:
    """Return first fit: of each site in order what it has, until there is enough (SpiderFlow, equation 4); None where
    there is not."""
    shares: list[tuple[int, int]] = []
    for site in order:
        given = min(free[site], wanted)
        if given:
            shares.append((site, given))
            wanted -= given
            if not wanted:
                return tuple(shares)
    return None


def fill(sites: Sequence[int], free: Sequence[int], wanted: int) -> Shares:
    """Return, of sites that have enough, all that each has, most first; the last one gives only the rest."""
    shares = fill_in_order(sorted(sites, key=lambda site: (-free[site], site)), free, wanted)
    assert shares is not None, "the sites have enough"
    return shares
