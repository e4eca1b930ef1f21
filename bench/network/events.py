"""How many events a second the player goes through, compiled beside plain Python, and how long many flows take to fill.

Jobs of one step: compute, and half-way through it one transfer over so many links of a pool, drawn; every iteration is
played. An event is a compute that ends, a transfer that begins, a mover that ends, or a job that comes or goes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from estimator.network.player.compiling import can_compile
from estimator.network.player.play import Settings, play
from estimator.network.rates import fair_paces, make_ways
from estimator.network.steps import Mover, Playing, Step, Transfer

CASES = ((5, 4, 2, 1_000_000), (13, 30, 4, 400_000), (30, 100, 6, 150_000))
"""Jobs, links, links on a job's way, events a second that are asked for."""
LEVELS = 8
COMPILED_S, PLAIN_S = 40_000.0, 300.0
"""Seconds on the jobs' own clocks, over their number."""
FLOWS, LINKS, HOPS, FILL_S = 2_000, 20_000, 6, 0.020


def draw_jobs(jobs: int, links: int, hops: int, *, levels: int, seed: int) -> list[Playing]:
    """Return jobs that compute for 0.5 to 2 s and send for 0.2 to 1 s when alone, on links of 1 byte/s."""
    rng = random.Random(seed)
    drawn = []
    for _ in range(jobs):
        way = tuple((link, rng.uniform(0.5, 1.0)) for link in sorted(rng.sample(range(links), hops)))
        compute_s, sends_s = rng.uniform(0.5, 2.0), rng.uniform(0.2, 1.0)
        transfer = Transfer(movers=(Mover(way=way, seconds=sends_s),))
        step = Step(compute_s=compute_s, begins_s=compute_s / 2, transfers=(transfer,))
        drawn.append(Playing(steps=(step,), level=rng.randrange(levels)))
    return drawn


def events_per_s(jobs: Sequence[Playing], links: int, until_s: float, *, compiled: bool, times: int = 3) -> float:
    """Return the events in a second of CPU of the quickest of so many runs, of what comes before them too."""
    settings = Settings(exact=True, until_s=until_s, compiled=compiled)
    best = 0.0
    for _ in range(times):
        begin_s = time.process_time()
        events = play(jobs, np.ones(links), settings=settings).events
        best = max(best, events / (time.process_time() - begin_s))
    return best


def fill_s(seed: int) -> tuple[float, float]:
    """Return the CPU seconds, the least of five, in which flows over drawn links get their fair paces, and those over a
    Clos of two tiers with as many."""
    rng = random.Random(seed)
    drawn = [[(link, 1.0) for link in rng.sample(range(LINKS), HOPS)] for _ in range(FLOWS)]
    return _least_s(drawn, LINKS), _least_s(*_clos_flows(rng))


def _clos_flows(rng: random.Random) -> tuple[list[list[tuple[int, float]]], int]:
    """Flows from host to host by a drawn spine: 128 leaves of 16 hosts, 64 spines."""
    leaves, spines, below = 128, 64, 16
    hosts = leaves * below
    up, down = 2 * hosts, 2 * hosts + leaves * spines
    flows = []
    for _ in range(FLOWS):
        source, target = rng.sample(range(hosts), 2)
        spine = rng.randrange(spines)
        first, last = source // below * spines + spine, target // below * spines + spine
        flows.append([(source, 1.0), (up + first, 1.0), (down + last, 1.0), (hosts + target, 1.0)])
    return flows, down + leaves * spines


def _least_s(flows: list[list[tuple[int, float]]], links: int) -> float:
    ways, rates = make_ways(flows, links), np.full(links, 1e10)

    def once() -> None:
        fair_paces(ways, rates)

    return min(_cpu_s(once) for _ in range(5))


def _cpu_s(work: Callable[[], None]) -> float:
    begin_s = time.process_time()
    work()
    return time.process_time() - begin_s


def main(argv: Sequence[str]) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="bench.network events", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args(argv).seed
    print(f"seed {seed}; jitter 1%; plain Python is the same code, not compiled\n")
    print("| jobs | links | on a way | levels | compiled, events/s | us an event | plain | times | asked |")
    print("|---|---|---|---|---|---|---|---|---|")
    for jobs, links, hops, asked in CASES:
        for levels in (1, LEVELS):
            drawn = draw_jobs(jobs, links, hops, levels=levels, seed=seed)
            plain = events_per_s(drawn, links, PLAIN_S / jobs, compiled=False)
            quick = None
            if can_compile():
                events_per_s(drawn, links, 1.0, compiled=True, times=1)
                quick = events_per_s(drawn, links, COMPILED_S / jobs, compiled=True)
            figures = ("no numba", "-", "-")
            if quick is not None:
                figures = (f"{quick:,.0f}", f"{1e6 / quick:.2f}", f"{quick / plain:.0f}")
            print(
                f"| {jobs} | {links} | {hops} | {levels} | {figures[0]} | {figures[1]} | {plain:,.0f} | {figures[2]} |"
                f" {asked:,} |",
                flush=True,
            )
    drawn_s, clos_s = fill_s(seed)
    print(
        f"\n{FLOWS:,} flows over {LINKS:,} links, {HOPS} each: {drawn_s * 1e3:.1f} ms (asked: {FILL_S * 1e3:.0f} ms);"
    )
    print(f"over a Clos of 20,480 links, 4 each: {clos_s * 1e3:.1f} ms")
