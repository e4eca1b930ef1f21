"""Mixes under policies, on a fabric that stands: ways are probed, policies decide, and ports are seen to lead there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from bench.testbed.fabric.cases import Case, Job, Mode
from bench.testbed.fabric.mixes import Choice, asked_of, candidates, choice_of, jobs_text, pairs_of, view_of_mix
from bench.testbed.fabric.shape import Shape
from bench.testbed.fabric.simulated import cluster_file
from bench.testbed.fabric.ways import Asked, probe_pairs, trace_spines
from planner.contention.policies.catalogue import make_network_policy
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import MachineError
from profiles.records import dataclass, replace

Ports = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank of a job of a case for which a way was chosen, by their numbers: the hosts that it sends from and to, the
    spine, and the ranges of ports that may lead there."""

    case: int
    job: int
    rank: int
    hosts: tuple[int, int]
    spine: int
    ranges: tuple[Ports, ...]

    @property
    def asked(self) -> list[Asked]:
        """What to trace to know where the first of its ranges leads."""
        first, last = self.ranges[0]
        return [(*self.hosts, port) for port in range(first, last + 1)]


def probe_ways(prefix: str, shape: Shape, jobs: Sequence[Job], file: Path, *, devices: int = 1) -> Cluster:
    """Return the fabric, with so many devices on a host, as its cluster file has it once `network probe` has found the
    ways between the hosts of jobs; prints what that took. Raise MachineError where a probe fails."""
    file.write_text(json.dumps(cluster_file(shape, devices=devices)), encoding="utf-8")
    answers = probe_pairs(prefix, pairs_of(shape, jobs), file)
    missed = sum(answer["seen"] < answer["equal"] for answer in answers)
    asked = [answer["asked"] for answer in answers]
    print(
        f"`network probe` between {len(answers)} pairs of hosts: {sum(answer['seen'] for answer in answers)} ways,"
        f" {missed} pairs with one unseen, {mean(asked):.1f} ports in the mean ({max(asked)} at most)",
        flush=True,
    )
    return load_cluster(str(file))


def trace_own(prefix: str, shape: Shape, jobs: Sequence[Job]) -> dict[Asked, int | None]:
    """Return the spine that each port which jobs have now was seen to take. Raise MachineError where one leads
    elsewhere than the fabric was laid out."""
    asked = [one for job in jobs for one in asked_of(job, [range(first, last + 1) for first, last in job.ports])]
    traced = trace_spines(prefix, shape, asked)
    for source, target, port in asked:
        apart = shape.leaf_of(source) != shape.leaf_of(target)
        expected = shape.spine_of(shape.leaf_of(source), port) if apart else None
        if traced[source, target, port] != expected:
            raise MachineError(f"fabric: port {port} of host {source} leads elsewhere than it was laid out")
    return traced


def decide_mixes(
    prefix: str, shape: Shape, drawn: Sequence[tuple[Job, ...]], folder: Path, policies: Sequence[Mode]
) -> list[Case]:
    """Return the mixes under each policy, one mix after the other; ports that were chosen have been seen to lead where
    they shall. `folder` is for files. Raise MachineError where a probe fails or no ports are found."""
    every = [job for jobs in drawn for job in jobs]
    cluster = probe_ways(prefix, shape, every, folder / "fabric.yaml", devices=shape.places)
    traced = trace_own(prefix, shape, every)
    cases, choices = [], []
    for number, jobs in enumerate(drawn):
        file = folder / f"mix{number + 1}.yaml"
        file.write_text(jobs_text(jobs), encoding="utf-8")
        view, seen = view_of_mix(cluster, file, jobs, traced, shape.levels)
        for name in policies:
            choices.append(choice_of(cluster, jobs, seen, make_network_policy(name).decide(view)))
            cases.append(Case(name=f"mix {number + 1}", mode=name, jobs=jobs))
    return apply_choices(prefix, shape, cases, choices)


def apply_choices(prefix: str, shape: Shape, cases: Sequence[Case], choices: Sequence[Choice]) -> list[Case]:
    """Return the cases with their levels, and with ports for each rank whose way was chosen. Raise MachineError where
    none lead there."""
    ports = _ports_of(prefix, shape, _ranks(cases, choices))
    return [
        replace(
            case,
            jobs=tuple(
                _placed(job, choice, place, {rank: own for (*at, rank), own in ports.items() if at == [number, place]})
                for place, job in enumerate(case.jobs)
            ),
        )
        for number, (case, choice) in enumerate(zip(cases, choices, strict=True))
    ]


def _ranks(cases: Sequence[Case], choices: Sequence[Choice]) -> list[Rank]:
    ranks = []
    for number, (case, choice) in enumerate(zip(cases, choices, strict=True)):
        for place, (job, ways) in enumerate(zip(case.jobs, choice.ways, strict=True)):
            receiver = dict(job.flows())
            for rank, way in enumerate(ways):
                if way is not None:
                    ranks.append(
                        Rank(
                            case=number,
                            job=place,
                            rank=rank,
                            hosts=(job.hosts[rank], job.hosts[receiver[rank]]),
                            spine=way[0],
                            ranges=tuple(candidates(way[1], number)),
                        )
                    )
    return ranks


def _ports_of(prefix: str, shape: Shape, ranks: Sequence[Rank]) -> dict[tuple[int, int, int], Ports]:
    """The first range of each rank all of whose ports are seen to lead where it shall."""
    found: dict[tuple[int, int, int], Ports] = {}
    left = list(ranks)
    while left:
        traced = trace_spines(prefix, shape, [one for rank in left for one in rank.asked])
        wrong = []
        for rank in left:
            if all(traced[one] == rank.spine for one in rank.asked):
                found[rank.case, rank.job, rank.rank] = rank.ranges[0]
            elif len(rank.ranges) > 1:
                wrong.append(replace(rank, ranges=rank.ranges[1:]))
            else:
                raise MachineError(f"fabric: no ports lead from host {rank.hosts[0]} over spine {rank.spine}")
        left = wrong
    return found


def _placed(job: Job, choice: Choice, place: int, ports: Mapping[int, Ports]) -> Job:
    """The job at its place in a choice; `ports` are those of ranks whose way was chosen."""
    ways = choice.ways[place]
    return replace(
        job,
        level=choice.levels[place],
        spines=tuple(own if way is None else way[0] for own, way in zip(job.spines, ways, strict=True)),
        ports=tuple(ports.get(rank, own) for rank, own in enumerate(job.ports)),
        offset_s=choice.offsets_s[place] if choice.offsets_s else 0.0,
        period_s=choice.periods_s[place] if choice.periods_s else 0.0,
    )
