"""A trace replayed under a rule of placement, and what Titan's experiments 1 to 3 count of it.

The trace's durations stand: they hold the communication of where the jobs really sat, which the paper adds once more.
First come, first served on 512 nodes of 8, which is enough for everybody at nearly all times; `waited` says how many
were not served at once. Jobs name no models: each is VGG-16 or ResNet-50, the models of the paper's testbed, drawn by
the seed with even odds, which only Tiresias looks at.

Traffic is that of one all-reduce by halving and doubling of every running job, K its parameters, the mean over time; a
pair's exchange counts once, as in section II-B of the paper. Ranks are in the best order on the devices that the rule
gave (`estimator.communication.rank_order`), for all rules alike; `in node order` as they come.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from bench.simulation import ClosedForm
from estimator.communication.phases import collective_phases, exchanged_across
from estimator.communication.rank_order import best_order, node_order
from planner.many_jobs.jobs.records import Job, NodeCounts, Pool, Workload
from planner.many_jobs.placers.catalogue import MOVING, make_placer
from planner.many_jobs.placers.moves import Move, MoveRequest, MovingPlacer, SeatedNodes
from planner.many_jobs.placers.records import FreeNodes, Later, Placer, Request
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.traces.read import read_trace
from planner.shared.options.simulate import RESTART_S
from profiles.errors import InputError

NODES, SIZE = 512, 8
MODELS = ("vgg-16", "resnet-50")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What is counted; traffic in K, times in CPU seconds."""

    nodes: float
    least: float
    machine_hours: float
    fragmentation: float
    traffic: float
    traffic_in_node_order: float
    scattered: float
    waited: int
    moves: int
    moves_device_hours: float
    simulation_s: float
    placement_mean_s: float
    placement_p99_s: float


class Timed:
    """A rule, and how long each of its answers took on this processor."""

    def __init__(self, placer: Placer, took_s: array[float]) -> None:
        self.placer, self.name, self.took_s = placer, placer.name, took_s

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts | Later:
        """As the rule."""
        began_s = time.process_time()
        chosen = self.placer.place(nodes, request)
        self.took_s.append(time.process_time() - began_s)
        return chosen


class TimedMoving(Timed):
    """One that moves jobs."""

    def __init__(self, placer: Placer, took_s: array[float]) -> None:
        super().__init__(placer, took_s)
        if not isinstance(placer, MovingPlacer):
            raise InputError(where="machines", key="--rules", found=placer.name, expected=", ".join(MOVING))
        self._moving = placer

    def moves(self, nodes: SeatedNodes, request: MoveRequest) -> Sequence[Move]:
        """As the rule; not timed."""
        return self._moving.moves(nodes, request)


def read_jobs(path: Path, seed: int, head: int | None = None) -> list[Job]:
    """Return the jobs of a trace that the cluster has room for, each with a model."""
    draw, jobs = Random(f"machines {seed}"), list[Job]()
    for row in read_trace(path, format="auto").rows[:head]:
        model = draw.choice(MODELS)
        if 0 < row.gpus <= NODES * SIZE and row.duration_s > 0:
            jobs.append(
                Job(
                    id=row.job_id,
                    submit_s=row.submit_time_s,
                    pool="pool",
                    devices=row.gpus,
                    workload=Workload(model=model, global_batch=row.gpus),
                    iterations=row.duration_s,
                    duration_s=row.duration_s,
                )
            )
    return jobs


def replay(
    jobs: Sequence[Job],
    rule: str,
    *,
    defragment_s: float | None = None,
    restart_s: float = RESTART_S,
    **options: str | float | bool,
) -> Replay:
    """Return what is counted of the trace under the rule; where asked, with moves of running jobs every so often."""
    made, took_s = make_placer(rule, **options), array("d")
    placer = Timed(made, took_s) if defragment_s is None else TimedMoving(made, took_s)
    pools = {"pool": Pool(name="pool", site="", device="", nodes=NODES, devices_per_node=SIZE, devices=NODES * SIZE)}
    settings = Settings(truth=_a_second, placer=placer, slices=True, defragment_s=defragment_s, restart_s=restart_s)
    began_s = time.process_time()
    result = simulate(jobs, pools, ClosedForm(), make_policy("fcfs"), settings=settings)
    simulation_s = time.process_time() - began_s
    summary, took = result.summary, np.asarray(took_s)
    best, plain = _traffic(result)
    waited = sum(start_s > job.submit_s for start_s, job in zip(result.table.start_s, result.jobs, strict=True))
    assert summary.violations == 0
    return Replay(
        nodes=summary.nodes_in_use_mean or 0.0,
        least=summary.nodes_least_mean or 0.0,
        machine_hours=summary.machine_hours or 0.0,
        fragmentation=summary.fragmentation_mean or 0.0,
        traffic=best,
        traffic_in_node_order=plain,
        scattered=summary.scattered_ratio or 0.0,
        waited=waited,
        moves=summary.moves,
        moves_device_hours=summary.moves_device_hours,
        simulation_s=simulation_s,
        placement_mean_s=float(took.mean()),
        placement_p99_s=float(np.quantile(took, 0.99)),
    )


def _a_second(*_: object) -> float:
    return 1.0


def _traffic(result: Result) -> tuple[float, float]:
    """Vectors of parameters between nodes in the best order of the ranks, and in that of the nodes; means over time."""
    best = plain = 0.0
    for counts, span_s in _stays(result):
        in_best, in_plain = vectors(counts)
        best, plain = best + in_best * span_s, plain + in_plain * span_s
    return best / result.summary.simulated_s, plain / result.summary.simulated_s


def _stays(result: Result) -> Iterator[tuple[tuple[int, ...], float]]:
    """How many devices of each node every job had, and for how long."""
    pieces: dict[tuple[int, float, float], list[int]] = {}
    for number, _, _, mask, start_s, _, end_s in result.slices:
        pieces.setdefault((number, start_s, end_s), []).append(mask.bit_count())
    for (_, start_s, end_s), counts in pieces.items():
        yield tuple(counts), end_s - start_s


@cache
def vectors(counts: tuple[int, ...]) -> tuple[float, float]:
    """Return the vectors that an all-reduce of a job on such nodes sends between them, in the best order of its ranks
    and in that of the nodes."""
    if len(counts) == 1:
        return 0.0, 0.0
    phases = collective_phases("halving-doubling", "all_reduce", sum(counts))
    return tuple(
        exchanged_across(phases, seats) for seats in (best_order("halving-doubling", counts), node_order(counts))
    )  # type: ignore[return-value]
