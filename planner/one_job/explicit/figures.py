"""What an explicit plan's iteration time means: samples, tokens and FLOPs per second, and the share of the peak."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from estimator.layers.graph import build_graph
from estimator.layers.shards import shard_layer
from estimator.performance import Performance
from estimator.pricing.recipe import Setup
from estimator.pricing.stage_work import stage_chunks
from models_zoo.layers import Layer
from profiles.vocabulary import Infeasible, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFlops:
    """Parameters of the model, and FLOPs of one iteration of a setup on all devices.

    `model` counts attention in full, `causal` causal attention half; neither counts what is computed twice or what need
    not be, because it does not learn. `recomputed` is what is computed a second time.
    """

    parameters: int
    model: int
    causal: int
    recomputed: int


def count_setup_flops(setup: Setup) -> SetupFlops:
    """Count the FLOPs of an iteration: three times forward's matrix products (PaLM, appendix B) where all learns.

    A layer whose weights are frozen saves their gradients (one of the three for all but attention's own products), and
    where nothing before it learns either, all of backward. Raise InputError for more tokens than learned positions.
    """
    recipe = setup.recipe
    shard = Shard(seq_len=recipe.seq_len, dtype=recipe.dtype, attention="flash")
    parameters = build_graph(setup.model, shard=shard, degrees=()).parameters
    model = causal = 0
    for (layer, frozen, cut_off), count in _count_layers(setup).items():
        local = shard_layer(layer, shard)
        if isinstance(local, Infeasible):
            raise ValueError(f"{local.reason}; expected layers that can be held whole")
        squares = [op for op in local.operators if op.kind == "attention"]
        attention = sum(op.forward_flops for op in squares)
        half = sum(op.forward_flops // 2 for op in squares if op.shape[-1])
        passes = 1 if cut_off else 3
        layer_flops = passes * local.forward_flops
        if frozen and not cut_off:
            layer_flops -= local.forward_flops - attention
        model += count * layer_flops
        causal += count * (layer_flops - passes * half)
    batch = recipe.global_batch
    return SetupFlops(
        parameters=parameters, model=model * batch, causal=causal * batch, recomputed=_recomputed_flops(setup)
    )


def _count_layers(setup: Setup) -> Counter[tuple[Layer, bool, bool]]:
    """How many layers are alike: the layer, whether its weights are frozen, and whether nothing before it learns."""
    first, end = setup.recipe.frozen_layers or (0, 0)
    kinds: Counter[tuple[Layer, bool, bool]] = Counter()
    for index, layer in enumerate(setup.model.layers):
        frozen = setup.recipe.lora_rank > 0 or first <= index < end
        kinds[layer, frozen, frozen and not setup.recipe.lora_rank and first == 0] += 1
    return kinds


def _recomputed_flops(setup: Setup) -> int:
    """Forward FLOPs that backward runs again, over all ranks and micro-batches."""
    total = 0
    # Under DualPipe half of the micro-batches pass through each of a stage's two chunks.
    turns = 2 if setup.recipe.schedule == "dualpipe" else 1
    for number, stage in enumerate(setup.stages):
        chunks = stage_chunks(setup, number)
        if isinstance(chunks, Infeasible):
            raise ValueError(f"{chunks.reason}; expected a setup that can be held")
        again = sum(
            count * sum(op.forward_flops for op in work.again) for chunk in chunks for work, count in chunk.works
        )
        # Where shares are uneven the fullest replica's chunks stand for all.
        fullest = setup.samples_per_rank(stage) * stage.dp
        total += again * len(stage.slots) * setup.micro_batch * setup.micro_batches // (turns * fullest)
    return total


def rate_setup(setup: Setup, flops: SetupFlops, iteration_time_s: float) -> Performance:
    """Return rates of an iteration of `setup` that takes `iteration_time_s`. `mfu` is over the sum of all devices'
    datasheet peaks, None where one has none."""
    recipe, devices = setup.recipe, setup.devices
    per_device = 1 / (iteration_time_s * devices)
    peaks = _peak_flops_per_s(setup)
    tokens = recipe.global_batch * recipe.seq_len
    return Performance(
        samples_per_s=recipe.global_batch / iteration_time_s,
        tokens_per_s_per_device=tokens * per_device if tokens else None,
        tflops_per_device=flops.model * per_device / 1e12,
        causal_tflops_per_device=flops.causal * per_device / 1e12,
        hardware_tflops_per_device=(flops.model + flops.recomputed) * per_device / 1e12,
        mfu=flops.model / iteration_time_s / peaks if peaks else None,
    )


def _peak_flops_per_s(setup: Setup) -> float | None:
    """All devices' peak for the compute type, None where a datasheet states none."""
    total = 0.0
    for stage in setup.stages:
        for group in [setup.cluster.group_of(slot).device for slot in stage.slots]:
            peak = group.peak(setup.recipe.dtype) if group.peak_basis == "datasheet" else None
            if peak is None:
                return None
            total += peak
    return total
