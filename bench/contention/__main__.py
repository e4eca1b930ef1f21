"""Crux's experiments, the paper's figures beside ours.

    python -m bench.contention [EXPERIMENT ...] [--cases 1500] [--decisions 20] [--draws N] [--thin 1] [--first-seed 0]
        [--kept FILE] [--picture FILE]
    python -m bench.contention figure-23 --data DIR [--days 2] [--seeds 2] [--cover 0.9]
    python -m bench.contention figure-24 --data DIR [--days 1] [--fabric clos] [--placement same-switch]
    python -m bench.contention figure-25 --data DIR [--short] [--seeds 1]

Experiments: axes (100 cases at most of each fabric), figure-16 (100 cases are its short form: --cases 100),
figures-19-22 (every 17th setting is its short form: --thin 17), held (100 cases at most), queue-pairs
(20 cases at most, each under --draws), speed, views; without any, all seven. What is drawn is said in
`bench/contention/axes.py`, `cases.py`, `testbed_cases.py`, `queue_pairs.py`, `speed.py` and `views.py`. Figures 23 to
25 take lingjun's trace (DIR holds `traces/`) and have options of their own (--help).
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.contention import (
    axes,
    figure_16,
    figure_23,
    figure_24,
    figure_25,
    figures_19_22,
    held,
    queue_pairs,
    speed,
    views,
)
from estimator.host.cpu import cpu_name
from estimator.network.player.compiling import can_compile

TITLES = {
    "axes": "Levels by axis",
    "held": "Wrong beliefs, few changes, later begins",
    "figure-16": "Figure 16: parts of Crux, and whole policies, beside the optimum",
    "figures-19-22": "Figures 19 to 22: the paper's testbed, all batches that fit",
    "speed": "What decisions cost",
    "queue-pairs": "Queue pairs of a stock NCCL",
    "views": "What it takes to see jobs as policies do",
}

OF_THE_TRACE: dict[str, Callable[[Sequence[str]], None]] = {
    "figure-23": figure_23.main,
    "figure-24": figure_24.main,
    "figure-25": figure_25.main,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words and words[0] in OF_THE_TRACE:
        OF_THE_TRACE[words[0]](words[1:])
        return 0
    parser = argparse.ArgumentParser(prog="bench.contention", description=__doc__)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT")
    parser.add_argument("--cases", type=int, default=1500)
    parser.add_argument("--decisions", type=int, default=20, help="of 46 jobs, in speed")
    parser.add_argument(
        "--draws", type=int, help="of clusters of each size, in speed (4); of hashes and ports, in queue-pairs (20)"
    )
    parser.add_argument("--thin", type=int, default=1, help="figures-19-22: of the settings every so many-th")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, help="figure-16, figures-19-22: what is known of cases, to go on from")
    parser.add_argument("--picture", type=Path, help="figure-16: where the distributions go as SVG")
    options = parser.parse_args(argv)
    wanted = options.experiments or list(TITLES)
    unknown = [name for name in wanted if name not in TITLES]
    if unknown:
        parser.error(f"found {unknown[0]!r}, expected of {', '.join(TITLES)}")
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy"))
    print(f"{cpu_name()}, {os.cpu_count()} cores, python {platform.python_version()}, {packages}")
    print("the player's loop is compiled" if can_compile() else "the player's loop is plain Python")
    for name in wanted:
        print(f"\n## {TITLES[name]}\n", flush=True)
        for line in _lines(name, options):
            print(line, flush=True)
    return 0


def _lines(name: str, options: argparse.Namespace) -> Iterator[str]:
    if name == "axes":
        return axes.lines(min(options.cases, 100), options.first_seed)
    if name == "held":
        return held.lines(min(options.cases, 100), options.first_seed)
    if name == "queue-pairs":
        return queue_pairs.lines(min(options.cases, 20), options.draws or 20, options.first_seed)
    if name == "views":
        return views.lines(options.first_seed)
    if name == "speed":
        return speed.lines(options.decisions, options.draws or 4, options.first_seed)
    if name == "figures-19-22":
        return figures_19_22.lines(options.thin, options.kept)
    return figure_16.lines(options.cases, options.first_seed, options.kept, options.picture)


if __name__ == "__main__":
    sys.exit(main())
