"""What the estimator says of a job on the testbed: of its group, and of the phases walked over the very seats.
Links are a line in bytes, measured between two seats; nothing is fitted to the jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bench.testbed.machines.seats import SIZE, Seated
from estimator.communication.collectives import time_collective
from estimator.communication.groups import describe_group
from estimator.communication.phases import collective_phases
from estimator.communication.walking import Ground, Node, Step, walk
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass, replace
from profiles.vocabulary import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Seconds of a message: `alpha_s` + bytes * `s_per_byte`."""

    alpha_s: float
    s_per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """From node to node, and inside one."""

    nic: Line
    inside: Line


def with_links(cluster: Cluster, links: Links) -> Cluster:
    """Return the cluster with links as they were measured."""
    sites = []
    for site in cluster.sites:
        groups = tuple(
            replace(
                group,
                nic_link=_as(group.nic_link, links.nic),
                island_link=_as(group.island_link, links.inside),
                host_link=_as(group.host_link, links.inside),
            )
            for group in site.nodes
        )
        sites.append(replace(site, nodes=groups, fabric_link=_as(site.fabric_link, links.nic)))
    return replace(cluster, sites=tuple(sites))


def _as(link: Link, line: Line) -> Link:
    return replace(link, latency_s=line.alpha_s, bandwidth_bytes_per_s=1 / line.s_per_byte, source="measured")


def of_group_s(cluster: Cluster, job: Seated, size_bytes: int) -> float:
    """Return the seconds of the all-reduce by what the estimator knows of the group: its nodes, not which rank is on
    which; halving and doubling has its ranks in the order that takes least."""
    slots = slots_of(cluster, job.nodes)
    return time_collective("all_reduce", size_bytes, describe_group(cluster, slots), algorithm=job.algorithm).seconds


def walked_s(links: Links, job: Seated, size_bytes: int, sharers: dict[int, float] | None = None) -> float:
    """Return the seconds of the all-reduce with each rank where it sits (`estimator.communication.walking`). `sharers`
    use a node's NIC at the same time, 1 where nobody else does."""
    on = sorted(set(job.nodes))
    ground = ground_of(links, [(job.nodes.count(node), (sharers or {}).get(node, 1.0)) for node in on])
    phases = collective_phases(job.algorithm, "all_reduce", len(job.nodes))
    latency_s, s_per_byte = walk(phases, tuple(on.index(node) for node in job.nodes), ground)
    return latency_s + size_bytes * s_per_byte


def ground_of(links: Links, nodes: Sequence[tuple[int, float]]) -> Ground:
    """Return nodes of so many ranks each, whose NICs so many share."""
    return Ground(
        nodes=tuple(Node(ranks=ranks, bytes_per_s=1 / (shared * links.nic.s_per_byte)) for ranks, shared in nodes),
        latency_s=links.nic.alpha_s,
        inside=(Step(ranks_inside=1, latency_s=links.inside.alpha_s, bytes_per_s=1 / links.inside.s_per_byte),),
    )


def slots_of(cluster: Cluster, nodes: Sequence[int]) -> tuple[DeviceSlot, ...]:
    """Return a device for each rank, on its node."""
    slots = sorted(cluster.slots, key=lambda slot: (slot.node, slot.index))
    used: defaultdict[int, int] = defaultdict(int)
    found = []
    for node in nodes:
        found.append(slots[SIZE * node + used[node]])
        used[node] += 1
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Seconds of an iteration of a job beside another on one node's NIC: `even`, if the NIC is divided whenever two
    jobs are there (as the simulator shares links between sites); `by_load`, by what the other one sends in the mean if
    alone (as it shares NICs: `planner.many_jobs.simulation.seat_prices.SharedNetwork`)."""

    even_s: float
    by_load_s: float


def paired(
    links: Links, jobs: tuple[Seated, Seated], sizes_bytes: tuple[int, int], computes_s: tuple[float, float]
) -> list[Paired]:
    """Return what each of two jobs takes beside the other."""
    shared = set(jobs[0].nodes) & set(jobs[1].nodes)

    def iteration_s(job: int, share: float) -> float:
        sent_s = walked_s(links, jobs[job], sizes_bytes[job], dict.fromkeys(shared, share))
        return computes_s[job] + sent_s

    sends = [1 - computes_s[job] / iteration_s(job, 1.0) for job in (0, 1)]
    return [Paired(even_s=iteration_s(job, 2.0), by_load_s=iteration_s(job, 1.0 + sends[1 - job])) for job in (0, 1)]
