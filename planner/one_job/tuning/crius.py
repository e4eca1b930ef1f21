"""Cell-guided tuning (Crius, section 5.2, figure 11): each stage in the half of its plans on the side of its favour.

A stage of N devices has the plans dp * tp = N. Half-hybrid parallelism is sqrt(N) replicas of sqrt(N) shards; a stage
that the Cell's estimate runs in data parallelism is tuned from data-parallelism-only to half-hybrid, one in tensor
parallelism from there to tensor-parallelism-only. The paper leaves open what half-hybrid is where N is no square: here
it is the pair of plans next to sqrt(N) on either side, and both lie in both halves.
"""

from __future__ import annotations

import math

from estimator.cells.cell import CellEstimate, CellRules, assemble_cell
from estimator.cells.stage_places import places_of
from estimator.cells.stage_pricing import Favour, StageOption, StagePricing
from profiles.records import dataclass
from profiles.vocabulary import Infeasible


def stage_plans(devices: int) -> tuple[tuple[int, int], ...]:
    """(dp, tp) of all plans of a stage, from data-parallelism-only on.

    >>> stage_plans(6)
    ((6, 1), (3, 2), (2, 3), (1, 6))
    """
    if devices < 1:
        raise ValueError(f"stage_plans: {devices} devices, expected at least 1")
    return tuple((devices // tp, tp) for tp in range(1, devices + 1) if devices % tp == 0)


def favoured_half(devices: int, favour: Favour) -> tuple[tuple[int, int], ...]:
    """The plans of a stage on the side of its favour, the boundary among them.

    >>> favoured_half(16, "dp"), favoured_half(16, "tp")
    (((16, 1), (8, 2), (4, 4)), ((4, 4), (2, 8), (1, 16)))
    >>> favoured_half(8, "dp"), favoured_half(8, "tp")
    (((8, 1), (4, 2), (2, 4)), ((4, 2), (2, 4), (1, 8)))
    """
    plans = stage_plans(devices)
    if favour == "dp":
        end = min(tp for _, tp in plans if tp * tp >= devices)
        return tuple(plan for plan in plans if plan[1] <= end)
    first = max(tp for _, tp in plans if tp * tp <= devices)
    return tuple(plan for plan in plans if plan[1] >= first)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedCell:
    """The best plan of a Cell's halves. `plans` of the Cell's `all_plans` lie in them, `priced` of these can be had."""

    cell: CellEstimate
    plans: int
    all_plans: int
    priced: int


def tune_cell(pricing: StagePricing, cell: CellEstimate, rules: CellRules) -> TunedCell:
    """Return the plan of the least estimate in the halves that `cell`'s favours leave: our estimates measure."""
    stages = cell.setup.stages
    places = places_of([stage.chunks[0] for stage in stages], [stage.slots for stage in stages], cell.setup.micro_batch)
    options: list[list[tuple[Favour, StageOption]]] = []
    dropped: list[str] = []
    halves = [favoured_half(len(place.slots), favour) for place, favour in zip(places, cell.assembly, strict=True)]
    plans_to_be_had = 1
    for place, favour, half in zip(places, cell.assembly, halves, strict=True):
        choices: list[tuple[Favour, StageOption]] = []
        plans = 0
        for dp, tp in half:
            ways = pricing.options(place, dp=dp, tp=tp)
            if isinstance(ways, Infeasible):
                dropped.append(f"stage {place.index}: {ways.reason}")
            else:
                plans += 1
                choices += [(favour, option) for option in ways]
        plans_to_be_had *= plans
        options.append(choices)
    return TunedCell(
        cell=assemble_cell(pricing, places, options, dropped=tuple(dropped), rules=rules),
        plans=math.prod(map(len, halves)),
        all_plans=math.prod(len(stage_plans(len(place.slots))) for place in places),
        priced=plans_to_be_had,
    )
