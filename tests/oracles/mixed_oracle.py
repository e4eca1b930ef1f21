"""Every plan on several groups of equal devices, one after another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from estimator.pricing.build import refuse_degrees
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup, StageSetup, ZeroStage
from models_zoo.layers import Experts, TransformerBlock
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.objectives import amount
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.tools.base.shape import Shape
from profiles.cluster import DeviceSlot
from profiles.vocabulary import Degrees, Infeasible

Places = tuple[tuple[DeviceSlot, ...], ...]
"""Of each stage of a segment, the devices."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Stages shared alike, with everything but layers and rules."""

    stages: tuple[StageSetup, ...]


def best_of_all(request: SearchRequest, most: int) -> float | None:
    """The least value of any plan that fits (infinite: none does); None where there are more than `most` plans."""
    setups = list(itertools.islice(every_setup(request), most + 1))
    if len(setups) > most:
        return None
    values, pricing = [math.inf], Pricing()
    for setup in setups:
        found = evaluate(setup, pricing)
        if isinstance(found, Evaluation) and found.out_of_memory is None:
            slots = [slot for stage in setup.stages for slot in stage.slots]
            value = amount(request.objective, request.cluster, slots, found.iteration_time_s)
            assert not isinstance(value, Infeasible), value
            values.append(value)
    return min(values)


def every_setup(request: SearchRequest) -> Iterator[Setup]:
    """All of them, by loops: sequences of segments, their degrees, cuts, and the rules of each segment."""
    own = request.spaces[0]
    limits, layers, recipe = own.space.constraints, len(request.model.layers), own.evaluator.recipe
    groups: dict[tuple[str, str], list[DeviceSlot]] = {}
    for space in request.spaces:
        for slot in space.space.slots:
            groups.setdefault((slot.device, slot.site), []).append(slot)
    names = range(len(groups))
    parties = [party for size in names for party in itertools.combinations(names, size + 1)]
    slots = list(groups.values())
    sizes = [size for size in range(1, recipe.global_batch + 1) if recipe.global_batch % size == 0]
    for size, length in itertools.product(sizes, range(1, len(groups) + 1)):
        if not limits.permits("micro_batches", recipe.global_batch // size):
            continue
        for sequence in itertools.permutations(parties, length):
            if len({name for party in sequence for name in party}) < sum(map(len, sequence)):
                continue
            options = [choices(request, [slots[name] for name in party], size) for party in sequence]
            for chosen in itertools.product(*options):
                stages = [stage for choice in chosen for stage in choice.stages]
                if len(stages) > layers or not limits.permits("pp", len(stages)):
                    continue
                if not limits.permits("devices", sum(len(stage.slots) for stage in stages)):
                    continue
                if not tool_runs(limits, stages):
                    continue
                kinds = limits.open_recompute
                rules = [
                    [(kind, zero) for kind in kinds for zero in zeros_of(request, one, len(stages))] for one in chosen
                ]
                for inner in itertools.combinations(range(1, layers), len(stages) - 1):
                    edges = (0, *inner, layers)
                    for picked in itertools.product(*rules):
                        if limits.alike and len(set(picked)) > 1:
                            continue
                        each = [rule for one, rule in zip(chosen, picked, strict=True) for _ in one.stages]
                        made = tuple(
                            replace(stage, chunks=(ends,), recompute=kind, zero=zero)
                            for stage, ends, (kind, zero) in zip(stages, itertools.pairwise(edges), each, strict=True)
                        )
                        for schedule in limits.schedules if len(stages) > 1 else limits.schedules[:1]:
                            yield Setup(
                                model=request.model,
                                cluster=request.cluster,
                                recipe=replace(recipe, schedule=schedule),
                                stages=made,
                                micro_batch=size,
                            )


def tool_runs(limits: Constraints, stages: list[StageSetup]) -> bool:
    """Whether the user's tool, if there is one, runs such stages: all shared alike, and evenly."""
    shapes = {(stage.tp, stage.dp, stage.ep, stage.etp, stage.shares) for stage in stages}
    return not limits.alike or (len(shapes) == 1 and stages[0].shares is None)


def zeros_of(request: SearchRequest, choice: Choice, stages: int) -> tuple[ZeroStage, ...]:
    """Stages of ZeRO that a segment can have, under a tool those it can run; one replica has nothing to shard."""
    space, stage = request.spaces[0].space, choice.stages[0]
    limits, tool = space.constraints, space.constraints.training_tool
    shape = Shape(
        job=space.training,
        tp=stage.tp,
        pp=stages,
        dp=stage.dp,
        ep=stage.ep,
        etp=stage.etp,
        sequence_parallel=stage.sequence_parallel,
    )
    allowed = [
        zero
        for zero in sorted(limits.zero)
        if tool is None
        or (tool.allows_degrees(shape) and tool.allows_state(replace(shape, zero=zero, shard=stage.dp if zero else 1)))
    ]
    return tuple(allowed if stage.dp > 1 else allowed[:1])


def choices(request: SearchRequest, slots: list[list[DeviceSlot]], size: int) -> list[Choice]:
    """All segments on these groups together."""
    found = []
    limits, own = request.spaces[0].space.constraints, request.spaces[0].space
    nodes = [request.cluster.group_of(places[0]) for places in slots]
    for tp in range(1, min(min(one.devices, one.island_size) for one in nodes) + 1):
        whole = [whole_of(places, tp) for places in slots]
        for pp in range(1, min(map(len, whole)) // tp + 1):
            most = [len(places) // tp // pp for places in whole]
            for replicas, shares in sharings([places[0].device for places in slots], most, size):
                if not (limits.permits("tp", tp) and limits.permits("dp", sum(replicas))):
                    continue
                if not all(limits.permits("micro_batch", share) for share in (max(shares),)):
                    continue
                for ep, etp in itertools.product(range(1, tp * sum(replicas) + 1), {1, tp}):
                    if not holds(request, tp, sum(replicas), ep, etp, together=len(slots) > 1):
                        continue
                    stages = tuple(
                        StageSetup(
                            chunks=((0, 1),),
                            slots=tuple(
                                slot
                                for places, count in zip(whole, replicas, strict=True)
                                for slot in places[number * count * tp : (number + 1) * count * tp]
                            ),
                            tp=tp,
                            dp=sum(replicas),
                            ep=ep,
                            etp=etp,
                            sequence_parallel=tp > 1 and own.seq_len % tp == 0 and limits.open_sequence_parallel[0],
                            shares=None if len(set(shares)) == 1 else tuple(shares),
                        )
                        for number in range(pp)
                    )
                    found.append(Choice(stages=stages))
    return found


def whole_of(places: list[DeviceSlot], tp: int) -> list[DeviceSlot]:
    """Of each node as many as make groups of `tp`."""
    nodes = [list(own) for _, own in itertools.groupby(places, key=lambda slot: (slot.site, slot.node))]
    return [slot for own in nodes for slot in own[: len(own) // tp * tp]]


def sharings(types: list[str], most: list[int], size: int) -> Iterator[tuple[list[int], list[int]]]:
    """Replicas of each group, and the samples of each replica."""
    if len(types) == 1:
        largest = max(dp for dp in range(1, most[0] + 1) if size % dp == 0)
        for dp in range(1, most[0] + 1):
            fewest = -(-size // most[0])
            if size % dp == 0 or (fewest < size // largest and dp == -(-size // fewest)):
                yield [dp], spread(size, dp)
        return
    first = sum(count for count, name in zip(most, types, strict=True) if name == types[0])
    second = sum(most) - first
    if not second and size >= first:
        yield most, spread(size, first)
    for share in range(1, size):
        if second and size - first * share >= second:
            yield most, [share] * first + spread(size - first * share, second)


def spread(size: int, parts: int) -> list[int]:
    """As even as it goes, more first."""
    return [size // parts + (number < size % parts) for number in range(parts)]


def holds(request: SearchRequest, tp: int, dp: int, ep: int, etp: int, *, together: bool) -> bool:
    """Whether the model's layers can be held so; experts on several groups are shared by tp ranks alone."""
    blocks = [layer for layer in request.model.layers if isinstance(layer, TransformerBlock)]
    if not any(isinstance(block.feed_forward, Experts) for block in blocks):
        if ep * etp > 1:
            return False
    elif (tp if together else tp * dp) % (ep * etp):
        return False
    degrees = Degrees(tp=tp, dp=dp, ep=ep, etp=etp)
    return refuse_degrees(request.model, degrees, seq_len=request.spaces[0].space.seq_len) is None
