"""What iterations and starts take on a crew, measured before any queue: Cell by Cell, its pool full of copies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from bench.scheduling.live.crew import Crew, Orders, Part, Seat
from planner.scheduling.records import CellBook, Grant, Job, Pool, Workload
from planner.simulation.settings import Placement, Truth
from planner.simulation.truth import cells_truth

MEASURED_S, LEAST = 3.0, 4
"""Seconds and iterations that a Cell is run for, at least."""

Key = tuple[Workload, str, int, int]
Turn = tuple[Workload, int, int, float]
"""Workload, devices, stages, and seconds of an iteration as estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A Cell: what its iteration takes by the estimate and as measured (mean, not the first), and what its start does:
    all the time of a part that its iterations do not explain."""

    workload: Workload
    pool: str
    devices: int
    stages: int
    estimated_s: float
    iteration_s: float
    start_s: float


def calibrate(
    crew: Crew, cells: CellBook, pools: Mapping[str, Pool], menu: Sequence[Workload], orders: Orders
) -> tuple[Measured, ...]:
    """The best Cells on 1, 2, 4, ... devices of each pool, all pools at once; for one iteration first, which is not
    counted: the first time a worker imports more, and reads the model."""
    turns = {pool.name: list(_cells_of(cells, pool, menu)) for pool in pools.values()}
    rounds = range(max(map(len, turns.values())))
    for number in rounds:
        _run_turn(crew, pools, turns, number, orders, iterations=1)
    return tuple(
        _measured(key, estimated_s, parts)
        for number in rounds
        for key, estimated_s, parts in _run_turn(crew, pools, turns, number, orders)
    )


def _run_turn(
    crew: Crew,
    pools: Mapping[str, Pool],
    turns: Mapping[str, Sequence[Turn]],
    number: int,
    orders: Orders,
    *,
    iterations: int | None = None,
) -> list[tuple[Key, float, list[Part]]]:
    """The Cell of that number in every pool, on all its devices: run for `iterations`, or as long as is measured."""
    running: list[tuple[Key, float, list[Part]]] = []
    for name, own in turns.items():
        if number < len(own):
            workload, devices, stages, estimated_s = own[number]
            count = iterations or max(LEAST, math.ceil(MEASURED_S / estimated_s))
            told = orders(workload, name, devices, stages)
            parts = [
                crew.start_part(f"calibration {number} of {name}, copy {copy}", seats, told, count)
                for copy, seats in enumerate(_groups(pools[name], devices))
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


def _measured(key: Key, estimated_s: float, parts: Sequence[Part]) -> Measured:
    workload, pool, devices, stages = key
    iterations_s = [(part.times_s[-1] - part.times_s[0]) / (part.wanted - 1) for part in parts]
    starts_s = [
        part.ended_s - part.started_s - part.wanted * each for part, each in zip(parts, iterations_s, strict=True)
    ]
    return Measured(
        workload=workload,
        pool=pool,
        devices=devices,
        stages=stages,
        estimated_s=estimated_s,
        iteration_s=mean(iterations_s),
        start_s=max(0.0, mean(starts_s)),
    )


def measured_truth(measured: Sequence[Measured], cells: CellBook) -> Truth:
    """The times that were measured; of other Cells the estimated ones."""
    known = {(one.workload, one.pool, one.devices, one.stages): one.iteration_s for one in measured}
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
