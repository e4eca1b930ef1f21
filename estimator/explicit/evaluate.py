"""Time and memory of an explicit plan: passes of each stage, the schedule, synchronisation, the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from estimator.explicit.gradient_sync import (
    FLAT_COPY_PASSES,
    GRAD_BYTES,
    Held,
    ShardedLayer,
    TimeOnAxis,
    exposed_sharding_s,
    gather_weights_s,
    held_by,
    reduce_gradients_s,
)
from estimator.explicit.guesses import list_guesses
from estimator.explicit.interval import memory_interval, time_interval
from estimator.explicit.link_times import LinkTimes
from estimator.explicit.measured import measured_times
from estimator.explicit.memory import rank_memory
from estimator.explicit.offload import activations_over_host_link_s, optimizer_on_host_s
from estimator.explicit.optimizers import OPTIMIZERS
from estimator.explicit.outcome import Evaluation, TimeBreakdown
from estimator.explicit.pass_time import Machine, PassTime, backward_pass, forward_pass
from estimator.explicit.recipe import Setup, StageSetup
from estimator.explicit.split import Split, Work
from estimator.explicit.stage_work import ChunkWork, boundary_bytes, stage_chunks, table_parameters, tied_ends
from estimator.layer_times import Lookup, nothing_measured
from estimator.schedules import StageTimes, Transfers, in_flight, schedule_problem, time_schedule
from models_zoo.layers import Experts, Layer, TransformerBlock
from models_zoo.model import Model
from profiles.efficiencies import OperatorEfficiencies, load_operator_efficiencies
from profiles.training_parameters import TrainingParameters, load_training_parameters
from profiles.vocabulary import (
    CollectiveOp,
    Infeasible,
    LayerTime,
    LinkTable,
    Provenance,
    combine_provenance,
    held_bytes,
)

EfficienciesOf = Callable[[str], OperatorEfficiencies]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage's seconds: passes of each chunk for a micro-batch, and what comes once an iteration."""

    forward: tuple[PassTime, ...]
    backward: tuple[PassTime, ...]
    sharding_s: tuple[float, ...]
    offload_s: tuple[float, ...]
    offload_step_s: float
    reduce_s: float
    gather_s: float
    optimizer_s: float
    held: Held
    chunks: tuple[ChunkWork, ...]
    profiles: tuple[tuple[LayerTime | None, ...], ...]


def evaluate(
    setup: Setup,
    *,
    parameters: TrainingParameters | None = None,
    efficiencies_of: EfficienciesOf = load_operator_efficiencies,
    lookup: Lookup = nothing_measured,
    link_tables: Sequence[LinkTable] = (),
) -> Evaluation | Infeasible:
    """The figures of `setup`; Infeasible where a degree divides nothing or the device lacks the dtype.

    `lookup` finds measured layer times and `link_tables` measured collectives: they win over the models.
    """
    problem = schedule_problem(
        setup.recipe.schedule, len(setup.stages), len(setup.stages[0].chunks), setup.micro_batches
    )
    if problem is not None:
        return Infeasible(reason=problem, lacking="divisibility")
    known = parameters or load_training_parameters()
    links = LinkTimes(cluster=setup.cluster, parameters=known, tables=tuple(link_tables))
    costs: list[StageCost] = []
    for number in range(len(setup.stages)):
        cost = _stage_cost(setup, number, known, efficiencies_of, lookup, links)
        if isinstance(cost, Infeasible):
            return cost
        costs.append(cost)
    return _assemble(setup, costs, known, links, efficiencies_of)


def _stage_cost(
    setup: Setup,
    number: int,
    known: TrainingParameters,
    efficiencies_of: EfficienciesOf,
    lookup: Lookup,
    links: LinkTimes,
) -> StageCost | Infeasible:
    stage, recipe = setup.stages[number], setup.recipe
    chunks = stage_chunks(setup, number)
    if isinstance(chunks, Infeasible):
        return chunks
    device = setup.cluster.group_of(stage.slots[0]).device
    if device.peak(recipe.dtype) is None:
        have = ", ".join(name for name, _ in device.peak_flops_per_s)
        return Infeasible(reason=f"{device.name} has no {recipe.dtype} rate (it has {have})", lacking="support")
    efficiencies = efficiencies_of(device.name)
    on_axis = links.on_axes_of(stage)
    profiles = tuple(measured_times(chunk, lookup) for chunk in chunks)
    machine = Machine(
        device=device,
        efficiencies=efficiencies,
        parameters=known,
        dtype=recipe.dtype,
        collective_s=lambda one: on_axis(one.op, one.bytes, one.axis),
        overlap_tp="tp" in recipe.overlap,
        host_launches=recipe.software.launch == "eager",
        kernels=recipe.software.kernels,
        accumulation_bytes=accumulation_bytes(setup),
        fused_accumulation=recipe.software.fused_accumulation,
        attention_kernel=attention_kernel(recipe.software.flash_generation, efficiencies),
        flash_generation=recipe.software.flash_generation,
        bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * efficiencies.bandwidth_share,
    )
    held = held_by([pair for chunk in chunks for pair in chunk.works], sum(chunk.shared_parameters for chunk in chunks))
    width = held_bytes(recipe.dtype)
    optimizer = OPTIMIZERS[recipe.optimizer]
    shards = stage.sharded_over
    step_bytes = (
        (held.trainable + held.trainable_experts)
        / shards
        * optimizer.step_bytes(recipe.dtype, recipe.grad_dtype, masters=recipe.software.optimizer_masters)
    )
    bandwidth = device.memory_bandwidth_bytes_per_s * efficiencies.bandwidth_share * known.of("memory_share", "fused")
    forward = tuple(forward_pass(chunk.works, machine, own) for chunk, own in zip(chunks, profiles, strict=True))
    backward = tuple(backward_pass(chunk.works, machine, own) for chunk, own in zip(chunks, profiles, strict=True))
    optimizer_s, offload_step_s = step_bytes / bandwidth, 0.0
    if "optimizer" in stage.offload:
        optimizer_s, offload_step_s = optimizer_on_host_s(setup, stage, held, step_bytes)
    offload_s = tuple(
        activations_over_host_link_s(setup, stage, chunk.works, ahead.total_s, back.total_s)
        if "activations" in stage.offload
        else 0.0
        for chunk, ahead, back in zip(chunks, forward, backward, strict=True)
    )
    return StageCost(
        forward=forward,
        backward=backward,
        offload_s=offload_s,
        offload_step_s=offload_step_s,
        sharding_s=tuple(_sharding_s(chunk, machine, stage, setup, on_axis, known) for chunk in chunks),
        reduce_s=reduce_gradients_s(
            held,
            zero=stage.zero,
            sharded_over=shards,
            gradient_width=GRAD_BYTES[recipe.grad_dtype],
            on_axis=_in_buckets(on_axis, recipe.software.bucket_bytes),
        ),
        gather_s=gather_weights_s(held, zero=stage.zero, width=width, on_axis=on_axis)
        + (known.of("broadcast_s") * shards if recipe.software.broadcast_weights and stage.zero in (1, 2) else 0.0),
        optimizer_s=optimizer_s,
        held=held,
        chunks=chunks,
        profiles=profiles,
    )


def _in_buckets(on_axis: TimeOnAxis, bucket_bytes: int) -> TimeOnAxis:
    """`on_axis` with what is sent cut into buckets, one after another."""
    if not bucket_bytes:
        return on_axis

    def seconds(op: CollectiveOp, size_bytes: float, axis: str) -> float:
        buckets = max(1, -(-int(size_bytes) // bucket_bytes))
        return buckets * on_axis(op, size_bytes / buckets, axis)

    return seconds


def _sharding_s(
    chunk: ChunkWork, machine: Machine, stage: StageSetup, setup: Setup, on_axis: TimeOnAxis, known: TrainingParameters
) -> float:
    """What ZeRO 3 adds to a micro-batch through a chunk."""
    if stage.zero != 3 or stage.sharded_over == 1:
        return 0.0
    width, grads = held_bytes(setup.recipe.dtype), GRAD_BYTES[setup.recipe.grad_dtype]
    layers = []
    for work, count in chunk.works:
        layers.append(
            (
                ShardedLayer(
                    forward_s=forward_pass([(work, 1)], machine).total_s,
                    backward_s=backward_pass([(work, 1)], machine).total_s,
                    gather_s=on_axis("all_gather", work.parameters * width, "shard"),
                    scatter_s=on_axis("reduce_scatter", work.trainable_parameters * grads, "shard")
                    + on_axis("all_reduce", work.trainable_parameters * grads / stage.sharded_over, "replicate"),
                    copy_s=(FLAT_COPY_PASSES[0] * work.parameters + FLAT_COPY_PASSES[1] * work.trainable_parameters)
                    * width
                    / machine.bandwidth_bytes_per_s,
                ),
                count,
            )
        )
    return exposed_sharding_s(layers, overlap_cost=known.of("overlap_cost", "fsdp"), keeps_weights=False)


def attention_kernel(generation: int, efficiencies: OperatorEfficiencies) -> str | None:
    """The device's fused kernel of that FlashAttention generation, None (its usual one) where it has no such one."""
    name = f"flash{generation}"
    return name if any(known == name for known, _ in efficiencies.attention) else None


def accumulation_bytes(setup: Setup) -> int:
    """Memory traffic a parameter and micro-batch for a pass that adds its gradient to those before: read both, write
    the sum. None where the product does it, or there is nothing before."""
    if setup.micro_batches == 1 or setup.recipe.software.fused_accumulation:
        return 0
    return 2 * GRAD_BYTES[setup.recipe.grad_dtype] + held_bytes(setup.recipe.dtype)


def _transfers(setup: Setup, links: LinkTimes) -> Transfers:
    """Seconds of a micro-batch's activation from each stage to the next (the last one's: back to the first).

    Each tensor-parallel rank sends its 1/tp over the network and the receivers gather the whole inside the node
    (Narayanan et al. 2021, section 4.1); under sequence parallelism a rank holds no more than that anyway.
    """
    stages = setup.stages
    seconds = []
    for here, there in zip(stages, (*stages[1:], stages[0]), strict=True):
        if len(stages) == 1:
            seconds.append(0.0)
            continue
        size = boundary_bytes(setup, here)
        scattered = setup.recipe.software.scatter_gather and here.tp > 1 and here.tp == there.tp
        scattered = scattered and not here.sequence_parallel
        took = links.message_s(here, there, size / here.tp if scattered else size)
        if scattered:
            took += links.on_axes_of(there)("all_gather", size, "tp")
        seconds.append(took)
    return Transfers(forward_s=tuple(seconds), overlapped="p2p" in setup.recipe.overlap)


def _assemble(
    setup: Setup,
    costs: Sequence[StageCost],
    known: TrainingParameters,
    links: LinkTimes,
    efficiencies_of: EfficienciesOf,
) -> Evaluation:
    recipe, batches = setup.recipe, setup.micro_batches
    times = [
        StageTimes(
            forward_s=tuple(one.total_s for one in cost.forward),
            backward_s=tuple(
                one.total_s + sharding + offload
                for one, sharding, offload in zip(cost.backward, cost.sharding_s, cost.offload_s, strict=True)
            ),
            weight_s=tuple(one.weight_s for one in cost.backward),
        )
        for cost in costs
    ]
    schedule = time_schedule(recipe.schedule, times, _transfers(setup, links), batches)
    sync_s, optimizer_s = _after_backward(setup, costs, times, known, links)
    limiting = costs[schedule.bottleneck]
    # Under DualPipe every micro-batch passes through one of a stage's two chunks.
    passes = batches / 2 if recipe.schedule == "dualpipe" else batches
    kinds = {
        part.name: passes * sum(getattr(one, part.name) for one in (*limiting.forward, *limiting.backward))
        for part in fields(PassTime)
        if part.name != "weight_s"
    }
    breakdown = TimeBreakdown(
        **kinds,
        dp_s=sync_s + passes * sum(limiting.sharding_s),
        pp_s=schedule.transfer_s,
        bubble_s=schedule.bubble_s,
        optimizer_s=optimizer_s,
        offload_s=passes * sum(limiting.offload_s) + max(cost.offload_step_s for cost in costs),
    )
    total = breakdown.total_s
    device = setup.stages[schedule.bottleneck].slots[0].device
    flying = [
        in_flight(
            recipe.schedule,
            stage=number,
            stages=len(setup.stages),
            chunks=len(stage.chunks),
            micro_batches=batches,
        )
        for number, stage in enumerate(setup.stages)
    ]
    memory = tuple(
        rank_memory(setup, number, costs[number].chunks, flying[number]) for number in range(len(setup.stages))
    )
    return Evaluation(
        iteration_time_s=total,
        breakdown=breakdown,
        memory=memory,
        device_memory_bytes=tuple(setup.cluster.group_of(stage.slots[0]).device.memory_bytes for stage in setup.stages),
        stage_compute_s=tuple(
            sum(one.total_s - one.communication_s for one in (*cost.forward, *cost.backward)) for cost in costs
        ),
        stage_communication_s=tuple(
            sum(one.communication_s for one in (*cost.forward, *cost.backward)) for cost in costs
        ),
        interval_90_s=time_interval(total, breakdown, device),
        memory_interval_90_bytes=memory_interval(
            max(rank.peak_bytes for rank in memory), device, "experts" if _has_experts(setup.model) else "dense"
        ),
        compute_provenance=_compute_provenance(costs),
        communication_provenance=links.provenance(),
        profile_ids=tuple(sorted({one.profile_id for one in _profiles(costs) if one is not None and one.profile_id})),
        link_table_ids=links.table_ids(),
        guesses=list_guesses(setup, breakdown, _unprofiled(limiting, passes), efficiencies_of(device), links),
    )


def _unprofiled(cost: StageCost, passes: float) -> tuple[tuple[Layer, Split, float], ...]:
    """The stage's layers that nobody profiled, with the seconds that each kind of them takes of an iteration: its part
    of the chunk's passes by FLOPs and bytes moved."""
    found = []
    for chunk, own, ahead, back in zip(cost.chunks, cost.profiles, cost.forward, cost.backward, strict=True):
        whole_s = passes * (ahead.total_s - ahead.communication_s + back.total_s - back.communication_s)
        weights = [_weight(work, count) for work, count in chunk.works]
        for (layer, split), profile, weight in zip(chunk.layers, own, weights, strict=True):
            if profile is None:
                found.append((layer, split, whole_s * weight / sum(weights)))
    return tuple(found)


def _weight(work: Work, count: int) -> float:
    """A stand-in for a layer's time where only shares matter: FLOPs, a byte moved counting as a hundred of them."""
    flops = sum(op.forward_flops + op.backward_flops for op in work.operators)
    moved = sum(op.forward_bytes + op.backward_bytes for op in work.operators)
    return count * (flops + 100.0 * moved)


def _has_experts(model: Model) -> bool:
    return any(
        isinstance(layer, TransformerBlock) and isinstance(layer.feed_forward, Experts) for layer in model.layers
    )


def _profiles(costs: Sequence[StageCost]) -> list[LayerTime | None]:
    return [one for cost in costs for chunk in cost.profiles for one in chunk]


def _compute_provenance(costs: Sequence[StageCost]) -> Provenance:
    return combine_provenance(tuple("modelled" if one is None else one.provenance for one in _profiles(costs)))


def _after_backward(
    setup: Setup,
    costs: Sequence[StageCost],
    times: Sequence[StageTimes],
    known: TrainingParameters,
    links: LinkTimes,
) -> tuple[float, float]:
    """Exposed seconds of the gradients' way and of the optimizer's step.

    A stage that ends its last backward early sums its gradients while the stages before it still work: only what
    reaches beyond the pipeline's end counts. Beside backward ("dp" overlap) a sum hides behind the last micro-batch.
    """
    latest = 0.0
    drained = 0.0
    overlapped = "dp" in setup.recipe.overlap
    for cost, time in zip(costs, times, strict=True):
        moved = cost.reduce_s + cost.gather_s
        if overlapped:
            cover = sum(time.backward_s) if cost.reduce_s else 0.0
            hidden = min(cost.reduce_s, cover) * (1 - known.of("overlap_cost", "dp"))
            moved -= hidden
            # Weights are gathered beside the next forward, unless each rank broadcasts its own in turn.
            gathered = 0.0 if setup.recipe.software.broadcast_weights else min(cost.gather_s, sum(time.forward_s))
            moved -= gathered * (1 - known.of("overlap_cost", "dp"))
        latest = max(latest, moved - drained)
        drained += sum(time.backward_s)
    tied_s = _tied_embedding_s(setup, links)
    optimizer_s = max(cost.optimizer_s for cost in costs) + known.of("iteration_s")
    return latest + tied_s, optimizer_s


def _tied_embedding_s(setup: Setup, links: LinkTimes) -> float:
    """The table's gradient summed over first and last stage, where the projection shares it."""
    first, last = setup.stages[0], setup.stages[-1]
    if len(setup.stages) == 1 or not tied_ends(setup.model) or setup.recipe.lora_rank:
        return 0.0
    size = table_parameters(setup.model, setup.recipe.vocabulary_multiple * first.tp, first.tp)
    return links.pair_sum_s(first, last, size * GRAD_BYTES[setup.recipe.grad_dtype])
