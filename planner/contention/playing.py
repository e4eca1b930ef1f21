"""A job on the paths, at the levels, and at the times that were decided, as a player takes it."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.network.steps import Playing
from planner.contention.policies.axes import levelled
from planner.contention.policies.loads import steps_on
from planner.contention.policies.records import Choice, Contender


def playing_under(
    contender: Contender,
    choices: Sequence[Choice],
    *,
    level: int | None = None,
    axis_levels: Sequence[tuple[str, int]] = (),
    offset_s: float = 0.0,
    period_s: float | None = None,
) -> Playing:
    """Return a job on the paths, at the level, and so much later than the others as it was decided, as a player takes
    it; transfers of an axis with a level of its own have that, and iterations are held to `period_s`."""
    steps = levelled(contender, steps_on(contender, choices), tuple(axis_levels))
    return Playing(steps=steps, level=level or 0, weight=contender.weight, starts_s=offset_s, period_s=period_s or 0.0)
