"""SpinSearch, the exact search and ours: how fast, and how far from the best sites.

    python -m bench.clusters.spin_search [--seed 0] [--placements 10000] [--graphs 1000] [--json FILE]

Graphs are random, with links of 1 to 15 Gb/s and latency by distance. A placement is a choice of sites whose devices
are then taken; devices come back, oldest job first, when a job finds no place. The paper's figure 7 has 10,000 tasks on
eight sites in 2 to 5 s. Times are CPU seconds of this process. `cold`: each placement after a measurement that changed
a link, so that nothing computed before is of use, the topology's checks included. The gap is to the exact search in the
order fewest sites, widest, nearest.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.clusters.site_graphs import random_graph, random_table
from estimator.host.cpu import cpu_name
from planner.many_jobs.sites.choosing import METHODS, Search
from planner.many_jobs.sites.exact import MOST_SITES
from planner.many_jobs.sites.scoring import score_sites
from planner.many_jobs.sites.state import Held, SiteTable
from planner.many_jobs.sites.topology import make_topology

SIZES = (8, 64, 256, 1_000, 4_000, 10_000)
WANTED = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PAPER = {8: "2-5 s"}
CLOSE = 1e-9


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench.clusters.spin_search", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--placements", type=int, default=10_000)
    parser.add_argument("--graphs", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()}")
    print(f"seed {options.seed}")
    found = {
        "speed": [speed(size, options.placements, options.seed) for size in SIZES],
        "gap": gap(options.graphs, options.seed),
        "against": against(options.graphs // 5, options.seed),
    }
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def speed(count: int, placements: int, seed: int) -> dict[str, Any]:
    """Seconds for so many placements over `count` sites; of large graphs and cold ones fewer are made, and scaled."""
    if count == SIZES[0]:
        print("\n## CPU seconds for 10,000 placements\n")
        print("| sites | links | method | placed | seconds | each, cold | paper |")
        print("| --: | --: | :-- | --: | --: | --: | --: |")
    rows: dict[str, Any] = {"sites": count}
    for name in ("spin-search", "spin-search-free", "compact"):
        table = random_table(Random(seed), count)
        made = max(20, min(placements, (6_000_000 if name != "compact" else 100_000) // count))
        warm_s, placed = place_many(table, METHODS[name], made, Random(seed + 1))
        cold_s = place_cold(table, METHODS[name], max(5, 1_000 // count), Random(seed + 2))
        all_s = warm_s / made * 10_000
        rows[name] = {"placements_made": made, "seconds_per_10000": all_s, "cold_s": cold_s, "placed": placed / made}
        told = f"{all_s:.2f}" + (f" (of {made})" if made != 10_000 else "")
        paper = PAPER.get(count, "")
        links = len(table.topology.ends)
        print(f"| {count} | {links} | {name} | {placed / made:.0%} | {told} | {cold_s * 1e3:.2f} ms | {paper} |")
        sys.stdout.flush()
    return rows


def place_many(table: SiteTable, search: Search, placements: int, rng: Random) -> tuple[float, int]:
    """Seconds for so many decisions with their taking and giving back, and how many found a place."""
    count = len(table.topology)
    jobs = [(rng.choice(WANTED), rng.randrange(count)) for _ in range(placements)]
    running: deque[Held] = deque()
    placed = 0
    start = time.process_time()
    for wanted, local in jobs:
        choice = search(table.topology, table.total, wanted, local)
        if choice is None:
            for _ in range(min(len(running), 1 + count // 8)):
                take(table, running.popleft(), times=-1)
            continue
        held = table.split(choice.shares)
        take(table, held)
        running.append(held)
        placed += 1
    return time.process_time() - start, placed


def take(table: SiteTable, held: Held, *, times: int = 1) -> None:
    """Change what the table has free: so many times these devices fewer."""
    for site, number, count in held:
        table.free[number][site] -= times * count
        table.total[site] -= times * count


def place_cold(table: SiteTable, search: Search, placements: int, rng: Random) -> float:
    """Seconds of a decision after a link has changed."""
    topology, spent = table.topology, 0.0
    widths, far, ends = topology.bandwidth_bytes_per_s.tolist(), topology.latency_s.tolist(), topology.ends.tolist()
    for _ in range(placements):
        link = rng.randrange(len(widths))
        widths[link] *= rng.choice((0.8, 1.25))
        far[link] *= rng.choice((0.9, 1.1))
        start = time.process_time()
        rows = [(*pair, width, s) for pair, width, s in zip(ends, widths, far, strict=True)]
        topology = make_topology(topology.names, rows)
        search(topology, table.total, rng.choice(WANTED), rng.randrange(len(topology)))
        spent += time.process_time() - start
    return spent / placements


def gap(graphs: int, seed: int) -> dict[str, Any]:
    """Each method against the exact search, on jobs that need more than one site."""
    names = [name for name in METHODS if name != "exact"]
    tallies = {name: Tally() for name in names}
    seconds = dict.fromkeys(METHODS, 0.0)
    cases = proved = 0
    for number in range(graphs):
        rng = Random(seed * 1_000_003 + number)
        topology = random_graph(rng, rng.randint(4, MOST_SITES), degree=rng.choice((2, 4, 8)))
        free = [rng.choice((0, 2, 4, 8, 8, 16, rng.randint(1, 56))) for _ in range(len(topology))]
        if sum(free) <= max(free):
            continue
        wanted, local = rng.randint(max(free) + 1, sum(free)), rng.randrange(len(topology))
        keys: dict[str, tuple[float, float, float] | None] = {}
        for name, search in METHODS.items():
            start = time.process_time()
            choice = search(topology, free, wanted, local)
            seconds[name] += time.process_time() - start
            keys[name] = None if choice is None else score_sites(topology, choice.sites, local).key
            proved += choice is not None and name == "compact" and choice.proved
        best = keys["exact"]
        if best is None:
            continue
        cases += 1
        for name in names:
            tallies[name].add(keys[name], best)
    print(f"\n## Gap to the exact search: {cases} jobs that need several sites, on 4 to {MOST_SITES} sites\n")
    print(f"(compact proved its answer in {proved / cases:.1%}; losses are means over the jobs equal up to there)")
    heads = "| method | optimal | no place | more sites | fewest | less bandwidth | widest | more latency | ms a job |"
    print(f"\n{heads}\n| :-- |" + " --: |" * 8)
    print(f"| exact | 100.0% | 0.0% | 0.0% | 100.0% | 0.0% | 100.0% | 0.0% | {seconds['exact'] / cases * 1e3:.3f} |")
    rows = {}
    for name in names:
        rows[name] = tallies[name].summary(cases) | {"seconds_a_job": seconds[name] / cases}
        row = rows[name]
        shown = ("optimal", "no_place", "more_sites", "fewest", "less_bandwidth", "widest", "more_latency")
        print(
            f"| {name} | " + " | ".join(f"{row[key]:.1%}" for key in shown) + f" | {row['seconds_a_job'] * 1e3:.3f} |"
        )
    return {"jobs": cases, "proved": proved / cases, "methods": rows}


class Tally:
    """How often a method is optimal, and what it loses: each criterion where the ones before are equal to the best."""

    def __init__(self) -> None:
        self.none = self.same = 0
        self.sites: list[float] = []
        self.width: list[float] = []
        self.far: list[float] = []

    def add(self, key: tuple[float, float, float] | None, best: tuple[float, float, float]) -> None:
        """Count a job in. Sites that no path joins are no place."""
        if key is None or not key[1]:
            self.none += 1
            return
        self.sites.append(key[0] / best[0] - 1)
        if key[0] != best[0]:
            return
        self.width.append(1 - key[1] / best[1] if math.isfinite(best[1]) else 0.0)
        if self.width[-1] > CLOSE:
            return
        self.far.append(key[2] / best[2] - 1 if best[2] else 0.0)
        self.same += self.far[-1] <= CLOSE

    def summary(self, cases: int) -> dict[str, float]:
        """Shares of all jobs, and mean losses."""
        return {
            "optimal": self.same / cases,
            "no_place": self.none / cases,
            "more_sites": _mean(self.sites),
            "fewest": len(self.width) / cases,
            "less_bandwidth": _mean(self.width),
            "widest": len(self.far) / cases,
            "more_latency": _mean(self.far),
        }


def against(graphs: int, seed: int) -> list[dict[str, float]]:
    """Ours against the paper's on graphs that are too large for the exact search."""
    print("\n## Ours against SpinSearch where no optimum is known\n")
    print(
        "| sites | jobs | spin-search as good | fewer sites | as few, wider | as wide, nearer | ours worse | proved |"
    )
    print("|" + " --: |" * 8)
    rows = []
    for size in (64, 256):
        counts, jobs, proved = [0] * 5, 0, 0
        for number in range(graphs):
            rng = Random(seed * 1_000_003 + number)
            table = random_table(rng, size)
            wanted, local = rng.randint(max(table.total) + 1, sum(table.total) // 4), rng.randrange(size)
            ours = METHODS["compact"](table.topology, table.total, wanted, local)
            theirs = METHODS["spin-search"](table.topology, table.total, wanted, local)
            if ours is None or theirs is None:
                continue
            one, two = (score_sites(table.topology, found.sites, local).key for found in (ours, theirs))
            place = next((n + 1 for n in range(3) if one[n] != two[n]), 0)
            counts[4 if one > two else place] += 1
            jobs, proved = jobs + 1, proved + ours.proved
        shares = [count / jobs for count in counts]
        print(f"| {size} | {jobs} | " + " | ".join(f"{share:.1%}" for share in shares) + f" | {proved / jobs:.1%} |")
        rows.append({"sites": size, "jobs": jobs, "as_good": shares[0], "ours_worse": shares[4]})
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


if __name__ == "__main__":
    sys.exit(main())
