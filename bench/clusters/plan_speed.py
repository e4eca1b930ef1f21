"""What a plan over granted devices takes: those of a scheduler over sites, one after the other, as a simulation asks.

    python -m bench.clusters.plan_speed [--plans 100] [--seed 0] [--repeats 3] [--json FILE]

Plans of five models (batch 64) on one to four sites of `eight` (`bench.clusters.workloads`), drawn from the seed; two
thirds by `tpa`, the others by `even`. All share what is priced, as a scheduler's do; the first of all, which imports,
is not counted. Milliseconds of the processor a plan, the least of the repeats, each of which begins from nothing; asked
are 50. With `--json` the plans' times, sites and degrees, to be put beside those of another checkout. Everything
modelled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.clusters.workloads import setting
from estimator.host.cpu import cpu_name
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.sites.planners import Planned, Workshop
from planner.many_jobs.scheduling.sites.shapes import Shapes
from profiles.cluster import Cluster

MODELS = ("bert-large", "gpt2-350m", "gpt2-1.3b", "gpt2-4.2b", "opt-6.7b")
BATCH = 64
ASKED_MS = 50.0


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each planner."""
    parser = argparse.ArgumentParser(prog="bench.clusters.plan_speed", description=__doc__)
    parser.add_argument("--plans", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()};", end=" ")
    print(f"seed {options.seed}, asked: {ASKED_MS:.0f} ms each\n")
    shapes = Shapes(setting("eight").cluster)
    Workshop().plan("tpa", Workload(model="gpt2-350m", global_batch=8), part_of(shapes, Random(0), 2))
    runs = [plan_all(shapes, options.plans, options.seed) for _ in range(options.repeats)]
    plans = runs[0][0]
    took_s: dict[str, list[float]] = {}
    for plan, seconds_of_runs in zip(plans, zip(*(seconds for _, seconds in runs), strict=True), strict=True):
        took_s.setdefault(plan["planner"], []).append(min(seconds_of_runs))
    print("| planner | plans | mean | median | most |\n| :-- | --: | --: | --: | --: |")
    for planner, seconds in took_s.items():
        figures = (statistics.fmean(seconds), statistics.median(seconds), max(seconds))
        print(f"| {planner} | {len(seconds)} | " + " | ".join(f"{1e3 * figure:.0f} ms" for figure in figures) + " |")
    if options.json is not None:
        options.json.write_text(json.dumps(plans, indent=1) + "\n", encoding="utf-8")
    return 0


def plan_all(shapes: Shapes, plans: int, seed: int) -> tuple[list[dict[str, Any]], list[float]]:
    """So many plans by a scheduler that knows nothing yet, and the seconds of each."""
    rng, workshop = Random(f"plan speed {seed}"), Workshop()
    made, took_s = [], []
    for number in range(plans):
        planner = "even" if number % 3 == 2 else "tpa"
        workload = Workload(model=rng.choice(MODELS), global_batch=BATCH)
        cluster = part_of(shapes, rng, rng.randint(1, 4))
        start = time.process_time()
        planned = workshop.plan(planner, workload, cluster)
        took_s.append(time.process_time() - start)
        made.append({"planner": planner, "model": workload.model, "cluster": cluster.text, **told(planned)})
    return made, took_s


def part_of(shapes: Shapes, rng: Random, count: int) -> Cluster:
    """A grant of all devices of so many sites of `eight`, as a scheduler has it priced."""
    pools = list(setting("eight").pools.values())
    chosen = [pools[number] for number in sorted(rng.sample(range(len(pools)), count))]
    return shapes.cluster_of(shapes.of([(pool.name, pool.devices) for pool in chosen]).shape)


def told(planned: Planned | None) -> dict[str, Any]:
    """A plan in the figures that two checkouts have to agree on."""
    if planned is None:
        return {"time_s": None}
    setup = planned.setup
    return {
        "time_s": planned.time_s,
        "used": planned.sites,
        "micro_batch": setup.micro_batch,
        "stages": [
            (stage.chunks, stage.dp, stage.tp, [(slot.site, slot.node, slot.index) for slot in stage.slots])
            for stage in setup.stages
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
