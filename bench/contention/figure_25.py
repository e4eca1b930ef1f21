"""Figure 25: Crux together with job schedulers, and how much of its gain better placement leaves.

The first jobs of lingjun's trace of no more than a quarter of the devices arrive `LOAD` times as fast on 32 hosts of 8
A100s with 8 NICs of 100 Gbit/s, 4 hosts under a leaf, as many cables up as down: what `simulate --policy P --placer R
--network N` does. What they train is drawn by the seed as in figures 23 and 24 (`stand_ins.py`); each runs the plan
that its Cell has, for as many iterations as that makes in the trace's duration. GPU utilisation is the share of all
device-seconds in which devices compute, up to the last arrival.

"None" is first come, first served on devices drawn at random, ways by ECMP. HiveD is the policy `hived` (the trace
names no virtual clusters: one owns all cells). Muri is the policy `muri` on devices drawn at random, and on those of
`same-switch`.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from bench.contention.cases import SAMPLES
from bench.contention.stand_ins import SHARES, SIZES
from planner.many_jobs.simulation.run import load_inputs, run_request
from planner.many_jobs.traces.read import read_trace
from planner.shared.options.simulate import ReplayOptions
from profiles.records import replace

HOSTS, HOSTS_A_LEAF, SPINES, GPUS = 32, 4, 8, 8
LARGEST = HOSTS * GPUS // 4
LOAD = 10.0
JOBS = 80
PLAIN, CRUX = "ecmp", "crux"
PAPER = {"hived": ("+25%", "+11%"), "muri": ("+20%", "+14%")}
"""Over None without Crux, and with Crux over itself without (section 6.4)."""
NONE = "fcfs, random"
RULES = ("best-fit", "same-switch", "buddy", "arnold", "hived-cells", "hived", "titan", "ours", "slurm", "kube-spread")
SCHEDULERS: dict[str, tuple[str, str]] = {
    NONE: ("fcfs", "random"),
    "hived": ("hived", "best-fit"),
    "muri": ("muri", "random"),
    "muri, same-switch": ("muri", "same-switch"),
    **{f"fcfs, {rule}": ("fcfs", rule) for rule in RULES},
}
"""Policies with rules of placement. `hived` names nodes itself."""
SHORT = (NONE, "hived", "muri", "fcfs, same-switch")

Row = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    """Print the tables; every run's figures are kept, and not made again."""
    parser = argparse.ArgumentParser(prog="bench.contention figure-25", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds traces/")
    parser.add_argument("--jobs", type=int, default=JOBS, help="(default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--short", action="store_true", help=f"of the schedulers only {'; '.join(SHORT)}")
    parser.add_argument("--keep", type=Path, help="lines of results, to which this run adds")
    options = parser.parse_args(argv)
    there = options.keep is not None and options.keep.exists()
    rows: list[Row] = [json.loads(line) for line in options.keep.read_text().splitlines()] if there else []
    rows = [row for row in rows if row["jobs"] == options.jobs]
    done = {(row["scheduler"], row["network"], row["seed"]) for row in rows}
    for seed in range(options.seeds):
        names = list(SHORT) if options.short else list(SCHEDULERS)
        wanted = [(name, network) for name in names for network in (PLAIN, CRUX) if (name, network, seed) not in done]
        for row in run_some(options.data, wanted, options.jobs, seed):
            rows.append(row)
            if options.keep is not None:
                with options.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    for line in tables(rows):
        print(line)


def run_some(data: Path, wanted: Sequence[tuple[str, str]], jobs: int, seed: int) -> Iterator[Row]:
    """Yield the figures of each scheduler on each network."""
    if not wanted:
        return
    with TemporaryDirectory() as folder:
        source = data / "traces/crux_lingjun2023.csv.gz"
        trace, last_s = write_trace(source, Path(folder) / "jobs.csv", jobs, seed)
        cluster = write_cluster(Path(folder) / "cluster.yaml")
        options = ReplayOptions(trace=trace, cluster=str(cluster), seed=seed, load=LOAD, until_s=last_s / LOAD)
        inputs = load_inputs(options)
        for name, network in wanted:
            policy, placer = SCHEDULERS[name]
            began_s = time.process_time()
            result = run_request(replace(options, policy=policy, placer=placer, network=network), inputs)
            summary = result.summary
            assert summary.violations == 0
            yield {
                "scheduler": name,
                "network": network,
                "seed": seed,
                "jobs": jobs,
                "utilization": summary.gpu_utilization_mean,
                "work_flops_per_s": summary.work_flops_per_s,
                "held": summary.utilization_mean,
                "waiting": summary.waiting_mean,
                "finished": summary.finished,
                "slowdown": summary.slowdown_by_others_mean,
                "turns": 0.0 if result.turns is None else result.turns.share_of_held,
                "cpu_s": time.process_time() - began_s,
            }


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what each scheduler makes of the devices, without Crux and with it, beside the paper."""
    by_run = {(row["scheduler"], row["network"], row["seed"]): row for row in rows}
    names = [name for name in SCHEDULERS if any(row["scheduler"] == name for row in rows)]
    seeds = sorted({row["seed"] for row in rows})
    if not rows or (NONE, PLAIN, seeds[0]) not in by_run:
        return
    yield f"the first {rows[0]['jobs']} jobs of at most {LARGEST} GPUs, {LOAD:g} times as fast, on {HOSTS * GPUS} GPUs;"
    yield f"seeds {', '.join(map(str, seeds))}: means, and in brackets the standard deviation over seeds"
    yield ""
    heads = ("policy, rule", "GPU utilization", "over None", "paper", "with Crux", "over without", "paper")
    yield f"| {' | '.join(heads)} | of the gain at None | held | in turns | waiting | CPU s |"
    yield "|" + "---|" * 12
    at_none = 0.0
    for name in names:
        pairs = [(by_run.get((name, PLAIN, seed)), by_run.get((name, CRUX, seed)), seed) for seed in seeds]
        both = [(plain, crux, seed) for plain, crux, seed in pairs if plain is not None and crux is not None]
        if not both:
            continue
        over = [plain["utilization"] / by_run[NONE, PLAIN, seed]["utilization"] - 1 for plain, _, seed in both]
        gain = [crux["utilization"] / plain["utilization"] - 1 for plain, crux, _ in both]
        at_none = mean(gain) if name == NONE else at_none
        paper = PAPER.get(name, ("", ""))
        left = f"{mean(gain) / at_none:.0%}" if at_none > 0 else ""
        figures = [mean(plain[key] for plain, _, _ in both) for key in ("utilization", "held", "turns", "waiting")]
        yield (
            f"| {name} | {figures[0]:.2%} | {_spread(over)} | {paper[0]}"
            f" | {mean(crux['utilization'] for _, crux, _ in both):.2%} | {_spread(gain)} | {paper[1]} | {left}"
            f" | {figures[1]:.1%} | {figures[2]:.1%} | {figures[3]:.1f}"
            f" | {sum(plain['cpu_s'] + crux['cpu_s'] for plain, crux, _ in both):.0f} |"
        )


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):+.1%}" + (f" ({stdev(values):.1%})" if len(values) > 1 else "")


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
