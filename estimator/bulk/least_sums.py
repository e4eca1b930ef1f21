"""What comes once an iteration at least: sums of gradients, weights brought together, the step; and ZeRO 3's part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import get_args

import numpy as np

from estimator.bulk.memory_bound import Divisible
from estimator.bulk.records import StateRule
from estimator.bulk.stage_kind import ANY_RANGES, StageKind
from estimator.pricing.amounts import Floats
from estimator.pricing.gradient_sync import exposed_sync_s, hiding_of
from estimator.pricing.optimizers import OPTIMIZERS
from profiles.vocabulary import RecomputeKind

RECOMPUTE_KINDS: tuple[RecomputeKind, ...] = get_args(RecomputeKind)


def once_of_each_s(rank: Divisible, kind: StageKind, state: StateRule, overlapped: bool, beside: float) -> Floats:
    """Return the least that one layer of each kind of `rank` adds to its passes on stages of one kind.

    A layer has its share of what all layers add together: the smaller of its shares of parameters that learn, outside
    the experts and inside. No more of sums and gatherings hides than its passes last.
    """
    shards, setup = kind.shards, kind.setup
    everything, _ = shards.holdings(((0, len(setup.model.layers)),))
    pairs = [
        (getattr(rank.holdings, name), float(getattr(everything, name)))
        for name in ("dense_learning", "experts_learning")
    ]
    shares = np.minimum.reduce([np.asarray(part) / whole for part, whole in pairs if whole > 0] or [np.zeros(1)])
    cost = kind.once(((0, len(setup.model.layers)),), state)
    # What is measured of a step, or multiplied in it, is not shared out by parameters.
    by_parameters = not OPTIMIZERS[setup.recipe.optimizer].orthogonal_iterations and not any(
        shards.profiles(0, len(setup.model.layers))
    )
    once_s = shares * (cost.offload_s + (cost.optimizer_s if by_parameters else 0.0))
    if state.zero == 3:
        blocks = [number for number, each in enumerate(shards.layers.kinds) if each.recomputable]
        moved_s = [_least_sharding_s(kind, state, overlapped, {number: 1}) for number in blocks]
        return np.asarray(once_s + moved_s)
    hiding = hiding_of(setup.recipe, [state.zero], setup.micro_batches, overlapped=overlapped, beside=beside)
    lasts_s = rank.layer_s + max(float(rerun.again_s) for _, whole in rank.whole for rerun in whole.reruns)
    reduced, gathered = exposed_sync_s(
        hiding,
        cost.overlap_cost,
        shares * cost.reduce_s,
        0.0,
        shares * cost.gather_s,
        lasts_s,
        lasts_s,
    )
    return np.asarray(once_s + reduced + gathered)


def least_sums_s(kind: StageKind, state: StateRule, overlapped: bool, beside: float) -> float:
    """Return the least that stages of one kind, which hold all layers together, add to their passes.

    The stage that does most of passes, sums and step together does at least the average of all stages. A sum of a
    part takes at least its share of the whole one's time: what a message takes grows by less than its size. Beside
    a micro-batch's passes, recomputation included, no more of it is hidden than those last; what is exposed before
    an earlier stage has ended counts in that stage's passes. ZeRO 3's gathers are at best hidden at their cost.
    """
    shards, setup = kind.shards, kind.setup
    layers = len(setup.model.layers)
    if state.zero == 3:
        return _least_sharding_s(kind, state, overlapped, Counter(shards.layers.kind_of_layer))
    cost = kind.once(((0, layers),), state)
    passes = [shards.whole_s(recompute) for recompute in RECOMPUTE_KINDS]
    hiding = hiding_of(
        setup.recipe,
        [state.zero],
        setup.micro_batches,
        overlapped=overlapped,
        beside=beside,
    )
    forward_s, backward_s = max(ahead for ahead, _ in passes), max(back for _, back in passes)
    once = cost.overlap_cost, cost.reduce_s, cost.partial_s, cost.gather_s
    return float(sum(exposed_sync_s(hiding, *once, forward_s, backward_s)))


def _least_sharding_s(kind: StageKind, state: StateRule, overlapped: bool, layers: Mapping[int, int]) -> float:
    """The least that ZeRO 3 adds to all micro-batches of stages with so many layers of each kind, whatever of them is
    computed again."""
    if kind.stage.dp * kind.stage.cp == 1:
        return 0.0
    shards, recomputable = kind.shards, [each.recomputable for each in kind.shards.layers.kinds]
    over, on_axis = kind.under(ANY_RANGES, state).sharded_over, kind.on_axis_under(state)
    once_s = 0.0
    for number, count in layers.items():
        plain_s, again_s = (
            shards.least_sharding_s((((number, again), 1),), over, on_axis, overlapped=overlapped, recompute="full")
            for again in (False, recomputable[number])
        )
        once_s += count * min(plain_s, again_s)
    return kind.setup.micro_batches * once_s
