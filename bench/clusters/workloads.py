"""The clusters and the jobs of SpiderFlow's figures 6 to 9 and 12; what the paper does not give is ours, and said here.

Clusters: A100 with 80 GB. `eight`: eight sites of one node with 2, 2, 2, 2, 2, 4, 1 and 1 devices; inside the first
three 4 GB/s (PCIe), inside the next three 25 GB/s (NVLink), both of section 5.1. Between every two sites one of 1, 2.5,
5, 10 and 15 Gb/s, drawn with seed 0, and 1 ms. `six`: six sites of 64 nodes of 8, 25 GB/s in the node, 1 GB/s between
nodes, 5 Gb/s between sites (section 5.5). `many`: sites of seven such nodes (appendix A.3). A site's fabric, which is
what a planner without an eye on links takes for the link between sites, is 15 Gb/s in `eight` and 1 GB/s elsewhere.

Jobs: models of NewWorkload alike in number (GPT-2 350M, 1.3B, 4.2B, OPT 6.7B, 13B, BERT 110M, 340M), all in the zoo.
NewWorkload: devices 1, 2, 4 (BERT, 350M), 2, 4 (1.3B), 4, 8 (4.2B, 6.7B) or 8, 16 (13B), global batch 32, 64 or 128,
durations log-normal with median 20 minutes and sigma 1 between 2 minutes and 4 hours, arrivals a Poisson process.
Philly: its first rows with their own arrival, duration and devices (rounded up to a power of two, at most the largest
job of the figure), a model that fits them, and a batch of 64 or 128 (above 32 devices 256 or 512). A duration is that
at one site with nodes of 8, 25 GB/s NVLink and 25 GB/s between nodes: iterations are the duration over the time of an
iteration there. `load`: durations (NewWorkload: gaps between arrivals) are scaled by one factor such that jobs would
keep all devices busy so much of the time in which they arrive. Homes are drawn by the sites' devices. All draws are by
seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random

from planner.many_jobs.jobs.records import Job, Pool, Workload
from planner.many_jobs.scheduling.cell_book import pools_of
from planner.many_jobs.scheduling.sites.planners import Workshop
from planner.many_jobs.traces.assign import CHECKPOINT_BYTES_PER_PARAMETER, count_parameters
from planner.many_jobs.traces.read import read_trace
from profiles.cluster import Cluster, NodeGroup, Site, SiteLink
from profiles.cluster_file import load_cluster
from profiles.reference_nodes import default_nodes

GBIT = 1.25e8
"""Bytes/s of 1 Gb/s."""
DEVICE = "a100-80gb"
COUNTS = (2, 2, 2, 2, 2, 4, 1, 1)
PCIE, NVLINK = 4e9, 25e9
RATES_GBIT = (1.0, 2.5, 5.0, 10.0, 15.0)
LATENCY_S = 1e-3

NEW_WORKLOAD: dict[str, tuple[int, ...]] = {
    "bert-base": (1, 2, 4),
    "bert-large": (1, 2, 4),
    "gpt2-350m": (1, 2, 4),
    "gpt2-1.3b": (2, 4),
    "gpt2-4.2b": (4, 8),
    "opt-6.7b": (4, 8),
    "opt-13b": (8, 16),
}
"""Model: the devices that its jobs ask for."""
LEAST_DEVICES = {
    "bert-base": 1,
    "bert-large": 1,
    "gpt2-350m": 1,
    "gpt2-1.3b": 2,
    "gpt2-4.2b": 4,
    "opt-6.7b": 4,
    "opt-13b": 8,
}
"""Model: the fewest devices of a row of Philly that may train it. Up to `SMALL_UP_TO` devices train BERT and 350M."""
SMALL, SMALL_UP_TO = ("bert-base", "bert-large", "gpt2-350m"), 8


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster with its pools."""

    name: str
    cluster: Cluster
    pools: Mapping[str, Pool]

    @property
    def devices(self) -> int:
        """Of all sites."""
        return sum(pool.devices for pool in self.pools.values())


def _nodes(count: int, devices: int, *, inside: float, outside: float) -> NodeGroup:
    one = load_cluster(f"{DEVICE}:1x8").sites[0].nodes[0]
    made = default_nodes(one.device, count=count, devices=devices)
    link = replace(made.nic_link, bandwidth_bytes_per_s=outside, efficiency=1.0)
    return replace(
        made,
        island_link=replace(made.island_link, bandwidth_bytes_per_s=inside, in_network_efficiency=None),
        nic_link=link,
        nics=1,
    )


def _site(name: str, nodes: NodeGroup) -> Site:
    return Site(name=name, nodes=(nodes,), fabric_link=nodes.nic_link)


def _cluster(text: str, sites: Sequence[Site], rates_gbit: Sequence[float]) -> Cluster:
    pairs = list(itertools.combinations([site.name for site in sites], 2))
    links = tuple(
        SiteLink(between=pair, bandwidth_bytes_per_s=rate * GBIT, latency_s=LATENCY_S)
        for pair, rate in zip(pairs, rates_gbit, strict=True)
    )
    return Cluster(text=text, sites=tuple(sites), site_links=links)


@lru_cache(maxsize=16)
def setting(name: str) -> Setting:
    """The cluster of that name: `eight`, `six`, or `many-N` for N sites."""
    if name == "eight":
        inside = (PCIE, PCIE, PCIE, NVLINK, NVLINK, NVLINK, NVLINK, NVLINK)
        sites = [
            _site(f"s{number}", _nodes(1, count, inside=rate, outside=15 * GBIT))
            for number, (count, rate) in enumerate(zip(COUNTS, inside, strict=True), 1)
        ]
        rng = Random(0)
        rates = [rng.choice(RATES_GBIT) for _ in range(28)]
    else:
        count, nodes = (6, 64) if name == "six" else (int(name.removeprefix("many-")), 7)
        sites = [_site(f"s{n:02d}", _nodes(nodes, 8, inside=NVLINK, outside=1e9)) for n in range(1, count + 1)]
        rates = [5.0] * math.comb(count, 2)
    cluster = _cluster(name, sites, rates)
    return Setting(name=name, cluster=cluster, pools=pools_of(cluster))


@dataclass(kw_only=True)
class Reference:
    """Seconds of an iteration at one site as durations mean it. The only state is a cache."""

    workshop: Workshop = field(default_factory=Workshop)
    _known: dict[tuple[Workload, int], float | None] = field(default_factory=dict, repr=False)

    def time_s(self, workload: Workload, devices: int) -> float | None:
        """None where no plan fits."""
        if (workload, devices) not in self._known:
            nodes = _nodes(math.ceil(devices / 8), 8, inside=NVLINK, outside=NVLINK)
            cluster = _cluster("reference", [_site("s0", replace(nodes, free=devices))], ())
            found = self.workshop.plan("even", workload, cluster)
            self._known[workload, devices] = None if found is None else found.time_s
        return self._known[workload, devices]


REFERENCE = Reference()


def new_workload(place: Setting, *, jobs: int, load: float, seed: int) -> tuple[Job, ...]:
    """The first `jobs` of NewWorkload, which arrive such that they offer so much load."""
    rng = Random(f"new-workload {seed}")
    drawn = []
    for _ in range(jobs):
        model = rng.choice(list(NEW_WORKLOAD))
        devices = rng.choice(NEW_WORKLOAD[model])
        batch = rng.choice((32, 64, 128))
        duration_s = min(max(rng.lognormvariate(math.log(1200.0), 1.0), 120.0), 4 * 3600.0)
        drawn.append((model, devices, batch, duration_s, rng.expovariate(1.0)))
    work = math.fsum(devices * duration_s for _, devices, _, duration_s, _ in drawn)
    gap_s = work / (load * place.devices * math.fsum(gap for *_, gap in drawn))
    now_s, rows = 0.0, []
    for model, devices, batch, duration_s, gap in drawn:
        now_s += gap * gap_s
        rows.append((now_s, duration_s, devices, Workload(model=model, global_batch=batch)))
    return _jobs(place, rows, seed)


@lru_cache(maxsize=1)
def _philly(data: Path) -> tuple[tuple[float, float, int], ...]:
    trace = read_trace(data / "traces" / "philly.csv.gz")
    return tuple((row.submit_time_s, row.duration_s, row.gpus) for row in trace.rows)


def philly(
    place: Setting, data: Path, *, jobs: int, most: int, load: float | None, seed: int
) -> tuple[tuple[Job, ...], float, float]:
    """Philly's first `jobs` rows, of at most `most` devices each; with the load that they offer, and the factor that
    their durations were scaled by for it."""
    rng = Random(f"philly {seed}")
    kept = [
        (submit_s, duration_s, min(most, 1 << (gpus - 1).bit_length()))
        for submit_s, duration_s, gpus in _philly(data)[:jobs]
    ]
    span_s = kept[-1][0] - kept[0][0]
    offered = math.fsum(duration_s * devices for _, duration_s, devices in kept) / (place.devices * span_s)
    factor = 1.0 if load is None else load / offered
    rows = []
    for submit_s, duration_s, devices in kept:
        rows.append((submit_s - kept[0][0], duration_s * factor, devices, _model_for(devices, rng)))
    return _jobs(place, rows, seed), offered * factor, factor


def _model_for(devices: int, rng: Random) -> Workload:
    fitting = [
        model
        for model, least in LEAST_DEVICES.items()
        if devices >= least and (model not in SMALL or devices <= SMALL_UP_TO)
    ]
    batch = rng.choice((64, 128) if devices <= 32 else (256, 512))
    return Workload(model=rng.choice(fitting), global_batch=batch)


def _jobs(place: Setting, rows: Sequence[tuple[float, float, int, Workload]], seed: int) -> tuple[Job, ...]:
    rng = Random(f"homes {seed}")
    pools = list(place.pools)
    weights = [place.pools[name].devices for name in pools]
    found = []
    for number, (submit_s, duration_s, devices, workload) in enumerate(rows):
        takes_s = REFERENCE.time_s(workload, devices)
        if takes_s is None:
            raise RuntimeError(f"{workload} does not fit {devices} devices at one site, and must")
        found.append(
            Job(
                id=f"j{number:05d}",
                submit_s=submit_s,
                pool=rng.choices(pools, weights)[0],
                devices=devices,
                workload=workload,
                iterations=duration_s / takes_s,
                duration_s=duration_s,
                checkpoint_bytes=CHECKPOINT_BYTES_PER_PARAMETER * count_parameters(workload.model),
            )
        )
    return tuple(found)
