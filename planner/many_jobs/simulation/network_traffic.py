"""What the jobs of a simulation send over their site's fabric: the traffic of a Cell's plan, and who sits where."""

from __future__ import annotations

from estimator.network.fabric import Seat
from estimator.network.traffic import Exchange, Span, Traffic
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.seat_shapes import PoolSeats
from planner.one_job.explicit.figures import count_setup_flops


def seats_of(setup: Setup, pool: PoolSeats, pieces: Pieces, first_node: int = 0) -> tuple[Seat, ...]:
    """Return the seat of each rank of a plan on a job's own devices: the plan's are those that stand for them
    (`SeatPrices.seated`). Nodes are numbered from `first_node` on, the first of the site."""
    place = {node: number for number, node in enumerate(pool.nodes)}
    masks = dict(pieces)
    own = {node: pool.devices_in_order(mask) for node, mask in masks.items()}
    turn: dict[int, dict[int, int]] = {}
    slots = [slot for stage in setup.stages for slot in stage.slots]
    for node, index in sorted((place[slot.node], slot.index) for slot in slots):
        turn.setdefault(node, {})[index] = len(turn.get(node, {}))
    return tuple(
        Seat(node=first_node + slot.node, device=own[place[slot.node]][turn[place[slot.node]][slot.index]])
        for slot in slots
    )


def traffic_of_cell(setup: Setup, evaluation: Evaluation, nic_bytes_per_s: float) -> Traffic:
    """Return what a Cell's plan sends: one all-reduce of the gradients of all stages at once, hidden behind compute as
    far as the evaluation has it, so that an iteration alone takes what it says. `nic_bytes_per_s` is what all NICs of a
    node send."""
    whole_s, exposed_s = evaluation.iteration_time_s, evaluation.breakdown.dp_s
    groups: list[tuple[int, ...]] = []
    size_bytes, first = 0, 0
    for stage, memory in zip(setup.stages, evaluation.memory, strict=True):
        ranks = range(first, first + len(stage.slots))
        if stage.dp * stage.cp > 1:
            groups += (tuple(ranks[shard :: stage.tp]) for shard in range(stage.tp))
            size_bytes = max(size_bytes, memory.weight_bytes)
        first += len(stage.slots)
    flops = float(count_setup_flops(setup).model)
    sent_s = min(whole_s, max(exposed_s, _ring_s(setup, groups, size_bytes, nic_bytes_per_s)))
    if not groups or sent_s == 0:
        return Traffic(devices=first, spans=(Span(compute_s=whole_s),), flops=flops)
    reduce = Exchange(axis="dp", op="all_reduce", size_bytes=float(size_bytes), groups=tuple(groups), alone_s=sent_s)
    compute_s = whole_s - exposed_s
    span = Span(compute_s=compute_s, exchanges=(reduce,), begins_s=whole_s - sent_s)
    return Traffic(devices=first, spans=(span,), flops=flops)


def _ring_s(setup: Setup, groups: list[tuple[int, ...]], size_bytes: int, nic_bytes_per_s: float) -> float:
    """Seconds of rings at the full rate of the NICs of the node that most of them leave."""
    nodes = [slot.node for stage in setup.stages for slot in stage.slots]
    leaving: dict[int, float] = {}
    for group in groups:
        inside = {nodes[rank] for rank in group}
        for node in inside if len(inside) > 1 else ():
            leaving[node] = leaving.get(node, 0.0) + 2 * (len(group) - 1) / len(group) * size_bytes
    return max(leaving.values(), default=0.0) / nic_bytes_per_s
