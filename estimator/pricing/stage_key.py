"""Which stages of setups cost the same: their layers by kind, their degrees, and how their ranks sit."""

from __future__ import annotations

from collections.abc import Hashable

from estimator.pricing.rank_groups import place_key
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from estimator.pricing.wide_layers import narrow_layers
from models_zoo.layers import Layer
from models_zoo.model import Model


def layer_kinds(model: Model, recipe: Recipe) -> tuple[int, ...]:
    """Return a number for each layer of `model`, equal for layers that do the same work under `recipe`."""
    if recipe.frozen_layers is not None:
        return tuple(range(len(model.layers)))
    numbers: dict[tuple[Layer, bool], int] = {}
    narrow = narrow_layers(model, recipe)
    return tuple(numbers.setdefault((layer, index in narrow), len(numbers)) for index, layer in enumerate(model.layers))


def stage_key(setup: Setup, stage: StageSetup, kinds: tuple[int, ...]) -> Hashable:
    """Return what `price_stage` says of `stage` depends on, beside what all stages of `setup` share.

    Equal keys mean equal costs among setups of one model, cluster, recipe and micro-batch, on as many workers a node.
    `kinds` are the model's (`layer_kinds`).
    """
    return (
        tuple(kinds[first:end] for first, end in stage.chunks),
        place_key(setup.cluster, stage.slots),
        (stage.tp, stage.cp, stage.dp, stage.ep, stage.etp, stage.sequence_parallel),
        (stage.zero, stage.shard, stage.recompute, stage.recompute_layers, stage.offload, stage.shares),
    )
