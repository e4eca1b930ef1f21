"""Figure 14: a large job is announced four hours before it comes; what that does to the queue (Arnold, appendix H).

2,048 nodes of eight devices in 22 pods (`bench.pods.cases` draws their sizes) are 90% allocated at 18:00, when a job
for 1,200 of them is announced for 22:00; the run ends at 24:00. The paper's trace is not published. Jobs are drawn from
the second half of a trace (devices, duration, virtual cluster), with replacement: who runs at 18:00 in proportion to
duration, with an even share of it still to go, as in a steady state; who comes later as a Poisson process of the rate
that keeps 90% busy. The predictor knows the first half alone: the durations of jobs of the same virtual cluster and
devices, of those that have run for some time already the ones that ran longer. The announced job is a matrix of
150 x 8 nodes.

- allocation: devices held over all; retention: of the nodes of the zone as it was first kept, those that others hold;
- delay: from submission to first start of those who come between 18:00 and 22:00, who still wait at 24:00 until then;
- idle: node-hours that devices of the zone, and of all nodes, are free between 18:00 and 22:00;
- preempted: jobs that are stopped when the announced one comes, and the nodes that their devices would fill.
"""

from __future__ import annotations

import csv
import gzip
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import get_args

import numpy as np

from bench.pods.cases import Setting, free_nodes
from planner.many_jobs.jobs.records import (
    AS_LOGGED,
    Announcement,
    CellOption,
    Decision,
    Job,
    Pool,
    Stateless,
    View,
    Workload,
)
from planner.many_jobs.policies.arnold import Decides, Variant
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Settings
from profiles.network import FabricLevel, FabricPart, Network

NODES, SIZE, PODS = 2048, 8, 22
WANTED, STAGES = 1200, 8
BUSY = 0.9
HOUR_S = 3600.0
ARRIVAL_S, END_S = 4 * HOUR_S, 6 * HOUR_S
LOOKS_S = tuple(hour * HOUR_S for hour in range(5))
"""18:00 to 22:00; at 22:00 as it is just before the job comes."""
LEAST_ALIKE = 31
TRACES = {"lingjun": "crux_lingjun2023.csv.gz", "philly": "philly.csv.gz"}
VARIANTS: tuple[Variant, ...] = get_args(Variant)
RUNS: dict[str, tuple[Variant, Decides | None]] = {
    **{variant: (variant, None) for variant in VARIANTS},
    "arnold, by the point": ("arnold", "point"),
}
"""The six variants as they come, and the paper's with the predictor's point, which `ours` goes by."""
ONE_BY_ONE = ("arnold", "arnold, by the point", "ours")
BIG = "announced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What of a trace's job counts here."""

    gpus: int
    duration_s: float
    virtual_cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run. Rates at `LOOKS_S`; `retention` is empty where there is no zone."""

    allocation: tuple[float, ...]
    retention: tuple[float, ...]
    delay_mean_s: float
    delay_p99_s: float
    zone_idle_node_h: float
    idle_node_h: float
    preempted_jobs: int
    preempted_nodes: float
    late_s: float
    decision_p99_ms: float


class LoggedCells:
    """Jobs run on what they asked for, an iteration a second; the announced one in stages."""

    def options(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        """The one Cell."""
        if devices != workload.logged_devices:
            return ()
        stages = STAGES if devices == WANTED * SIZE else 1
        return (CellOption(pool=pool, devices=devices, stages=stages, iteration_time_s=1.0, assembly=("dp",) * stages),)

    def best(self, workload: Workload, pool: str, devices: int) -> CellOption | None:
        """That one."""
        return next(iter(self.options(workload, pool, devices)), None)

    def data_parallel_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        """A second."""
        return 1.0 if self.options(workload, pool, devices) else None

    def least_devices(self, workload: Workload, pool: str) -> int | None:
        """What it asked for."""
        del pool
        return workload.logged_devices


class Watch(Stateless):
    """Passes decisions on, and keeps the first zone and who is stopped for the announced job."""

    name = "watch"

    def __init__(self, variant: Variant, decides: Decides | None) -> None:
        self.policy = make_policy("arnold", variant=variant, decides=decides)
        self.zone: tuple[int, ...] = ()
        self.stopped: list[Job] = []

    def decide(self, view: View) -> Decision:
        """As the policy."""
        decision = self.policy.decide(view)
        zone = decision.reservations.get(BIG)
        if zone is not None and not self.zone:
            self.zone = zone.nodes
        if decision.grants.get(BIG) is not None:
            self.stopped += [view.running[id_].job for id_ in decision.grants if id_ in view.running]
        return decision


def read_rows(path: Path) -> list[Row]:
    """Return the jobs of a trace in its order, those that the cluster has room for beside the announced one."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        rows = [
            Row(
                gpus=int(cells["gpus"]),
                duration_s=float(cells["duration_s"]),
                virtual_cluster=cells["vc_or_department"],
            )
            for cells in csv.DictReader(lines)
        ]
    return [row for row in rows if 0 < row.gpus <= (NODES - WANTED) * SIZE // 4]


def network(seed: int) -> Network:
    """Return the tree of the pods of this draw."""
    sizes = free_nodes(Setting(name="figure 14", pods=PODS, nodes=NODES, dp=0, tp=8, pp=STAGES), 0.0, seed)
    part_of = tuple(pod for pod, size in enumerate(sizes) for _ in range(size))
    parts = tuple(FabricPart(name=f"pod{pod}", oversubscription=2.0) for pod in range(PODS))
    return Network(levels=(FabricLevel(name="pod", parts=parts, part_of=part_of),))


def _job(id_: str, submit_s: float, row: Row, left_s: float) -> Job:
    return Job(
        id=id_,
        submit_s=submit_s,
        pool="pool",
        devices=row.gpus,
        workload=Workload(model=AS_LOGGED, global_batch=row.gpus),
        iterations=left_s,
        duration_s=left_s,
        virtual_cluster=row.virtual_cluster,
    )


def draw_jobs(rows: Sequence[Row], seed: int) -> tuple[list[Job], dict[str, float]]:
    """Return who runs at 18:00, who comes until 24:00, and the announced job; and for how long the first have run."""
    rng, jobs, held = Random(f"figure 14 {seed}"), list[Job](), 0
    age_s: dict[str, float] = {}
    by_duration = list(accumulate(row.duration_s for row in rows))
    while held < BUSY * NODES * SIZE:
        row = rng.choices(rows, cum_weights=by_duration)[0]
        if held + row.gpus <= NODES * SIZE:
            ran_s = row.duration_s * rng.random()
            jobs.append(_job(f"running {len(jobs)}", 0.0, row, row.duration_s - ran_s))
            age_s[jobs[-1].id] = ran_s
            held += row.gpus
    rate = BUSY * NODES * SIZE / (sum(row.gpus * row.duration_s for row in rows) / len(rows))
    now_s = rng.expovariate(rate)
    while now_s < END_S:
        row = rng.choice(rows)
        jobs.append(_job(f"coming {len(jobs)}", now_s, row, row.duration_s))
        now_s += rng.expovariate(rate)
    devices = WANTED * SIZE
    jobs.append(
        Job(
            id=BIG,
            submit_s=ARRIVAL_S,
            pool="pool",
            devices=devices,
            workload=Workload(model=AS_LOGGED, global_batch=devices),
            iterations=10 * 24 * HOUR_S,
            duration_s=10 * 24 * HOUR_S,
            planned=Announcement(known_s=1.0, arrival_s=ARRIVAL_S),
        )
    )
    return jobs, age_s


class PastJobs:
    """Predicts by the durations of past jobs that were alike: the median, and between which 90% lie. `age_s`: for how
    long jobs had run already that run at 18:00."""

    def __init__(self, rows: Sequence[Row], age_s: Mapping[str, float]) -> None:
        self.age_s = age_s
        self.groups: dict[tuple[str, int] | None, list[float]] = {None: sorted(row.duration_s for row in rows)}
        for row in sorted(rows, key=lambda row: row.duration_s):
            self.groups.setdefault((row.virtual_cluster, row.gpus), []).append(row.duration_s)

    def submitted(self, job: Job, now_s: float) -> float:
        """The median of what is left."""
        del now_s
        left = self._left(job)
        return left[len(left) // 2]

    def interval_s(self, job: Job) -> tuple[float, float]:
        """From the twentieth to the nineteen twentieths of what is left."""
        left = self._left(job)
        return left[len(left) // 20], left[min(len(left) - 1, -(-len(left) * 19 // 20))]

    def finished(self, job: Job, now_s: float) -> None:
        """It learns nothing more."""

    def _left(self, job: Job) -> list[float]:
        age_s = self.age_s.get(job.id, 0.0)
        for key in ((job.virtual_cluster, job.devices), None):
            past = self.groups.get(key, [])
            longer = past[bisect_right(past, age_s) :]
            if len(longer) >= LEAST_ALIKE:
                return [duration_s - age_s for duration_s in longer]
        return [max(age_s, 1.0)]  # Older than all: as long again (Lindy).


def run(rows: Sequence[Row], variant: Variant, seed: int, decides: Decides | None = None) -> Figures:
    """Return the figures of one variant on one draw; `rows` are the trace's, `decides` None: the variant's own."""
    half = len(rows) // 2
    pool = Pool(name="pool", site="site", device="h800", nodes=NODES, devices_per_node=SIZE, devices=NODES * SIZE)
    watch = Watch(variant, decides)
    jobs, age_s = draw_jobs(rows[half:], seed)
    settings = Settings(
        networks={"pool": network(seed)}, predictor=PastJobs(rows[:half], age_s), slices=True, until_s=END_S
    )
    result = simulate(jobs, [pool], LoggedCells(), watch, settings=settings)
    assert result.summary.violations == 0
    return _figures(result, watch)


def _figures(result: Result, watch: Watch) -> Figures:
    big = next(number for number, job in enumerate(result.jobs) if job.id == BIG)
    zone = np.zeros(NODES, bool)
    zone[list(watch.zone)] = True
    held, kept = np.zeros(len(LOOKS_S)), [set[int]() for _ in LOOKS_S]
    zone_s = all_s = 0.0
    for number, _, node, mask, start_s, _, end_s in result.slices:
        if number == big:
            continue
        span_s = mask.bit_count() * max(0.0, min(end_s, ARRIVAL_S) - start_s)
        all_s += span_s
        zone_s += span_s * bool(zone[node])
        for place, look_s in enumerate(LOOKS_S):
            # Just before 22:00, and just after 18:00, when all are placed that ran.
            if start_s < max(look_s, 1e-9) <= end_s or start_s == look_s == 0.0:
                held[place] += mask.bit_count()
                if zone[node]:
                    kept[place].add(node)
    delays = [
        min(start_s if start_s == start_s else END_S, END_S) - job.submit_s
        for job, start_s in zip(result.jobs, result.table.start_s, strict=True)
        if 0.0 < job.submit_s < ARRIVAL_S
    ]
    started_s = result.table.start_s[big]
    return Figures(
        allocation=tuple(held / (NODES * SIZE)),
        retention=tuple(len(nodes) / zone.sum() for nodes in kept) if watch.zone else (),
        delay_mean_s=float(np.mean(delays)),
        delay_p99_s=float(np.quantile(delays, 0.99)),
        zone_idle_node_h=(float(zone.sum()) * SIZE * ARRIVAL_S - zone_s) / SIZE / HOUR_S if watch.zone else 0.0,
        idle_node_h=(NODES * SIZE * ARRIVAL_S - all_s) / SIZE / HOUR_S,
        preempted_jobs=len(watch.stopped),
        preempted_nodes=sum(job.devices for job in watch.stopped) / SIZE,
        late_s=min(started_s if started_s == started_s else END_S, END_S) - ARRIVAL_S,
        decision_p99_ms=result.timing.decision_p99_cpu_s * 1e3,
    )


def lines(data: Path, seeds: Sequence[int]) -> Iterator[str]:
    """Return the tables' lines, trace by trace: means over the seeds, then what is stopped in each draw."""
    for name, file in TRACES.items():
        path = data / "traces" / file
        if not path.exists():
            yield f"\n{name} is left out: no {path.name}"
            continue
        rows = read_rows(path)
        yield f"\n{name}\n"
        yield (
            "| variant | allocation 18, 19, 20, 21, 22 h | retention | delay mean | p99 | idle in the zone"
            " | idle in all | preempted jobs | nodes | late |"
        )
        yield "| -- | -- | -- | --: | --: | --: | --: | --: | --: | --: |"
        drawn: dict[str, list[Figures]] = {}
        for title, (variant, decides) in RUNS.items():
            drawn[title] = [run(rows, variant, seed, decides) for seed in seeds]
            yield _line(title, drawn[title])
        yield from _one_by_one(seeds, drawn)


def _one_by_one(seeds: Sequence[int], drawn: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    yield f"\nDraw by draw ({', '.join(ONE_BY_ONE)}):\n"
    yield "| seed | preempted jobs | nodes | idle in all, h |"
    yield "| --: | --: | --: | --: |"
    for place, seed in enumerate(seeds):
        runs = [drawn[title][place] for title in ONE_BY_ONE]
        columns = [
            [f"{figures.preempted_jobs:,}" for figures in runs],
            [f"{figures.preempted_nodes:,.0f}" for figures in runs],
            [f"{figures.idle_node_h:,.0f}" for figures in runs],
        ]
        yield f"| {seed} | {' | '.join('; '.join(column) for column in columns)} |"


def _line(variant: str, runs: Sequence[Figures]) -> str:
    def mean(name: str) -> float:
        return float(np.mean([getattr(figures, name) for figures in runs]))

    def rates(name: str) -> str:
        columns = np.array([getattr(figures, name) for figures in runs])
        return ", ".join(f"{rate:.2f}" for rate in columns.mean(axis=0)) if columns.size else "no zone"

    cells = [
        variant,
        rates("allocation"),
        rates("retention"),
        f"{mean('delay_mean_s') / 60:.1f} min",
        f"{mean('delay_p99_s') / 60:.0f} min",
        f"{mean('zone_idle_node_h'):.0f} h" if runs[0].retention else "",
        f"{mean('idle_node_h'):.0f} h",
        f"{mean('preempted_jobs'):.1f}",
        f"{mean('preempted_nodes'):.0f}",
        f"{mean('late_s') / 60:.0f} min",
    ]
    return f"| {' | '.join(cells)} |"
