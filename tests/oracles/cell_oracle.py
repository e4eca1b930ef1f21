"""Brute force for Cells: every way to run every stage, and every assembly of them.

It shares what a stage costs and holds with the product, and none of what chooses: each favour is tried with every
sharding of state, every kind of recomputation and every number of recomputed layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from estimator.cells.stage_pricing import StagePricing
from estimator.pricing.gradient_sync import exposed_sync_s, hiding_of
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.memory import rank_memory
from estimator.pricing.parts import hop_s, stage_times
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.stage_cost import StageCost, price_stage
from estimator.pricing.stage_work import stage_chunks
from estimator.schedules.in_flight import in_flight
from models_zoo.layers import Experts, TransformerBlock
from profiles.cluster import DeviceSlot
from profiles.vocabulary import Infeasible

StageOfSplit = tuple[int, int, tuple[DeviceSlot, ...]]


@dataclass(frozen=True, kw_only=True)
class Priced:
    favour: str
    stage: StageSetup
    time_s: float
    tail_s: float


def split_of(setup: Setup) -> list[StageOfSplit]:
    return [(*stage.chunks[0], stage.slots) for stage in setup.stages]


def setup_with(pricing: StagePricing, split: Sequence[StageOfSplit], index: int, stage: StageSetup, size: int) -> Setup:
    """All the other stages in tensor parallelism, which any size of micro-batch allows."""
    stages = [StageSetup(chunks=((first, end),), slots=slots, tp=len(slots)) for first, end, slots in split]
    stages[index] = stage
    return Setup(
        model=pricing.job.model,
        cluster=pricing.hardware.cluster,
        recipe=pricing.recipe,
        stages=tuple(stages),
        micro_batch=size,
    )


def seconds_of(setup: Setup, index: int) -> tuple[float, float] | Infeasible:
    """A micro-batch through the stage, and what comes once an iteration and is not hidden."""
    links = LinkTimes(pricing=Pricing(), cluster=setup.cluster)
    cost = price_stage(setup, index, links)
    if not isinstance(cost, StageCost):
        return cost
    times, recipe = stage_times(cost), setup.recipe
    zero, beside = setup.stages[index].zero, "dp" in recipe.overlap
    hiding = hiding_of(recipe, [zero], setup.micro_batches, overlapped=beside)
    both = sum(times.forward_s), sum(times.backward_s)
    once = cost.once
    exposed = exposed_sync_s(hiding, once.overlap_cost, once.reduce_s, once.partial_s, once.gather_s, *both)
    return times.busy_s, float(sum(exposed)) + cost.once.optimizer_s


def fits(pricing: StagePricing, setup: Setup, index: int) -> bool:
    chunks = stage_chunks(setup, index)
    if isinstance(chunks, Infeasible):
        return False
    flying = in_flight(
        setup.recipe.schedule,
        stage=index,
        stages=len(setup.stages),
        chunks=1,
        micro_batches=setup.micro_batches,
    )
    return rank_memory(setup, index, chunks, flying).needed_bytes <= pricing.hardware.device.memory_bytes


def ways_of(
    pricing: StagePricing, split: Sequence[StageOfSplit], index: int, size: int
) -> list[tuple[str, StageSetup]]:
    """Both favours with every choice about memory, whether it fits or not."""
    job, (first, end, slots) = pricing.job, split[index]
    layers = job.model.layers[first:end]
    counts = [
        layer.feed_forward.count
        for layer in layers
        if isinstance(layer, TransformerBlock) and isinstance(layer.feed_forward, Experts)
    ]
    if job.recompute == "auto":
        rules = [("none", None), ("selective", None), *(("full", count) for count in range(1, end - first + 1))]
    else:
        rules = [job.recompute]
    found = []
    for tp in dict.fromkeys((1, len(slots))):
        dp = len(slots) // tp
        shares = tp > 1 and pricing.recipe.seq_len > 0 and pricing.recipe.seq_len % tp == 0
        if size % dp:
            continue
        whole = all(count % tp == 0 for count in counts)
        for zero, (kind, number) in product(job.zero, rules):
            stage = StageSetup(
                chunks=((first, end),),
                slots=slots,
                tp=tp,
                dp=dp,
                sequence_parallel=shares,
                zero=zero,
                recompute=kind,  # type: ignore[arg-type]
                recompute_layers=number,
                ep=tp if counts and whole else 1,
                etp=1 if not counts or whole else tp,
            )
            found.append(("dp" if tp == 1 else "tp", stage))
    return found


def price_stages(pricing: StagePricing, split: Sequence[StageOfSplit], index: int, size: int) -> list[Priced]:
    """The stage in every way that fits, but those that another way of the same favour beats in both times."""
    every = []
    for favour, stage in ways_of(pricing, split, index, size):
        setup = setup_with(pricing, split, index, stage, size)
        if fits(pricing, setup, index):
            seconds = seconds_of(setup, index)
            if not isinstance(seconds, Infeasible):
                every.append(Priced(favour=favour, stage=stage, time_s=seconds[0], tail_s=seconds[1]))
    return [
        one
        for one in every
        if not any(
            other.favour == one.favour
            and (other.time_s, other.tail_s) != (one.time_s, one.tail_s)
            and other.time_s <= one.time_s
            and other.tail_s <= one.tail_s
            for other in every
        )
    ]


def formula_s(pricing: StagePricing, chosen: Sequence[Priced], size: int, formula: str) -> float:
    """Seconds of an assembly by the formula of that name."""
    links = LinkTimes(pricing=Pricing(), cluster=pricing.hardware.cluster)
    stages = [option.stage for option in chosen]
    setup = Setup(
        model=pricing.job.model,
        cluster=pricing.hardware.cluster,
        recipe=pricing.recipe,
        stages=tuple(stages),
        micro_batch=size,
    )
    c = [0.0, *(2 * hop_s(setup, before, after, links) for before, after in pairwise(stages))]
    t = [option.time_s + transfer for option, transfer in zip(chosen, c, strict=True)]
    if formula == "crius":
        slowest = max(range(len(t)), key=lambda i: (t[i], t[i] - c[i]))
        pace = t[slowest] - c[slowest]
    else:
        pace = max(max(t[i] - c[i], c[i]) for i in range(len(t)))
    return sum(t) + (setup.micro_batches - 1) * pace + max(option.tail_s for option in chosen)


def least_of_every_assembly(pricing: StagePricing, split: Sequence[StageOfSplit], size: int, formula: str) -> float:
    """The least seconds by formula of all assemblies."""
    unique = [
        list({(one.favour, one.time_s, one.tail_s): one for one in price_stages(pricing, split, i, size)}.values())
        for i in range(len(split))
    ]
    return min(formula_s(pricing, chosen, size, formula) for chosen in product(*unique))


def seconds_of_setup(pricing: StagePricing, setup: Setup, formula: str) -> float:
    """Those of one setup, by formula."""
    split, chosen = split_of(setup), []
    for index, stage in enumerate(setup.stages):
        alone = setup_with(pricing, split, index, stage, setup.micro_batch)
        assert fits(pricing, alone, index)
        seconds = seconds_of(alone, index)
        assert not isinstance(seconds, Infeasible)
        chosen.append(Priced(favour="", stage=replace(stage), time_s=seconds[0], tail_s=seconds[1]))
    return formula_s(pricing, chosen, setup.micro_batch, formula)
