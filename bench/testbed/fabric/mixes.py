"""Mixes of four to six jobs on the fabric, and what network policies decide for them from the product's own view.

A policy sees what a user of `cellplan contention` has: a cluster file whose ways `cellplan network probe` found, and a
file of jobs with hosts, compute and bytes. What it decides comes back as ports and levels.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.testbed.fabric.cases import QUEUE_S, Job, Kind, draw_jobs
from bench.testbed.fabric.shape import BLOCK_PORTS, BLOCKS, FIRST_PORT, Shape, host_name, spine_name
from bench.testbed.fabric.ways import Asked
from estimator.network.fabric import Fabric, fabric_of
from planner.contention.jobs_file import read_jobs
from planner.contention.policies.records import Decision, View
from planner.contention.viewing import QueuePair, Seen, contender_of, view_of
from profiles.cluster import Cluster
from profiles.records import dataclass, replace

SIZES = (4, 5, 6)
CONTENDING = 4
"""Jobs of a mix that share links at least, on ways by chance."""
HELD_PORTS = 8
"""A rank's connections leave from so many ports in a row: it listens on one, and calls from others."""
_AXIS = "dp"
"""What traffic by hand is: the jobs have no other axis."""
_WINDOW_PORTS = 64
"""Around a port that was found, within which a rank's ports are looked for."""
_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Of each job of a mix: its level; of each of its ranks the spine that was chosen and ports that lead there, None
    for a rank that keeps its own; how much later it begins, and the period that it is held to (0: none)."""

    levels: tuple[int, ...]
    ways: tuple[tuple[tuple[int, tuple[int, ...]] | None, ...], ...]
    offsets_s: tuple[float, ...] = ()
    periods_s: tuple[float, ...] = ()


def draw_mix(shape: Shape, seed: int, number: int) -> tuple[Job, ...]:
    """Return the jobs of a mix, each rank's ports by chance as a socket's are, and drawn again until at least four jobs
    share links. Half of the jobs or more sum (rings); the others send."""
    rng = random.Random(f"mix {seed} {number}")
    size = SIZES[number % len(SIZES)]
    kinds: list[Kind] = ["ring" if place < (size + 1) // 2 else "flow" for place in range(size)]
    jobs: list[Job] = []
    for _ in range(_TRIES):
        jobs = [with_ports_by_chance(shape, job, rng) for job in draw_jobs(shape, rng, kinds, QUEUE_S)]
        links = [job.links(shape).keys() for job in jobs]
        shared = sum(any(own & other for other in links if other is not own) for own in links)
        if shared >= CONTENDING:
            break
    return tuple(jobs)


def with_ports_by_chance(shape: Shape, job: Job, rng: random.Random) -> Job:
    """Return a job whose ranks have ports by chance, and spines as these lead."""
    firsts = [FIRST_PORT + rng.randrange(BLOCKS * BLOCK_PORTS // HELD_PORTS) * HELD_PORTS for _ in job.hosts]
    spines = [shape.spine_of(shape.leaf_of(host), first) for host, first in zip(job.hosts, firsts, strict=True)]
    return replace(job, ports=tuple((first, first + HELD_PORTS - 1) for first in firsts), spines=tuple(spines))


def asked_of(job: Job, ports: Sequence[Sequence[int]]) -> list[Asked]:
    """Return what to trace to know where the job's data goes, of each sending rank so many ports."""
    return [
        (job.hosts[sender], job.hosts[receiver], port) for sender, receiver in job.flows() for port in ports[sender]
    ]


def pairs_of(shape: Shape, jobs: Iterable[Job]) -> list[tuple[int, int]]:
    """Return the hosts that send to each other under different leaves, in order."""
    pairs = {(job.hosts[sender], job.hosts[receiver]) for job in jobs for sender, receiver in job.flows()}
    return sorted(pair for pair in pairs if shape.leaf_of(pair[0]) != shape.leaf_of(pair[1]))


def jobs_text(jobs: Sequence[Job], *, apart: bool = False) -> str:
    """Return the jobs as a file of `cellplan contention`, each on the device of its place on its hosts, or,
    where they are `apart`, on all of a host. gloo's ring sends to the rank before: its hosts come in that order."""
    written = [
        {
            "id": job_name(job),
            "hosts": ",".join(host_name(host) for host in (job.hosts[::-1] if job.kind == "ring" else job.hosts)),
            **({} if apart else {"gpus": str(job.place)}),
            "traffic": {
                "compute_s": job.compute_s,
                "begins_s": job.begins_s,
                "bytes": float(job.size_bytes),
                "op": "all_reduce" if job.kind == "ring" else "send_recv",
                "flops": work_of(job),
            },
        }
        for job in jobs
    ]
    return json.dumps({"schema": "cellplan.jobs/1", "jobs": written}, indent=1)


def job_name(job: Job) -> str:
    """Return what a job is called in files."""
    return f"{job.kind}{job.place}-" + "-".join(map(str, job.hosts))


def work_of(job: Job) -> float:
    """Return the work of an iteration: its devices compute as long as it says, at a rate that is the same for all (its
    unit is nobody's)."""
    return 1e12 * job.compute_s * len(job.hosts)


def view_of_mix(
    cluster: Cluster, jobs_file: Path, jobs: Sequence[Job], spines: Mapping[Asked, int | None], levels: int
) -> tuple[View, list[Seen]]:
    """Return what policies are told of the jobs of a file on a cluster whose ways were probed. `spines` are those that
    their present ports were seen to take."""
    fabric = fabric_of(cluster)
    all_seen = []
    for number, (job, placed) in enumerate(zip(jobs, read_jobs(jobs_file, cluster), strict=True)):
        seen = contender_of(
            placed.id, placed.traffic, placed.seats, fabric, flops=work_of(job), seed=number, most_paths=8
        )
        now = list(seen.contender.now)
        for connection, pair in enumerate(seen.queue_pairs):
            port = job.ports[job.hosts.index(pair.source.node)][0]
            spine = spines[pair.source.node, pair.destination.node, port]
            now[connection] = [_spine_of(fabric, pair, way) for way in range(len(pair.ways))].index(spine)
        all_seen.append(replace(seen, contender=replace(seen.contender, now=tuple(now))))
    return view_of(all_seen, fabric, levels), all_seen


def _spine_of(fabric: Fabric, pair: QueuePair, way: int) -> int | None:
    """The spine that one of a connection's ways passes."""
    links = fabric.links
    passed = {links.names[links.ends[link, 1]] for link in pair.ways[way].way}
    return next((int(name.removeprefix(spine_name(0)[:-1])) for name in passed if name.startswith("spine")), None)


def choice_of(cluster: Cluster, jobs: Sequence[Job], all_seen: Sequence[Seen], decision: Decision) -> Choice:
    """Return a decision by the jobs' ranks. A path that is a job's present one keeps its ports."""
    fabric = fabric_of(cluster)
    ways = []
    for job, seen, paths in zip(jobs, all_seen, decision.paths, strict=True):
        of_rank: list[tuple[int, tuple[int, ...]] | None] = [None] * len(job.hosts)
        for connection, pair in enumerate(seen.queue_pairs):
            chosen = paths[connection]
            if chosen is not None and chosen != seen.contender.now[connection]:
                spine = _spine_of(fabric, pair, chosen)
                assert spine is not None
                of_rank[job.hosts.index(pair.source.node)] = spine, pair.ways[chosen].ports
        ways.append(tuple(of_rank))
    levels = [level or 0 for level in decision.levels]
    for place, of_axes in enumerate(decision.axis_levels):
        levels[place] = dict(of_axes).get(_AXIS, levels[place])
    return Choice(
        levels=tuple(levels),
        ways=tuple(ways),
        offsets_s=decision.offsets_s,
        periods_s=tuple(period_s or 0.0 for period_s in decision.periods_s),
    )


def candidates(ports: Sequence[int], turn: int) -> list[tuple[int, int]]:
    """Return ranges of ports for a rank around ports that are known to lead where it wants to go: which is first goes
    by `turn`, so that one round's ports are not the last one's."""
    ranges = []
    for port in ports:
        first = port - port % _WINDOW_PORTS
        count = _WINDOW_PORTS // HELD_PORTS
        ranges += [first + (turn + step) % count * HELD_PORTS for step in range(count)]
    return [(first, first + HELD_PORTS - 1) for first in ranges]
