"""Partly used machines: Titan's simulated experiments, the paper's figures beside ours, and how fast the rules are.

    python -m bench.machines traces --data DIR [--trace philly|lingjun] [--head N] [--rules A,B] [--seed 0]
    python -m bench.machines speed [--rules A,B]
    python -m bench.machines gap [--clusters 300] [--seed 0]

DIR holds `philly.csv.gz` and `crux_lingjun2023.csv.gz`. `bench/machines/replay.py` says what is counted and chosen. The
paper's own traces are not in our data.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from bench.machines.gap import measure_gap
from bench.machines.replay import NODES, SIZE, read_jobs, replay
from bench.machines.speed import time_rule
from estimator.host.cpu import cpu_name
from planner.many_jobs.placers.catalogue import PLACERS
from planner.many_jobs.placers.within_bandwidth import Reading

TRACES = {"philly": "philly.csv.gz", "lingjun": "crux_lingjun2023.csv.gz"}
PAPER = {
    "titan": (174, 11.7, 1.65),
    "hived": (168, 10.0, 7.03),
    "tiresias": (207, 19.4, 2.78),
    "elasticflow": (334, 38.1, None),
}
"""Nodes in use (Exp#1), fragmentation in % (Exp#2), traffic in GB (Exp#3), on the paper's traces."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.machines", description=__doc__)
    parser.add_argument("experiment", choices=("traces", "speed", "gap"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--trace", choices=sorted(TRACES), default="philly")
    parser.add_argument("--head", type=int)
    parser.add_argument("--rules", default=",".join(sorted(PLACERS)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clusters", type=int, default=300)
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, python {platform.python_version()}, seed {options.seed}")
    rules = options.rules.split(",")
    if options.experiment == "speed":
        _print_speed(rules, options.seed)
        return
    if options.experiment == "gap":
        _print_gap(options.clusters, options.seed)
        return
    if options.data is None:
        parser.error("traces: found no --data, expected the folder of the traces")
    _print_traces(rules, options.data / TRACES[options.trace], options.seed, options.head)


def _print_traces(rules: Sequence[str], path: Path, seed: int, head: int | None) -> None:
    jobs = read_jobs(path, seed, head)
    print(f"{len(jobs)} jobs of {path.name} on {NODES} nodes of {SIZE}, first come, first served\n")
    print(
        "| rule | nodes in use | over the least | machine-hours | fragments | traffic, K | in node order | scattered"
        " | waited | run, s | a placement, p99, us | paper: nodes, fragments, GB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for rule in rules:
        found = replay(jobs, rule)
        paper = ", ".join("-" if value is None else str(value) for value in PAPER.get(rule, ()))
        print(
            f"| {rule} | {found.nodes:.1f} | {found.nodes / found.least - 1:.1%} | {found.machine_hours:,.0f} |"
            f" {found.fragmentation:.1%} | {found.traffic:.1f} | {found.traffic_in_node_order:.1f} |"
            f" {found.scattered:.1%} | {found.waited} | {found.simulation_s:.1f} |"
            f" {found.placement_mean_s * 1e6:.0f}, {found.placement_p99_s * 1e6:.0f} | {paper} |",
            flush=True,
        )
    print(f"\nleast nodes that would hold what is held, the last rule: {found.least:.1f}")


def _print_gap(clusters: int, seed: int) -> None:
    print(f"\nTitan's problem with its bandwidth constraint: our search beside HiGHS, {clusters} drawn clusters\n")
    readings: tuple[Reading, ...] = ("pairs", "links")
    for reading in readings:
        gap = measure_gap(reading, clusters, seed)
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(gap.outcomes.items()))
        print(
            f"{reading}: {outcomes}; traffic above the least {gap.above_mean:.2%} in the mean, {gap.above_most:.2%} at"
            f" most; search {gap.search_s:.1f} s, HiGHS {gap.exact_s:.1f} s of CPU"
        )


def _print_speed(rules: Sequence[str], seed: int) -> None:
    print("\n| rule | 1,000 nodes: mean, p99, ms | 10,000 nodes |\n|---|---|---|")
    for rule in rules:
        cells = []
        for nodes in (1000, 10_000):
            mean_s, p99_s = time_rule(rule, nodes, seed=seed)
            cells.append(f"{mean_s * 1e3:.2f}, {p99_s * 1e3:.2f}")
        print(f"| {rule} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
