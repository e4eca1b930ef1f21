"""The jobs that meet on the fabric: twelve pairs and three queues of five, each shared in three ways."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

from bench.testbed.fabric.shape import Shape
from profiles.records import dataclass, replace

Kind = Literal["ring", "flow"]
Mode = Literal["fair", "levels", "paths", "ecmp", "crux", "ours"]
MODES: tuple[Mode, ...] = ("fair", "levels", "paths")
PAIRS, QUEUES = 12, 3
PAIR_KINDS: tuple[tuple[Kind, ...], ...] = (("flow", "flow"), ("ring", "ring"), ("ring", "flow"))
QUEUE_KINDS: tuple[Kind, ...] = ("ring", "ring", "ring", "flow", "flow")
_COMPUTE_S, _PAIR_S, QUEUE_S = (0.15, 0.4), (0.15, 0.45), (0.08, 0.2)
"""Of an iteration: what is computed, and what is sent alone, of a pair and where five jobs meet."""
_EARLY = (1.0, 1.0, 0.5)
_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that computes for `compute_s` and, from `begins_s` of that on, sends: a `ring` sums `size_bytes` over its
    hosts (gloo's all-reduce), a `flow` sends as many from the first to the second (a plain TCP connection). `spines`
    is, of each host, where what it sends goes up; `place` is its own among the places of each host. `ports`: of each
    host the first and the last that its connections leave from; without, a block of those that lead where `spines`
    says. It begins `offset_s` later than others; with a period its iterations begin no sooner than whole periods after
    the first."""

    kind: Kind
    hosts: tuple[int, ...]
    place: int
    compute_s: float
    begins_s: float
    size_bytes: int
    spines: tuple[int, ...]
    level: int = 0
    ports: tuple[tuple[int, int], ...] = ()
    offset_s: float = 0.0
    period_s: float = 0.0

    @property
    def flow_bytes(self) -> float:
        """What each of its connections sends in an iteration."""
        count = len(self.hosts)
        return float(self.size_bytes) if self.kind == "flow" else 2 * (count - 1) / count * self.size_bytes

    def flows(self) -> tuple[tuple[int, int], ...]:
        """Return the sender and the receiver of each connection, by rank. gloo's ring sends to the rank before."""
        if self.kind == "flow":
            return ((0, 1),)
        return tuple((rank, (rank - 1) % len(self.hosts)) for rank in range(len(self.hosts)))

    def way(self, shape: Shape, sender: int, receiver: int) -> tuple[tuple[str, str], ...]:
        """Return the links from a rank to another."""
        return shape.way(self.hosts[sender], self.hosts[receiver], self.spines[sender])

    def links(self, shape: Shape) -> Counter[tuple[str, str]]:
        """Return how many of its connections send over each link."""
        return Counter(link for pair in self.flows() for link in self.way(shape, *pair))


@dataclass(frozen=True, kw_only=True)
class Case:
    """Jobs that run at the same time; `mode`: all the same level on ways by chance (`fair`), each its own level on the
    same ways (`levels`), or the same level on ways that were chosen (`paths`); or what a policy of that name decides.
    """

    name: str
    mode: Mode
    jobs: tuple[Job, ...]


def make_cases(shape: Shape, seed: int, *, pairs: int = PAIRS, queues: int = QUEUES) -> list[Case]:
    """Return every pair and every queue in each mode. Jobs of a pair have a link in common where ways are by chance."""
    found: list[Case] = []
    for number in range(pairs):
        rng = random.Random(f"pair {seed} {number}")
        kinds, apart = PAIR_KINDS[number % len(PAIR_KINDS)], number % 2 == 0
        jobs = _meeting(shape, rng, kinds, apart=apart)
        found += _modes(shape, f"pair {number + 1}", jobs, rng)
    for number in range(queues):
        rng = random.Random(f"queue {seed} {number}")
        found += _modes(shape, f"queue {number + 1}", draw_jobs(shape, rng, QUEUE_KINDS, QUEUE_S), rng)
    return found


def _meeting(shape: Shape, rng: random.Random, kinds: Sequence[Kind], *, apart: bool) -> list[Job]:
    """Two jobs that send over a common link; `apart`: on hosts of their own, so that other ways lead around it. The
    last draw where there is none, as with one leaf."""
    for _ in range(_TRIES):
        jobs = draw_jobs(shape, rng, kinds, _PAIR_S)
        together = set(jobs[0].hosts) & set(jobs[1].hosts)
        if jobs[0].links(shape).keys() & jobs[1].links(shape).keys() and not (apart and together):
            break
    return jobs


def _thinnest(shape: Shape) -> float:
    return min(shape.nic_bytes_per_s, shape.uplink_bytes_per_s)


def draw_jobs(shape: Shape, rng: random.Random, kinds: Sequence[Kind], alone_range_s: tuple[float, float]) -> list[Job]:
    """Return a job of each kind on hosts, with compute, bytes and ways by chance; alone it sends for so many seconds of
    an iteration."""
    jobs = []
    for place, kind in enumerate(kinds):
        each = 1 if kind == "flow" else rng.choice((1, 2))
        leaves = rng.sample(range(shape.leaves), min(2, shape.leaves))
        hosts = [
            host
            for leaf in leaves
            for host in rng.sample(
                range(leaf * shape.hosts_per_leaf, (leaf + 1) * shape.hosts_per_leaf), min(each, shape.hosts_per_leaf)
            )
        ]
        if kind == "ring":
            hosts.sort()
        compute_s, alone_s = rng.uniform(*_COMPUTE_S), rng.uniform(*alone_range_s)
        sent = 1.0 if kind == "flow" else 2 * (len(hosts) - 1) / len(hosts)
        jobs.append(
            Job(
                kind=kind,
                hosts=tuple(hosts),
                place=place,
                compute_s=compute_s,
                begins_s=compute_s * rng.choice(_EARLY),
                size_bytes=4 * round(alone_s * _thinnest(shape) / sent / 4),
                spines=tuple(rng.randrange(shape.spines) for _ in hosts),
            )
        )
    return jobs


def _modes(shape: Shape, name: str, jobs: Sequence[Job], rng: random.Random) -> Iterator[Case]:
    order = list(range(len(jobs)))
    rng.shuffle(order)
    levels = [replace(job, level=level % shape.levels) for job, level in zip(jobs, order, strict=True)]
    ways: dict[Mode, Sequence[Job]] = {"fair": jobs, "levels": levels, "paths": _chosen(shape, jobs)}
    for mode in MODES:
        yield Case(name=name, mode=mode, jobs=tuple(ways[mode]))


def _chosen(shape: Shape, jobs: Sequence[Job]) -> list[Job]:
    """Each job, that which sends most of the time first, by the spine on whose links least is sent so far."""
    busy: defaultdict[tuple[str, str], float] = defaultdict(float)
    chosen: dict[int, Job] = {}

    def sending(job: Job) -> float:
        sent_s = job.flow_bytes / _thinnest(shape)
        return sent_s / max(job.begins_s + sent_s, job.compute_s)

    for job in sorted(jobs, key=lambda job: (-sending(job), job.place)):
        ways = [replace(job, spines=(spine,) * len(job.hosts)) for spine in range(shape.spines)]
        loads = [sum(busy[link] for link in way.links(shape)) for way in ways]
        best = ways[loads.index(min(loads))]
        chosen[job.place] = best
        for link, count in best.links(shape).items():
            busy[link] += count * sending(job)
    return [chosen[job.place] for job in jobs]
