"""`crux-fair`: Crux with a priority that gives back to those who lost (section 7.2)."""

from __future__ import annotations

from collections.abc import Sequence

from planner.contention.policies.crux import Crux
from planner.contention.policies.fairness import WEIGHT, order_by_fairness
from planner.contention.policies.loads import LinkSeconds
from planner.contention.policies.records import View


class CruxFair(Crux):
    """As `crux`, but that priorities are the weighted mean of intensity and recent loss, `weight` being the loss's."""

    name = "crux-fair"

    def __init__(self, compression: str = "exact", weight: float = WEIGHT) -> None:
        if not 0 <= weight <= 1:
            raise ValueError(f"weight {weight}: 0 to 1")
        super().__init__(compression=compression)
        self.weight = weight

    def rank(self, view: View, seconds: Sequence[LinkSeconds]) -> tuple[int, ...]:
        """Return the jobs that share links, the highest priority first."""
        return order_by_fairness(view, seconds, self.weight)
