"""What comes once an iteration at least: sums of gradients, weights brought together, the step; and ZeRO 3's part."""

from __future__ import annotations

from typing import get_args

import numpy as np

from estimator.bulk.memory_bound import Divisible
from estimator.bulk.records import StateRule
from estimator.bulk.stage_kind import ANY_RANGES, StageKind
from estimator.pricing.amounts import Floats
from estimator.pricing.gradient_sync import exposed_sync_s, hiding_of
from estimator.pricing.optimizers import OPTIMIZERS
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind

RECOMPUTE_KINDS: tuple[RecomputeKind, ...] = get_args(RecomputeKind)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeastSums:
    """The least that stages of one kind add to their passes: `whole_s` where they hold all layers together, `each_s`
    for one layer of each kind that can be recomputed."""

    whole_s: float
    each_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shares:
    """Each kind's smallest share of the parameters that learn, outside the experts and inside; whether the step is
    shared out so; the longest that one layer's passes last at their least, and those of all layers, forward and
    backward, whatever of them is computed again."""

    shares: Floats
    by_parameters: bool
    lasts_s: Floats
    forward_s: float
    backward_s: float


def least_sums(rank: Divisible, kind: StageKind, state: StateRule, overlapped: bool, beside: float) -> LeastSums:
    """Return the least that stages of one kind, which hold the layers of `rank`, add to their passes under a rule of
    state; sums are `overlapped` by so many passes `beside` them.

    The stage that does most of passes, sums and step together does at least the average of all stages. A sum of a
    part takes at least its share of the whole one's time: what a message takes grows by less than its size. Beside
    a micro-batch's passes, recomputation included, no more of it is hidden than those last; what is exposed before
    an earlier stage has ended counts in that stage's passes. ZeRO 3's gathers are at best hidden at their cost.
    """
    setup, layers = kind.setup, len(kind.setup.model.layers)
    known = kind.shards.pricing.remember(_shares, rank, kind)
    cost = kind.once(((0, layers),), state)
    step_s = known.shares * (cost.offload_s + (cost.optimizer_s if known.by_parameters else 0.0))
    if state.zero == 3:
        # On the host or not, in whatever schedule.
        moved_s = kind.shards.pricing.remember(
            _least_sharding_s, kind, StateRule(zero=3, shard=state.shard), overlapped
        )
        counts = np.bincount(kind.shards.layers.kind_of_layer, minlength=len(moved_s))
        return LeastSums(whole_s=float(counts @ moved_s), each_s=step_s + moved_s[_recomputable(kind)])
    hiding = hiding_of(setup.recipe, [state.zero], setup.micro_batches, overlapped=overlapped, beside=beside)
    once = cost.overlap_cost, cost.reduce_s, cost.partial_s, cost.gather_s
    reduced_s, gathered_s = exposed_sync_s(
        hiding,
        cost.overlap_cost,
        known.shares * cost.reduce_s,
        0.0,
        known.shares * cost.gather_s,
        known.lasts_s,
        known.lasts_s,
    )
    return LeastSums(
        whole_s=float(sum(exposed_sync_s(hiding, *once, known.forward_s, known.backward_s))),
        each_s=np.asarray(step_s + reduced_s + gathered_s),
    )


def _shares(rank: Divisible, kind: StageKind) -> _Shares:
    shards, layers = kind.shards, len(kind.setup.model.layers)
    everything, _ = shards.holdings(((0, layers),))
    pairs = [
        (np.asarray(getattr(rank.holdings, name)), float(getattr(everything, name)))
        for name in ("dense_learning", "experts_learning")
    ]
    passes = [shards.whole_s(recompute) for recompute in RECOMPUTE_KINDS]
    # What is measured of a step, or multiplied in it, is not shared out by parameters.
    multiplies = OPTIMIZERS[kind.setup.recipe.optimizer].orthogonal_iterations > 0
    return _Shares(
        shares=np.minimum.reduce([part / whole for part, whole in pairs if whole > 0] or [np.zeros(len(rank.counts))]),
        by_parameters=not (multiplies or any(shards.profiles(0, layers))),
        lasts_s=rank.layer_s + max(float(rerun.again_s) for _, whole in rank.whole for rerun in whole.reruns),
        forward_s=max(ahead for ahead, _ in passes),
        backward_s=max(back for _, back in passes),
    )


def _recomputable(kind: StageKind) -> list[int]:
    return [number for number, each in enumerate(kind.shards.layers.kinds) if each.recomputable]


def _least_sharding_s(kind: StageKind, state: StateRule, overlapped: bool) -> Floats:
    """The least that ZeRO 3 adds to all micro-batches of a stage for one layer of each kind, computed again or not."""
    kinds = kind.shards.layers.kinds
    if kind.stage.dp * kind.stage.cp == 1:
        return np.zeros(len(kinds))
    over, on_axis = kind.under(ANY_RANGES, state).sharded_over, kind.on_axis_under(state)
    once_s = [
        min(
            kind.shards.least_sharding_s(
                (((number, again), 1),), over, on_axis, overlapped=overlapped, recompute="full"
            )
            for again in {False, each.recomputable}
        )
        for number, each in enumerate(kinds)
    ]
    return np.array(once_s) * kind.setup.micro_batches
