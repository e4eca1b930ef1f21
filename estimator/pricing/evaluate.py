"""Time and memory of an explicit plan: passes of each stage, the schedule, synchronisation, the optimizer's step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import fields

import numpy as np

from estimator.communication.uplinks import shares_uplinks
from estimator.layers.graph import shared_weights
from estimator.layers.split import Split, Work
from estimator.pricing.amounts import Floats
from estimator.pricing.company import Company
from estimator.pricing.gradient_sync import exposed_sync_s, hiding_of, latest_sync_s, passes_beside
from estimator.pricing.guesses import list_guesses
from estimator.pricing.interval import ModelKind, memory_interval, time_interval
from estimator.pricing.link_times import LinkAccount, LinkTimes
from estimator.pricing.memory import rank_memory
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.outcome import Evaluation, PipelineTimes, RankMemory, TimeBreakdown
from estimator.pricing.pass_time import PassTime
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_kinds import rank_kinds
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.stage_cost import StageCost, price_stage, slower_passes
from estimator.pricing.stage_key import layer_kinds, stage_key
from estimator.pricing.stage_work import boundary_bytes, experts_a_token, stage_chunks, stage_device, tied_bytes
from estimator.schedules.closed_form import passes_of_stage, time_schedule
from estimator.schedules.crowding import crowd_of, crowding
from estimator.schedules.in_flight import in_flight
from estimator.schedules.orders import schedule_problem
from estimator.schedules.records import StageTimes, Transfers
from models_zoo.layers import Experts, Layer, TracedLayer, TransformerBlock
from models_zoo.model import Model
from profiles.cluster import most_on_one_node
from profiles.dispatchers import load_dispatcher
from profiles.vocabulary import Infeasible, LayerTime, Provenance, combine_provenance


def evaluate(
    setup: Setup, pricing: Pricing | None = None, *, known: dict[Hashable, StageCost] | None = None
) -> Evaluation | Infeasible:
    """Return the figures of `setup`; Infeasible where a degree divides nothing or the device lacks the dtype.

    `pricing`: what the prices rest on (None: nothing is measured, the parameters are those of the program).
    On a cluster whose uplinks are shared stages are priced beside each other.

    `known`: the prices of stages of setups that differ from this one in where ranks sit alone, to which this one's are
    added. The figures are the same; what they rest on is then told of the stages that were not known.
    """
    problem = schedule_problem(
        setup.recipe.schedule, len(setup.stages), len(setup.stages[0].chunks), setup.micro_batches
    )
    if problem is not None:
        return Infeasible(reason=problem, lacking="divisibility")
    account = LinkAccount()
    company = Company([stage.slots for stage in setup.stages]) if shares_uplinks(setup.cluster) else None
    links = LinkTimes(
        pricing=pricing or Pricing(),
        cluster=setup.cluster,
        experts_a_token=experts_a_token(setup.model, setup.recipe.software),
        dispatcher=load_dispatcher(setup.recipe.software.dispatch),
        account=account,
        company=company,
        beside=setup.stages if company is not None else (),
    )
    kinds = layer_kinds(setup.model, setup.recipe)
    priced = {} if known is None or company is not None else known
    costs: list[StageCost] = []
    for number, stage in enumerate(setup.stages):
        key = stage_key(setup, stage, kinds), most_on_one_node(stage.slots)
        if key not in priced:
            cost = price_stage(setup, number, links)
            if isinstance(cost, Infeasible):
                return cost
            priced[key] = cost
        costs.append(priced[key])
    return _assemble(setup, beside_each_other(setup, costs), links)


def stage_times(cost: StageCost) -> StageTimes:
    """Return the seconds of a stage's passes as a schedule takes them."""
    return StageTimes(
        forward_s=tuple(one.total_s + out for one, (out, _) in zip(cost.forward, cost.offload_s, strict=True)),
        backward_s=tuple(
            one.total_s + sharding + back
            for one, sharding, (_, back) in zip(cost.backward, cost.sharding_s, cost.offload_s, strict=True)
        ),
        weight_s=tuple(one.weight_s for one in cost.backward),
    )


def beside_each_other(setup: Setup, costs: Sequence[StageCost]) -> Sequence[StageCost]:
    """Return the costs of all stages with their passes among the busy workers of their machines
    (`estimator.schedules.crowding`); what comes once an iteration has a stage's own workers beside it alone."""
    crowd = crowd_of([(stage.slots, stage_device(setup, stage)) for stage in setup.stages])
    if crowd is None:
        return costs
    times = [stage_times(cost) for cost in costs]
    forward_s, backward_s, weight_s = (
        np.array([getattr(time, name) for time in times])[:, :, None]
        for name in ("forward_s", "backward_s", "weight_s")
    )
    slower = crowding(setup.recipe.schedule, forward_s, backward_s, weight_s, setup.micro_batches, crowd)
    return [slower_passes(cost, times) for cost, times in zip(costs, slower[:, 0].tolist(), strict=True)]


def _transfers(setup: Setup, links: LinkTimes) -> Transfers:
    """Seconds of a micro-batch's activation from each stage to the next (the last one's: back to the first)."""
    stages = setup.stages
    seconds = []
    for here, there in zip(stages, (*stages[1:], stages[0]), strict=True):
        # Only where interleaved do activations go round.
        ends = len(stages) == 1 or (there is stages[0] and setup.recipe.schedule != "interleaved")
        seconds.append(0.0 if ends else hop_s(setup, here, there, links))
    return Transfers(forward_s=tuple(seconds), overlapped="p2p" in setup.recipe.overlap)


def hop_s(setup: Setup, here: StageSetup, there: StageSetup, links: LinkTimes) -> float:
    """Return seconds of a micro-batch's activation from one stage to another."""
    size = boundary_bytes(setup, here)
    if (here.tp, here.cp, here.dp, here.sequence_parallel) != (there.tp, there.cp, there.dp, there.sequence_parallel):
        # `size` is of the fullest replica.
        whole = size / setup.samples_per_rank(here) * setup.micro_batch
        whole *= here.cp * (here.tp if here.sequence_parallel else 1)
        return links.stage_transfer_s(here, there, whole)
    return links.split_message_s(links.pairs(here.slots, there.slots), size, there, links.on_axes_of(there))


def _messages_s(transfers: Transfers, stages: int) -> list[float]:
    """Seconds that each stage stands for a micro-batch's messages: its activation in and out, gradients likewise."""
    if transfers.overlapped or stages == 1:
        return [0.0] * stages
    after = [*transfers.forward_s[: stages - 1], 0.0]
    before = [0.0, *transfers.forward_s[: stages - 1]]
    return [2 * (one + other) for one, other in zip(before, after, strict=True)]


def _assemble(setup: Setup, costs: Sequence[StageCost], links: LinkTimes) -> Evaluation:
    recipe, batches, account = setup.recipe, setup.micro_batches, links.account
    assert account is not None, "an evaluation's links keep an account"
    times = [stage_times(cost) for cost in costs]
    transfers = _transfers(setup, links)
    schedule = time_schedule(recipe.schedule, times, transfers, batches)
    sync_s, partial_s, optimizer_s = _after_backward(setup, costs, times, links)
    limiting = costs[schedule.bottleneck]
    passes = passes_of_stage(recipe.schedule, batches)
    by_kind = _kinds(limiting, passes)
    by_kind["tp_s"] += partial_s
    breakdown = TimeBreakdown(
        **by_kind,
        dp_s=sync_s + passes * sum(limiting.sharding_s),
        pp_s=schedule.transfer_s,
        bubble_s=schedule.bubble_s,
        optimizer_s=optimizer_s,
        offload_s=passes * sum(map(sum, limiting.offload_s)) + max(cost.once.offload_s for cost in costs),
    )
    total = breakdown.total_s
    device = stage_device(setup, setup.stages[schedule.bottleneck]).name
    kind: ModelKind = "experts" if _has_experts(setup.model) else "dense"
    memory, capacity, margins = zip(*_memory(setup, costs), strict=True)
    return Evaluation(
        iteration_time_s=total,
        breakdown=breakdown,
        memory=memory,
        device_memory_bytes=capacity,
        device_margin_bytes=margins,
        stage_compute_s=tuple(
            sum(one.total_s - one.communication_s for one in (*cost.forward, *cost.backward)) for cost in costs
        ),
        stage_communication_s=tuple(
            sum(one.communication_s for one in (*cost.forward, *cost.backward)) + waited
            for cost, waited in zip(costs, _messages_s(transfers, len(costs)), strict=True)
        ),
        pipeline=PipelineTimes(
            stages=tuple(times),
            transfers=transfers,
            bottleneck=schedule.bottleneck,
            sync_s=sync_s + partial_s,
            optimizer_s=optimizer_s,
        ),
        interval_90_s=time_interval(total, breakdown, device, kind),
        memory_interval_90_bytes=memory_interval(max(rank.peak_bytes for rank in memory), device, kind),
        compute_provenance=_compute_provenance(costs),
        communication_provenance=account.provenance(),
        profile_ids=tuple(sorted({one.profile_id for one in _profiles(costs) if one is not None and one.profile_id})),
        link_table_ids=account.table_ids(),
        guesses=list_guesses(
            setup,
            schedule.bottleneck,
            breakdown,
            _unprofiled(limiting, passes),
            links.pricing.efficiencies_of(device),
            links,
            account,
        ),
    )


def _kinds(cost: StageCost, passes: float) -> dict[str, float]:
    """A stage's seconds of an iteration by kind, as `PassTime` and `TimeBreakdown` both call them."""
    both = (*cost.forward, *cost.backward)
    names = (part.name for part in fields(PassTime) if part.name != "weight_s")
    return {name: passes * sum(getattr(one, name) for one in both) for name in names}


def _memory(setup: Setup, costs: Sequence[StageCost]) -> tuple[tuple[RankMemory, int, int], ...]:
    """What a rank of each stage holds, with as many micro-batches under way as the schedule has there, and what its
    device has for it and keeps free beside that; of several types of device the rank that has least room."""
    found = []
    for number, (stage, cost) in enumerate(zip(setup.stages, costs, strict=True)):
        flying = in_flight(
            setup.recipe.schedule,
            stage=number,
            stages=len(setup.stages),
            chunks=len(stage.chunks),
            micro_batches=setup.micro_batches,
        )
        held = []
        for kind in rank_kinds(setup, number):
            chunks = cost.chunks if kind is setup else stage_chunks(kind, number)
            assert not isinstance(chunks, Infeasible), "a stage that was priced"
            memory = rank_memory(kind, number, chunks, flying)
            device = stage_device(kind, kind.stages[number])
            held.append((memory, device.memory_bytes, device.margin_bytes))
        found.append(max(held, key=lambda rank: rank[0].needed_bytes - rank[1]))
    return tuple(found)


def _unprofiled(cost: StageCost, passes: float) -> tuple[tuple[Layer, Split, float], ...]:
    """The stage's layers that nobody profiled, with the seconds that each kind of them takes of an iteration: its part
    of the chunk's passes by FLOPs and bytes moved, communication and launching apart."""
    found: dict[tuple[Layer, Split], float] = {}
    for chunk, own, ahead, back in zip(cost.chunks, cost.profiles, cost.forward, cost.backward, strict=True):
        whole_s = passes * sum(one.total_s - one.communication_s - one.launch_s for one in (ahead, back))
        weights = [_weight(work, count) for work, count in chunk.works]
        for key, profile, weight in zip(chunk.layers, own, weights, strict=True):
            if profile is None:
                found[key] = found.get(key, 0.0) + whole_s * weight / sum(weights)
    return tuple((layer, split, seconds) for (layer, split), seconds in found.items())


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
    setup: Setup, costs: Sequence[StageCost], times: Sequence[StageTimes], links: LinkTimes
) -> tuple[float, float, float]:
    """Exposed seconds of the gradients' way over replicas and stages, of what their sums over tensor-parallel ranks add
    to it, and of the optimizer's step."""
    parameters, once = links.pricing.parameters, [cost.once for cost in costs]
    backward_s = np.array([time.backward_s for time in times])
    hiding = hiding_of(
        setup.recipe,
        [stage.zero for stage in setup.stages],
        setup.micro_batches,
        overlapped="dp" in setup.recipe.overlap,
        beside=passes_beside(
            setup.recipe.schedule, len(setup.stages), len(setup.stages[0].chunks), setup.micro_batches
        ),
    )
    partial_s = np.array([cost.partial_s for cost in once])

    def latest_s(partial_s: Floats) -> float:
        reduce_s, gather_s = exposed_sync_s(
            hiding,
            np.array([cost.overlap_cost for cost in once]),
            np.array([cost.reduce_s for cost in once]),
            partial_s,
            np.array([cost.gather_s for cost in once]),
            np.array([sum(time.forward_s) for time in times]),
            backward_s.sum(axis=1),
        )
        return float(latest_sync_s(setup.recipe.schedule, np.asarray(reduce_s), np.asarray(gather_s), backward_s))

    replicas_s = latest_s(np.zeros_like(partial_s))
    added_s = latest_s(partial_s) - replicas_s if partial_s.any() else 0.0
    optimizer_s = max(cost.optimizer_s for cost in once) + parameters.of("iteration_s")
    return replicas_s + shared_sums_s(setup, links) + _mirrored_s(setup, costs, links), added_s, optimizer_s


def _mirrored_s(setup: Setup, costs: Sequence[StageCost], links: LinkTimes) -> float:
    """DualPipe's two copies of each stage's weights sum their gradients (DeepSeek-V3, section 3.2.1)."""
    if setup.recipe.schedule != "dualpipe":
        return 0.0
    stages, width = setup.stages, GRAD_WIDTH[setup.recipe.grad_dtype]
    sums = []
    for one, other, cost in zip(stages, reversed(stages), costs, strict=True):
        learning = sum(
            (work.trainable_parameters + work.trainable_expert_parameters) * count
            for chunk in cost.chunks
            for work, count in chunk.works
        )
        sums.append(links.pair_sum_s(one, other, learning * width) if one is not other else 0.0)
    return max(sums)


def shared_sums_s(setup: Setup, links: LinkTimes) -> float:
    """Return the seconds in which stages sum the gradients of weights that they share: the two ends a tied table; of a
    traced module all that hold a group, group after group."""
    if len(setup.stages) == 1:
        return 0.0
    if not any(isinstance(layer, TracedLayer) for layer in setup.model.layers):
        size = tied_bytes(setup)
        return links.pair_sum_s(setup.stages[0], setup.stages[-1], size) if size else 0.0
    seconds = 0.0
    for group in shared_weights(setup.model, min(stage.tp for stage in setup.stages)):
        holding = [
            stage
            for stage in setup.stages
            if any(first <= layer < end for first, end in stage.chunks for layer in group.holders)
        ]
        if len(holding) > 1:
            seconds += links.stages_sum_s(holding, group.parameters * GRAD_WIDTH[setup.recipe.grad_dtype])
    return seconds
