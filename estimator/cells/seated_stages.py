"""Stages of Cells by the arrays of bulk evaluation: of ranks that sit alike each kind of layer is priced once.

The same figures as `estimator.pricing.stage_cost.price_stage`, to rounding, for stages of one chunk and any degrees.
"""

from __future__ import annotations

from collections.abc import Hashable

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.layers import Composition
from estimator.bulk.places import Places
from estimator.bulk.records import BatchedDegrees, StateRule
from estimator.bulk.stage_kind import ANY_RANGES, StageKind
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_groups import place_key
from estimator.pricing.recipe import Recipe, StageSetup
from estimator.pricing.stage_cost import OnceCost
from models_zoo.model import Model
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass

MOST_PLACES = 4096
"""So many stages' slots are known by themselves; then all are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """A stage's seconds of a micro-batch, backward with what ZeRO 3 adds, of which `weight_s` only makes gradients of
    weights; and once an iteration. `measured`: all its layers are profiled."""

    forward_s: float
    backward_s: float
    weight_s: float
    once: OnceCost
    measured: bool


class SeatedStages:
    """The stages of a model's Cells on one cluster. The only state is caches."""

    def __init__(self, model: Model, cluster: Cluster, recipe: Recipe, pricing: Pricing) -> None:
        """Price stages of `model` under `recipe` by what `pricing` holds."""
        self._evaluator = BulkEvaluator(
            model=model, cluster=cluster, recipe=recipe, pricing=pricing, overlap_under=lambda _zero: recipe.overlap
        )
        self._kinds: dict[Hashable, StageKind] = {}
        self._alike: dict[Hashable, tuple[DeviceSlot, ...]] = {}
        self._places: dict[Places, Hashable] = {}
        self._seconds: dict[Hashable, StageSeconds] = {}

    def seconds(self, stage: StageSetup, samples: int) -> StageSeconds:
        """Return what `stage` takes, of which all layers can be held so."""
        kind = self._kind(stage, samples)
        key = (kind, kind.shards.content(*stage.chunks[0]), self._composition(stage), stage.recompute, stage.zero)
        if key not in self._seconds:
            self._seconds[key] = self._price(kind, stage)
        return self._seconds[key]

    def _price(self, kind: StageKind, stage: StageSetup) -> StageSeconds:
        state, composition = StateRule(zero=stage.zero, shard=stage.shard), self._composition(stage)
        shards = kind.shards
        passes = shards.chunks([composition], stage.recompute)
        sharding_s = 0.0
        if stage.zero == 3 and stage.dp * stage.cp > 1:
            (sharding_s,) = shards.sharding_s(
                [composition],
                stage.recompute,
                kind.under(ANY_RANGES, state).sharded_over,
                kind.on_axis_under(state),
                overlapped="dp" in self._evaluator.recipe.overlap,
            ).tolist()
        return StageSeconds(
            forward_s=float(passes.forward_s[0]),
            backward_s=float(passes.backward_s[0]) + sharding_s,
            weight_s=float(passes.weight_s[0]),
            once=kind.once(stage.chunks, state),
            measured=None not in shards.profiles(*stage.chunks[0]),
        )

    def _kind(self, stage: StageSetup, samples: int) -> StageKind:
        """Ranks that hold layers as `stage` does and sit as it does."""
        place = self._place(stage.slots)
        key = (place, stage.tp, stage.cp, stage.dp, stage.ep, stage.etp, stage.sequence_parallel, samples)
        if key not in self._kinds:
            degrees = BatchedDegrees(
                tp=stage.tp,
                cp=stage.cp,
                dp=stage.dp,
                ep=stage.ep,
                etp=stage.etp,
                sequence_parallel=stage.sequence_parallel,
                pp=1,
                samples=samples,
            )
            # All that sit alike stand for the first of them, so that they share what is timed there.
            self._kinds[key] = self._evaluator.stage_alone(degrees, self._alike.setdefault(place, stage.slots))
        return self._kinds[key]

    def _place(self, slots: tuple[DeviceSlot, ...]) -> Hashable:
        """Where they sit (`place_key`), which is asked of the same slots again and again."""
        places = Places(slots)
        if places not in self._places:
            if len(self._places) >= MOST_PLACES:
                self._places.clear()
            self._places[places] = place_key(self._evaluator.cluster, slots)
        return self._places[places]

    def _composition(self, stage: StageSetup) -> Composition:
        (first, end), layers = stage.chunks[0], stage.recompute_layers
        recomputed = 0 if stage.recompute == "none" else end - first if layers is None else layers
        return self._evaluator.layers.composition(first, end, recomputed)
