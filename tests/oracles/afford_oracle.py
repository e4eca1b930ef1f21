"""What can be afforded, by looking at everything: the limits applied to every plan, one after the other."""

from __future__ import annotations

from collections.abc import Sequence


def best_within(
    offers: Sequence[tuple[float, float]], *, budget: float | None, days: float | None
) -> tuple[float, float] | None:
    """Of (days, cost) pairs the one to take: with `days` the cheapest within, else the fastest within the budget."""
    taken: tuple[float, float] | None = None
    for offer in offers:
        if (budget is not None and offer[1] > budget) or (days is not None and offer[0] > days):
            continue
        key = offer if days is None else offer[::-1]
        if taken is None or key < (taken if days is None else taken[::-1]):
            taken = offer
    return taken
