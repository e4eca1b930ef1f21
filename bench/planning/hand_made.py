"""Plans made by hand against the proved one: is any of them ever faster than what no plan can be faster than?

    python -m bench.planning.hand_made [--family dense|moe|mixed|sites|pods] [--cases 12] [--plans 40] [--seed 0]

Each case draws a model, a cluster and a batch, and asks `plan` for the fastest plan and its proof. Then settings are
drawn as a person would type them (degrees, micro-batch, chunks, recomputation, sharding, sequence parallelism), and
each is priced as `estimate` of one explicit plan, which shares the price of a plan with the search and nothing else.
One that fits and is faster than the proved plan is a fault, and so is one that fits where the search says that nothing
does.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from estimator.host.cpu import cpu_name
from planner import api
from profiles.errors import InputError, NothingFits

SAME = 1e-9
"""A plan is faster that takes less time by more than this share: bulk prices are those of each plan to rounding."""
MOST_TRIES = 30
"""Settings drawn for each plan that is wanted: most contradict each other, or do not fit."""
MOST_FAMILIES = 2000
"""A search of more families of plans is ended without a proof, and claims nothing."""
SITES = """schema: cellplan.cluster/1
sites:
  - {{name: north, nodes: [{{count: {north}, device: {device}, devices: {devices}}}]}}
  - {{name: south, nodes: [{{count: {south}, device: {other}, devices: {devices}}}]}}
links_between_sites:
  - {{between: [north, south], bandwidth_bytes_per_s: {rate}, latency_s: {latency}}}
"""
PODS = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{{count: {nodes}, device: {device}, devices: {devices}}}]
    fabric:
      link: ib-hdr200
      levels:
        - name: leaf
          parts: [{{nodes: {first}, oversubscription: {over}}}, {{nodes: {second}, oversubscription: {second_over}}}]
"""
DENSE = (
    "gpt-tiny",
    "bert-mini",
    "gpt2-350m",
    "gpt2-1.3b",
    "bert-2.6b",
    "llama3.2-1b",
    "qwen3-4b",
    "opt-6.7b",
    "llama3-8b",
)
EXPERTS = ("moe-mini", "moe-0.69b", "moe-2.4b", "moe-10b", "mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b")
SHAPES = ("a100-80gb:1x8", "a100-40gb:2x4", "h100:2x8", "a100-80gb:4x4", "h100:1x6", "a40:3x2", "h100:8x8")
MIXED = ("h100:1x4+a100-80gb:1x4", "a40:2x2+a10:2x2", "h100:1x8+a100-80gb:1x8", "a100-80gb:1x4+a100-40gb:2x4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is planned for; `text` is a cluster's short form, or what its file holds."""

    model: str
    text: str
    global_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case: whether a plan was proved, its time (None: nothing fits), the times of the plans made by hand that fit,
    how many do not fit or are none; `faster` names the settings that should not be."""

    workload: Workload
    proved: bool
    proved_s: float | None
    times_s: tuple[float, ...]
    beyond_memory: int
    refused: int
    faster: tuple[str, ...]


def draw_workload(family: str, rng: random.Random) -> Workload:
    """Return a model, a cluster of the family and a batch."""
    if family == "dense":
        return Workload(model=rng.choice(DENSE), text=rng.choice(SHAPES), global_batch=_batch(rng))
    if family == "moe":
        return Workload(model=rng.choice(EXPERTS), text=rng.choice(SHAPES), global_batch=_batch(rng))
    models = (*DENSE[:7], *EXPERTS[:3])
    if family == "mixed":
        return Workload(model=rng.choice(models), text=rng.choice(MIXED), global_batch=_batch(rng))
    nodes = rng.randint(2, 4) if family == "sites" else rng.randint(3, 6)
    device = rng.choice(("a100-80gb", "h100", "a100-40gb"))
    first = rng.randint(1, nodes - 1)
    devices = rng.choice((2, 4) if family == "sites" else (2, 4, 8))
    if family == "sites":
        other = rng.choice((device, device, "a100-80gb"))
        rate, latency = rng.choice(("1.25e8", "1.25e9", "1.0e10")), rng.choice(("1.0e-3", "2.0e-2"))
        text = SITES.format(
            north=first, south=nodes - first, device=device, other=other, devices=devices, rate=rate, latency=latency
        )
    else:
        over, second_over = rng.choice((1, 2, 8)), rng.choice((1, 4, 16))
        text = PODS.format(
            nodes=nodes,
            device=device,
            devices=devices,
            first=first,
            second=nodes - first,
            over=over,
            second_over=second_over,
        )
    return Workload(model=rng.choice(models), text=text, global_batch=_batch(rng))


FAMILIES = ("dense", "moe", "mixed", "sites", "pods")


def _batch(rng: random.Random) -> int:
    return rng.choice((8, 16, 24, 32, 48, 64, 96, 128, 256))


def settings(rng: random.Random, devices: int, batch: int) -> Iterator[dict[str, Any]]:
    """Give settings without end, as a person would type them for so many devices: most are legal, not all."""
    while True:
        words: dict[str, Any] = {"tp": rng.choice((1, 1, 2, 2, 4, 8)), "pp": rng.choice((1, 1, 2, 2, 3, 4, 6, 8))}
        words["cp"] = rng.choice((1, 1, 1, 1, 2))
        left = devices // (words["tp"] * words["pp"] * words["cp"])
        if left < 1:
            continue
        words["dp"] = rng.choice((left, left, left, rng.randint(1, left)))
        if batch % words["dp"]:
            continue
        more: dict[str, Any] = {
            "micro_batch": rng.choice([size for size in (1, 2, 4, 8, 16) if batch % (words["dp"] * size) == 0]),
            "zero": rng.choice((0, 1, 2, 3)),
            "recompute": rng.choice(("none", "selective", "full", "full:1", "auto")),
            "sequence_parallel": rng.choice((True, False)),
            "ep": rng.choice((1, 2, 4, 8)),
            "etp": rng.choice((1, words["tp"])),
            "vpp": rng.choice((2, 3)),
            "schedule": "interleaved",
            "offload": rng.choice(((), ("optimizer",))),
        }
        kept = [name for name in more if rng.random() < 0.4]
        if ("vpp" in kept) != ("schedule" in kept):
            kept = [name for name in kept if name not in ("vpp", "schedule")]
        yield words | {name: more[name] for name in kept}


def try_case(workload: Workload, plans: int, rng: random.Random, folder: Path) -> Result:
    """Return how `plans` plans made by hand do against the proved one."""
    cluster = workload.text
    if "\n" in cluster:
        path = folder / "cluster.yaml"
        path.write_text(cluster, encoding="utf-8")
        cluster = str(path)
    job: dict[str, Any] = {"cluster": cluster, "global_batch": workload.global_batch, "memory_margin": "0"}
    try:
        plan = api.plan(workload.model, **job, limit=MOST_FAMILIES).plan
        proved_s = plan.estimate.iteration_time_s
        if not plan.provenance.optimality_proved:
            return Result(
                workload=workload, proved=False, proved_s=None, times_s=(), beyond_memory=0, refused=0, faster=()
            )
    except NothingFits:
        proved_s = None
    devices = _devices(cluster)
    times_s: list[float] = []
    faster: list[str] = []
    counts = {"memory": 0, "refused": 0}
    seen: set[str] = set()
    for tries, words in enumerate(settings(rng, devices, workload.global_batch)):
        if len(times_s) == plans or tries == plans * MOST_TRIES:
            break
        said = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in sorted(words.items()))
        if said in seen:
            continue
        seen.add(said)
        try:
            value = api.estimate(workload.model, **job, **words)["estimate"]["iteration_time_s"]
        except NothingFits:
            counts["memory"] += 1
            continue
        except InputError:
            counts["refused"] += 1
            continue
        times_s.append(value)
        if proved_s is None or value < proved_s * (1 - SAME):
            faster.append(f"{said}: {value} s, proved {proved_s} s")
    return Result(
        workload=workload,
        proved=True,
        proved_s=proved_s,
        times_s=tuple(times_s),
        beyond_memory=counts["memory"],
        refused=counts["refused"],
        faster=tuple(faster),
    )


@cache
def _devices(cluster: str) -> int:
    from profiles.cluster_file import load_cluster

    return len(load_cluster(cluster).free_slots)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each family and every plan that should not be; return 1 where there is one."""
    parser = argparse.ArgumentParser(prog="bench.planning.hand_made", description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, help="(default: all)")
    parser.add_argument("--cases", type=int, default=12, help="of each family")
    parser.add_argument("--plans", type=int, default=40, help="of each case")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()};", end=" ")
    print(f"seed {arguments.seed}\n")
    columns = "cases", "not proved", "nothing fits", "made by hand", "refused", "do not fit", "equal", "nearest other"
    print(f"| family | {' | '.join(columns)} | faster |")
    print("| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: |")
    faults: list[str] = []
    for family in FAMILIES if arguments.family is None else (arguments.family,):
        results = []
        for number in range(arguments.cases):
            rng = random.Random(f"{arguments.seed} {family} {number}")
            workload = draw_workload(family, rng)
            _devices.cache_clear()
            with TemporaryDirectory() as folder:
                results.append(try_case(workload, arguments.plans, rng, Path(folder)))
            faults += [f"{workload}: {said}" for said in results[-1].faster]
        print(row_of(family, results), flush=True)
    for fault in faults:
        print(f"- {fault}")
    return int(bool(faults))


def row_of(family: str, results: Sequence[Result]) -> str:
    """Return a family's line of the table."""
    ratios = [
        time_s / result.proved_s for result in results if result.proved_s is not None for time_s in result.times_s
    ]
    others = [ratio for ratio in ratios if ratio > 1 + SAME]
    figures = (
        len(results),
        sum(not result.proved for result in results),
        sum(result.proved and result.proved_s is None for result in results),
        sum(len(result.times_s) for result in results),
        sum(result.refused for result in results),
        sum(result.beyond_memory for result in results),
        sum(abs(ratio - 1) <= SAME for ratio in ratios),
        f"{min(others, default=float('nan')):.4f}",
        sum(len(result.faster) for result in results),
    )
    return f"| {family} | {' | '.join(map(str, figures))} |"


if __name__ == "__main__":
    sys.exit(main())
