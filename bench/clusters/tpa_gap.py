"""How far TPA's plans are from the best: beside the exact search over the same devices, on many small instances.

    python -m bench.clusters.tpa_gap [--instances N] [--seed S] [--json FILE]

An instance is two or three sites of 1 to 4 devices (A100, H100, A40, alike or not, uneven as 2, 4, 1), joined at 1 to
100 Gb/s, a small model and a batch, drawn from the seed. The exact search (`planner.one_job.search`: branch and bound
over plans of several groups) has the same space: 1F1B, every way to share devices, ZeRO, recomputation, micro-batches,
every cut of the layers, devices in their order; its lower bound is proved. It stops after a stated number of families
of plans: then, and where devices out of their order are better, its plan may be worse than TPA's. The estimator prices
both; all modelled.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from estimator.host.cpu import cpu_name
from estimator.pricing.recipe import Recipe
from models_zoo.hugging_face import config_model
from planner.many_jobs.sites.tpa import plan_across
from planner.one_job.search.best import find_best
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import SearchRequest, request_on
from profiles.cluster import Cluster, SiteLink
from profiles.cluster_file import load_cluster

CONFIGS: dict[str, dict[str, object]] = {
    "gpt-6x512": {
        **{"model_type": "gpt2", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8},
        **{"vocab_size": 4096, "max_position_embeddings": 512},
    },
    "llama-6x2048": {
        **{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 16},
        **{"intermediate_size": 8192, "vocab_size": 1024, "max_position_embeddings": 1024},
    },
    "llama-10x4096": {
        **{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 10, "num_attention_heads": 32},
        **{"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 2048},
    },
}
MODELS = tuple(config_model(config, where=name, name=name) for name, config in CONFIGS.items())
GBIT = 1.25e8
RATES = (1, 5, 10, 25, 100)
SHAPES = ((2, 2), (4, 1), (2, 1), (3, 2), (4, 2), (2, 4, 1), (1, 2, 1), (2, 2, 2), (1, 1, 3))
TYPES = ("a100-80gb", "h100", "a40")
LIMIT = 60_000
"""Families of plans that the exact search looks at, at most."""
WITHIN = (0.001, 0.01, 0.05, 0.1, 0.2)


def draw_request(seed: int) -> tuple[str, SearchRequest]:
    """An instance, and what it is in words."""
    rng = Random(f"tpa gap {seed}")
    counts = rng.choice(SHAPES)
    alike = rng.random() < 0.5
    first = rng.choice(TYPES)
    types = [first if alike else rng.choice(TYPES) for _ in counts]
    model, batch = rng.choice(MODELS), rng.choice((8, 12, 16))
    parts = [load_cluster(f"{kind}:1x{count}").sites[0] for kind, count in zip(types, counts, strict=True)]
    sites = tuple(replace(site, name=f"s{number}") for number, site in enumerate(parts))
    links = tuple(
        SiteLink(
            between=(a.name, b.name),
            bandwidth_bytes_per_s=rng.choice(RATES) * GBIT,
            latency_s=rng.choice((5e-4, 2e-3, 1e-2)),
        )
        for a, b in itertools.combinations(sites, 2)
    )
    words = "+".join(f"{count} {kind}" for kind, count in zip(types, counts, strict=True))
    cluster = Cluster(text=words, sites=sites, site_links=links)
    return f"{model.name}, batch {batch}, {words}", make_request(model, cluster, batch)


def make_request(model: Any, cluster: Cluster, batch: int) -> SearchRequest:
    """A search of all devices, 1F1B alone."""
    recipe = Recipe(global_batch=batch, seq_len=model.seq_len)
    return replace(request_on(model, cluster, recipe, constraints=Constraints(schedules=("1f1b",))), limit=LIMIT)


def compare(seed: int) -> dict[str, Any]:
    """One instance: both times, the bound, CPU seconds."""
    words, request = draw_request(seed)
    started = time.process_time()
    across = plan_across(request)
    tpa_cpu_s = time.process_time() - started
    started = time.process_time()
    best = find_best(request)
    return {
        "seed": seed,
        "instance": words,
        "types": len(request.spaces),
        "tpa_s": None if across is None else across.best.time_s,
        "exact_s": best.winner.evaluation.iteration_time_s,
        "bound_s": best.lower_bound,
        "tpa_cpu_s": tpa_cpu_s,
        "exact_cpu_s": time.process_time() - started,
    }


def show(title: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The gap's distribution over some instances."""
    gaps = sorted(row["tpa_s"] / row["exact_s"] - 1 for row in rows if row["tpa_s"] is not None)
    proved = sum(row["bound_s"] >= row["exact_s"] * (1 - 1e-6) for row in rows)
    found = {
        "instances": len(rows),
        "proved": proved,
        "nothing_found": sum(row["tpa_s"] is None for row in rows),
        "mean": statistics.fmean(gaps),
        "median": statistics.median(gaps),
        "p90": gaps[int(0.9 * (len(gaps) - 1))],
        "max": gaps[-1],
        "better": sum(gap < -1e-9 for gap in gaps),
        "within": {str(most): sum(gap <= most for gap in gaps) for most in WITHIN},
        "speedup": sum(row["exact_cpu_s"] for row in rows) / sum(row["tpa_cpu_s"] for row in rows),
        "tpa_cpu_s": statistics.fmean(row["tpa_cpu_s"] for row in rows),
    }
    within = " | ".join(f"{count}" for count in found["within"].values())
    print(
        f"| {title} | {len(rows)} | {proved} | {found['mean']:.2%} | {found['median']:.2%} | {found['p90']:.2%} |"
        f" {found['max']:.2%} | {within} | {found['better']} | {1e3 * found['tpa_cpu_s']:.0f} ms |"
        f" {found['speedup']:.0f} |"
    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench.clusters.tpa_gap", description=__doc__)
    parser.add_argument("--instances", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()};", end=" ")
    print(f"seeds {options.seed} to {options.seed + options.instances - 1}, at most {LIMIT} families of plans\n")
    rows = [compare(seed) for seed in range(options.seed, options.seed + options.instances)]
    names = " | ".join(f"<= {most:.1%}" for most in WITHIN)
    print(f"| instances | n | proved | mean gap | median | p90 | max | {names} | better | TPA's CPU | times less |")
    print("| :-- |" + " --: |" * (8 + len(WITHIN)))
    found = {"all": show("all", rows)}
    for title, kept in (
        ("one type", [row for row in rows if row["types"] == 1]),
        ("several types", [row for row in rows if row["types"] > 1]),
    ):
        if kept:
            found[title] = show(title, kept)
    print("\nThe largest gaps:\n")
    for row in sorted(rows, key=lambda row: -(row["tpa_s"] or float("inf")) / row["exact_s"])[:8]:
        gap = "nothing found" if row["tpa_s"] is None else f"{row['tpa_s'] / row['exact_s'] - 1:.2%}"
        print(f"- seed {row['seed']}: {row['instance']}: {gap}")
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows, **found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
