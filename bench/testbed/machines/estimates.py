"""What the estimator says of a job on the testbed: the closed form of the group, and the phases walked over the very
seats. Links are a line in bytes, measured between two seats; nothing is fitted to the jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from bench.testbed.machines.seats import SIZE, Seated
from estimator.communication.collectives import time_collective
from estimator.communication.groups import describe_group
from estimator.communication.phases import collective_phases
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


def closed_form_s(cluster: Cluster, job: Seated, size_bytes: int) -> float:
    """Return the seconds of the all-reduce by what the estimator knows of the group: its nodes, not which rank is on
    which."""
    slots = slots_of(cluster, job.nodes)
    return time_collective("all_reduce", size_bytes, describe_group(cluster, slots), algorithm=job.algorithm).seconds


def walked_s(links: Links, job: Seated, size_bytes: int, sharers: dict[int, float] | None = None) -> float:
    """Return the seconds of the all-reduce, phase by phase: each lasts until the busiest NIC (out and in apart) and the
    slowest message inside a node are through. `sharers` use a node's NIC at the same time, 1 where nobody else does.
    """
    total_s = 0.0
    for phase in collective_phases(job.algorithm, "all_reduce", len(job.nodes), size_bytes):
        nic: defaultdict[tuple[str, int], float] = defaultdict(float)
        slowest_s = 0.0
        for sender, receiver, size in phase.flows:
            out, into = job.nodes[sender], job.nodes[receiver]
            if out == into:
                slowest_s = max(slowest_s, links.inside.alpha_s + size * links.inside.s_per_byte)
                continue
            nic["out", out] += size
            nic["in", into] += size
        for (_, node), size in nic.items():
            share = (sharers or {}).get(node, 1.0)
            slowest_s = max(slowest_s, links.nic.alpha_s + size * share * links.nic.s_per_byte)
        total_s += phase.repeats * slowest_s
    return total_s


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
