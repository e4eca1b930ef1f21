"""What comes once an iteration at least: sums of gradients, weights brought together, the step; and ZeRO 3's part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.bulk.memory_bound import Divisible
from estimator.bulk.records import StateRule
from estimator.bulk.stage_kind import ANY_RANGES, StageKind
from estimator.pricing.amounts import Floats
from estimator.pricing.gradient_sync import Hiding, exposed_sync_s, hiding_of
from estimator.pricing.optimizers import OPTIMIZERS
from profiles.records import dataclass

AT_ONCE = Hiding(sums=1.0, gathers=1.0)
"""What hides does so beside the passes that are given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SumsAsked:
    """Stages of one kind, which hold the layers of `rank`, under a rule of state; sums are `overlapped` by so many
    passes `beside` them."""

    rank: Divisible
    kind: StageKind
    state: StateRule
    overlapped: bool
    beside: float


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Gathered:
    """What `SumsAsked` are about, one a place: each kind of layers' shares, (places, kinds), the passes beside which
    sums and gatherings hide, and what comes once of all layers."""

    shares: Floats
    lasts_s: Floats
    forward_s: Floats
    backward_s: Floats
    sums_beside: Floats
    gathers_beside: Floats
    step_s: Floats
    overlap_cost: Floats
    reduce_s: Floats
    partial_s: Floats
    gather_s: Floats


def least_sums(asked: Sequence[SumsAsked]) -> tuple[Floats, Floats]:
    """Return the least that stages add to their passes, of each that is asked for: where they hold all layers together,
    and for one layer of each kind that can be recomputed, (asked, kinds).

    The stage that does most of passes, sums and step together does at least the average of all stages. A sum of a
    part takes at least its share of the whole one's time: what a message takes grows by less than its size. Beside
    a micro-batch's passes, recomputation included, no more of it is hidden than those last; what is exposed before
    an earlier stage has ended counts in that stage's passes. ZeRO 3's gathers are at best hidden at their cost.
    """
    of = _gather(asked)
    step_s = of.shares * of.step_s[:, None]
    once = of.overlap_cost, of.reduce_s, of.partial_s, of.gather_s
    whole_s = sum(exposed_sync_s(AT_ONCE, *once, of.forward_s * of.gathers_beside, of.backward_s * of.sums_beside))
    reduced_s, gathered_s = exposed_sync_s(
        AT_ONCE,
        of.overlap_cost[:, None],
        of.shares * of.reduce_s[:, None],
        0.0,
        of.shares * of.gather_s[:, None],
        of.lasts_s * of.gathers_beside[:, None],
        of.lasts_s * of.sums_beside[:, None],
    )
    whole_s, each_s = np.asarray(whole_s), np.asarray(step_s + reduced_s + gathered_s)
    for place, each in enumerate(asked):
        if each.state.zero == 3:
            # On the host or not, in whatever schedule.
            moved_s = each.kind.shards.pricing.remember(
                _least_sharding_s, each.kind, StateRule(zero=3, shard=each.state.shard), each.overlapped
            )
            counts = np.bincount(each.kind.shards.layers.kind_of_layer, minlength=len(moved_s))
            whole_s[place], each_s[place] = counts @ moved_s, step_s[place] + moved_s[_recomputable(each.kind)]
    return whole_s, each_s


def _gather(asked: Sequence[SumsAsked]) -> _Gathered:
    shares, figures = [], []
    for each in asked:
        kind, state = each.kind, each.state
        share, once = kind.shards.pricing.remember(_of_all_layers, each.rank, kind, state)
        hiding = hiding_of(
            kind.setup.recipe,
            [state.zero],
            kind.setup.micro_batches,
            overlapped=each.overlapped,
            beside=each.beside,
        )
        shares.append(share)
        figures.append((*once, hiding.sums if hiding else 0.0, hiding.gathers if hiding else 0.0))
    forward_s, backward_s, step_s, overlap_cost, reduce_s, partial_s, gather_s, sums, gathers = np.array(figures).T
    return _Gathered(
        shares=np.array([share.shares for share in shares]),
        lasts_s=np.array([share.lasts_s for share in shares]),
        forward_s=forward_s,
        backward_s=backward_s,
        sums_beside=sums,
        gathers_beside=gathers,
        step_s=step_s,
        overlap_cost=overlap_cost,
        reduce_s=reduce_s,
        partial_s=partial_s,
        gather_s=gather_s,
    )


def _of_all_layers(rank: Divisible, kind: StageKind, state: StateRule) -> tuple[_Shares, tuple[float, ...]]:
    """What stages have of all layers together, whatever hides beside their passes: in seconds forward, backward, the
    step, and what sums and gatherings take, the cost of hiding them before these."""
    share = kind.shards.pricing.remember(_shares, rank, kind)
    cost = kind.once(((0, len(kind.setup.model.layers)),), state)
    step_s = cost.offload_s + (cost.optimizer_s if share.by_parameters else 0.0)
    sums = (cost.overlap_cost, cost.reduce_s, cost.partial_s, cost.gather_s)
    return share, (share.forward_s, share.backward_s, step_s, *sums)


def _shares(rank: Divisible, kind: StageKind) -> _Shares:
    shards, layers = kind.shards, len(kind.setup.model.layers)
    everything, _ = shards.holdings(((0, layers),))
    pairs = [
        (np.asarray(getattr(rank.holdings, name)), float(getattr(everything, name)))
        for name in ("dense_learning", "experts_learning")
    ]
    forward_s, backward_s = shards.longest_s()
    # What is measured of a step, or multiplied in it, is not shared out by parameters.
    multiplies = OPTIMIZERS[kind.setup.recipe.optimizer].orthogonal_iterations > 0
    return _Shares(
        shares=np.minimum.reduce([part / whole for part, whole in pairs if whole > 0] or [np.zeros(len(rank.counts))]),
        by_parameters=not (multiplies or any(shards.profiles(0, layers))),
        lasts_s=rank.layer_s + max(float(rerun.again_s) for _, whole in rank.whole for rerun in whole.reruns),
        forward_s=forward_s,
        backward_s=backward_s,
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
