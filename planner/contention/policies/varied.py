"""Decisions played while jobs vary as they do on machines: what fits by the second may drift, and a job that is late is
seldom early again.

Of two draws one is of jobs that take as long as stated in the mean: compute times vary evenly by the jitter j from
iteration to iteration. In the other jobs are late, and never early: compute takes longer than stated by

    1 + j + L j u + j v,

u even from 0 to 1, drawn once for the draw (a host that is slow is slow for long), v even from -1 to 1, drawn for each
iteration. L says how many times as late as that a job may be. It comes from jobs over real TCP: with a jitter of 1%
those of the first level took 1 to 4% longer than simulated (`bench/testbed/fabric`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from statistics import mean

from planner.contention.policies.records import Contender, Decision, View
from planner.contention.policies.rehearsals import Rehearsals, played_rates
from planner.contention.policies.worth import excess_of, slowdowns, work_per_s

JITTER, MOST_JITTER = 0.01, 0.1
LATE = 4.0
"""L: of so many jitters."""
GAINS = 1e-3
"""A mean that is more by no more, relatively, is none: draws differ."""
KNOWN = (0, 1, 11)
"""Draws by which decisions are looked for."""
LATE_DRAWS, EVEN_DRAWS = (3, 5, 7, 9), (2, 4)
"""Others by which one is kept: the best of many by some draws is better there than elsewhere."""


def worst_lateness(jitter: float) -> float:
    """Return the share by which compute takes longer than stated at most."""
    return (2 + LATE) * jitter


class Varied:
    """Plays decisions in draws, of which the odd ones are of late jobs, and counts cases. A cap on slowdowns is of jobs
    that are as stated: it is held against a play in which nothing varies."""

    def __init__(self, view: View, cap: float | None = None, *, jitter: float = JITTER) -> None:
        if not 0 <= jitter <= MOST_JITTER:
            raise ValueError(f"jitter {jitter}: from 0 to {MOST_JITTER:g}")
        self.view, self.cap, self.jitter = view, cap, jitter
        self.stated = Rehearsals(view)
        self._draws: dict[int, Rehearsals] = {}

    @property
    def played(self) -> int:
        """Cases so far, in all draws."""
        return self.stated.played + sum(each.played for each in self._draws.values())

    def work(self, decision: Decision, draws: Sequence[int] = KNOWN) -> float:
        """Return the work a second in the mean of the draws, FLOP/s."""
        return mean(work_per_s(self.view.jobs, self._drawn(draw).rates_of(decision)) for draw in draws)

    def would_play(self, decision: Decision, draws: Sequence[int] = KNOWN) -> int:
        """Return how many cases `work` and `keeps_cap` would play for it."""
        stated = 0 if self.cap is None else self.stated.would_play(decision)
        return stated + sum(self._drawn(draw).would_play(decision) for draw in draws)

    def keeps_cap(self, decision: Decision, as_well_as: Decision) -> bool:
        """Whether no job is slowed above the cap by more than under another decision."""
        return self.cap is None or self._excess(decision) <= self._excess(as_well_as)

    def is_better(self, one: Decision, other: Decision) -> bool:
        """Whether one decision does clearly more work than the other in the mean of fresh draws: of those in which jobs
        are late, and of all."""
        every = (*LATE_DRAWS, *EVEN_DRAWS)
        return all(self.work(one, draws) > self.work(other, draws) * (1 + GAINS) for draws in (LATE_DRAWS, every))

    def _excess(self, decision: Decision) -> float:
        factors = slowdowns(self.view.jobs, self.stated.rates_of(decision))
        return excess_of(max(factors, default=1.0), self.cap)

    def _drawn(self, draw: int) -> Rehearsals:
        if draw not in self._draws:
            view, jitter = self.view, self.jitter
            if draw % 2:
                jobs = (_late(job, 1 + jitter * (1 + LATE * _share(draw, job))) for job in view.jobs)
                view, jitter = replace(view, jobs=tuple(jobs)), jitter / (1 + jitter)
            self._draws[draw] = Rehearsals(view, partial(played_rates, jitter=jitter, seed=draw))
        return self._draws[draw]


def _share(draw: int, job: Contender) -> float:
    return Random(f"late {draw}, {job.id}").random()


def _late(job: Contender, longer: float) -> Contender:
    """The job, whose compute takes so many times as long."""
    steps = tuple(
        replace(step, compute_s=step.compute_s * longer, begins_s=step.begins_s * longer) for step in job.steps
    )
    return replace(job, steps=steps)
