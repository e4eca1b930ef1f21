"""What an explicit plan's iteration time means: samples, tokens and FLOPs per second, and the share of the peak."""

from __future__ import annotations

from estimator.layers.flops import count_model_flops
from estimator.pricing.recipe import Setup
from estimator.pricing.stage_work import stage_chunks
from profiles.records import dataclass
from profiles.vocabulary import Infeasible


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """Rates of a plan. None: tokens of a model without tokens, `mfu` of a device without a datasheet peak."""

    samples_per_s: float
    tokens_per_s_per_device: float | None
    tflops_per_device: float
    causal_tflops_per_device: float
    hardware_tflops_per_device: float
    mfu: float | None


def count_setup_flops(setup: Setup) -> SetupFlops:
    """Count the FLOPs of an iteration, as `count_model_flops` has those of a sample. Raise InputError for more tokens
    than learned positions."""
    recipe = setup.recipe
    counted = count_model_flops(
        setup.model, recipe.seq_len, frozen_layers=recipe.frozen_layers, adapters=recipe.lora_rank > 0
    )
    return SetupFlops(
        parameters=counted.parameters,
        model=counted.model * recipe.global_batch,
        causal=counted.causal * recipe.global_batch,
        recomputed=_recomputed_flops(setup),
    )


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
