"""What a job's seats cost: the gradients that it sends between nodes, and what its devices are sold for."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from estimator.communication.phases import Algorithm, bytes_between, collective_phases
from estimator.communication.rank_order import best_order, least_across
from models_zoo.user_code import names_code
from planner.many_jobs.jobs.records import AS_LOGGED, Grant, Workload
from planner.many_jobs.placers.records import Budget
from planner.many_jobs.simulation.settings import KnowsWork, NetworkShares, Placement
from planner.many_jobs.simulation.states import ActiveJob
from planner.many_jobs.traces.assign import count_parameters
from profiles.errors import InputError
from profiles.vocabulary import held_bytes

if TYPE_CHECKING:
    from planner.many_jobs.simulation.run_state import RunState


SLOWED = 1e-9
"""An iteration that takes longer than alone by more than this, relatively, is one that others slow."""


def count_seats(run: RunState, state: ActiveJob) -> None:
    """Add to a running job's row what it sent between nodes, what its devices were sold for, and the seconds that its
    seats and those beside it cost, since its figures were last brought to now. The caller brings them there."""
    table, number, prices = run.table, state.index, run.settings.prices
    if prices and state.grant is not None:
        an_hour = sum(count * prices.get(pool, math.nan) for pool, count in state.grant.parts)
        an_hour *= state.held / state.grant.devices
        table.revenue[number] += an_hour * (run.clock.now_s - state.since_s) / 3600
    iterations = state.unsettled_iterations
    if iterations > 0:
        if run.shared is not None and state.grant is not None:
            cell_s = run.iteration_s(state.job, state.grant, None)
            table.seats_cost_s[number] += 0.0 if cell_s is None else iterations * (state.iteration_time_s - cell_s)
            _count_others(run, state, state.grant, iterations)
        if table.nodes[number] > 1:
            each = cross_node_bytes(run.settings.all_reduce, state.job.workload, state.placement)
            table.cross_node_bytes[number] += iterations * each
            if run.settings.uplinks:
                _count_uplinks(run, state, iterations)


def _count_others(run: RunState, state: ActiveJob, grant: Grant, iterations: float) -> None:
    """Add to the row of a running job what these iterations took, lost to others, and computed."""
    table, number, took_s = run.table, state.index, iterations * state.iteration_time_s
    table.progress_s[number] += took_s
    table.lost_to_others_s[number] += iterations * (state.iteration_time_s - state.alone_s)
    if state.iteration_time_s > state.alone_s * (1 + SLOWED):
        table.contended_s[number] += took_s
    if isinstance(run.settings.sharing, KnowsWork):
        work = run.settings.sharing.work(state.job, grant, state.placement)
        table.busy_device_s[number] += math.nan if work is None else iterations * work.busy_device_s
        table.flops[number] += math.nan if work is None else iterations * work.flops


def cross_node_bytes(algorithm: Algorithm, workload: Workload, placement: Placement) -> float:
    """Return the bytes that an all-reduce of the gradients of all parameters over all of a job's devices sends from
    node to node, in the order of the ranks in which that is least; NaN of a model of which nothing is known."""
    counts = sorted((mask.bit_count() for pieces in placement.values() for _, mask in pieces), reverse=True)
    return _gradient_bytes(workload) * least_across(algorithm, tuple(counts))


def _gradient_bytes(workload: Workload) -> float:
    """Of all parameters; NaN of a model of which nothing is known."""
    parameters = known_parameters(workload.model)
    return math.nan if parameters is None else parameters * held_bytes(workload.dtype)


def _count_uplinks(run: RunState, state: ActiveJob, iterations: float) -> None:
    """Add what a job on one pool sent up out of each part of the network that it leaves, by site, level and part."""
    if len(state.placement) != 1:
        return
    ((pool, pieces),) = state.placement.items()
    gradient_bytes = _gradient_bytes(state.job.workload)
    for number, level in enumerate(run.settings.uplinks.get(pool, ())):
        seats = sorted((level.part_of[node], mask.bit_count()) for node, mask in pieces)
        if seats[0][0] == seats[-1][0]:
            return
        for part, share in leaving(run.settings.all_reduce, tuple(seats)):
            key = (run.pools[pool].site, number, part)
            run.sent_up[key] = run.sent_up.get(key, 0.0) + iterations * gradient_bytes * share


@lru_cache(maxsize=16384)
def leaving(algorithm: Algorithm, seats: tuple[tuple[int, int], ...]) -> tuple[tuple[int, float], ...]:
    """Return by part of the network the bytes that leave it in an all-reduce of one byte over nodes, each the part that
    it is in and its devices: a ring goes through each part once, other algorithms have the order of the ranks in which
    they send least between nodes.

    >>> leaving("ring", ((0, 2), (0, 2), (1, 4)))
    ((0, 1.75), (1, 1.75))
    """
    ranks = sum(count for _, count in seats)
    if algorithm == "ring":
        return tuple((part, 2 * (ranks - 1) / ranks) for part in sorted({part for part, _ in seats}))
    parts = [seats[place][0] for place in best_order(algorithm, [count for _, count in seats])]
    sent = dict.fromkeys(sorted(set(parts)), 0.0)
    for (sender, receiver), size in bytes_between(collective_phases(algorithm, "all_reduce", ranks)).items():
        if parts[sender] != parts[receiver]:
            sent[parts[sender]] += size
    return tuple(sent.items())


def uplink_loads(run: RunState, simulated_s: float) -> tuple[float, float]:
    """Return what share of all uplinks' bytes/s was sent up, the mean over time, and that of the busiest uplink; NaN
    where there are none, or what was sent is not known."""
    rates = {
        (run.pools[pool].site, number, part): rate
        for pool, levels in run.settings.uplinks.items()
        for number, level in enumerate(levels)
        for part, rate in enumerate(level.uplink_bytes_per_s)
    }
    if not (rates and simulated_s > 0 and math.isfinite(sum(run.sent_up.values()))):
        return math.nan, math.nan
    busiest = max((sent / rates[key] for key, sent in run.sent_up.items()), default=0.0)
    return sum(run.sent_up.values()) / sum(rates.values()) / simulated_s, busiest / simulated_s


def network_budget(run: RunState, state: ActiveJob, grant: Grant) -> Budget | None:
    """Return what the job's gradients ask of the network of its pool, and what of it the jobs that run leave; None of
    one of whose model nothing is known."""
    sharing, workload = run.settings.sharing, state.job.workload
    gradient_bytes, iteration_s = _gradient_bytes(workload), run.iteration_s(state.job, grant, None)
    if (
        math.isnan(gradient_bytes)
        or iteration_s is None
        or not isinstance(sharing, NetworkShares)
        or run.shared is None
    ):
        return None
    return Budget(
        gradient_bytes=gradient_bytes,
        iteration_s=iteration_s,
        available=sharing.available(grant.parts[0][0], run.shared.in_use),
    )


@lru_cache(maxsize=1024)
def known_parameters(model: str) -> int | None:
    """Return the parameters of a model of the zoo, or of a file; None of one that is code, as logged or not known."""
    if model == AS_LOGGED or names_code(model):
        return None
    try:
        return count_parameters(model)
    except InputError:
        return None
