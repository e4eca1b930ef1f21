"""What iterations and starts take on a crew, measured before any queue: Cell by Cell, its pool full of copies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from bench.scheduling.live.crew import Crew, Orders, Part, Seat
from planner.many_jobs.jobs.records import CellBook, Grant, Job, Pool, Workload
from planner.many_jobs.simulation.settings import Placement, Truth
from planner.many_jobs.simulation.truth import cells_truth

MEASURED_S, LEAST = 3.0, 4
"""Seconds and iterations that a Cell is run for, at least."""

Key = tuple[Workload, str, int, int]
Turn = tuple[Workload, int, int, float]
"""Workload, devices, stages, and seconds of an iteration as estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A Cell: what its iteration takes by the estimate and as measured (mean, not the first) on a pool full of copies,
    and by itself there (None where that was not asked for, or is the same); and what its start takes: all the time of a
    part that its iterations do not explain."""

    workload: Workload
    pool: str
    devices: int
    stages: int
    estimated_s: float
    iteration_s: float
    alone_s: float | None
    start_s: float


def calibrate(
    crew: Crew, cells: CellBook, pools: Mapping[str, Pool], menu: Sequence[Workload], orders: Orders, *, alone: bool
) -> tuple[Measured, ...]:
    """The best Cells on 1, 2, 4, ... devices of each pool, all pools at once; for one iteration first, which is not
    counted: the first time a worker imports more, and reads the model. `alone`: also by themselves on a free pool."""
    turns = {pool.name: list(_cells_of(cells, pool, menu)) for pool in pools.values()}
    rounds = range(max(map(len, turns.values())))
    for number in rounds:
        _run_turn(crew, pools, turns, number, orders, iterations=1)
    found = []
    for number in rounds:
        crowd = _run_turn(crew, pools, turns, number, orders)
        free = _run_turn(crew, pools, turns, number, orders, copies=1) if alone else []
        alone_s = {key: _mean_s(parts) for key, _, parts in free}
        found += [_measured(key, estimated_s, parts, alone_s.get(key)) for key, estimated_s, parts in crowd]
    return tuple(found)


def _run_turn(
    crew: Crew,
    pools: Mapping[str, Pool],
    turns: Mapping[str, Sequence[Turn]],
    number: int,
    orders: Orders,
    *,
    iterations: int | None = None,
    copies: int | None = None,
) -> list[tuple[Key, float, list[Part]]]:
    """The Cell of that number in every pool, in as many copies as fit, or those whose copies are more than `copies` in
    so many; run for `iterations`, or as long as is measured."""
    running: list[tuple[Key, float, list[Part]]] = []
    for name, own in turns.items():
        if number < len(own):
            workload, devices, stages, estimated_s = own[number]
            groups = list(_groups(pools[name], devices))
            if copies is not None and len(groups) <= copies:
                continue
            count = iterations or max(LEAST, math.ceil(MEASURED_S / estimated_s))
            told = orders(workload, name, devices, stages)
            parts = [
                crew.start_part(f"calibration {number} of {name}, copy {copy}", seats, told, count)
                for copy, seats in enumerate(groups[:copies])
            ]
            running.append(((workload, name, devices, stages), estimated_s, parts))
    for *_, parts in running:
        crew.finish(parts)
    return running


def _cells_of(cells: CellBook, pool: Pool, menu: Sequence[Workload]) -> Iterator[Turn]:
    for workload in menu:
        for k in range(pool.devices.bit_length()):
            best = cells.best(workload, pool.name, 1 << k)
            if best is not None:
                yield workload, 1 << k, best.stages, best.iteration_time_s


def _groups(pool: Pool, devices: int) -> Iterator[tuple[Seat, ...]]:
    seats = [(pool.name, node, index) for node in range(pool.nodes) for index in range(pool.devices_per_node)]
    for first in range(0, len(seats) - devices + 1, devices):
        yield tuple(seats[first : first + devices])


def _each_s(part: Part) -> float:
    return (part.times_s[-1] - part.times_s[0]) / (part.wanted - 1)


def _mean_s(parts: Sequence[Part]) -> float:
    return mean(_each_s(part) for part in parts)


def _measured(key: Key, estimated_s: float, parts: Sequence[Part], alone_s: float | None) -> Measured:
    workload, pool, devices, stages = key
    starts_s = [part.ended_s - part.started_s - part.wanted * _each_s(part) for part in parts]
    return Measured(
        workload=workload,
        pool=pool,
        devices=devices,
        stages=stages,
        estimated_s=estimated_s,
        iteration_s=_mean_s(parts),
        alone_s=alone_s,
        start_s=max(0.0, mean(starts_s)),
    )


def measured_truth(measured: Sequence[Measured], cells: CellBook, *, alone: bool = False) -> Truth:
    """The times that were measured on full pools, or `alone` by themselves; of other Cells the estimated ones."""
    known = {
        (one.workload, one.pool, one.devices, one.stages): one.alone_s if alone and one.alone_s else one.iteration_s
        for one in measured
    }
    estimated = cells_truth(cells)

    def truth(job: Job, grant: Grant, placement: Placement | None) -> float | None:
        pool, devices = grant.parts[0]
        stages = grant.stages
        if stages is None:
            best = cells.best(job.workload, pool, devices)
            stages = None if best is None else best.stages
        found = known.get((job.workload, pool, devices, stages or 0)) if len(grant.parts) == 1 else None
        return estimated(job, grant, placement) if found is None else found

    return truth
