"""Flows as the player has them beside SimGrid, an independent fluid simulator, on random networks without levels.

SimGrid's Python binding is Debian's `python3-simgrid` or PyPI's `simgrid`; `--python` names a Python that has it.
SimGrid has no strict levels, so that there is one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.network.packets import PacketFlow, fluid_ends

CASES, MOST_FLOWS, MOST_LINKS = 200, 40, 30
FLOWS = Path(__file__).with_name("simgrid_flows.py")
LIMIT_S = 120.0
SAME = 1e-3


def draw_network(rng: random.Random) -> tuple[list[PacketFlow], list[float]]:
    """Return flows over drawn links, each once, and bytes a second of each link."""
    links = rng.randint(1, MOST_LINKS)
    rates = [rng.uniform(1e8, 5e9) for _ in range(links)]
    flows = [
        PacketFlow(
            way=tuple(rng.sample(range(links), rng.randint(1, min(6, links)))),
            packets=rng.randint(10**7, 10**10),
            starts_s=rng.choice((0.0, rng.uniform(0, 5))),
            level=0,
        )
        for _ in range(rng.randint(1, MOST_FLOWS))
    ]
    return flows, rates


def simgrid_ends(flows: Sequence[PacketFlow], bytes_per_s: Sequence[float], python: str) -> list[float]:
    """Return when each flow has ended as SimGrid plays it. Raise RuntimeError where that Python has it not."""
    case = {
        "bytes_per_s": list(bytes_per_s),
        "flows": [{"way": flow.way, "starts_s": flow.starts_s, "bytes": flow.packets} for flow in flows],
    }
    done = subprocess.run(
        [python, str(FLOWS)], input=json.dumps(case), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}")
    ends: list[float] = json.loads(done.stdout.splitlines()[-1])
    return ends


def main(argv: Sequence[str]) -> None:
    """Print how far ends are apart."""
    parser = argparse.ArgumentParser(prog="bench.network simgrid", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", default=sys.executable, help="a Python that imports simgrid (default: this one)")
    options = parser.parse_args(argv)
    errors: list[float] = []
    for case in range(options.cases):
        flows, rates = draw_network(random.Random(f"{options.seed}/{case}"))
        try:
            theirs = simgrid_ends(flows, rates, options.python)
        except RuntimeError as error:
            print(f"not run: {options.python}: {error}")
            return
        ours = fluid_ends(flows, rates)
        errors += [a / b - 1 for a, b in zip(ours, theirs, strict=True)]
    sizes = np.abs(errors)
    print(f"seed {options.seed}; {options.cases} networks of up to {MOST_LINKS} links, {len(errors)} flows\n")
    print("| ends apart, mean | worst | within 0.1% |\n|---|---|---|")
    print(f"| {sizes.mean():.2e} | {sizes.max():.2e} | {(sizes <= SAME).mean():.1%} |")
