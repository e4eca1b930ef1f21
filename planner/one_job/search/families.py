"""All plans of a node of the search whose cut and rule of state can still be better, priced together."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.records import Family, Priced
from planner.one_job.search.nodes import Node
from planner.one_job.search.spaces.found import ROUNDING, Found
from planner.one_job.search.spaces.space import Space, recompute_rules
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedFamily:
    """Plans of a node with what they take and lack; a plan's value is `factor` times its seconds."""

    node: Node
    family: Family
    priced: Priced
    factor: float
    fits: NDArray[np.bool_]

    @property
    def out_of_memory(self) -> int:
        """How many plans do not fit."""
        return int(self.family.plans - self.fits.sum())

    def best(self, allowed: NDArray[np.bool_] | None) -> Found | None:
        """Return the fastest plan that fits, of those `allowed` (None: all); None where there is none."""
        fits = self.fits if allowed is None else self.fits & allowed
        took_s = np.where(fits, self.priced.total_s, np.inf)
        place = int(np.argmin(took_s))
        return self._at(place) if math.isfinite(took_s.flat[place]) else None

    def nearest_miss(self) -> Found:
        """Return the plan that lacks least memory."""
        return self._at(int(np.argmin(self.priced.lacking_bytes)))

    def _at(self, place: int) -> Found:
        cut, rule, state = (int(number) for number in np.unravel_index(place, self.priced.total_s.shape))
        took_s, node, pipeline = float(self.priced.total_s[cut, rule, state]), self.node, self.node.pipeline
        assert pipeline is not None
        return Found(
            value=took_s * self.factor,
            iteration_time_s=took_s,
            lacking_bytes=max(0.0, float(self.priced.lacking_bytes[cut, rule, state])),
            degrees=pipeline.degrees,
            placement=node.placement,
            schedule=node.schedule.name,
            cut=self.family.cuts[cut],
            rule=self.family.recompute[rule],
            state=self.family.states[state],
        )


def price_node(
    space: Space,
    evaluator: BulkEvaluator,
    node: Node,
    *,
    value: float,
    factor: float,
    spare_bytes: int,
    coarsely: bool = False,
) -> PricedFamily | None:
    """Return the prices of a node's plans whose cut and rule of state can have a value below `value` (infinite: all);
    None where there is none. `coarsely`: few of them. `spare_bytes` of each device's memory stay free."""
    pipeline, by_state_s = node.pipeline, node.by_state_s
    assert pipeline is not None
    assert by_state_s is not None
    still = by_state_s * factor < value * (1 - ROUNDING)
    if math.isinf(value) and math.isinf(node.bound):
        # Nothing of it fits: the nearest miss is all that can be told.
        still = np.ones_like(still)
    family = _family(space, evaluator, node, still, coarsely=coarsely)
    if not family.plans:
        return None
    priced = pipeline.price(family, below_s=min(value / factor, 1e300), spare_bytes=spare_bytes)
    return PricedFamily(node=node, family=family, priced=priced, factor=factor, fits=priced.lacking_bytes <= 0)


def _family(space: Space, evaluator: BulkEvaluator, node: Node, still: NDArray[np.bool_], *, coarsely: bool) -> Family:
    """The plans of the cuts and rules of state that are `still` open."""
    cuts = [node.cuts[number] for number in np.flatnonzero(np.any(still, axis=1)).tolist()][: 1 if coarsely else None]
    layers = evaluator.layers
    blocks = max((sum(layers.recomputable(*part) for part in stage) for cut in cuts for stage in cut), default=0)
    rules = recompute_rules(space, blocks, vpp=node.schedule.chunks)
    if coarsely:
        rules = tuple(rule for rule in rules if rule[1] is None) or rules
    states = tuple(node.states[number] for number in np.flatnonzero(np.any(still, axis=0)).tolist())
    return Family(schedule=node.schedule.name, cuts=tuple(cuts), recompute=rules, states=states)
