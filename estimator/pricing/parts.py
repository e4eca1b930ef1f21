"""What an evaluation is put together from: the prices of a plan's stages, its messages, its schedule, what comes after.

`estimator.pricing.evaluate` adds it up; what a job sends, and when, is told from the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from estimator.communication.uplinks import shares_uplinks
from estimator.layers.graph import shared_weights
from estimator.pricing.amounts import Floats
from estimator.pricing.company import Company
from estimator.pricing.gradient_sync import Hiding, exposed_sync_s, hiding_of, latest_sync_s, passes_beside
from estimator.pricing.link_times import LinkAccount, LinkTimes
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.site_loads import (
    NOWHERE,
    partners_occupied_s,
    redistributed_occupied_s,
    sent_bytes_of,
    shared_links,
)
from estimator.pricing.stage_cost import StageCost, price_stage, slower_passes
from estimator.pricing.stage_key import layer_kinds, stage_key
from estimator.pricing.stage_work import boundary_bytes, experts_a_token, stage_device, tied_bytes
from estimator.schedules.closed_form import time_schedule
from estimator.schedules.crowding import crowd_of, crowding
from estimator.schedules.orders import schedule_problem
from estimator.schedules.records import ScheduleTime, SharedLink, StageTimes, Transfers
from models_zoo.layers import TracedLayer
from profiles.cluster import most_on_one_node
from profiles.dispatchers import load_dispatcher
from profiles.records import dataclass
from profiles.vocabulary import Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterBackward:
    """Exposed seconds once an iteration: the gradients' way over the replicas of a stage, between stages that share
    weights, and between the two copies of DualPipe; what sums over tensor-parallel ranks add to the first of these; the
    optimizer's step."""

    replicas_s: float
    shared_s: float
    mirrored_s: float
    partial_s: float
    optimizer_s: float

    @property
    def sync_s(self) -> float:
        """The gradients' way over replicas and stages."""
        return self.replicas_s + self.shared_s + self.mirrored_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedSetup:
    """A setup with the prices of its parts. `costs` are its stages' among the busy workers of their machines, each of
    whose passes takes `slower` times what the stage's own workers take."""

    setup: Setup
    links: LinkTimes
    costs: tuple[StageCost, ...]
    slower: tuple[float, ...]
    transfers: Transfers
    schedule: ScheduleTime
    after: AfterBackward


def price_setup(
    setup: Setup,
    pricing: Pricing | None = None,
    *,
    known: dict[Hashable, StageCost] | None = None,
    company: Company | None = None,
) -> PricedSetup | Infeasible:
    """Return the parts of `setup`; arguments and Infeasible as `estimator.pricing.evaluate.evaluate` has them.
    `company`: `company_of` a setup with the same slots, on a cluster that differs in the rates of its links alone."""
    problem = schedule_problem(
        setup.recipe.schedule, len(setup.stages), len(setup.stages[0].chunks), setup.micro_batches
    )
    if problem is not None:
        return Infeasible(reason=problem, lacking="divisibility")
    links = _links_of(setup, pricing or Pricing(), company or company_of(setup))
    kinds = layer_kinds(setup.model, setup.recipe)
    priced = {} if known is None or links.company is not None else known
    alone: list[StageCost] = []
    for number, stage in enumerate(setup.stages):
        key = stage_key(setup, stage, kinds), most_on_one_node(stage.slots)
        if key not in priced:
            cost = price_stage(setup, number, links)
            if isinstance(cost, Infeasible):
                return cost
            priced[key] = cost
        alone.append(priced[key])
    slower = slower_beside_each_other(setup, alone)
    costs = alone if slower is None else [slower_passes(cost, times) for cost, times in zip(alone, slower, strict=True)]
    times = [stage_times(cost) for cost in costs]
    transfers = _transfers(setup, links)
    return PricedSetup(
        setup=setup,
        links=links,
        costs=tuple(costs),
        slower=(1.0,) * len(costs) if slower is None else tuple(slower),
        transfers=transfers,
        schedule=time_schedule(setup.recipe.schedule, times, transfers, setup.micro_batches),
        after=_after_backward(setup, costs, times, links),
    )


def company_of(setup: Setup) -> Company | None:
    """Return the stages of `setup` as they share uplinks; None where the cluster has none that are shared."""
    return Company([stage.slots for stage in setup.stages]) if shares_uplinks(setup.cluster) else None


def _links_of(setup: Setup, pricing: Pricing, company: Company | None) -> LinkTimes:
    return LinkTimes(
        pricing=pricing,
        cluster=setup.cluster,
        experts_a_token=experts_a_token(setup.model, setup.recipe.software),
        dispatcher=load_dispatcher(setup.recipe.software.dispatch),
        account=LinkAccount(),
        company=company,
        beside=setup.stages if company is not None else (),
    )


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


def slower_beside_each_other(setup: Setup, costs: Sequence[StageCost]) -> list[float] | None:
    """Return how many times as long the passes of each stage take among the busy workers of their machines
    (`estimator.schedules.crowding`), None where none is slower; what comes once an iteration has a stage's own workers
    beside it alone."""
    crowd = crowd_of([(stage.slots, stage_device(setup, stage)) for stage in setup.stages])
    if crowd is None:
        return None
    times = [stage_times(cost) for cost in costs]
    forward_s, backward_s, weight_s = (
        np.array([getattr(time, name) for time in times])[:, :, None]
        for name in ("forward_s", "backward_s", "weight_s")
    )
    slower = crowding(setup.recipe.schedule, forward_s, backward_s, weight_s, setup.micro_batches, crowd)
    return [float(times) for times in slower[:, 0]]


def _transfers(setup: Setup, links: LinkTimes) -> Transfers:
    """Seconds of a micro-batch's activation from each stage to the next (the last one's: back to the first)."""
    stages = setup.stages
    seconds = []
    for here, there in zip(stages, (*stages[1:], stages[0]), strict=True):
        # Only where interleaved do activations go round.
        ends = len(stages) == 1 or (there is stages[0] and setup.recipe.schedule != "interleaved")
        seconds.append(0.0 if ends else hop_s(setup, here, there, links))
    return Transfers(
        forward_s=tuple(seconds),
        overlapped="p2p" in setup.recipe.overlap,
        shared=links_shared_by(setup, seconds, links.pricing),
    )


def links_shared_by(setup: Setup, hops_s: Sequence[float], pricing: Pricing) -> tuple[SharedLink, ...]:
    """Return the links between sites that messages of `setup` pass, which take `hops_s` from each stage to the next
    (the last one's: back to the first)."""
    stages, cluster = setup.stages, setup.cluster
    if len(cluster.sites) == 1 or len(stages) == 1:
        return ()
    occupied = []
    for here, there, hop in zip(stages, (*stages[1:], stages[0]), hops_s, strict=True):
        if not hop:
            occupied.append(NOWHERE)
        elif split_alike(here, there):
            sent = sent_bytes_of(there, boundary_bytes(setup, here))
            occupied.append(partners_occupied_s(cluster, here.slots, there.slots, sent, hop, pricing.parameters))
        else:
            whole = whole_boundary_bytes(setup, here)
            occupied.append(redistributed_occupied_s(cluster, here.slots, there.slots, whole, hop, pricing.parameters))
    return shared_links(occupied)


def hop_s(setup: Setup, here: StageSetup, there: StageSetup, links: LinkTimes) -> float:
    """Return seconds of a micro-batch's activation from one stage to another."""
    if not split_alike(here, there):
        return links.stage_transfer_s(here, there, whole_boundary_bytes(setup, here))
    size = boundary_bytes(setup, here)
    return links.split_message_s(links.pairs(here.slots, there.slots), size, there, links.on_axes_of(there))


def split_alike(here: StageSetup, there: StageSetup) -> bool:
    """Return whether each rank of a stage has what its partner in another takes."""
    degrees = ((stage.tp, stage.cp, stage.dp, stage.sequence_parallel) for stage in (here, there))
    return len(set(degrees)) == 1


def whole_boundary_bytes(setup: Setup, stage: StageSetup) -> float:
    """Return the bytes that all ranks of `stage` together hand to the next one for a micro-batch."""
    # What a rank hands over is of the fullest replica.
    whole = boundary_bytes(setup, stage) / setup.samples_per_rank(stage) * setup.micro_batch
    return whole * (stage.cp * (stage.tp if stage.sequence_parallel else 1))


def _after_backward(
    setup: Setup, costs: Sequence[StageCost], times: Sequence[StageTimes], links: LinkTimes
) -> AfterBackward:
    parameters, once = links.pricing.parameters, [cost.once for cost in costs]
    backward_s = np.array([time.backward_s for time in times])
    partial_s = np.array([cost.partial_s for cost in once])

    def latest_s(partial_s: Floats) -> float:
        reduce_s, gather_s = sync_by_stage(setup, costs, times, partial_s)
        return float(latest_sync_s(setup.recipe.schedule, reduce_s, gather_s, backward_s))

    replicas_s = latest_s(np.zeros_like(partial_s))
    added_s = latest_s(partial_s) - replicas_s if partial_s.any() else 0.0
    optimizer_s = max(cost.optimizer_s for cost in once) + parameters.of("iteration_s")
    return AfterBackward(
        replicas_s=replicas_s,
        shared_s=shared_sums_s(setup, links),
        mirrored_s=_mirrored_s(setup, costs, links),
        partial_s=added_s,
        optimizer_s=optimizer_s,
    )


def sync_by_stage(
    setup: Setup, costs: Sequence[StageCost], times: Sequence[StageTimes], partial_s: Floats
) -> tuple[Floats, Floats]:
    """Return what is left of each stage's sums, `partial_s` over tensor-parallel ranks among them, and of its
    gathering (`exposed_sync_s`)."""
    once = [cost.once for cost in costs]
    reduce_s, gather_s = exposed_sync_s(
        hiding_in(setup),
        np.array([cost.overlap_cost for cost in once]),
        np.array([cost.reduce_s for cost in once]),
        partial_s,
        np.array([cost.gather_s for cost in once]),
        np.array([sum(time.forward_s) for time in times]),
        np.array([time.backward_s for time in times]).sum(axis=1),
    )
    return np.asarray(reduce_s), np.asarray(gather_s)


def hiding_in(setup: Setup) -> Hiding | None:
    """Return what hides beside passes in each stage of `setup`; None where nothing does."""
    return hiding_of(
        setup.recipe,
        [stage.zero for stage in setup.stages],
        setup.micro_batches,
        overlapped="dp" in setup.recipe.overlap,
        beside=passes_beside(
            setup.recipe.schedule, len(setup.stages), len(setup.stages[0].chunks), setup.micro_batches
        ),
    )


def _mirrored_s(setup: Setup, costs: Sequence[StageCost], links: LinkTimes) -> float:
    """DualPipe's two copies of each stage's weights sum their gradients (DeepSeek-V3, section 3.2.1)."""
    if setup.recipe.schedule != "dualpipe":
        return 0.0
    stages, width = setup.stages, GRAD_WIDTH[setup.recipe.grad_dtype]
    # The links between sites are those of all pairs that they part.
    crossing = sum(map(_crosses_sites, stages[: len(stages) // 2], reversed(stages)))
    sums: list[float] = []
    for one, other, cost in zip(stages, reversed(stages), costs, strict=True):
        learning = sum(
            (work.trainable_parameters + work.trainable_expert_parameters) * count
            for chunk in cost.chunks
            for work, count in chunk.works
        )
        if one is not other:
            beside = crossing if _crosses_sites(one, other) else 1
            sums.append(links.pair_sum_s(one, other, learning * width, beside=beside))
    return max(sums, default=0.0)


def _crosses_sites(one: StageSetup, other: StageSetup) -> bool:
    return any(here.site != there.site for here, there in zip(one.slots, other.slots, strict=False))


def shared_sums_s(setup: Setup, links: LinkTimes) -> float:
    """Return the seconds in which stages sum the gradients of weights that they share: the two ends a tied table; of a
    traced module all that hold a group, group after group."""
    if len(setup.stages) == 1:
        return 0.0
    if not any(isinstance(layer, TracedLayer) for layer in setup.model.layers):
        size = tied_bytes(setup)
        return links.pair_sum_s(setup.stages[0], setup.stages[-1], size) if size else 0.0
    seconds = 0.0
    for numbers, size in shared_groups(setup):
        seconds += links.stages_sum_s([setup.stages[number] for number in numbers], size)
    return seconds


def shared_groups(setup: Setup) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the numbers of stages that hold weights of a traced module together, and the bytes of their gradient."""
    for group in shared_weights(setup.model, min(stage.tp for stage in setup.stages)):
        holding = tuple(
            number
            for number, stage in enumerate(setup.stages)
            if any(first <= layer < end for first, end in stage.chunks for layer in group.holders)
        )
        if len(holding) > 1:
            yield holding, group.parameters * GRAD_WIDTH[setup.recipe.grad_dtype]
