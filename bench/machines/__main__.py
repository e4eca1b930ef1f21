"""Partly used machines: Titan's simulated experiments, the paper's figures beside ours, and how fast the rules are.

    python -m bench.machines traces --data DIR [--trace philly|lingjun] [--head N] [--rules A,B@3600] [--seed 0]
        [--restart 60] [--ends stated|none]
    python -m bench.machines loads --data DIR [--trace ...] [--nodes 512] [--head N] [--loads 0.6,0.8,0.9,0.98]
        [--sizes traced,uniform,powers] [--seeds 5] [--rules A,B@3600] [--keep FILE] [--ends stated|predicted|none]
        [--tree FILE]
    python -m bench.machines profit --data DIR [--trace ...] [--nodes 512] [--head N] [--rules A,B@3600] [--seed 0]
    python -m bench.machines speed [--rules A,B]
    python -m bench.machines gap [--clusters 300] [--seed 0]

DIR holds `philly.csv.gz` and `crux_lingjun2023.csv.gz`. `bench/machines/replay.py` says what is counted and chosen of
`traces`, `bench/machines/loads.py` of `loads`; what `--keep` holds is not run again. A rule B@3600 may move running
jobs every hour. The paper's own traces are not in our data.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from bench.machines.gap import measure_gap
from bench.machines.load_tables import OURS, lines_of, reached, run_all
from bench.machines.loads import DRAWN, Ends, draw_jobs, rule_of
from bench.machines.profit import Profit, measure_profit
from bench.machines.replay import NODES, SIZE, read_jobs, replay
from bench.machines.speed import time_rule
from estimator.host.cpu import cpu_name
from planner.many_jobs.placers.catalogue import PLACERS
from planner.many_jobs.placers.within_bandwidth import Reading
from planner.many_jobs.traces.read import read_trace
from planner.shared.options.simulate import RESTART_S
from profiles.topology_reading import read_topology

TRACES = {"philly": "philly.csv.gz", "lingjun": "crux_lingjun2023.csv.gz"}
PAPER = {
    "titan": (174, 11.7, 1.65),
    "hived": (168, 10.0, 7.03),
    "tiresias": (207, 19.4, 2.78),
    "elasticflow": (334, 38.1, None),
}
"""Nodes in use (Exp#1), fragmentation in % (Exp#2), traffic in GB (Exp#3), on the paper's traces."""
WITH_SHARES = ("titan share=0.1", "titan share=0.1 reading=pairs")
"""Titan within its bandwidth constraint: timed beside the rules as they come."""
PAPER_PROFIT = {"titan": "314", "elasticflow": "256; +41.21%", "tiresias": "71; +316%", "hived": "24; 65 times"}
"""Profit rate, and how far Titan's total is above it (Exp#4, Figures 6(b) and 7)."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.machines", description=__doc__)
    parser.add_argument("experiment", choices=("traces", "loads", "profit", "speed", "gap"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--trace", choices=sorted(TRACES), default="philly")
    parser.add_argument("--head", type=int)
    parser.add_argument("--rules", default=",".join(sorted(PLACERS)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--restart", type=float, default=RESTART_S, help="of traces (default: %(default)s)")
    parser.add_argument("--ends", choices=get_args(Ends), default="stated", help="what rules know of them")
    parser.add_argument("--tree", type=Path, help="of loads: a file of hosts by switch, which are the machines")
    parser.add_argument("--clusters", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=NODES, help="of loads (default: %(default)s)")
    parser.add_argument("--loads", default="0.6,0.8,0.9,0.98", help="default: %(default)s")
    parser.add_argument("--sizes", default=",".join(("traced", *DRAWN)), help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="of loads: 0, 1, ... (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="where runs of loads are kept, a line each")
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, python {platform.python_version()}, seed {options.seed}")
    rules = options.rules.split(",")
    if options.experiment == "speed":
        asked = {*options.rules.split(",")} == PLACERS.keys()
        _print_speed([*rules, *WITH_SHARES] if asked else rules, options.seed)
        return
    if options.experiment == "gap":
        _print_gap(options.clusters, options.seed)
        return
    if options.data is None:
        parser.error(f"{options.experiment}: found no --data, expected the folder of the traces")
    if options.experiment == "profit":
        _print_profit(rules, options)
        return
    if options.experiment == "loads":
        _print_loads(rules, options)
        return
    _print_traces(rules, options)


def _print_traces(rules: Sequence[str], options: argparse.Namespace) -> None:
    path = options.data / TRACES[options.trace]
    jobs = read_jobs(path, options.seed, options.head)
    if options.ends == "none":
        jobs = [replace(job, duration_s=0.0) for job in jobs]
    print(f"{len(jobs)} jobs of {path.name} on {NODES} nodes of {SIZE}, first come, first served\n")
    print(
        "| rule | nodes in use | over the least | machine-hours | fragments | traffic, K | in node order | scattered"
        " | waited | moves, device-hours | run, s | a placement, p99, us | paper: nodes, fragments, GB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for rule in rules:
        name, defragment_s = rule_of(rule)
        found = replay(jobs, name, defragment_s=defragment_s, restart_s=options.restart)
        paper = ", ".join("-" if value is None else str(value) for value in PAPER.get(rule, ()))
        print(
            f"| {rule} | {found.nodes:.1f} | {found.nodes / found.least - 1:.1%} | {found.machine_hours:,.0f} |"
            f" {found.fragmentation:.1%} | {found.traffic:.1f} | {found.traffic_in_node_order:.1f} |"
            f" {found.scattered:.1%} | {found.waited} | {found.moves}, {found.moves_device_hours:.1f} |"
            f" {found.simulation_s:.1f} |"
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


def _print_profit(rules: Sequence[str], options: argparse.Namespace) -> None:
    path = options.data / TRACES[options.trace]
    jobs = draw_jobs(
        read_trace(path).rows, nodes=options.nodes, load=None, sizes="traced", head=options.head, seed=options.seed
    )
    print(f"{len(jobs)} jobs of {path.name} on {options.nodes} nodes of {SIZE}, at each arrival (Exp#4)\n")
    print(
        "| rule | nodes in use | mean JCT, h | K P / (N T), as printed | job by job | sums of both: titan's beside it |"
        " run, s | paper: rate; Titan's total beside it |\n|---|---|---|---|---|---|---|---|"
    )
    titans: Profit | None = None
    for rule in ["titan", *(rule for rule in rules if rule != "titan")]:
        found = measure_profit(jobs, rule, options.nodes)
        titans = titans or found
        cells = (
            f"{found.nodes:.1f}",
            f"{found.jct_s / 3600:.2f}",
            f"{found.as_printed:.2f}",
            f"{found.job_by_job:.2f}",
            f"{titans.as_printed / found.as_printed - 1:+.1%}, {titans.job_by_job / found.job_by_job - 1:+.1%}",
            f"{found.cpu_s:.0f}",
            PAPER_PROFIT.get(rule, ""),
        )
        print(f"| {rule} | {' | '.join(cells)} |", flush=True)


def _print_loads(rules: Sequence[str], options: argparse.Namespace) -> None:
    path = options.data / TRACES[options.trace]
    part = "all jobs" if options.head is None else f"{options.head} jobs in a row, from where the seed draws,"
    tree = None
    if options.tree is not None:
        hosts = read_topology(options.tree)
        tree = hosts.network(tuple(hosts.places))
        options.nodes = len(tree.hosts)
    print(f"{part} of {path.name} on {options.nodes} nodes of {SIZE}, {options.seeds} seeds, ends {options.ends}\n")
    print(
        "| sizes | load | rule | mean JCT, h | wait of 16 and more, h | machine-hours | traffic, PB | scattered |"
        " JCT beside best-fit | machine-hours | traffic | moves, device-hours |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    verdicts = []
    for point, found in run_all(
        read_trace(path).rows,
        rules,
        nodes=options.nodes,
        loads=[float(load) for load in options.loads.split(",")],
        sizes=options.sizes.split(","),
        seeds=range(options.seeds),
        head=options.head,
        trace=options.trace,
        kept=options.keep,
        ends=options.ends,
        tree=tree,
    ):
        print("\n".join(lines_of(point, found)), flush=True)
        verdicts += [reached(point, found, rule) for rule in rules if rule_of(rule)[0] == OURS]
    print("\nours: no more machine-hours than best-fit, at most 1.05 times its traffic, the least mean JCT\n")
    print("\n".join(f"- {verdict}" for verdict in verdicts if verdict is not None))


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
