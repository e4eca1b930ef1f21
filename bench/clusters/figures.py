"""SpiderFlow's figures 6 to 9 and 12 in the one simulator, the paper's figures beside ours. All modelled.

    python -m bench.clusters.figures [FIGURE ...] --data DIR [--seeds 3] [--workers 2] [--loads 0.1,0.2] [--jobs N]
                                     [--keep DIR] [--json FILE]

`--keep DIR` keeps what came of each simulation in DIR, and takes it from there when asked again: the larger figures run
for hours, and can be run to their end in parts. It is for one state of the program: use another folder for another.

Figures: fig6 fig7 fig8 fig9 fig12. Clusters, jobs and what the paper leaves open: `bench.clusters.workloads`.
DIR holds traces/philly.csv.gz; Helios' trace is not there, so what the paper does with Helios is done with Philly or
NewWorkload. One estimator prices every plan of every policy; one queue serves all (first in, first out); links between
sites are shared evenly by the jobs on both of their ends. Means over seeds, half the 95% interval behind them. Times of
decisions are CPU seconds: placing alone, and with the plans, each charged once in a run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bench.clusters.figures_run import Run, Task, mean_of, run_or_recall
from estimator.host.children import process_pool
from estimator.host.cpu import cpu_name

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""97.5% quantiles of Student's t for so many seeds."""
Options = tuple[tuple[str, Any], ...]
PAPERS: Options = (("spin", "spin-search"), ("trim", False))
POLICIES: dict[str, tuple[str, Options]] = {
    "opportunistic": ("opportunistic", ()),
    "lyra": ("lyra", ()),
    "mast": ("mast", ()),
    "dt-fm": ("dt-fm", ()),
    "spiderflow (paper's)": ("spiderflow", PAPERS),
    "spiderflow (ours)": ("spiderflow", ()),
    "opportunistic, sees links": ("opportunistic", (("planner", "uniform"),)),
    "+SpinSearch": ("spiderflow-no-tpa", (("spin", "spin-search"),)),
    "+TPA": ("spiderflow", PAPERS),
    "TPA alone": ("spiderflow-no-spin", (("trim", False),)),
    "global-ilp": ("global-ilp", (("most", 8),)),
}
BASELINES = ("opportunistic", "lyra", "mast", "dt-fm")
OURS = ("spiderflow (paper's)", "spiderflow (ours)")
LOADS = (0.2, 0.5, 0.8)
SITES = (1, 2, 4, 8, 16, 32, 64)


class Bench:
    """Runs tasks and says what came of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[Run] = []

    def runs(
        self, labels: Sequence[str], *, place: str, source: str, jobs: int, load: float | None, seeds: int | None = None
    ) -> dict[str, list[Run]]:
        """Every policy under every seed, by label; of the jobs at most `--jobs`."""
        jobs = min(jobs, self.options.jobs or jobs)
        tasks = [
            Task(
                label=label,
                policy=POLICIES[label][0],
                options=POLICIES[label][1],
                place=place,
                source=source,
                jobs=jobs,
                load=load,
                seed=seed,
                data=str(self.options.data),
            )
            for seed in range(seeds or self.options.seeds)
            for label in labels
        ]
        work = partial(run_or_recall, self.options.keep)
        if self.options.workers > 1:
            with process_pool(self.options.workers) as pool:
                found = list(pool.map(work, tasks))
        else:
            found = [work(task) for task in tasks]
        keep = ("jct_s", "queue_s", "samples_per_job_s")
        self.rows += [{name: value for name, value in run.items() if name not in keep} for run in found]
        return {label: [run for run in found if run["label"] == label] for label in labels}


def said(values: Sequence[float], text: str = "{:.2f}") -> str:
    """The mean, and half the 95% interval of it."""
    found = text.format(mean(values))
    if len(values) in STUDENT:
        found += " ±" + text.format(STUDENT[len(values)] * stdev(values) / math.sqrt(len(values)))
    return found


def common(runs: dict[str, list[Run]], name: str, labels: Sequence[str]) -> dict[str, list[float]]:
    """By label and seed the mean over the jobs that finished under all of these policies."""
    found: dict[str, list[float]] = {label: [] for label in labels}
    for place in range(len(runs[labels[0]])):
        columns = {label: runs[label][place][name] for label in labels}
        kept = [not any(math.isnan(value) for value in row) for row in zip(*columns.values(), strict=True)]
        for label, column in columns.items():
            found[label].append(mean_of([value for value, keep in zip(column, kept, strict=True) if keep]))
    return found


def table(runs: dict[str, list[Run]]) -> None:
    """A row for each policy."""
    print(
        "| policy | JCT, h | queueing, h | finished | samples/s | samples/s a job | utilisation | over sites |"
        " restarts | placing, ms | scheduling / job time |"
    )
    print("| :-- |" + " --: |" * 10)
    for label, own in runs.items():
        print(
            f"| {label} | {said([mean_of(run['jct_s']) / 3600 for run in own])} |"
            f" {said([mean_of(run['queue_s']) / 3600 for run in own])} |"
            f" {mean(run['finished'] for run in own):.0f} of {own[0]['jobs']} |"
            f" {said([run['samples_per_s'] for run in own], '{:.1f}')} |"
            f" {said([mean(run['samples_per_job_s']) if run['samples_per_job_s'] else 0.0 for run in own], '{:.1f}')} |"
            f" {mean(run['utilisation'] for run in own):.2f} | {mean(run['spread'] for run in own):.1%} |"
            f" {mean(run['restarts'] for run in own):.0f} | {mean(run['placing_mean_s'] for run in own) * 1e3:.2f} |"
            f" {mean(run['scheduling_s'] / max(1e-9, run['ran_s']) for run in own):.4%} |"
        )
    print()


def ratios(runs: dict[str, list[Run]], paper: str) -> None:
    """Baselines over ours in JCT and ours over baselines in throughput, over jobs that both finished."""
    for own in OURS:
        if own not in runs:
            continue
        for other in (label for label in runs if label in BASELINES):
            jct = common(runs, "jct_s", (own, other))
            both = [theirs / ours for theirs, ours in zip(jct[other], jct[own], strict=True) if ours > 0]
            rate = [
                ours["samples_per_s"] / theirs["samples_per_s"]
                for ours, theirs in zip(runs[own], runs[other], strict=True)
                if theirs["samples_per_s"]
            ]
            print(f"- {own} against {other}: JCT {said(both)}x, throughput {said(rate)}x ({paper})")
    print()


def fig6(bench: Bench) -> None:
    """Throughput and JCT on eight sites."""
    for load in bench.options.loads or LOADS:
        print(f"\n## Figure 6: eight sites of 16 devices, first 300 of NewWorkload, load {load}\n")
        runs = bench.runs(
            (*BASELINES, *OURS, "opportunistic, sees links"), place="eight", source="new", jobs=300, load=load
        )
        table(runs)
        ratios(runs, "paper: JCT 1.2-1.3x, throughput 1.12-1.25x")


def fig7(bench: Bench) -> None:
    """Scheduling time, and queueing."""
    print("\n## Figure 7: eight sites of 16 devices, first 300 of NewWorkload and of Philly, load 0.5\n")
    for source in ("new", "philly"):
        labels = ("lyra", "dt-fm", "+SpinSearch", "spiderflow (paper's)", "spiderflow (ours)")
        runs = bench.runs(labels, place="eight", source=source, jobs=300, load=0.5)
        print(f"{source}:\n")
        table(runs)
        for label, own in runs.items():
            decisions = mean(run["decisions"] for run in own)
            placing = mean(run["placing_mean_s"] * run["decisions"] for run in own) / own[0]["jobs"]
            planning = mean(run["planning_s"] for run in own) / own[0]["jobs"]
            print(
                f"- {label}: {placing * 1e3:.2f} ms of placing and {planning * 1e3:.0f} ms of planning a job"
                f" ({decisions:.0f} decisions); 10,000 jobs: {placing * 1e4:.1f} s and {planning * 1e4:.0f} s"
            )
        print()
    print(
        "Paper, 10,000 jobs: SpinSearch 2-5 s, DT-FM and ILP up to 180 s; queueing of SpinSearch between ILP and Lyra."
    )
    print("\nglobal-ilp, which is for small instances, on the first 30 of NewWorkload:\n")
    small = ("dt-fm", "spiderflow (paper's)", "spiderflow (ours)", "global-ilp")
    runs = bench.runs(small, place="eight", source="new", jobs=30, load=0.2, seeds=1)
    table(runs)
    for label, own in runs.items():
        print(f"- {label}: {own[0]['scheduling_s'] / own[0]['jobs']:.2f} s of scheduling a job, plans included")


def fig8(bench: Bench) -> None:
    """Utilisation over time on 3,072 devices."""
    labels = (*BASELINES, *OURS)
    load: float | None
    for load in (None, 1.2):
        runs = bench.runs(labels, place="six", source="philly", jobs=10_000, load=load)
        offered = runs[labels[0]][0]["offered"]
        print(f"\n## Figure 8: six sites of 512 devices, first 10,000 of Philly, load {offered:.2f}\n")
        table(runs)
        ratios(runs, "paper: fastest ramp-up, highest peak, earliest end, no numbers")
        print("Utilisation over the run, mean over seeds, ten equal parts of each run's length, peak and makespan:\n")
        for label, own in runs.items():
            curves = [[share for _, share in run["curve"]] for run in own]
            tenths = [mean(curve[4 * n : 4 * n + 4][k] for curve in curves for k in range(4)) for n in range(10)]
            peak = mean(max(curve) for curve in curves)
            days = mean(run["makespan_s"] for run in own) / 86400
            print(f"- {label}: {' '.join(f'{one:.2f}' for one in tenths)}; peak {peak:.2f}; {days:.1f} days")


def fig9(bench: Bench) -> None:
    """The breakdown."""
    labels = ("opportunistic", "+SpinSearch", "+TPA", "TPA alone", "spiderflow (ours)")
    for load in bench.options.loads or (0.5, 1.0):
        print(f"\n## Figure 9: eight sites of 16 devices, first 1,000 of Philly, load {load}\n")
        runs = bench.runs(labels, place="eight", source="philly", jobs=1000, load=load)
        table(runs)
        print("| | queueing | paper, Philly | paper, Helios | JCT | paper, Philly | paper, Helios |")
        print("| :-- | --: | --: | --: | --: | --: | --: |")
        paper = {
            "opportunistic": (1, 1, 1, 1),
            "+SpinSearch": (0.82, 0.79, 0.87, 0.84),
            "+TPA": (0.73, 0.71, 0.79, 0.78),
        }
        queue, jct = common(runs, "queue_s", labels), common(runs, "jct_s", labels)
        for label in labels:
            theirs = [f"{value:.2f}" for value in paper.get(label, ())] or [""] * 4
            shares = [
                said([one / base for one, base in zip(found[label], found["opportunistic"], strict=True) if base > 0])
                for found in (queue, jct)
            ]
            print(f"| {label} | {shares[0]} | {theirs[0]} | {theirs[1]} | {shares[1]} | {theirs[2]} | {theirs[3]} |")


def fig12(bench: Bench) -> None:
    """JCT by the number of sites, and what a decision takes."""
    labels = ("opportunistic", "lyra", "mast", *OURS)
    print("\n## Figure 12: N sites of 56 devices, first 10,000 of Philly as they are (the paper's are Helios')\n")
    print("| sites | " + " | ".join(f"JCT {label}, h" for label in labels) + " |")
    print("| --: |" + " --: |" * len(labels))
    decided: list[str] = []
    for count in SITES:
        runs = bench.runs(labels, place=f"many-{count}", source="philly", jobs=10_000, load=None)
        jct = common(runs, "jct_s", labels)
        cells = [said([value / 3600 for value in jct[label]]) for label in labels]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)
        for label in labels:
            own = runs[label]
            decided.append(
                f"| {count} | {label} | {mean(run['placing_mean_s'] for run in own) * 1e3:.2f} ms |"
                f" {mean(run['placing_p99_s'] for run in own) * 1e3:.2f} ms |"
                f" {mean(run['planning_s'] for run in own):.0f} s of {mean(run['plans'] for run in own):.0f} plans |"
                f" {mean(run['scheduling_s'] / run['ran_s'] for run in own):.5%} |"
            )
    print("\n| sites | policy | placing, mean | p99 | planning | scheduling / job time (paper: below 1%) |")
    print("| --: | :-- | --: | --: | --: | --: |")
    print("\n".join(decided))


FIGURES: dict[str, Callable[[Bench], None]] = {"fig6": fig6, "fig7": fig7, "fig8": fig8, "fig9": fig9, "fig12": fig12}


def _loads(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.clusters.figures", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--loads", type=_loads, help="of figures 6 and 9, in place of theirs")
    parser.add_argument("--jobs", type=int, help="the first N jobs at most")
    parser.add_argument("--keep", type=Path, help="a folder of what came of each simulation")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    unknown = [name for name in options.figures if name not in FIGURES]
    if unknown:
        parser.error(f"found {unknown[0]!r}, expected of {', '.join(FIGURES)}")
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()}")
    print(f"seeds 0 to {options.seeds - 1}")
    bench = Bench(options)
    for name in options.figures or FIGURES:
        FIGURES[name](bench)
        sys.stdout.flush()
        if options.json is not None:
            options.json.write_text(json.dumps(bench.rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
