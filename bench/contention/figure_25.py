"""Figure 25: Crux together with job schedulers, and how much of its gain better placement leaves.

The first jobs of lingjun's trace of no more than a quarter of the devices arrive `LOAD` times as fast on 64 hosts of 8
A100s with 8 NICs of 100 Gbit/s, 8 hosts under a leaf, as many cables up as down: what `simulate --policy P --placer R
--network N` does. What they train is drawn by the seed as in figures 23 and 24 (`stand_ins.py`); each runs the plan that
its Cell has, for as many iterations as that makes in the trace's duration. GPU utilisation is the share of all
device-seconds in which devices compute, up to the last arrival: then jobs still wait under all of them.

"None" is first come, first served on devices drawn at random. HiveD is the policy `hived` (the trace names no virtual
clusters: one owns all cells). Muri is the policy `muri` on devices drawn at random, and on those of `same-switch`.
"""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import mean, stdev
from tempfile import TemporaryDirectory

from bench.contention.cases import SAMPLES
from bench.contention.stand_ins import SHARES, SIZES
from planner.many_jobs.simulation.run import load_inputs, run_request
from planner.many_jobs.traces.read import read_trace
from planner.shared.options.simulate import ReplayOptions
from profiles.records import dataclass, replace

HOSTS, HOSTS_A_LEAF, SPINES, GPUS = 32, 4, 8, 8
LARGEST = HOSTS * GPUS // 4
LOAD = 10.0
JOBS, SHORT_JOBS = 200, 80
PAPER = {"HiveD": ("+25%", "+11%"), "Muri": ("+20%", "+14%")}
"""Over None without Crux, and with Crux over itself without (section 6.4)."""
PLAIN, CRUX = "ecmp", "crux"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Who gives devices to jobs: a policy with a rule of placement."""

    name: str
    policy: str
    placer: str


NONE = Scheduler(name="None", policy="fcfs", placer="random")
SCHEDULERS = (
    NONE,
    Scheduler(name="HiveD", policy="hived", placer="best-fit"),
    Scheduler(name="Muri", policy="muri", placer="random"),
    Scheduler(name="Muri, same-switch", policy="muri", placer="same-switch"),
)
RULES = ("best-fit", "same-switch", "buddy", "arnold", "hived-cells", "hived", "titan", "ours", "slurm", "kube-spread")
PLACED = tuple(Scheduler(name=f"fcfs, {rule}", policy="fcfs", placer=rule) for rule in RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of a run: GPU utilisation, the mean JCT of the jobs that all runs finished is not known, so that of those that
    this one finished, work by eq. 1, what share of held device-seconds several jobs took turns, and CPU seconds."""

    utilization: float
    work_flops_per_s: float
    held: float
    finished: int
    turns: float
    cpu_s: float


def lines(data: Path, seeds: Sequence[int], *, short: bool) -> Iterator[str]:
    """Yield the tables: the paper's schedulers, and unless `short` each rule of placement."""
    schedulers = SCHEDULERS if short else (*SCHEDULERS, *PLACED)
    jobs = SHORT_JOBS if short else JOBS
    found: dict[tuple[str, str], list[Outcome]] = {}
    for seed in seeds:
        with TemporaryDirectory() as folder:
            for (name, network), outcome in _runs(data, Path(folder), schedulers, jobs, seed):
                found.setdefault((name, network), []).append(outcome)
    yield f"the first {jobs} jobs of at most {LARGEST} GPUs, {LOAD:g} times as fast, on {HOSTS * GPUS} GPUs;"
    yield f"seeds {', '.join(map(str, seeds))}; means, and the standard deviation over seeds where there are several"
    yield ""
    yield "| scheduler | GPU utilization | over None | paper | with Crux | over without | paper | of Crux's gain | CPU s |"
    yield "|---|---|---|---|---|---|---|---|---|"
    base, base_gain = found[NONE.name, PLAIN], 0.0
    for scheduler in schedulers:
        plain, crux = found[scheduler.name, PLAIN], found[scheduler.name, CRUX]
        over = [each.utilization / none.utilization - 1 for each, none in zip(plain, base, strict=True)]
        gain = [each.utilization / its.utilization - 1 for each, its in zip(crux, plain, strict=True)]
        base_gain = base_gain or mean(gain)
        left = "" if scheduler == NONE else f"{mean(gain) / base_gain:.0%}" if base_gain else ""
        paper = PAPER.get(scheduler.name, ("", ""))
        yield (
            f"| {scheduler.name} | {mean(each.utilization for each in plain):.2%} | {_spread(over)} | {paper[0]}"
            f" | {mean(each.utilization for each in crux):.2%} | {_spread(gain)} | {paper[1]} | {left}"
            f" | {sum(each.cpu_s for each in (*plain, *crux)):.0f} |"
        )
    yield ""
    yield "| scheduler | devices held | work, PFLOP/s | with Crux | finished | with Crux | device-hours in turns |"
    yield "|---|---|---|---|---|---|---|"
    for scheduler in schedulers:
        plain, crux = found[scheduler.name, PLAIN], found[scheduler.name, CRUX]
        work = [mean(each.work_flops_per_s for each in its) / 1e15 for its in (plain, crux)]
        done = [mean(each.finished for each in its) for its in (plain, crux)]
        yield (
            f"| {scheduler.name} | {mean(each.held for each in plain):.1%} | {work[0]:.2f} | {work[1]:.2f}"
            f" | {done[0]:.0f} | {done[1]:.0f} | {mean(each.turns for each in plain):.1%} |"
        )


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):+.1%}" + (f" ({stdev(values):.1%})" if len(values) > 1 else "")


def _runs(
    data: Path, folder: Path, schedulers: Sequence[Scheduler], jobs: int, seed: int
) -> Iterator[tuple[tuple[str, str], Outcome]]:
    trace, last_s = write_trace(data / "traces/crux_lingjun2023.csv.gz", folder / "jobs.csv", jobs, seed)
    options = ReplayOptions(
        trace=trace,
        cluster=str(write_cluster(folder / "cluster.yaml")),
        seed=seed,
        load=LOAD,
        until_s=last_s / LOAD,
    )
    inputs = load_inputs(options)
    for scheduler in schedulers:
        for network in (PLAIN, CRUX):
            began_s = time.process_time()
            run = replace(options, policy=scheduler.policy, placer=scheduler.placer, network=network)
            result = run_request(run, inputs)
            summary = result.summary
            assert summary.violations == 0
            yield (
                (scheduler.name, network),
                Outcome(
                    utilization=summary.gpu_utilization_mean or 0.0,
                    work_flops_per_s=summary.work_flops_per_s or 0.0,
                    held=summary.utilization_mean,
                    finished=summary.finished,
                    turns=0.0 if result.turns is None else result.turns.share_of_held,
                    cpu_s=time.process_time() - began_s,
                ),
            )


def write_cluster(path: Path) -> Path:
    """Write the file of the cluster; JSON is YAML."""
    topology = {"kind": "clos2", "leaves": HOSTS // HOSTS_A_LEAF, "spines": SPINES, "cables": 4}
    group = {"count": HOSTS, "device": "a100-80gb", "devices": GPUS, "nics": {"count": GPUS, "link": "roce100"}}
    site = {"name": "site", "nodes": [group], "fabric": {"link": "roce100", "topology": topology}}
    path.write_text(json.dumps({"schema": "cellplan.cluster/1", "sites": [site]}))
    return path


def write_trace(source: Path, path: Path, jobs: int, seed: int) -> tuple[Path, float]:
    """Write the first jobs that are not too large, with what they train; return the file and the last arrival."""
    rows = [row for row in read_trace(source).rows if 0 < row.gpus <= LARGEST][:jobs]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("job_id", "submit_time_s", "duration_s", "gpus", "model", "global_batch"))
        for row in rows:
            draw = Random(f"figure 25, {seed}, {row.job_id}")
            size = sum(row.gpus > most for most in SIZES)
            (model,) = draw.choices(list(SHARES), [weights[size] for _, weights in SHARES.values()])
            batch = draw.choice(SAMPLES) * row.gpus
            writer.writerow((row.job_id, row.submit_time_s, row.duration_s, row.gpus, model, batch))
    return path, rows[-1].submit_time_s
