"""Max-min fair paces by linear programmes: the lexicographic optimum, one programme a round (HiGHS)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog

Way = Sequence[tuple[int, float]]


def lexicographic_paces(
    ways: Sequence[Way],
    bytes_per_s: Sequence[float],
    most: Sequence[float],
    weights: Sequence[float],
    levels: Sequence[int],
) -> list[float]:
    """Level after level: raise the least pace over weight as far as it goes; who cannot get more even when all others
    of the level have no less than that is held there; again with the rest."""
    settled: dict[int, float] = {}
    for level in sorted(set(levels)):
        members = [user for user, its in enumerate(levels) if its == level]
        left = set(members)
        while left:
            share = _raised(ways, bytes_per_s, most, weights, settled, left, raised=left, least=0.0)
            alone = {
                user: _raised(ways, bytes_per_s, most, weights, settled, left, raised={user}, least=share * (1 - 1e-9))
                for user in left
            }
            held = {user for user, most_alone in alone.items() if most_alone <= share * (1 + 1e-6) + 1e-9}
            assert held
            settled |= {user: share * weights[user] for user in held}
            left -= held
    return [settled[user] for user in range(len(ways))]


def _raised(
    ways: Sequence[Way],
    bytes_per_s: Sequence[float],
    most: Sequence[float],
    weights: Sequence[float],
    settled: dict[int, float],
    left: set[int],
    *,
    raised: set[int],
    least: float,
) -> float:
    """The greatest share that all of `raised` can have at once, the others of `left` having `least`."""
    columns = sorted(left)
    rows, limits = [], []
    for link, limit in enumerate(bytes_per_s):
        row = [sum(amount for at, amount in ways[user] if at == link) for user in columns]
        used = sum(pace * amount for user, pace in settled.items() for at, amount in ways[user] if at == link)
        rows.append([*row, 0.0])
        limits.append(max(limit - used, 0.0))
    for place, user in enumerate(columns):
        if user in raised:
            row = [0.0] * (len(columns) + 1)
            row[place], row[-1] = -1.0, weights[user]
            rows.append(row)
            limits.append(0.0)
    bounds = [(0.0 if user in raised else min(least * weights[user], most[user]), most[user]) for user in columns]
    goal = np.zeros(len(columns) + 1)
    goal[-1] = -1.0
    found = linprog(goal, A_ub=np.array(rows), b_ub=np.array(limits), bounds=[*bounds, (0.0, None)])
    assert found.status == 0, found.message
    return float(found.x[-1])
