"""What the ranks of a stage send: the collectives of its passes, of its sharded weights, and once an iteration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from estimator.pricing.gradient_sync import TimeOnAxis
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.parts import PricedSetup
from estimator.pricing.pass_time import Machine
from estimator.pricing.rank_kinds import rank_kinds
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.sharded_layers import layer_passes_s, sharded_layer
from estimator.pricing.stage_cost import OnceCost, StageCost, pass_s, price_once, price_stage, stage_machine
from estimator.pricing.stage_work import stage_device
from estimator.traffic.sent import Call, Calls, add_calls, calls_of, calls_s, multiply_calls, remembering
from profiles.cluster import most_on_one_node
from profiles.records import dataclass, replace
from profiles.vocabulary import Collective, Infeasible

PassCalls = Mapping[str, Calls]
"""The collectives of a pass of a chunk by axis, those of experts of both kinds together."""


@dataclass(frozen=True, kw_only=True)
class ShardingCalls:
    """What brings sharded weights and gradients together in a chunk's forward, and in its backward; and the seconds of
    copies beside them."""

    forward: Calls
    backward: Calls
    copied_s: float


@dataclass(frozen=True, kw_only=True)
class StageCalls:
    """What a stage sends: each chunk's passes, its sharded weights, and once an iteration the sums of gradients, those
    over tensor-parallel ranks, and the gathering of weights. `overlap_cost`: what hiding a second in a pass costs, and
    where layers' weights are fetched ahead."""

    forward: tuple[PassCalls, ...]
    backward: tuple[PassCalls, ...]
    sharding: tuple[ShardingCalls, ...]
    reduced: Calls
    partial: Calls
    gathered: Calls
    overlap_cost: float
    sharding_overlap_cost: float


def stage_calls(priced: PricedSetup, number: int) -> StageCalls:
    """Return what stage `number` sends, as long as its price says. Of ranks of several kinds the slowest are told of,
    who are those that the price is of."""
    links = replace(priced.links, account=None)
    setup = _slowest_kind(priced.setup, number, links)
    stage, cost, slower = setup.stages[number], priced.costs[number], priced.slower[number]
    on_axis = remembering(links, stage)
    device = stage_device(setup, stage).among(most_on_one_node(stage.slots))
    machine = stage_machine(setup, device, links.pricing, on_axis)
    once = price_once(setup, stage, cost.chunks, cost.profiles, machine, on_axis, links.pricing.parameters)
    return StageCalls(
        forward=tuple(
            _pass(machine, [(work.collectives, "forward", count) for work, count in chunk.works], slower)
            for chunk in cost.chunks
        ),
        backward=tuple(
            _pass(
                machine,
                [
                    part
                    for work, count in chunk.works
                    for part in ((work.again_collectives, "forward", count), (work.collectives, "backward", count))
                ],
                slower,
            )
            for chunk in cost.chunks
        ),
        sharding=tuple(
            _sharding(setup, stage, cost, machine, on_axis, chunk, slower) for chunk in range(len(cost.chunks))
        ),
        reduced=_once(once, cost, "reduce_s"),
        partial=_once(once, cost, "partial_s"),
        gathered=_once(once, cost, "gather_s"),
        overlap_cost=machine.parameters.of("overlap_cost", "tp"),
        sharding_overlap_cost=machine.parameters.of("overlap_cost", "fsdp"),
    )


def _slowest_kind(setup: Setup, number: int, links: LinkTimes) -> Setup:
    kinds = rank_kinds(setup, number)
    if len(kinds) == 1:
        return setup
    priced = [(price_stage(kind, number, links), kind) for kind in kinds]
    return max(priced, key=lambda pair: 0.0 if isinstance(pair[0], Infeasible) else pass_s(pair[0]))[1]


def _pass(machine: Machine, parts: Sequence[tuple[Iterable[Collective], str, int]], slower: float) -> PassCalls:
    by_axis: dict[str, Calls] = {}
    for collectives, phase, count in parts:
        for one in collectives:
            if one.phase == phase:
                axis = "ep" if one.axis == "etp" else one.axis
                calls = multiply_calls(calls_of(machine.collective_s(one)), count)
                by_axis[axis] = add_calls(by_axis.get(axis, {}), calls)
    return {axis: stretched(calls, slower) for axis, calls in by_axis.items() if calls}


def _sharding(
    setup: Setup,
    stage: StageSetup,
    cost: StageCost,
    machine: Machine,
    on_axis: TimeOnAxis,
    number: int,
    slower: float,
) -> ShardingCalls:
    if stage.zero != 3 or stage.dp * stage.cp == 1:
        return ShardingCalls(forward={}, backward={}, copied_s=0.0)
    forward: Calls = {}
    backward: Calls = {}
    copied_s = 0.0
    for (work, count), profile in zip(cost.chunks[number].works, cost.profiles[number], strict=True):
        layer = sharded_layer(
            work, layer_passes_s(work, profile, machine), machine, stage.sharded_over, setup.recipe, on_axis
        )
        gathered, scattered = calls_of(layer.gather_s), calls_of(layer.scatter_s)
        copied_s += count * (layer.copy_s + layer.moved_s - layer.gathers * calls_s(gathered) - calls_s(scattered))
        forward = add_calls(forward, multiply_calls(gathered, count))
        backward = add_calls(backward, multiply_calls(gathered, count * (layer.gathers - 1)))
        backward = add_calls(backward, multiply_calls(scattered, count))
    return ShardingCalls(
        forward=stretched(forward, slower), backward=stretched(backward, slower), copied_s=copied_s * slower
    )


def _once(once: OnceCost, cost: StageCost, part: str) -> Calls:
    """The collectives of a part of what comes once; what else it takes, as copies do, is theirs to wait for."""
    calls, whole_s = calls_of(getattr(once, part)), float(getattr(cost.once, part))
    sending_s = calls_s(calls)
    return stretched(calls, whole_s / sending_s) if sending_s else {}


def stretched(calls: Calls, times: float) -> Calls:
    """Return collectives that take so many times as long; what is added passes without a byte."""
    if abs(times - 1) < 1e-15:
        return calls
    longer: dict[Call, float] = {}
    for call, count in calls.items():
        alone_s = call.alone_s * times
        latency_s = call.latency_s + alone_s - call.alone_s if times > 1 else call.latency_s * times
        longer[replace(call, alone_s=alone_s, latency_s=latency_s)] = count
    return longer
