"""What a job's seats cost: the gradients that it sends between nodes, and what its devices are sold for."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from estimator.communication.phases import Algorithm
from estimator.communication.rank_order import least_across
from models_zoo.user_code import names_code
from planner.many_jobs.jobs.records import AS_LOGGED, Grant, Workload
from planner.many_jobs.placers.records import Budget
from planner.many_jobs.simulation.settings import NetworkShares, Placement
from planner.many_jobs.simulation.states import ActiveJob
from planner.many_jobs.traces.assign import count_parameters
from profiles.errors import InputError
from profiles.vocabulary import held_bytes

if TYPE_CHECKING:
    from planner.many_jobs.simulation.run_state import RunState


def count_seats(run: RunState, state: ActiveJob) -> None:
    """Add to a running job's row what it sent between nodes, what its devices were sold for, and the seconds that its
    seats and those beside it cost, since its figures were last brought to now. The caller brings them there."""
    table, number, prices = run.table, state.index, run.settings.prices
    if prices and state.grant is not None:
        an_hour = sum(count * prices.get(pool, math.nan) for pool, count in state.grant.parts)
        table.revenue[number] += an_hour * (run.clock.now_s - state.since_s) / 3600
    iterations = state.unsettled_iterations
    if iterations > 0:
        if run.shared is not None and state.grant is not None:
            cell_s = run.iteration_s(state.job, state.grant, None)
            table.seats_cost_s[number] += 0.0 if cell_s is None else iterations * (state.iteration_time_s - cell_s)
        if table.nodes[number] > 1:
            each = cross_node_bytes(run.settings.all_reduce, state.job.workload, state.placement)
            table.cross_node_bytes[number] += iterations * each


def cross_node_bytes(algorithm: Algorithm, workload: Workload, placement: Placement) -> float:
    """Return the bytes that an all-reduce of the gradients of all parameters over all of a job's devices sends from
    node to node, in the order of the ranks in which that is least; NaN of a model of which nothing is known."""
    counts = sorted((mask.bit_count() for pieces in placement.values() for _, mask in pieces), reverse=True)
    parameters = known_parameters(workload.model)
    if parameters is None:
        return math.nan
    return parameters * held_bytes(workload.dtype) * least_across(algorithm, tuple(counts))


def network_budget(run: RunState, state: ActiveJob, grant: Grant) -> Budget | None:
    """Return what the job's gradients ask of the network of its pool, and what of it the jobs that run leave; None of
    one of whose model nothing is known."""
    sharing, workload = run.settings.sharing, state.job.workload
    parameters = known_parameters(workload.model)
    iteration_s = run.iteration_s(state.job, grant, None)
    if parameters is None or iteration_s is None or not isinstance(sharing, NetworkShares) or run.shared is None:
        return None
    return Budget(
        gradient_bytes=parameters * held_bytes(workload.dtype),
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
