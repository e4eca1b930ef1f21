"""Arnold's experiments, the paper's figures beside ours, and a real slurmctld beside our model of it.

    python -m bench.pods [EXPERIMENT ...] [--data DIR] [--seeds 25] [--first-seed 0] [--without-program]
        [--slurm FOLDER]

Experiments: figure-4, figure-5 (with Table 2), figure-7 (with Table 1), figure-8, figure-9, figure-14, speed,
waiting, real-slurm; without any, all of them. DIR holds `traces/lingjun_topo.csv`; without it lingjun's tree is left
out, and figure 14 without the traces beside it (three seeds at most, from --first-seed on). `bench/pods/cases.py` and
`bench/pods/jobs.py` say what is drawn and chosen. `--without-program` leaves HiGHS out of figure 8.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.pods import figure_4, figure_5, figure_7, figure_8, figure_9, figure_14, slurm_trial, speed, waiting
from bench.pods.cases import TABLE_1, lingjun
from bench.pods.real_slurm import find_slurm
from estimator.host.cpu import cpu_name

TITLES = {
    "figure-4": "Figure 4: what is left of a rate over more pods, and the 0.3% inside a pod",
    "figure-5": "Figure 5 and Table 2: placements of 96 GPUs in two pods",
    "figure-7": "Table 1 and figure 7",
    "figure-8": "Figure 8: CPU time of a placement, alpha 0.3, all nodes free (100 pods: 0.3 busy)",
    "figure-9": "Figure 9: a large MoE against the framework's default order",
    "figure-14": "Figure 14: a job for 1,200 of 2,048 nodes, announced four hours before it comes",
    "speed": "What placing costs",
    "waiting": "Start now, or wait: 368 of 1,019 nodes, 97 coming ends",
    "real-slurm": "slurmctld beside our model of its default",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.pods", description=__doc__)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--first-seed", type=int, default=0, help="of figure 14's draws (3: those held out)")
    parser.add_argument("--without-program", action="store_true")
    parser.add_argument("--slurm", type=Path, help="folder of unpacked packages of Slurm")
    options = parser.parse_args(argv)
    wanted = options.experiments or list(TITLES)
    unknown = [name for name in wanted if name not in TITLES]
    if unknown:
        parser.error(f"found {unknown[0]!r}, expected of {', '.join(TITLES)}")
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy"))
    print(f"{cpu_name()}, {os.cpu_count()} cores, python {platform.python_version()}, {packages}")
    for name in wanted:
        print(f"\n## {TITLES[name]}", flush=True)
        for line in _lines(name, options):
            print(line, flush=True)
    return 0


def _lines(name: str, options: argparse.Namespace) -> Iterator[str]:
    match name:
        case "figure-4":
            return figure_4.lines()
        case "figure-5":
            return figure_5.lines()
        case "figure-7":
            return _figure_7(options.data, options.seeds)
        case "figure-8":
            return figure_8.lines(program=not options.without_program)
        case "figure-9":
            return figure_9.lines()
        case "figure-14":
            if options.data is None:
                return iter(["left out: no traces (--data DIR)"])
            return figure_14.lines(options.data, [options.first_seed + nth for nth in range(min(options.seeds, 3))])
        case "speed":
            return speed.lines(options.data)
        case "waiting":
            return waiting.lines()
        case _:
            slurm = find_slurm(options.slurm)
            return iter([f"left out: {slurm}"]) if isinstance(slurm, str) else slurm_trial.lines(slurm)


def _figure_7(data: Path | None, seeds: int) -> Iterator[str]:
    settings = list(TABLE_1)
    topology = None if data is None else data / "traces/lingjun_topo.csv"
    if topology is not None and topology.exists():
        settings.append(lingjun(topology))
    else:
        yield "lingjun's tree is left out: no traces/lingjun_topo.csv (--data DIR)"
    yield f"{seeds} seeds of each of {len(figure_7.ALPHAS)} alphas, 0, 0.3 and 0.5 busy"
    rows = [row for setting in settings for row in figure_7.run(setting, figure_7.ALPHAS, seeds)]
    yield from figure_7.claims(rows)
    yield from figure_7.tables(rows)


if __name__ == "__main__":
    sys.exit(main())
