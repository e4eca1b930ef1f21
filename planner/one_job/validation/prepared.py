"""What a row of a run table comes to: a setup that can be evaluated, or the reason why there is none."""

from __future__ import annotations

from estimator.pricing.recipe import Setup
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that cannot be predicted. `reason` names what is missing or contradictory, in words that rows share."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A row as a plan. `assumptions` are sentences, one for each thing that the row leaves open. `instead` are setups
    that are tried in turn where memory forces it, since the row leaves micro-batch or recomputation open."""

    setup: Setup
    assumptions: tuple[str, ...]
    instead: tuple[Setup, ...] = ()
