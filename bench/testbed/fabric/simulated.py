"""What the product's simulator says of a case: the same jobs, from the same start, over many draws of the jitter.

The fabric goes in as a cluster file would have it: a Clos of two tiers, the rules by source port as ways that are
known.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property
from itertools import permutations
from statistics import mean
from typing import Any

from bench.testbed.fabric.cases import Case, Job
from bench.testbed.fabric.running import Timed
from bench.testbed.fabric.shape import (
    ACKNOWLEDGED,
    BLOCK_PORTS,
    FIRST_PORT,
    PAYLOAD,
    Shape,
    host_address,
    host_name,
    leaf_address,
    leaf_name,
    spine_address,
    spine_name,
)
from estimator.network.links import links_of_cluster
from estimator.network.player.play import Settings, play
from estimator.network.player.score import ITERATION_ENDS
from estimator.network.routes import Flow, route
from estimator.network.steps import Mover, Playing, Step, Transfer
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.records import dataclass, replace
from profiles.routing import KnownPath, Routing

JITTERS = (0.0, 0.005, 0.01, 0.02)
RATES = (0.98, 1.02)
UNSTABLE = 0.05
"""What moves by more within these jitters of compute and shares of the links' rates is called unstable."""

_ROWS = 200_000


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Seconds of a job's iteration: alone, in the mean at the stated jitter, and from least to most over all jitters,
    rates and seeds."""

    alone_s: float
    mean_s: float
    range_s: tuple[float, float]

    @property
    def stable(self) -> bool:
        """Whether its range is narrow."""
        return self.range_s[1] - self.range_s[0] <= UNSTABLE * self.mean_s


class Simulator:
    """Cases on a fabric, played from the beginning to `until_s`; what ends before `from_s` is left out, as of what was
    measured."""

    def __init__(self, shape: Shape, *, from_s: float, until_s: float) -> None:
        self._shape, self._from_s, self._until_s = shape, from_s, until_s
        self._links = links_of_cluster(cluster_of(shape))
        self._nodes = {name: number for number, name in enumerate(self._links.names[: self._links.nodes])}

    @cached_property
    def _routing(self) -> Routing:
        return Routing(kind="ecmp", paths=known_paths(self._shape))

    def simulate(self, case: Case, *, jitter: float, seeds: int) -> list[Simulated]:
        """Return what becomes of each job."""
        usual, others = self.plays(case, jitter=jitter, seeds=seeds)
        found = [*usual, *others]
        return [
            Simulated(
                alone_s=self._play([self.playing_of(each)], 0.0, 0)[0],
                mean_s=mean(one[job] for one in usual),
                range_s=(min(one[job] for one in found), max(one[job] for one in found)),
            )
            for job, each in enumerate(case.jobs)
        ]

    def plays(self, case: Case, *, jitter: float, seeds: int) -> tuple[list[list[float]], list[list[float]]]:
        """Return seconds of each job's iterations, a row for each seed at this jitter; and for other jitters and links
        a little slower or faster."""
        playings = [self.playing_of(job) for job in case.jobs]
        usual = [self._play(playings, jitter, seed) for seed in range(seeds)]
        others = [self._play(playings, 0.0, 0)]
        others += [
            self._play(playings, share, seed)
            for share in JITTERS
            if share not in (0.0, jitter)
            for seed in range(seeds)
        ]
        others += [self._play(playings, jitter, seed, rates=share) for share in RATES for seed in range(seeds)]
        return usual, others

    def _play(self, playings: list[Playing], jitter: float, seed: int, *, rates: float = 1.0) -> list[float]:
        """The mean over what is looked at. Of a job that meets nobody not every iteration is played, and of one that
        starves none may end: their last rates."""
        settings = Settings(exact=True, until_s=self._until_s, jitter=jitter, seed=seed, log_rows=_ROWS)
        bytes_per_s = self._links.bytes_per_s * rates
        ended: list[list[float]] = [[] for _ in playings]
        for row in play(playings, bytes_per_s, settings=settings).log:
            if row.what == ITERATION_ENDS:
                ended[row.job].append(row.time_s)
        timed = [Timed(ended_s=tuple(times)).mean_s(self._from_s, self._until_s) for times in ended]
        if any(map(math.isnan, timed)):
            steady = play(playings, bytes_per_s, settings=replace(settings, exact=False, until_s=None)).jobs
            timed = [last.seconds if math.isnan(own) else own for own, last in zip(timed, steady, strict=True)]
        return timed

    def playing_of(self, job: Job) -> Playing:
        """Return a job as the simulator plays it: all its connections move as one. What says that frames have come
        counts where the job itself sends; elsewhere it goes before everything, and is as good as nothing."""
        amounts: defaultdict[int, float] = defaultdict(float)
        for pair in job.flows():
            for link in self._way(job, *pair):
                amounts[link] += job.flow_bytes
        for sender, receiver in job.flows():
            for link in self._way(job, receiver, sender):
                if link in amounts:
                    amounts[link] += job.flow_bytes * ACKNOWLEDGED
        seconds = max(amount / float(self._links.bytes_per_s[link]) for link, amount in amounts.items())
        mover = Mover(way=tuple((link, amount / seconds) for link, amount in amounts.items()), seconds=seconds)
        step = Step(compute_s=job.compute_s, transfers=(Transfer(movers=(mover,)),), begins_s=job.begins_s)
        return Playing(steps=(step,), level=job.level, starts_s=job.offset_s, period_s=job.period_s)

    def _way(self, job: Job, sender: int, receiver: int) -> list[int]:
        leaf = self._shape.leaf_of(job.hosts[sender])
        block = self._shape.blocks_to(leaf, job.spines[sender])[0]
        flow = Flow(
            source=self._nodes[host_name(job.hosts[sender])],
            destination=self._nodes[host_name(job.hosts[receiver])],
            port=FIRST_PORT + block * BLOCK_PORTS,
        )
        return [link for link, _ in route(self._links, self._routing, flow)]


def known_paths(shape: Shape) -> tuple[KnownPath, ...]:
    """Return the ways between hosts under different leaves, by the ports that lead there."""
    found = []
    for source, target in permutations(range(shape.hosts), 2):
        here, there = shape.leaf_of(source), shape.leaf_of(target)
        for spine in range(shape.spines) if here != there else ():
            firsts = [FIRST_PORT + block * BLOCK_PORTS for block in shape.blocks_to(here, spine)]
            found.append(
                KnownPath(
                    source=host_name(source),
                    destination=host_name(target),
                    ports=tuple((first, first + BLOCK_PORTS - 1) for first in firsts),
                    through=(leaf_name(here), spine_name(spine), leaf_name(there)),
                )
            )
    return tuple(found)


def cluster_of(shape: Shape) -> Cluster:
    """Return the fabric as a cluster: of each link training reaches what headers leave."""
    return load_cluster(name_cluster(cluster_file(shape)))


def cluster_file(shape: Shape, *, devices: int = 1) -> dict[str, Any]:
    """Return what a cluster file says of the fabric, with so many devices on a host."""

    def link(name: str, bytes_per_s: float) -> dict[str, Any]:
        return {
            "name": name,
            "kind": "ethernet",
            "bandwidth_bytes_per_s": bytes_per_s,
            "latency_s": 1e-5,
            "efficiency": PAYLOAD,
            "source": "asked of the emulated fabric",
        }

    nic = link("nic", shape.nic_bytes_per_s)
    topology = {
        "kind": "clos2",
        "leaves": shape.leaves,
        "spines": shape.spines,
        "nodes_per_leaf": shape.hosts_per_leaf,
        "link": link("uplink", shape.uplink_bytes_per_s),
    }
    nodes = {
        "count": shape.hosts,
        "device": "a100-80gb",
        "devices": devices,
        "island": {"link": nic, "size": 1},
        "nics": {"count": 1, "link": nic},
        "host_link": nic,
    }
    addresses = {
        **{leaf_address(leaf): leaf_name(leaf) for leaf in range(shape.leaves)},
        **{spine_address(spine): spine_name(spine) for spine in range(shape.spines)},
        **{host_address(host): host_name(host) for host in range(shape.hosts)},
    }
    fabric = {"link": nic, "topology": topology, "routing": {"kind": "ecmp", "addresses": addresses}}
    return {"schema": "cellplan.cluster/1", "sites": [{"name": "fabric", "nodes": [nodes], "fabric": fabric}]}
