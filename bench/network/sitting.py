"""Who of a trace sits where and when, under a rule of placement: its own durations, first come, first served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.simulation import ClosedForm
from estimator.network.fabric import Seat
from planner.many_jobs.jobs.records import Job, Pool, Workload
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.traces.read import read_trace
from profiles.cluster import Cluster

NAME = "crux_lingjun2023.csv.gz"


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A job of the trace and its devices, in the order of its ranks, for all of its time."""

    job: str
    gpus: int
    start_s: float
    end_s: float
    seats: tuple[Seat, ...]

    @property
    def nodes(self) -> int:
        """On how many nodes it sits."""
        return len({seat.node for seat in self.seats})


def read_jobs(data: Path, most: int, head: int | None = None) -> list[Job]:
    """Return the jobs of lingjun's trace with at most so many GPUs, as long as they were."""
    return [
        Job(
            id=row.job_id,
            submit_s=row.submit_time_s,
            pool="pool",
            devices=row.gpus,
            workload=Workload(model="resnet-50", global_batch=row.gpus),
            iterations=row.duration_s,
            duration_s=row.duration_s,
        )
        for row in read_trace(data / "traces" / NAME).rows[:head]
        if row.gpus <= most
    ]


def sit(jobs: Sequence[Job], cluster: Cluster, rule: str, seed: int = 0) -> tuple[Stay, ...]:
    """Return where the jobs sit on the one group of nodes of a cluster; in the order in which they came."""
    (site,) = cluster.sites
    (group,) = site.nodes
    size, count = group.devices, group.count
    pools = {"pool": Pool(name="pool", site="", device="", nodes=count, devices_per_node=size, devices=count * size)}
    placer = make_placer(rule, **({"seed": seed} if rule == "random" else {}))
    settings = Settings(truth=_a_second, placer=placer, slices=True, networks={"pool": site.network})
    result = simulate(jobs, pools, ClosedForm(), make_policy("fcfs"), settings=settings)
    assert result.summary.violations == 0
    seats: dict[int, list[Seat]] = {}
    times_s: dict[int, tuple[float, float]] = {}
    for number, _, node, mask, start_s, _, end_s in result.slices:
        times_s[number] = start_s, end_s
        devices = (device for device in range(size) if mask >> device & 1)
        seats.setdefault(number, []).extend(Seat(node=node, device=device) for device in devices)
    return tuple(
        Stay(
            job=result.jobs[number].id,
            gpus=result.jobs[number].devices,
            start_s=start_s,
            end_s=end_s,
            seats=tuple(seats[number]),
        )
        for number, (start_s, end_s) in sorted(times_s.items())
    )


def _a_second(*_: object) -> float:
    return 1.0
