"""Parts of a space of plans, of which one search finds the best plan each: what a part holds, and what is known of it.

A part is what narrower constraints leave of a space. A node of the search (a way to share the devices, with a schedule,
with rules of state) goes on as long as some part that it touches can still have a better plan from it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.records import BatchedDegrees, Family, StateRule
from planner.one_job.search.spaces.constraints import Constraints, Number
from planner.one_job.search.spaces.found import ROUNDING, Found
from planner.one_job.search.spaces.space import Space, Ways, permitted, state_rules
from profiles.records import dataclass

WAY_NUMBERS: tuple[Number, ...] = ("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch", "micro_batches", "devices")


@dataclass(slots=True, kw_only=True, eq=False)
class Part:
    """Plans that `limits` permit, None: all of the space; `ways` are those that it holds, `holds_as_all`: state under
    the same rules as the space. `best` is the best one so far (None: there is none below `below` yet); plans of up to
    `within` times its value stay in sight. `families` counts those that were priced for it. Once it is `closed` no plan
    of it has a smaller value than `lower_bound`; `proved`: it was not for lack of work that it was closed."""

    limits: Constraints | None
    ways: NDArray[np.bool_]
    holds_as_all: bool = True
    below: float = math.inf
    within: float = 1.0
    best: Found | None = None
    families: int = 0
    closed: bool = False
    proved: bool = True
    lower_bound: float = math.inf

    @property
    def value(self) -> float:
        """What a plan has to be below to be better; infinite where none fits yet."""
        return self.best.value if self.best else self.below

    @property
    def wanted_below(self) -> float:
        """Below what the bound of plans has to be for one of them to stay in sight; infinite where none fits yet: then
        even an infinite bound is looked at, for the nearest miss. Once it is closed nothing is wanted."""
        return -math.inf if self.closed else self.value * self.within * (1 - ROUNDING)

    def is_settled(self, bound: float) -> bool:
        """Return whether no plan of at least `bound` stays in sight."""
        value = self.value
        return value < math.inf and bound >= value * self.within * (1 - ROUNDING)

    def close(self, bound: float, most_families: int | None) -> bool:
        """Return whether it is closed, which it is from now on if nothing of at least `bound` is better, or so many
        families were priced."""
        if not self.closed:
            settled = self.value < math.inf and bound >= self.value * (1 - ROUNDING)
            self.closed = settled or (most_families is not None and self.families >= most_families)
            self.proved = settled or not self.closed
            self.lower_bound = bound if self.closed else math.inf
        return self.closed

    def states(self, space: Space, degrees: BatchedDegrees) -> tuple[StateRule, ...]:
        """Return the rules of state that it leaves open of `space` under `degrees`."""
        return state_rules(space if self.limits is None else replace(space, constraints=self.limits), degrees)

    def permits_chunks(self, vpp: int) -> bool:
        """Return whether a stage may have so many chunks."""
        return self.limits is None or self.limits.permits("vpp", vpp)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asking:
    """A part that a node of the search touches, and under which rules of state."""

    part: Part
    states: tuple[StateRule, ...]

    def permits(self, family: Family) -> NDArray[np.bool_]:
        """Return which plans of a family it holds, by rule of recomputation and of state: (1, rules, states)."""
        kinds = None if self.part.limits is None else self.part.limits.recompute
        rules = np.array([kinds is None or kind in kinds for kind, _ in family.recompute])
        states = np.array([state in self.states for state in family.states])
        return np.asarray(rules[None, :, None] & states[None, None, :])


def make_part(
    space: Space, ways: Ways, limits: Constraints | None, below: float = math.inf, within: float = 1.0
) -> Part:
    """Return the part of `space` that `limits` leave, which permit nothing that the space's own do not; only plans of a
    value less than `below` count, and those of `within` times the best one's stay in sight."""
    held = np.ones(len(ways), dtype=np.bool_)
    if limits is None:
        return Part(limits=limits, ways=held, below=below, within=within)
    for name in WAY_NUMBERS:
        held &= permitted(space, ways.columns, name, limits)
    own = space.constraints
    alike = (limits.zero, limits.offload, limits.bounds("zero")) == (own.zero, own.offload, own.bounds("zero"))
    return Part(limits=limits, ways=held, holds_as_all=alike, below=below, within=within)
