"""Arnold's simulation experiments (section 7.1), the paper's figures beside ours.

    python -m bench.pods [figure-7|figure-8 ...] [--data DIR] [--seeds 25] [--without-program]

DIR holds `traces/lingjun_topo.csv`; without it lingjun's tree is left out. `bench/pods/cases.py` says what is drawn.
`--without-program` leaves HiGHS out of figure 8.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench.pods import figure_7, figure_8
from bench.pods.cases import TABLE_1, lingjun
from estimator.host.cpu import cpu_name

EXPERIMENTS = ("figure-7", "figure-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.pods", description=__doc__)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--without-program", action="store_true")
    options = parser.parse_args(argv)
    wanted = options.experiments or EXPERIMENTS
    unknown = [name for name in wanted if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"found {unknown[0]!r}, expected of {', '.join(EXPERIMENTS)}")
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy"))
    print(f"{cpu_name()}, {os.cpu_count()} cores, python {platform.python_version()}, {packages}")
    if "figure-7" in wanted:
        _figure_7(options.data, options.seeds)
    if "figure-8" in wanted:
        print("\n## Figure 8: CPU time of a placement, alpha 0.3, all nodes free (100 pods: 0.3 busy)")
        for line in figure_8.lines(program=not options.without_program):
            print(line, flush=True)
    return 0


def _figure_7(data: Path | None, seeds: int) -> None:
    settings = list(TABLE_1)
    topology = None if data is None else data / "traces/lingjun_topo.csv"
    if topology is not None and topology.exists():
        settings.append(lingjun(topology))
    else:
        print("lingjun's tree is left out: no traces/lingjun_topo.csv (--data DIR)")
    print(f"\n## Table 1 and figure 7: {seeds} seeds of each of {len(figure_7.ALPHAS)} alphas, 0, 0.3 and 0.5 busy")
    rows = [row for setting in settings for row in figure_7.run(setting, figure_7.ALPHAS, seeds)]
    for lines in (figure_7.claims(rows), figure_7.tables(rows)):
        for line in lines:
            print(line)


if __name__ == "__main__":
    sys.exit(main())
