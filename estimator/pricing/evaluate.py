"""Time and memory of an explicit plan: passes of each stage, the schedule, synchronisation, the optimizer's step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import fields

from estimator.layers.split import Split, Work
from estimator.pricing.guesses import list_guesses
from estimator.pricing.interval import ModelKind, memory_interval, time_interval
from estimator.pricing.memory import rank_memory
from estimator.pricing.outcome import Evaluation, PipelineTimes, RankMemory, StoppedTimes, TimeBreakdown
from estimator.pricing.parts import PricedSetup, price_setup, stage_times
from estimator.pricing.pass_time import PassTime
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_kinds import rank_kinds
from estimator.pricing.recipe import Setup
from estimator.pricing.stage_cost import StageCost
from estimator.pricing.stage_work import stage_chunks, stage_device
from estimator.schedules.closed_form import passes_of_stage
from estimator.schedules.in_flight import in_flight
from estimator.schedules.records import Transfers
from models_zoo.layers import Experts, Layer, TransformerBlock
from models_zoo.model import Model
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
    priced = price_setup(setup, pricing, known=known)
    return priced if isinstance(priced, Infeasible) else evaluate_priced(priced)


def _stopped(cost: StageCost) -> StoppedTimes:
    """Weights that come and gradients that go where they are sharded count to the backward pass, as `stage_times` has
    them."""
    return StoppedTimes(
        forward_s=tuple(one.communication_s for one in cost.forward),
        backward_s=tuple(
            one.communication_s + sharding for one, sharding in zip(cost.backward, cost.sharding_s, strict=True)
        ),
    )


def evaluate_priced(priced: PricedSetup) -> Evaluation:
    """Return the figures of a setup whose parts are priced."""
    setup, costs, links, schedule = priced.setup, priced.costs, priced.links, priced.schedule
    account = links.account
    assert account is not None, "an evaluation's links keep an account"
    times = [stage_times(cost) for cost in costs]
    after = priced.after
    limiting = costs[schedule.bottleneck]
    passes = passes_of_stage(setup.recipe.schedule, setup.micro_batches)
    breakdown = break_down(priced)
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
            for cost, waited in zip(costs, _messages_s(priced.transfers, len(costs)), strict=True)
        ),
        pipeline=PipelineTimes(
            stages=tuple(times),
            stopped=tuple(map(_stopped, costs)),
            transfers=priced.transfers,
            bottleneck=schedule.bottleneck,
            sync_s=after.sync_s + after.partial_s,
            optimizer_s=after.optimizer_s,
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


def break_down(priced: PricedSetup) -> TimeBreakdown:
    """Return an iteration's seconds by what they are spent on, and nothing else of what `evaluate_priced` tells."""
    costs, schedule, after = priced.costs, priced.schedule, priced.after
    limiting = costs[schedule.bottleneck]
    passes = passes_of_stage(priced.setup.recipe.schedule, priced.setup.micro_batches)
    by_kind = _kinds(limiting, passes)
    by_kind["tp_s"] += after.partial_s
    return TimeBreakdown(
        **by_kind,
        dp_s=after.sync_s + passes * sum(limiting.sharding_s),
        pp_s=schedule.transfer_s,
        bubble_s=schedule.bubble_s,
        optimizer_s=after.optimizer_s,
        offload_s=passes * sum(map(sum, limiting.offload_s)) + max(cost.once.offload_s for cost in costs),
    )


def _messages_s(transfers: Transfers, stages: int) -> list[float]:
    """Seconds that each stage stands for a micro-batch's messages: its activation in and out, gradients likewise."""
    if transfers.overlapped or stages == 1:
        return [0.0] * stages
    after = [*transfers.forward_s[: stages - 1], 0.0]
    before = [0.0, *transfers.forward_s[: stages - 1]]
    return [2 * (one + other) for one, other in zip(before, after, strict=True)]


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
