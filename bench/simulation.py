"""How fast the simulator is: a million jobs on 100,000 devices under FCFS, its memory, and what a checkpoint costs.

    python -m bench.simulation [--jobs 1000000] [--devices 100000] [--load 0.9] [--seed 0] [--policy fcfs] [--round S]
                               [--checkpoint FILE] [--ray ADDRESS] [--json FILE]

Jobs ask for 1 to 64 devices, mostly few, and take 1,000 s in the mean (exponential); they arrive such that `--load` of
the devices is wanted. Speeds are in closed form, so that the simulator alone is timed. The baseline, in the same run
and on the same jobs, is the barest loop that gives the same ends of jobs under FCFS: a queue, a heap of ends, a count
of free devices; it places nothing, sums nothing, checks nothing and asks no policy. With `--ray` a sweep of the small
trace really runs on that Ray cluster, and must give what it gives in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any

from estimator.host.cpu import cpu_name
from planner.many_jobs.jobs.records import CellOption, Job, Pool, Workload
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.checkpoint import CheckpointWriter
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.settings import CheckpointFile, Settings

SIZES, SHARES = (1, 2, 4, 8, 16, 32, 64), (50, 15, 12, 13, 5, 3, 2)
MEAN_S = 1000.0
SMALL = Path(__file__).parents[1] / "planner" / "many_jobs" / "traces" / "small.csv"


class ClosedForm:
    """Cells whose iterations take 1 s / devices, for every workload."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[CellOption, ...]] = {}

    def options(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        """One Cell of one stage."""
        del workload
        if devices not in self._known:
            one = CellOption(pool=pool, devices=devices, stages=1, iteration_time_s=1.0 / devices, assembly=("dp",))
            self._known[devices] = (one,)
        return self._known[devices]

    def best(self, workload: Workload, pool: str, devices: int) -> CellOption | None:
        """The one."""
        return self.options(workload, pool, devices)[0]

    def data_parallel_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        """As the best."""
        return self.options(workload, pool, devices)[0].iteration_time_s

    def least_devices(self, workload: Workload, pool: str) -> int | None:
        """Everything fits on one."""
        del workload, pool
        return 1


def draw_jobs(count: int, devices: int, load: float, seed: int) -> list[Job]:
    """Poisson arrivals."""
    rng, workload, now_s, found = Random(seed), Workload(model="any", global_batch=64), 0.0, list[Job]()
    mean_devices = sum(size * share for size, share in zip(SIZES, SHARES, strict=True)) / sum(SHARES)
    gap_s = mean_devices * MEAN_S / (load * devices)
    for number in range(count):
        now_s += rng.expovariate(1 / gap_s)
        size, span_s = rng.choices(SIZES, SHARES)[0], rng.expovariate(1 / MEAN_S)
        found.append(
            Job(
                id=f"job-{number}",
                submit_s=now_s,
                pool="pool",
                devices=size,
                workload=workload,
                iterations=span_s * size,
                duration_s=span_s,
            )
        )
    return found


def bare_fcfs(jobs: Sequence[Job], devices: int) -> list[float]:
    """The end of each job, and nothing else."""
    ends, queue, running = [0.0] * len(jobs), deque[int](), list[tuple[float, int]]()
    free, number = devices, 0
    while number < len(jobs) or running:
        if running and (number == len(jobs) or running[0][0] <= jobs[number].submit_s):
            now_s, ended = heappop(running)
            free += jobs[ended].devices
        else:
            now_s = jobs[number].submit_s
            queue.append(number)
            number += 1
        while queue and jobs[queue[0]].devices <= free:
            started = queue.popleft()
            job = jobs[started]
            free -= job.devices
            ends[started] = now_s + job.iterations * (1.0 / job.devices)
            heappush(running, (ends[started], started))
    return ends


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.simulation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="fcfs")
    parser.add_argument("--round", type=float)
    parser.add_argument("--checkpoint", type=Path, help="also write a checkpoint in the middle, and time it")
    parser.add_argument("--ray")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()}")
    found = time_simulation(options)
    if options.ray is not None:
        found["ray"] = compare_with_ray(options.ray)
    for name, value in found.items():
        print(f"{name:28} {value:.6g}" if isinstance(value, float) else f"{name:28} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def time_simulation(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of processor time, so that another program on the machine does not count, and peak memory."""
    jobs = draw_jobs(options.jobs, options.devices, options.load, options.seed)
    nodes = options.devices // 8
    pool = Pool(name="pool", site="site", device="any", nodes=nodes, devices_per_node=8, devices=8 * nodes)
    before_gb = _peak_gb()
    checkpoint = CheckpointFile(path=options.checkpoint, every_s=0.0) if options.checkpoint else None
    settings = Settings(round_s=options.round, checkpoint=checkpoint, look_every=max(1, options.jobs))
    written_s: list[float] = []
    if checkpoint is not None:
        CheckpointWriter.write = _timed(CheckpointWriter.write, written_s)  # type: ignore[method-assign]
    began_s, wall_s = time.process_time(), time.perf_counter()
    result = simulate(jobs, [pool], ClosedForm(), make_policy(options.policy), settings=settings)
    took_s, wall_s = time.process_time() - began_s, time.perf_counter() - wall_s
    peak_gb = _peak_gb()
    began_s = time.process_time()
    ends = bare_fcfs(jobs, 8 * nodes)
    bare_s = time.process_time() - began_s
    same = options.policy == "fcfs" and options.round is None
    late_s = max(abs(one - other) for one, other in zip(result.table.end_s, ends, strict=True)) if same else None
    summary = result.summary
    return {
        "policy": options.policy,
        "jobs": options.jobs,
        "devices": 8 * nodes,
        "load": options.load,
        "seed": options.seed,
        "simulator_cpu_s": took_s,
        "simulator_wall_s": wall_s,
        "us_per_job": took_s / options.jobs * 1e6,
        "of_that_decisions_s": result.timing.decision_mean_s * result.timing.decisions,
        "decision_p99_us": result.timing.decision_p99_s * 1e6,
        "bare_loop_cpu_s": bare_s,
        "ratio_to_bare_loop": took_s / bare_s,
        "largest_difference_of_ends_s": late_s,
        "jobs_alone_gb": before_gb,
        "peak_memory_gb": peak_gb,
        "checkpoint_s": max(written_s, default=0.0),
        "finished": summary.finished,
        "utilization": summary.utilization_mean,
        "waiting_mean": summary.waiting_mean,
        "violations": summary.violations,
    }


def _timed(function: Any, found: list[float]) -> Any:
    def call(*args: Any, **words: Any) -> None:
        began_s = time.perf_counter()
        function(*args, **words)
        found.append(time.perf_counter() - began_s)

    return call


def compare_with_ray(address: str) -> str:
    """Whether a sweep over Ray gives what it gives here."""
    from planner.many_jobs.simulation.sweep import make_requests, run_sweep
    from planner.shared.options.simulate import SweepOptions

    many = SweepOptions(SMALL, cluster="a40:4x2+a10:4x2", policies=("fcfs", "sjf"), seeds=(0, 1), loads=(1.0, 2.0))
    requests = make_requests(many)
    runs = [run_sweep(requests), run_sweep(requests, ray_address=address)]
    for sweep in runs:
        for run in sweep:
            del run["timing"]
    return "the same 8 runs" if runs[0] == runs[1] else "other figures than here"


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    raise SystemExit(main())
