"""Speed of the exact assembly search beside the enumeration of all 2^Ns, in one process on one core.

python -m bench.assembly [--seed 0] [--repeats 7]
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from estimator.cells.assembly import AssemblyProblem, assemble_enumerate, assemble_exact
from estimator.cells.latency import LATENCY

TARGET_S = 0.050  # for 64 stages


def random_problem(rng: random.Random, stages: int) -> AssemblyProblem:
    """Two options a stage, B = 4 Ns; the faster in a micro-batch tends to have the longer tail."""
    time_s, tail_s = [], []
    for _ in range(stages):
        gain = rng.random()
        time_s.append((2 - gain + 0.2 * rng.random(), 1.5 + 0.2 * rng.random()))
        tail_s.append((stages * gain, 0.1 * stages * rng.random()))
    transfer_s = tuple(tuple((0.3 * rng.random(), 0.3 * rng.random()) for _ in range(2)) for _ in range(stages - 1))
    return AssemblyProblem(time_s=tuple(time_s), tail_s=tuple(tail_s), transfer_s=transfer_s, micro_batches=4 * stages)


def fastest_s(call: Callable[[], object], repeats: int) -> float:
    """Least wall seconds of `repeats` calls: the figure that a busy machine disturbs least."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def machine() -> str:
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text(encoding="utf-8").splitlines() if cpu_info.exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{cpu}, {platform.system()}, Python {platform.python_version()}, numpy {np.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(f"{machine()}; one core; seed {args.seed}; minimum of {args.repeats}")
    print(f"{'formula':<10}{'Ns':>5}{'exact ms':>11}{'2^Ns ms':>11}{'ratio':>9}  same")
    slowest_s = 0.0
    for latency in LATENCY:
        for stages in (4, 8, 12, 16, 20, 64, 256):
            problem = random_problem(random.Random(args.seed), stages)
            exact_s = fastest_s(lambda: assemble_exact(problem, latency), args.repeats)  # noqa: B023
            row = f"{latency:<10}{stages:>5}{1e3 * exact_s:>11.2f}"
            if stages <= 20:
                every_s = fastest_s(lambda: assemble_enumerate(problem, latency), min(args.repeats, 3))  # noqa: B023
                same = assemble_exact(problem, latency) == assemble_enumerate(problem, latency)
                row += f"{1e3 * every_s:>11.2f}{every_s / exact_s:>9.2f}  {same}"
            print(row)
            slowest_s = max(slowest_s, exact_s) if stages == 64 else slowest_s
    print(f"64 stages: {1e3 * slowest_s:.1f} ms, {slowest_s / TARGET_S:.2f} of the target of {1e3 * TARGET_S:.0f} ms")


if __name__ == "__main__":
    main()
