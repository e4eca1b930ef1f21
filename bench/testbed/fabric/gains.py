"""What policies gain on the emulated fabric, measured beside simulated: `python -m bench.testbed.fabric --mixes 6`.

Utilisation is the share of devices' time in which they compute (Crux, eq. 1: all devices do as much in a second). A
round is a mix under a policy; one that something else disturbed is run again (`running`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from bench.testbed.fabric.cases import Case, Job, Mode
from bench.testbed.fabric.deciding import decide_mixes
from bench.testbed.fabric.mixes import draw_mix
from bench.testbed.fabric.running import Ran, Timed, run_quietly
from bench.testbed.fabric.shape import Shape
from bench.testbed.fabric.simulated import Simulator
from bench.testbed.fabric.spaces import lay_out_fabric
from bench.testbed.network import standing
from profiles.records import dataclass

POLICIES: tuple[Mode, ...] = ("ecmp", "crux", "ours")
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

    @property
    def disturbed(self) -> bool:
        """Whether something held it up that is not the fabric's."""
        return self.ran.disturbed

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

    def to_json(self) -> dict[str, Any]:
        """As a line of JSON."""
        return {
            "case": self.case.name,
            "policy": self.case.mode,
            "late_s": self.ran.late_s,
            "busy": self.ran.busy,
            "stolen": self.ran.stolen,
            "rounds": self.ran.rounds,
            "utilization_measured": self.measured,
            "utilization_simulated": self.simulated,
            "jobs": [
                {
                    "kind": job.kind,
                    "hosts": job.hosts,
                    "spines": job.spines,
                    "ports": job.ports,
                    "level": job.level,
                    "compute_s": job.compute_s,
                    "begins_s": job.begins_s,
                    "bytes": job.size_bytes,
                    "offset_s": job.offset_s,
                    "period_s": job.period_s,
                    "measured_s": self._seconds(timed),
                    "simulated_s": mean(row[place] for row in self.usual),
                }
                for place, (job, timed) in enumerate(zip(self.case.jobs, self.ran.jobs, strict=True))
            ],
        }

    @property
    def every(self) -> list[float]:
        """Utilisations at all jitters, rates and seeds."""
        return [utilization(self.case.jobs, row) for row in (*self.usual, *self.others)]


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
        cases = decide_mixes(prefix, shape, drawn, Path(folder), POLICIES)
        limit_s = 60 + 3 * until_s * len(cases)
        ran = run_quietly(prefix, shape, cases, lasts_s=until_s, jitter=jitter, seed=seed, limit_s=limit_s)
    simulator = Simulator(shape, from_s=begin_s, until_s=until_s)
    found = []
    for case, one in zip(cases, ran, strict=True):
        usual, others = simulator.plays(case, jitter=jitter, seeds=seeds)
        found.append(
            Round(
                case=case,
                ran=one,
                usual=tuple(map(tuple, usual)),
                others=tuple(map(tuple, others)),
                from_s=begin_s,
                until_s=until_s,
            )
        )
    return [found[at : at + len(POLICIES)] for at in range(0, len(found), len(POLICIES))]


def report(mixes: Sequence[Sequence[Round]]) -> Iterator[str]:
    """Yield the table, a line for each mix and policy, and what came of the aims."""
    yield (
        "| mix | jobs | policy | utilisation measured | simulated | gain measured | simulated | over jitters"
        " | late, busy | |"
    )
    yield "| :-- | --: | :-- | --: | --: | --: | --: | --: | --: | :-- |"
    gains = [_gain(each, rounds[0]) for rounds in mixes for each in rounds[1:]]
    for rounds in mixes:
        for each in rounds:
            yield _row(each, rounds[0])
    yield ""
    errors = [abs(measured - simulated) for measured, simulated in gains]
    signs = [measured * simulated > 0 for measured, simulated in gains if abs(simulated) > WITHIN]
    within = sum(error <= WITHIN for error in errors)
    yield (
        f"gains: {within} of {len(errors)} within 3 points of the gain simulated (asked: all);"
        f" {100 * mean(errors):.1f} points in the mean, {100 * max(errors):.1f} at worst"
    )
    yield f"signs: {sum(signs)} of {len(signs)} right where the gain simulated is above 3 points"
    for rounds in zip(*mixes, strict=True):
        measured, simulated = mean(each.measured for each in rounds), mean(each.simulated for each in rounds)
        yield f"{rounds[0].case.mode}: {measured:.1%} measured, {simulated:.1%} simulated in the mean of the mixes"


def _gain(each: Round, base: Round) -> tuple[float, float]:
    """Points of utilisation, measured and simulated."""
    return each.measured - base.measured, each.simulated - base.simulated


def _row(each: Round, base: Round) -> str:
    name, policy, count = each.case.name.removeprefix("mix "), each.case.mode, len(each.case.jobs)
    gains = "|  |  |  |"
    if each is not base:
        spread = [own - other for own, other in zip(each.every, base.every, strict=True)]
        measured, simulated = map(_points, _gain(each, base))
        gains = f"| {measured} | {simulated} | {_points(min(spread))}, {_points(max(spread))} |"
    state = [f"{each.ran.rounds} rounds"] if each.ran.rounds > 1 else []
    state += ["disturbed"] if each.disturbed else []
    late = f"{each.ran.late_s * 1e3:.1f} ms, {each.ran.busy:.0%}"
    return (
        f"| {name} | {count} | {policy} | {each.measured:.1%} | {each.simulated:.1%} {gains} {late} |"
        f" {', '.join(state)} |"
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
