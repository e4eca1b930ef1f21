"""The clusters and jobs of Arnold's table 1; what the paper does not publish is drawn, and said here.

Sizes of pods: U(0.6, 1.4) of the mean, scaled to the total, in whole nodes (the largest fractions are rounded up).
Busy: of each pod a share drawn from a normal distribution of mean 0, 0.3 or 0.5 and standard deviation 0.15 (none at
0), within 0 and 1. Lingjun: the 847 hosts of its topology file in their three pods (PSW), as busy, with the job of
(iii).
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from planner.one_job.pods.equations import matrix_shape
from planner.one_job.pods.records import PodRequest

BUSY = (0.0, 0.3, 0.5)
SPREAD_OF_BUSY = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A row of table 1: so many pods and nodes, and the degrees of the job. `sizes` where they are known."""

    name: str
    pods: int
    nodes: int
    dp: int
    tp: int
    pp: int
    sizes: tuple[int, ...] = ()


TABLE_1 = (
    Setting(name="(i)", pods=3, nodes=18, dp=12, tp=4, pp=2),
    Setting(name="(ii)", pods=5, nodes=438, dp=24, tp=4, pp=8),
    Setting(name="(iii)", pods=11, nodes=1019, dp=46, tp=8, pp=8),
)


def lingjun(topology: Path) -> Setting:
    """Return setting (iii)'s job on the pods of lingjun's topology file."""
    with topology.open(encoding="utf-8", newline="") as lines:
        pods = Counter(row["PSW"] for row in csv.DictReader(lines))
    sizes = tuple(count for _, count in sorted(pods.items()))
    return replace(TABLE_1[-1], name="lingjun", pods=len(sizes), nodes=sum(sizes), sizes=sizes)


def requests_of(setting: Setting, alpha: float, seeds: int) -> Iterator[PodRequest]:
    """Return the job of a setting on its cluster, busy in each way, `seeds` draws of each."""
    shape = matrix_shape(devices=setting.dp * setting.tp * setting.pp, tp=setting.tp, pp=setting.pp)
    for busy in BUSY:
        for seed in range(seeds):
            yield PodRequest(rows=shape.rows, columns=shape.columns, free=free_nodes(setting, busy, seed), alpha=alpha)


def free_nodes(setting: Setting, busy: float, seed: int) -> tuple[int, ...]:
    """Return the free nodes of every pod."""
    rng = Random(f"{setting.name} {seed}")
    sizes = setting.sizes or _scaled([rng.uniform(0.6, 1.4) for _ in range(setting.pods)], setting.nodes)
    shares = [min(1.0, max(0.0, rng.gauss(busy, SPREAD_OF_BUSY))) if busy else 0.0 for _ in sizes]
    return tuple(size - round(size * share) for size, share in zip(sizes, shares, strict=True))


def _scaled(weights: Sequence[float], total: int) -> tuple[int, ...]:
    exact = [weight * total / sum(weights) for weight in weights]
    sizes = [int(size) for size in exact]
    for pod in sorted(range(len(exact)), key=lambda pod: sizes[pod] - exact[pod])[: total - sum(sizes)]:
        sizes[pod] += 1
    return tuple(sizes)
