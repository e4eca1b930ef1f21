"""What policies gain on the emulated fabric, measured beside simulated: `python -m bench.testbed.fabric --mixes 6`.

Utilisation is the share of devices' time in which they compute (Crux, eq. 1: all devices do as much in a second). A
round is a mix under a policy. It is disturbed where a rank woke too late in the mean, or the machine's own host kept
cores from it: then it is run again, `AGAIN` times at most, and the round that was disturbed least counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from bench.testbed.fabric.cases import Case, Job, Mode
from bench.testbed.fabric.mixes import (
    Choice,
    asked_of,
    candidates,
    choice_of,
    draw_mix,
    jobs_text,
    pairs_of,
    view_of_mix,
)
from bench.testbed.fabric.running import Ran, Timed, run_rounds
from bench.testbed.fabric.shape import Shape
from bench.testbed.fabric.simulated import Simulator, cluster_file
from bench.testbed.fabric.spaces import lay_out_fabric
from bench.testbed.fabric.ways import Asked, probe_pairs, trace_spines
from bench.testbed.network import standing
from planner.contention.policies.catalogue import make_network_policy
from profiles.cluster_file import load_cluster
from profiles.errors import MachineError
from profiles.records import dataclass, replace

POLICIES: tuple[Mode, ...] = ("ecmp", "crux", "ours")
LATE_S, STOLEN, AGAIN = 0.002, 0.02, 2
"""What disturbs a round: a rank that woke later than this in the mean, or a host that kept more of the cores; and how
often it is run again."""
WITHIN = 0.03
"""Points of utilisation; asked of the gain measured beside the gain simulated."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """A mix under a policy: what ran, and what the simulator says at the stated jitter (a row of seconds by job for
    each seed) and at others."""

    case: Case
    ran: Ran
    usual: tuple[tuple[float, ...], ...]
    others: tuple[tuple[float, ...], ...]
    from_s: float
    until_s: float
    rounds: int

    @property
    def disturbed(self) -> bool:
        """Whether something held it up that is not the fabric's."""
        return is_disturbed(self.ran)

    @property
    def measured(self) -> float:
        """The utilisation that was measured."""
        return utilization(self.case.jobs, [self._seconds(timed) for timed in self.ran.jobs])

    def _seconds(self, timed: Timed) -> float:
        """Of an iteration; of a job that ended none in the time, the time over what it may have ended."""
        seconds = timed.mean_s(self.from_s, self.until_s)
        ended = sum(self.from_s <= each <= self.until_s for each in timed.ended_s)
        return (self.until_s - self.from_s) / max(ended, 0.5) if math.isnan(seconds) else seconds

    @property
    def simulated(self) -> float:
        """The utilisation in the mean of all seeds."""
        return mean(utilization(self.case.jobs, row) for row in self.usual)

    @property
    def every(self) -> list[float]:
        """Utilisations at all jitters, rates and seeds."""
        return [utilization(self.case.jobs, row) for row in (*self.usual, *self.others)]


def is_disturbed(ran: Ran) -> bool:
    """Whether ranks woke late or cores were kept from the machine."""
    return ran.late_s > LATE_S or ran.stolen > STOLEN


def utilization(jobs: Sequence[Job], seconds: Sequence[float]) -> float:
    """Return the share of devices' time in which they compute, of jobs whose iterations take so many seconds."""
    busy = sum(len(job.hosts) * job.compute_s / each for job, each in zip(jobs, seconds, strict=True))
    return busy / sum(len(job.hosts) for job in jobs)


def run_mixes(
    shape: Shape, mixes: int, *, begin_s: float, lasts_s: float, jitter: float, seed: int, seeds: int
) -> list[list[Round]]:
    """Return of each mix its rounds, one for each policy; prints what was probed. Raise MachineError where the fabric
    cannot be made, a probe finds too little, or a worker dies."""
    drawn = [draw_mix(shape, seed, number) for number in range(mixes)]
    until_s = begin_s + lasts_s
    with standing(lay_out_fabric(shape)) as (prefix, _), TemporaryDirectory() as folder:
        cases = _decided(prefix, shape, drawn, Path(folder))
        limit_s = 60 + 3 * until_s * len(cases)
        ran, rounds = _ran(prefix, shape, cases, lasts_s=until_s, jitter=jitter, seed=seed, limit_s=limit_s)
    simulator = Simulator(shape, from_s=begin_s, until_s=until_s)
    found = []
    for case, one, count in zip(cases, ran, rounds, strict=True):
        usual, others = simulator.plays(case, jitter=jitter, seeds=seeds)
        found.append(
            Round(
                case=case,
                ran=one,
                usual=tuple(map(tuple, usual)),
                others=tuple(map(tuple, others)),
                from_s=begin_s,
                until_s=until_s,
                rounds=count,
            )
        )
    return [found[at : at + len(POLICIES)] for at in range(0, len(found), len(POLICIES))]


def _ran(
    prefix: str, shape: Shape, cases: Sequence[Case], *, lasts_s: float, jitter: float, seed: int, limit_s: float
) -> tuple[list[Ran], list[int]]:
    """What came of each case, and how often it ran."""
    best: dict[int, Ran] = {}
    rounds = [0] * len(cases)
    left = list(range(len(cases)))
    for _ in range(1 + AGAIN):
        some = [cases[number] for number in left]
        again = run_rounds(prefix, shape, some, lasts_s=lasts_s, jitter=jitter, seed=seed, limit_s=limit_s)
        for number, ran in zip(left, again, strict=True):
            rounds[number] += 1
            known = best.get(number)
            if known is None or not is_disturbed(ran) or (ran.late_s, ran.stolen) < (known.late_s, known.stolen):
                best[number] = ran
        left = [number for number in left if is_disturbed(best[number])]
        if not left:
            break
    return [best[number] for number in range(len(cases))], rounds


def _decided(prefix: str, shape: Shape, drawn: Sequence[tuple[Job, ...]], folder: Path) -> list[Case]:
    """The mixes under each policy, after the ways were probed: ports that were chosen have been seen to lead there."""
    file = folder / "fabric.yaml"
    file.write_text(json.dumps(cluster_file(shape, devices=shape.places)), encoding="utf-8")
    pairs = pairs_of(shape, (job for jobs in drawn for job in jobs))
    answers = probe_pairs(prefix, pairs, file)
    missed = sum(answer["seen"] < answer["equal"] for answer in answers)
    asked = [answer["asked"] for answer in answers]
    print(
        f"`network probe` from {len(pairs)} hosts to others: {sum(answer['seen'] for answer in answers)} ways,"
        f" {missed} pairs with one unseen, {mean(asked):.1f} ports in the mean ({max(asked)} at most)"
    )
    own_ports = [[range(first, last + 1) for first, last in job.ports] for jobs in drawn for job in jobs]
    every = [job for jobs in drawn for job in jobs]
    traced = trace_spines(
        prefix, shape, [one for job, ports in zip(every, own_ports, strict=True) for one in asked_of(job, ports)]
    )
    _check_own(shape, every, traced)
    cluster = load_cluster(str(file))
    cases, wanted = [], []
    for number, jobs in enumerate(drawn):
        jobs_file = folder / f"mix{number + 1}.yaml"
        jobs_file.write_text(jobs_text(jobs), encoding="utf-8")
        view, all_seen = view_of_mix(cluster, jobs_file, jobs, traced, shape.levels)
        for name in POLICIES:
            choice = choice_of(cluster, jobs, all_seen, make_network_policy(name).decide(view))
            cases.append(Case(name=f"mix {number + 1}", mode=name, jobs=jobs))
            wanted.append(choice)
    return _with_ports(prefix, shape, cases, wanted)


def _check_own(shape: Shape, jobs: Sequence[Job], traced: Mapping[Asked, int | None]) -> None:
    """Raise MachineError where a port that a job has now does not lead where the fabric's rules say."""
    for job in jobs:
        for sender, receiver in job.flows():
            source, target = job.hosts[sender], job.hosts[receiver]
            apart = shape.leaf_of(source) != shape.leaf_of(target)
            for port in range(job.ports[sender][0], job.ports[sender][1] + 1):
                if traced[source, target, port] != (job.spines[sender] if apart else None):
                    raise MachineError(f"fabric: port {port} of host {source} leads elsewhere than it was laid out")


def _with_ports(prefix: str, shape: Shape, cases: Sequence[Case], wanted: Sequence[Choice]) -> list[Case]:
    """The cases with a range of ports for each rank whose way was chosen: the first of its candidates all of whose ports
    are seen to lead there. Raise MachineError where none does."""
    settled = [
        [[None if way is None else candidates(way[1], turn) for way in of_job] for of_job in choice.ways]
        for turn, choice in enumerate(wanted)
    ]
    open_ranks = [
        (case, job, rank)
        for case, of_case in enumerate(settled)
        for job, of_job in enumerate(of_case)
        for rank, ranges in enumerate(of_job)
        if ranges is not None
    ]
    while open_ranks:
        asked = {}
        for number, place, rank in open_ranks:
            ranges = settled[number][place][rank]
            job = cases[number].jobs[place]
            if not ranges:
                raise MachineError(f"fabric: no ports found for rank {rank} of {cases[number].name}'s job {place}")
            receiver = next(receiver for sender, receiver in job.flows() if sender == rank)
            first, last = ranges[0]
            asked[number, place, rank] = [
                (job.hosts[rank], job.hosts[receiver], port) for port in range(first, last + 1)
            ]
        traced = trace_spines(prefix, shape, [one for ports in asked.values() for one in ports])
        still_open = []
        for key, ports in asked.items():
            number, place, rank = key
            way = wanted[number].ways[place][rank]
            ranges = settled[number][place][rank]
            assert way is not None
            assert ranges is not None
            if any(traced[one] != way[0] for one in ports):
                ranges.pop(0)
                still_open.append(key)
        open_ranks = still_open
    return [
        replace(
            case,
            jobs=tuple(
                _placed(job, level, of_job, ranges)
                for job, level, of_job, ranges in zip(case.jobs, choice.levels, choice.ways, of_case, strict=True)
            ),
        )
        for case, choice, of_case in zip(cases, wanted, settled, strict=True)
    ]


def _placed(
    job: Job,
    level: int,
    ways: Sequence[tuple[int, tuple[int, ...]] | None],
    ranges: Sequence[list[tuple[int, int]] | None],
) -> Job:
    """The job with its level, and the spine and ports that were chosen for its ranks."""
    return replace(
        job,
        level=level,
        spines=tuple(own if way is None else way[0] for own, way in zip(job.spines, ways, strict=True)),
        ports=tuple(own if not its else its[0] for own, its in zip(job.ports, ranges, strict=True)),
    )


def report(mixes: Sequence[Sequence[Round]]) -> Iterator[str]:
    """Yield the table, a line for each mix and policy, and what came of the aims."""
    yield "| mix | jobs | policy | utilisation measured | simulated | gain measured | simulated | over jitters | late, busy | |"
    yield "| :-- | --: | :-- | --: | --: | --: | --: | --: | --: | :-- |"
    errors, signs = [], []
    for rounds in mixes:
        base = rounds[0]
        for each in rounds:
            line = f"| {each.case.name[4:]} | {len(each.case.jobs)} | {each.case.mode} | {each.measured:.1%} | {each.simulated:.1%} |"
            if each is base:
                line += "  |  |  |"
            else:
                measured, simulated = each.measured - base.measured, each.simulated - base.simulated
                spread = [own - other for own, other in zip(each.every, base.every, strict=True)]
                line += (
                    f" {_points(measured)} | {_points(simulated)} | {_points(min(spread))}, {_points(max(spread))} |"
                )
                errors.append(measured - simulated)
                if abs(simulated) > WITHIN:
                    signs.append(measured * simulated > 0)
            again = f"{each.rounds} rounds" if each.rounds > 1 else ""
            state = ", ".join(part for part in (again, "disturbed" if each.disturbed else "") if part)
            yield f"{line} {each.ran.late_s * 1e3:.1f} ms, {each.ran.busy:.0%} | {state} |"
    yield ""
    within = sum(abs(error) <= WITHIN for error in errors)
    yield (
        f"gains: {within} of {len(errors)} within 3 points of the gain simulated (asked: all); {mean(map(abs, errors)) * 100:.1f}"
        f" points in the mean, {max(map(abs, errors)) * 100:.1f} at worst"
    )
    yield f"signs: {sum(signs)} of {len(signs)} right where the gain simulated is above 3 points"
    for rounds in zip(*mixes, strict=True):
        measured, simulated = mean(each.measured for each in rounds), mean(each.simulated for each in rounds)
        yield f"{rounds[0].case.mode}: {measured:.1%} measured, {simulated:.1%} simulated in the mean of the mixes"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


