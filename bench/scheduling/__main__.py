"""Crius' experiments (sections 2.2 and 8.3 to 8.7) in simulation, the paper's figures beside ours.

    python -m bench.scheduling [EXPERIMENT ...] --data DIR [--seeds 3] [--workers 2] [--cells FOLDER] [--json FILE]
                               [--policies NAME,...]

DIR holds the traces; experiments: parallelism, testbed, large, moderate, low, deadlines, ablation, depth, today. With
`--policies` these of each experiment alone, without what is said of all beside each other. One
estimator serves all policies, and nothing is tuned: jobs of the trace get models (Crius, table 2), pools and deadlines
by seed, rounds are five minutes, a restart takes 60 s and the checkpoint's bytes at 2 GB/s. Every policy sees the same
jobs under a seed. Throughput is the sum of rates relative to the Cell asked for, averaged over the span in which jobs
arrive; JCT and queueing are those of all jobs, which run until the last one ends.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench.scheduling.experiments import EXPERIMENTS, Claim, Experiment, prepare
from bench.scheduling.task import BOUND, Run, run_task
from estimator.host.children import process_pool
from estimator.host.cpu import cpu_name

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5% quantiles of Student's t for so many seeds."""
FIGURES = {
    "jct": ("JCT", "jct_mean_s", 1 / 3600, "{:.2f} h"),
    "queueing": ("queueing", "queue_mean_s", 1 / 3600, "{:.2f} h"),
    "throughput": ("throughput", "throughput", 1.0, "{:.1f}"),
    "peak": ("peak", "throughput_peak", 1.0, "{:.1f}"),
    "finished": ("in time", "in_span", 1.0, "{:.0f}"),
    "restarts": ("restarts", "restarts_mean", 1.0, "{:.2f}"),
    "deadlines": ("deadlines met", "deadlines_met_ratio", 1.0, "{:.3f}"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.scheduling", description=__doc__)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cells", type=Path, default=Path("out/cells"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--policies", type=lambda names: tuple(names.split(",")))
    options = parser.parse_args(argv)
    known = {one.name: one for one in EXPERIMENTS}
    wanted = options.experiments or ["parallelism", *known]
    unknown = [name for name in wanted if name not in known and name != "parallelism"]
    if unknown:
        parser.error(f"found {unknown[0]!r}, expected of parallelism, {', '.join(known)}")
    options.cells.mkdir(parents=True, exist_ok=True)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()}")
    rows: dict[str, Any] = {}
    for name in wanted:
        if name == "parallelism":
            from bench.scheduling.parallelism import print_parallelism

            rows[name] = print_parallelism()
        else:
            rows[name] = run_experiment(known[name], options)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def run_experiment(one: Experiment, options: argparse.Namespace) -> list[Run]:
    """Simulate every policy under every seed, and print the table and the claims."""
    if options.policies:
        one = replace(one, policies=tuple(name for name in one.policies if name in options.policies), claims=())
    beside = () if options.policies else (BOUND,)
    inputs = [prepare(one, options.data, options.cells, seed) for seed in range(options.seeds)]
    print(f"\n## {one.name}: {one.title}\n")
    print(
        f"{len(inputs[0].jobs)} jobs on {one.cluster}, {options.seeds} seeds; as submitted they would keep all devices"
        f" busy {inputs[0].offered:.2f} of the time (durations times {inputs[0].factor:.3g})"
    )
    for note in one.notes:
        print(f"({note})")
    tasks = [
        (one.name, policy, seed, str(options.data), str(options.cells))
        for seed in range(options.seeds)
        for policy in (*one.policies, *beside)
    ]
    if options.workers > 1:
        with process_pool(options.workers) as pool:
            runs = list(pool.map(run_task, tasks))
    else:
        runs = [run_task(task) for task in tasks]
    print_table(one, runs)
    for sentence in beside_bound(one, runs) if beside else ():
        print(f"- {sentence}")
    for claim in one.claims:
        print(f"- {check(claim, one, runs)}")
    sys.stdout.flush()
    return runs


def print_table(one: Experiment, runs: Sequence[Run]) -> None:
    """A row for each policy: means over seeds, with 95% of the mean's range behind JCT."""
    shown = [name for name in FIGURES if name != "deadlines" or one.deadlines]
    print("\n| policy | " + " | ".join(FIGURES[name][0] for name in shown) + " | decision p99 (CPU) | CPU |")
    print("| :-- |" + " --: |" * (len(shown) + 2))
    for policy in one.policies:
        own = [run for run in runs if run["policy"] == policy]
        cells = []
        for name in shown:
            _, key, scale, text = FIGURES[name]
            values = [run[key] * scale for run in own if run[key] is not None]
            said = text.format(mean(values)) if values else "-"
            if name == "jct" and len(values) in STUDENT:
                said += f" ±{STUDENT[len(values)] * stdev(values) / math.sqrt(len(values)):.2f}"
            cells.append(said)
        slowest = max(run["decision_p99_cpu_s"] for run in own) * 1e3
        print(f"| {policy} | {' | '.join(cells)} | {slowest:.1f} ms | {mean(run['cpu_s'] for run in own):.0f} s |")
    print()


def beside_bound(one: Experiment, runs: Sequence[Run]) -> list[str]:
    """What no policy can beat, and how far from it the best policies are; means over seeds."""

    def of(policy: str, key: str) -> float:
        return float(mean(run[key] for run in runs if run["policy"] == policy))

    shortest = min(one.policies, key=lambda policy: of(policy, "jct_mean_s"))
    busiest = max(one.policies, key=lambda policy: of(policy, "throughput"))
    jct_s, throughput = of(BOUND, "jct_mean_s"), of(BOUND, "throughput")
    return [
        f"no policy has a JCT below {jct_s / 3600:.2f} h: {shortest}, the best here, is at"
        f" {of(shortest, 'jct_mean_s') / jct_s:.2f} times that",
        f"none has a throughput above {throughput:.1f}: {busiest}, the best here, is at"
        f" {of(busiest, 'throughput') / throughput:.0%} of it",
    ]


def check(claim: Claim, one: Experiment, runs: Sequence[Run]) -> str:
    """A sentence: the paper's figure and ours, from means over seeds."""
    label, key, _, _ = FIGURES[claim.figure]

    def of(policy: str) -> float:
        return float(mean(run[key] for run in runs if run["policy"] == policy and run[key] is not None))

    own = of(claim.policy)
    if not claim.beside:
        return f"{label} of {claim.policy}: {own:.2f} (paper, {claim.where}: {claim.value:.2f})"
    beside = claim.beside
    if beside == "weakest":
        baselines = [name for name in one.policies if name in ("fcfs", "gandiva", "gavel", "elasticflow-ls")]
        worst = max if claim.figure in ("jct", "queueing") else min
        beside = worst(baselines, key=of)
    theirs = of(beside)
    ratio = own / theirs if theirs else math.nan
    return f"{label}, {claim.policy} to {beside}: {ratio:.3f} (paper, {claim.where}: {claim.value:.3f})"


if __name__ == "__main__":
    sys.exit(main())
