"""What a search finds and counts, on one type of device or on several groups."""

from __future__ import annotations

from collections.abc import Mapping

from estimator.bulk.places import Placement
from estimator.bulk.records import BatchedDegrees, Rule, StateRule
from estimator.pricing.recipe import ScheduleName
from planner.one_job.search.spaces.cuts import Cut
from profiles.records import dataclass

ROUNDING = 1e-12
"""Relative difference up to which a bound and a value count as the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A plan of the space with its value; `lacking_bytes` above 0: it does not fit, and by how much."""

    value: float
    iteration_time_s: float
    lacking_bytes: float
    degrees: BatchedDegrees
    placement: Placement
    schedule: ScheduleName
    cut: Cut
    rule: Rule
    state: StateRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How large the space is and what removed what: `considered` ways to share the devices, of which `removed` says
    what each rule took; `plans` in those that were priced, `out_of_memory` of these; `bounded` ways that no plan of
    which could be better."""

    considered: int
    removed: Mapping[str, int]
    ways: int
    bounded: int
    families: int
    plans: int
    out_of_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """`best` None: nothing fits, and `nearest` lacks least. `lower_bound`: no plan of the space has a smaller value;
    equal to the best's where `proved`. `runners_up`: the best plan each of other ways or schedules, of those priced."""

    best: Found | None
    nearest: Found | None
    runners_up: tuple[Found, ...]
    lower_bound: float
    proved: bool
    counts: Counts
