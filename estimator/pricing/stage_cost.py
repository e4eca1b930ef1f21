"""Seconds of one stage of an explicit plan: its passes for a micro-batch, and what comes once an iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from estimator.pricing.gradient_sync import (
    Learning,
    TimeOnAxis,
    gather_weights_s,
    reduce_gradients_s,
    sum_partial_gradients_s,
)
from estimator.pricing.held import held_parameters
from estimator.pricing.host_time import host_of
from estimator.pricing.layer_times import slowed
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.measured import measured_times
from estimator.pricing.offload import activations_over_host_link_s, optimizer_on_host_s
from estimator.pricing.optimizers import GRAD_WIDTH, OPTIMIZERS, OptimizerSpec
from estimator.pricing.pass_time import (
    Machine,
    PassTime,
    attention_kernel_of,
    backward_pass,
    forward_pass,
)
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_kinds import rank_kinds
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from estimator.pricing.sharded_layers import gathered_bytes, pieces_s, sharding_s
from estimator.pricing.stage_work import ChunkWork, stage_chunks, stage_device
from profiles.cluster import most_on_one_node
from profiles.records import dataclass, replace
from profiles.training_parameters import TrainingParameters, neutral_parameters
from profiles.vocabulary import (
    CollectiveOp,
    Device,
    Infeasible,
    LayerTime,
    held_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceCost:
    """Seconds once an iteration, nothing of them hidden: gradients summed over replicas, and over tensor-parallel ranks
    that have parts of them; sharded weights brought together; the optimizer's step, and what of it goes over the host
    link. `overlap_cost`: what hiding a second of sums and gatherings costs there."""

    reduce_s: float
    partial_s: float
    gather_s: float
    overlap_cost: float
    optimizer_s: float
    offload_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage's seconds: passes of each chunk for a micro-batch, and what comes once an iteration."""

    forward: tuple[PassTime, ...]
    backward: tuple[PassTime, ...]
    sharding_s: tuple[float, ...]
    offload_s: tuple[tuple[float, float], ...]
    once: OnceCost
    chunks: tuple[ChunkWork, ...]
    profiles: tuple[tuple[LayerTime | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagePasses:
    """What of a stage's price does not depend on how its state is sharded, each chunk's, and what is profiled of it."""

    chunks: tuple[ChunkWork, ...]
    profiles: tuple[tuple[LayerTime | None, ...], ...]
    forward: tuple[PassTime, ...]
    backward: tuple[PassTime, ...]


def price_stage(setup: Setup, number: int, links: LinkTimes) -> StageCost | Infeasible:
    """Return what stage `number` of `setup` takes with all others idle; Infeasible where a degree divides nothing or
    the device lacks the dtype.

    A stage on several types of device takes as long as its slowest ranks: replicas work side by side.
    """
    kinds = rank_kinds(setup, number)
    if len(kinds) > 1:
        return _slowest([price_stage(kind, number, links) for kind in kinds])
    stage = setup.stages[number]
    priced = _price_passes(setup, number, links)
    if isinstance(priced, Infeasible):
        return priced
    chunks, profiles, forward, backward = priced.chunks, priced.profiles, priced.forward, priced.backward
    on_axis = links.on_axes_of(stage)
    device = stage_device(setup, stage).among(most_on_one_node(stage.slots))
    machine = stage_machine(setup, device, links.pricing, on_axis)
    sharded_s = tuple(
        sharding_s(chunk, found, machine, stage, setup, on_axis) for chunk, found in zip(chunks, profiles, strict=True)
    )
    offload_s = tuple(
        activations_over_host_link_s(setup, stage, chunk.works, ahead.total_s, back.total_s + sharding)
        if "activations" in stage.offload
        else (0.0, 0.0)
        for chunk, ahead, back, sharding in zip(chunks, forward, backward, sharded_s, strict=True)
    )
    return StageCost(
        forward=forward,
        backward=backward,
        offload_s=offload_s,
        sharding_s=sharded_s,
        once=price_once(setup, stage, chunks, profiles, machine, on_axis, links.pricing.parameters),
        chunks=chunks,
        profiles=profiles,
    )


def _price_passes(setup: Setup, number: int, links: LinkTimes) -> _StagePasses | Infeasible:
    """The passes of stage `number`, on one type of device; Infeasible as `price_stage` says."""
    stage, recipe, pricing = setup.stages[number], setup.recipe, links.pricing
    chunks = stage_chunks(setup, number)
    if isinstance(chunks, Infeasible):
        return chunks
    alone, workers = stage_device(setup, stage), most_on_one_node(stage.slots)
    device, lookup = alone.among(workers), slowed(pricing.lookup, alone, workers)
    if device.peak(recipe.dtype) is None:
        have = ", ".join(name for name, _ in device.peak_flops_per_s)
        return Infeasible(reason=f"{device.name} has no {recipe.dtype} rate (it has {have})", lacking="support")
    machine = stage_machine(setup, device, pricing, links.on_axes_of(stage))
    profiles = tuple(measured_times(chunk, lookup) for chunk in chunks)
    # Most chunks of a stage are alike.
    both = [(chunk.works, times) for chunk, times in zip(chunks, profiles, strict=True)]
    alike = [both.index(one) for one in both]
    different = [(place, *both[place]) for place in dict.fromkeys(alike)]
    forward = {place: forward_pass(works, machine, times) for place, works, times in different}
    backward = {place: backward_pass(works, machine, times) for place, works, times in different}
    return _StagePasses(
        chunks=chunks,
        profiles=profiles,
        forward=tuple(forward[place] for place in alike),
        backward=tuple(backward[place] for place in alike),
    )


def slower_passes(cost: StageCost, times: float) -> StageCost:
    """Return `cost` with passes that take so many times as long; what comes once an iteration stays."""
    return replace(
        cost,
        forward=tuple(one.longer(times) for one in cost.forward),
        backward=tuple(one.longer(times) for one in cost.backward),
        sharding_s=tuple(seconds * times for seconds in cost.sharding_s),
        offload_s=tuple((out * times, back * times) for out, back in cost.offload_s),
    )


def _slowest(costs: Sequence[StageCost | Infeasible]) -> StageCost | Infeasible:
    """The one whose passes take longest, with the longest of what comes once."""
    priced = []
    for cost in costs:
        if isinstance(cost, Infeasible):
            return cost
        priced.append(cost)
    return replace(max(priced, key=pass_s), once=longest_once([cost.once for cost in priced]))


def longest_once(costs: Sequence[OnceCost]) -> OnceCost:
    """Return the longest of each part: ranks of several kinds wait for each other."""
    return OnceCost(**{part.name: max(getattr(cost, part.name) for cost in costs) for part in fields(OnceCost)})


def pass_s(cost: StageCost) -> float:
    """Return the seconds of a micro-batch through a stage's chunks, both ways."""
    passes = sum(one.total_s for one in (*cost.forward, *cost.backward))
    return passes + sum(cost.sharding_s) + sum(map(sum, cost.offload_s))


def price_once(
    setup: Setup,
    stage: StageSetup,
    chunks: Sequence[ChunkWork],
    profiles: Sequence[Sequence[LayerTime | None]],
    machine: Machine,
    on_axis: TimeOnAxis,
    known: TrainingParameters,
) -> OnceCost:
    """What a rank of `stage` does once an iteration."""
    recipe = setup.recipe
    dense, experts = held_parameters(chunks, stage)
    partial: Counter[int] = Counter()
    for work, count in (pair for chunk in chunks for pair in chunk.works):
        for ranks, parameters in work.partial_gradients:
            partial[ranks] += parameters * count
    learning = Learning(dense=dense.learning, experts=experts.learning, partial=tuple(sorted(partial.items())))
    copied_s = pieces_s(chunks, stage, recipe, known)
    gathered, elements = gathered_bytes(recipe), bucket_elements(recipe, stage)
    buckets, gather_buckets = _in_buckets(on_axis, recipe.software.bucket_bytes), on_axis
    if elements:
        buckets = _in_even_buckets(on_axis, elements * GRAD_WIDTH[recipe.grad_dtype], len(chunks))
        gather_buckets = _in_even_buckets(on_axis, elements * gathered, len(chunks))
    optimizer_s, offload_s = _optimizer_s(setup, stage, chunks, machine, profiles)
    return OnceCost(
        reduce_s=reduce_gradients_s(
            learning,
            zero=stage.zero,
            sharded_over=stage.sharded_over,
            gradient_width=GRAD_WIDTH[recipe.grad_dtype],
            micro_batches=setup.micro_batches,
            on_axis=buckets,
        )
        + copied_s * (setup.micro_batches if stage.zero == 2 else 1),
        partial_s=sum_partial_gradients_s(
            learning,
            zero=stage.zero,
            gradient_width=GRAD_WIDTH[recipe.grad_dtype],
            micro_batches=setup.micro_batches,
            on_axis=on_axis,
        ),
        gather_s=gather_weights_s(learning, zero=stage.zero, width=gathered, on_axis=gather_buckets)
        + _broadcasts_s(setup, stage, known)
        + copied_s,
        overlap_cost=known.of("overlap_cost", f"dp-{machine.efficiencies.architecture}", "dp"),
        optimizer_s=optimizer_s,
        offload_s=offload_s,
    )


def stage_machine(setup: Setup, device: Device, pricing: Pricing, on_axis: TimeOnAxis) -> Machine:
    """Return what the passes of a stage on `device` run on. A device whose rates were measured launches from the host
    that it is, so that its rates hold the launches: it has no other parameters of training."""
    recipe, efficiencies = setup.recipe, pricing.efficiencies_of(device.name)
    if recipe.software.grouped_products == "streams":
        efficiencies = efficiencies.in_streams()
    parameters = pricing.parameters if device.peak_basis == "datasheet" else neutral_parameters()
    return Machine(
        device=device,
        efficiencies=efficiencies,
        parameters=parameters,
        dtype=recipe.dtype,
        collective_s=lambda one: on_axis(one.op, one.bytes, one.axis),
        overlap_tp="tp" in recipe.overlap or recipe.software.sums_beside,
        tensor_overlap=recipe.software.tensor_overlap if "tp" in recipe.overlap else "backward",
        overlap_ep="ep" in recipe.overlap or recipe.schedule == "dualpipe",
        shared_beside=recipe.software.shared_beside,
        host=host_of(recipe.software, device, recipe.dtype, parameters),
        kernels=recipe.software.kernels,
        accumulation_bytes=accumulation_bytes(setup),
        accumulator_bytes=GRAD_WIDTH[recipe.grad_dtype] if recipe.software.fused_accumulation else 0,
        attention_kernel=attention_kernel_of(recipe.software.flash_generation, efficiencies),
        flash_generation=recipe.software.flash_generation,
        fp8_attention=recipe.software.fp8_attention,
        fp8_scaling=recipe.software.fp8_scaling,
        bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * efficiencies.bandwidth_share,
    )


def _optimizer_s(
    setup: Setup,
    stage: StageSetup,
    chunks: Sequence[ChunkWork],
    machine: Machine,
    profiles: Sequence[Sequence[LayerTime | None]],
) -> tuple[float, float]:
    """(step, transfers to and from the host) seconds: memory traffic, on the device or on the host, and what Muon
    multiplies besides. Where all layers are profiled, the step that was measured with them."""
    recipe = setup.recipe
    optimizer = OPTIMIZERS[recipe.optimizer]
    each = optimizer.step_bytes(
        recipe.dtype,
        recipe.grad_dtype,
        masters=recipe.software.optimizer_masters,
        narrow_moments=recipe.software.moments == "bf16",
    )
    updated = sum(one.learning / one.shards for one in held_parameters(chunks, stage))
    if "optimizer" in stage.offload:
        return optimizer_on_host_s(setup, stage, updated, updated * each)
    measured_s = _measured_step_s(chunks, profiles, updated)
    if measured_s is not None:
        return measured_s, 0.0
    stream = machine.bandwidth_bytes_per_s * machine.parameters.of("memory_share", "fused", *machine.qualifiers)
    return updated * each / stream + _orthogonal_s(optimizer, stage, chunks, machine), 0.0


def _measured_step_s(
    chunks: Sequence[ChunkWork], profiles: Sequence[Sequence[LayerTime | None]], updated: float
) -> float | None:
    """Of `updated` parameters, as long as the profiled layers' own steps; None where a layer is not profiled."""
    found = [
        (profile, (work.parameters + work.expert_parameters) * count, count)
        for chunk, own in zip(chunks, profiles, strict=True)
        for (work, count), profile in zip(chunk.works, own, strict=True)
    ]
    parameters = sum(held for _, held, _ in found)
    if not parameters or any(profile is None for profile, _, _ in found):
        return None
    return sum(profile.optimizer_s * count for profile, _, count in found if profile) * updated / parameters


def _orthogonal_s(optimizer: OptimizerSpec, stage: StageSetup, chunks: Sequence[ChunkWork], machine: Machine) -> float:
    """Muon's products over the rank's matrices, shared out over the ranks that hold the same ones; they run in bf16 at
    the best that a product reaches."""
    if not optimizer.orthogonal_iterations:
        return 0.0
    flops = sum(
        count * optimizer.step_flops(op.shape[-2], op.shape[-1]) * (op.shape[0] if op.kind == "grouped_gemm" else 1)
        for chunk in chunks
        for work, count in chunk.works
        if work.trainable_parameters and not work.is_end
        for op in work.operators
        if op.kind in ("gemm", "grouped_gemm")
    )
    peak = machine.device.peak("bf16") or machine.device.peak(machine.dtype) or 0.0
    share = machine.efficiencies.gemm.peak_share * machine.parameters.of("gemm_share", *machine.qualifiers)
    return flops / stage.sharded_over / (peak * share) if peak else 0.0


def _broadcasts_s(setup: Setup, stage: StageSetup, known: TrainingParameters) -> float:
    """What it takes beyond the bytes that ranks on several nodes broadcast their shards of the weights one after
    another: a time for each, during which the tensor-parallel groups beside it use the same network."""
    if not setup.recipe.software.broadcast_weights or stage.zero not in (1, 2):
        return 0.0
    nodes = {(slot.site, slot.node) for slot in stage.slots[: stage.sharded_over * stage.tp]}
    if len(nodes) == 1:
        return 0.0
    return known.of("broadcast_s") * stage.sharded_over * stage.tp


def bucket_elements(recipe: Recipe, stage: StageSetup) -> int:
    """Return the gradients of a bucket of software that grows it with the ranks that share it, else 0: 40 million, or
    a million for each rank, so that latencies of rings do not grow (Megatron-LM, distributed_data_parallel.py); without
    overlap there are none. Trees, which sum what is not sharded, are taken in buckets of 40 million throughout: theirs
    hardly grow."""
    software = recipe.software
    if not software.grown_buckets or software.bucket_bytes or "dp" not in recipe.overlap:
        return 0
    return max(40_000_000, 1_000_000 * stage.sharded_over)


def _in_even_buckets(on_axis: TimeOnAxis, bucket_bytes: float, least: int) -> TimeOnAxis:
    """`on_axis` with what is sent cut into so many bytes on average, and into `least` buckets at least: a part of
    layers takes its share of the whole model's time, or more."""

    def seconds(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
        buckets = max(float(least), size_bytes / bucket_bytes)
        return buckets * on_axis(op, size_bytes / buckets, axis)

    return seconds


def _in_buckets(on_axis: TimeOnAxis, bucket_bytes: int) -> TimeOnAxis:
    """`on_axis` with what is sent cut into buckets, one after another."""
    if not bucket_bytes:
        return on_axis

    def seconds(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
        buckets = max(1, -(-int(size_bytes) // bucket_bytes))
        return buckets * on_axis(op, size_bytes / buckets, axis)

    return seconds


def accumulation_bytes(setup: Setup) -> int:
    """Memory traffic a parameter and micro-batch for a pass that adds its gradient to those before: read both, write
    the sum. None where the product does it, or there is nothing before."""
    if setup.micro_batches == 1 or setup.recipe.software.fused_accumulation:
        return 0
    return 2 * GRAD_WIDTH[setup.recipe.grad_dtype] + held_bytes(setup.recipe.dtype)
