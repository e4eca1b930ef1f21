"""Crux's experiments, the paper's figures beside ours.

    python -m bench.contention [EXPERIMENT ...] [--cases 1500] [--decisions 10] [--first-seed 0] [--kept FILE]
    python -m bench.contention figure-23 --data DIR [--days 2] [--seeds 2] [--cover 0.9]
    python -m bench.contention figure-24 --data DIR [--days 1] [--fabric clos] [--placement same-switch]

Experiments: figure-16 (100 cases are its short form: --cases 100), held (100 cases at most), speed; without any, all.
What is drawn is said in `bench/contention/cases.py` and `bench/contention/speed.py`. Figures 23 and 24 take lingjun's
trace (DIR holds `traces/`) and have options of their own (--help).
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.contention import figure_16, figure_23, figure_24, held, speed
from estimator.host.cpu import cpu_name
from estimator.network.player.compiling import can_compile

TITLES = {
    "held": "Wrong beliefs, few changes, later begins",
    "figure-16": "Figure 16: parts of Crux, and whole policies, beside the optimum",
    "speed": "What decisions cost",
}

OF_THE_TRACE: dict[str, Callable[[Sequence[str]], None]] = {
    "figure-23": figure_23.main,
    "figure-24": figure_24.main,
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
    parser.add_argument("--decisions", type=int, default=10, help="of 46 jobs, in speed")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, help="figure-16: what is known of cases, to go on from")
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
    if name == "held":
        return held.lines(min(options.cases, 100), options.first_seed)
    if name == "speed":
        return speed.lines(options.decisions, options.first_seed)
    return figure_16.lines(options.cases, options.first_seed, options.kept, options.picture)


if __name__ == "__main__":
    sys.exit(main())
