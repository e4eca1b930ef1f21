"""The words of a bulk evaluation: degrees, rules of state and recomputation, families of plans and their prices."""

from __future__ import annotations

from estimator.pricing.amounts import Floats
from estimator.pricing.build import Ranges
from estimator.pricing.recipe import OffloadPart, ScheduleName, ZeroStage
from profiles.records import dataclass
from profiles.vocabulary import Degrees, RecomputeKind

Rule = tuple[RecomputeKind, int | None]
"""What is recomputed, in how many of a stage's layers (None: all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedDegrees(Degrees):
    """How the devices are shared by `pp` stages, all alike; `samples` is those of a rank and micro-batch."""

    pp: int
    samples: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRule:
    """Who holds a stage's state: ZeRO stage, over how many ranks (None: all that could), and what is on the host."""

    zero: ZeroStage = 0
    shard: int | None = None
    offload: frozenset[OffloadPart] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Plans of the same degrees and schedule: each way to cut the layers (the ranges of every stage's chunks) with each
    rule of recomputation and each of state."""

    schedule: ScheduleName
    cuts: tuple[tuple[Ranges, ...], ...]
    recompute: tuple[Rule, ...]
    states: tuple[StateRule, ...]

    @property
    def plans(self) -> int:
        """How many."""
        return len(self.cuts) * len(self.recompute) * len(self.states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The plans of a family, (cuts, rules, states): seconds of an iteration, infinite where nobody asked
    (`Pipeline.price`), and bytes that the fullest rank lacks (0 or less: it fits)."""

    total_s: Floats
    lacking_bytes: Floats
