"""Jobs of a simulation as a player of their site's fabric takes them: seats, steps between nodes, what they compute."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.network.fabric import Seat
from estimator.network.steps import Playing, Step, Transfer
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.seat_shapes import PoolSeats
from planner.many_jobs.simulation.settings import Work
from profiles.records import replace


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


def work_of(setup: Setup, evaluation: Evaluation, flops: float) -> Work:
    """Return what an iteration of a plan computes: `flops` on all devices; the seconds in which the stage that limits
    the pipeline computes, those of other stages by what a micro-batch takes there."""
    parts = evaluation.breakdown
    limiting_s = (
        parts.gemm_s
        + parts.attention_s
        + parts.convolution_s
        + parts.memory_bound_s
        + parts.recompute_s
        + parts.optimizer_s
    )
    most_s = max(evaluation.stage_compute_s)
    devices = sum(
        len(stage.slots) * compute_s / most_s
        for stage, compute_s in zip(setup.stages, evaluation.stage_compute_s, strict=True)
    )
    return Work(flops=flops, busy_device_s=limiting_s * devices)


def between_nodes(playing: Playing) -> Playing:
    """Return a job in fewer steps, as `fewer_steps`."""
    return replace(playing, steps=fewer_steps(playing.steps))


def fewer_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return a job's steps in fewer, whether they name links or connections. Those without a byte on the network are
    joined: what it computes, and what it sends inside its nodes, takes the same time beside whomever. Equal transfers
    in a row are one, their latencies before it."""
    fewer: list[Step] = []
    waits_s = 0.0
    for step in steps:
        if any(mover.way for transfer in step.transfers for mover in transfer.movers):
            if waits_s:
                fewer.append(Step(compute_s=waits_s))
            fewer.append(replace(step, transfers=tuple(map(_in_one, step.transfers))))
            waits_s = 0.0
        else:
            inside_s = sum(_inside_s(transfer) for transfer in step.transfers)
            waits_s += step.times * max(step.compute_s, step.begins_s + inside_s if step.transfers else 0.0)
    if waits_s:
        fewer.append(Step(compute_s=waits_s))
    return tuple(fewer)


def _in_one(transfer: Transfer) -> Transfer:
    times = transfer.times
    movers = tuple(replace(mover, seconds=times * mover.seconds) for mover in transfer.movers)
    return replace(transfer, movers=movers, latency_s=times * transfer.latency_s, times=1)


def _inside_s(transfer: Transfer) -> float:
    moved_s = max((mover.seconds / mover.most for mover in transfer.movers), default=0.0)
    return transfer.times * (transfer.latency_s + moved_s)
