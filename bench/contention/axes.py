"""Levels by axis: pipeline messages and expert exchange, which block, above gradient sums, which hide; beside `ours`
with one level for each job, on the same paths.

Jobs are zoo models as the estimator prices them, on hosts of 8 A100s with one NIC of 100 Gb/s, 8 hosts under each of
two leaves, two spines with two cables or one from each leaf: 2:1 or 4:1 oversubscribed. Each job lies half under one
leaf and half under the other: pipelines of 2 and 4 stages, mixtures whose experts are spread over all devices, plain
data parallel jobs; gradients are summed behind the backward pass. Paths are those of `crux`, levels by job the best of
all (proved), so that what is gained is the axes'. Work is that of draws in which compute varies by 1%, in half of them
jobs are late (`planner.contention.policies.varied`); others than those by which anything was chosen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from estimator.network.fabric import Fabric, fabric_of
from planner.contention.jobs_file import read_jobs
from planner.contention.planning import see_jobs
from planner.contention.policies.axes import axes_of
from planner.contention.policies.crux import Crux
from planner.contention.policies.improving import GRADIENTS, with_axis_levels
from planner.contention.policies.keeping import with_paths
from planner.contention.policies.ours import Ours
from planner.contention.policies.records import View
from planner.contention.policies.varied import Varied
from planner.contention.viewing import view_of
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.records import dataclass

LEVELS, PLAYS, DRAWS = 4, 150, range(100, 106)
LEAF_HOSTS, GPUS = 8, 8
CABLES = {"2:1": 2, "4:1": 1}
PIPELINES = (("gpt2-1.3b", 2), ("gpt2-1.3b", 4), ("llama3.2-1b", 2), ("bert-2.6b", 4))
MIXTURES = ("moe-0.69b", "moe-1.3b")
PLAIN = ("bert-large", "gpt2-350m", "bert-1.3b")
KINDS = ("pipeline", "mixture", "plain")
T_95 = {10: 2.26, 20: 2.09, 30: 2.05, 40: 2.02}
"""Student's t of 95% intervals, by how many cases there are at least; fewer: 2.8."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Of a case, the share of work that levels by axis bring and how many jobs have them; whether any job had several
    axes that meet others, and CPU seconds."""

    share: float
    jobs: int
    several: int
    cpu_s: float


def lines(cases: int, first: int) -> Iterator[str]:
    """Yield the tables, over so many cases of each fabric from a seed on."""
    yield f"{cases} cases of each fabric from seed {first}, {LEVELS} levels, at most {PLAYS} plays for the axes"
    yield ""
    yield "| leaves | kept in | work gained, mean (95%) | where kept | most | least | jobs of several axes | CPU s |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, cables in CABLES.items():
        cluster = _cluster(cables)
        gains = [gain_of(draw_view(seed, cluster)) for seed in range(first, first + cases)]
        shares = [100 * gain.share for gain in gains]
        kept = [100 * gain.share for gain in gains if gain.jobs]
        yield (
            f"| {name} | {len(kept)} of {cases} | {_mean_with_interval(shares)} |"
            f" {f'{mean(kept):+.2f}%' if kept else ''} | {max(shares):+.2f}% | {min(shares):+.2f}% |"
            f" {mean(gain.several for gain in gains):.1f} | {mean(gain.cpu_s for gain in gains):.1f} |"
        )


def gain_of(view: View) -> Gain:
    """Return what levels by axis bring in a case, whose connections have one path each."""
    began_s = time.process_time()
    before = Ours(axes=False, offsets=False, give_up=0.0).decide(view)
    after = with_axis_levels(view, before, plays=PLAYS)
    varied = Varied(view)
    share = varied.work(after, DRAWS) / varied.work(before, DRAWS) - 1 if after != before else 0.0
    return Gain(
        share=share,
        jobs=sum(bool(its) for its in after.axis_levels),
        several=sum({GRADIENTS} < set(axes_of(view.jobs[job])) for job in before.order),
        cpu_s=time.process_time() - began_s,
    )


def draw_view(seed: int, cluster: Cluster) -> View:
    """Return four or five jobs, half of each under either leaf, on the paths that `crux` chooses."""
    rng = Random(f"axes, {seed}")
    free = [rng.sample(range(leaf * LEAF_HOSTS, (leaf + 1) * LEAF_HOSTS), LEAF_HOSTS) for leaf in range(2)]
    written: list[dict[str, Any]] = []
    kinds = [rng.choice(KINDS[:2]), *(rng.choice(KINDS) for _ in range(rng.choice((3, 4))))]
    for number, kind in enumerate(kinds):
        model, degrees, halves = _drawn_job(kind, rng)
        if any(len(leaf) < halves for leaf in free):
            break
        hosts = [leaf.pop() for leaf in free for _ in range(halves)]
        names = ",".join(f"h{host + 1}" for host in hosts)
        written.append({"id": f"{kind}{number}", "model": model, "degrees": degrees, "hosts": names})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.yaml"
        path.write_text(json.dumps({"schema": "cellplan.jobs/1", "jobs": written}), encoding="utf-8")
        jobs = read_jobs(path, cluster)
    fabric: Fabric = fabric_of(cluster)
    view = view_of(see_jobs(jobs, fabric, "collective"), fabric, LEVELS)
    return with_paths(view, Crux().choose_paths(view))


def _drawn_job(kind: str, rng: Random) -> tuple[str, dict[str, Any], int]:
    """A model, its degrees, and hosts under each leaf."""
    words: dict[str, Any] = {"overlap": ["dp"], "recompute": "none", "zero": 0}
    if kind == "pipeline":
        model, stages = rng.choice(PIPELINES)
        halves = rng.choice((1, 2))
        words |= {"pp": stages, "dp": 2 * halves * GPUS // stages}
        micro_batches, samples = rng.choice((4, 8)), rng.choice((1, 2))
    else:
        model = rng.choice(MIXTURES if kind == "mixture" else PLAIN)
        halves = rng.choice((1, 2) if kind == "plain" else (1,))
        words |= {"dp": 2 * halves * GPUS}
        micro_batches, samples = rng.choice((1, 2)), rng.choice((2, 4))
        if kind == "mixture":
            words["ep"] = words["dp"]
    return model, words | {"micro_batch": samples * words["dp"], "micro_batches": micro_batches}, halves


def _cluster(cables: int) -> Cluster:
    hosts = 2 * LEAF_HOSTS
    node = {"count": hosts, "device": "a100-80gb", "devices": GPUS, "nics": {"count": 1, "link": "roce100"}}
    topology = {"kind": "clos2", "leaves": 2, "spines": 2, "cables": cables}
    site = {
        "name": "clos",
        "nodes": [{**node, "names": f"h[1-{hosts}]"}],
        "fabric": {"link": "roce100", "topology": topology},
    }
    return load_cluster(name_cluster({"schema": "cellplan.cluster/1", "sites": [site]}))


def _mean_with_interval(shares: Sequence[float]) -> str:
    if len(shares) < 2:
        return f"{mean(shares):+.2f}%"
    t = next((t for count, t in sorted(T_95.items(), reverse=True) if len(shares) >= count), 2.8)
    half = t * stdev(shares) / len(shares) ** 0.5
    return f"{mean(shares):+.2f}% ({mean(shares) - half:+.2f} to {mean(shares) + half:+.2f})"
