"""Links that matter among the jobs that are there: found in the loop of events, and by folding these jobs alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from estimator.network.player import events
from estimator.network.player.folding import FoldedMover, Part, fold
from estimator.network.player.narrowing import narrow
from estimator.network.player.packing import Packed, pack
from estimator.network.player.play import Settings, play
from estimator.network.player.score import fresh_state
from estimator.network.player.scoring import Watch, as_lists, make_score
from estimator.network.steps import Mover, Playing, Step, Transfer
from tests.seeds import seeds

LINKS = 14
WATCH = Watch(jitter=0.0, seed=0, window=0, most_windows=1, tolerance=0.01, compares=False, log_rows=0)

Way = tuple[tuple[int, float], ...]


def draw_jobs(rng: random.Random) -> list[Packed]:
    """Jobs of one or two transfers of one or two movers, some links of which several jobs use alike."""
    together = [sorted(rng.sample(range(LINKS), 3)) for _ in range(3)]
    jobs = []
    for number in range(rng.randint(2, 7)):
        transfers = []
        for _ in range(rng.randint(1, 2)):
            movers = []
            for _ in range(rng.randint(1, 2)):
                links = {*rng.choice(together), *rng.sample(range(LINKS), rng.randint(0, 4))}
                way = tuple((link, rng.uniform(0.1, 1.2)) for link in sorted(links))
                movers.append(Mover(way=way, seconds=rng.uniform(0.2, 1.0)))
            transfers.append(Transfer(movers=tuple(movers)))
        step = Step(compute_s=rng.uniform(0.3, 1.0), begins_s=0.2, transfers=tuple(transfers))
        starts_s = float(number) if number else 0.0
        jobs.append(pack(Playing(steps=(step,), starts_s=starts_s, iterations=rng.randint(3, 9))))
    return jobs


def ways_of(parts: Sequence[Part], jobs: int) -> list[list[tuple[Way, float]]]:
    """Of each job the ways of its movers and their highest paces."""
    found: list[list[tuple[Way, float]]] = [[] for _ in range(jobs)]
    for part in parts:
        for job, transfers in zip(part.jobs, part.movers, strict=True):
            found[job] = [(mover.way, mover.most) for movers in transfers for mover in movers]
    return found


@pytest.mark.parametrize("seed", seeds(120))
def test_narrowed_is_folded(seed: int) -> None:
    rng = random.Random(seed)
    jobs, rates = draw_jobs(rng), np.array([rng.uniform(0.3, 2.0) for _ in range(LINKS)])
    # Nothing is left out before: what the loop finds is all its own.
    movers = [
        tuple(mover for mover in transfer.movers)
        for job in jobs
        for step in job.playing.steps
        for transfer in step.transfers
    ]
    whole = whole_part(jobs)
    score = as_lists(make_score(whole, jobs, [str(job) for job in range(len(jobs))], rates, WATCH))
    state = as_lists(fresh_state(make_score(whole, jobs, [str(job) for job in range(len(jobs))], rates, WATCH)))
    present = sorted(rng.sample(range(len(jobs)), rng.randint(1, len(jobs))))
    for job in present:
        events.come(score, state, job)
    narrow(score, state)
    links = sorted({link for each in movers for mover in each for link, _ in mover.way})
    expected = ways_of(fold([jobs[job] for job in present], rates), len(present))
    for place, job in enumerate(present):
        first, last = score.job_mover_first[job], score.job_mover_first[job + 1]
        found = [
            (
                tuple(
                    (links[state.live_link[e]], state.live_amount[e])
                    for e in range(score.entry_first[m], state.live_end[m])
                ),
                state.most_now[m],
            )
            for m in range(first, last)
        ]
        # Folding joins movers of a transfer that nothing holds, or that are alike.
        held = [each for each in found if each[0]]
        assert held == [each for each in expected[place] if each[0]]


def whole_part(jobs: Sequence[Packed]) -> Part:
    """All jobs with all of their links."""
    movers = []
    for job in jobs:
        transfers = [transfer for step in job.playing.steps for transfer in step.transfers]
        weights = iter(job.mover_weight.tolist())
        movers.append(
            tuple(
                tuple(
                    FoldedMover(way=mover.way, seconds=mover.seconds, most=mover.most, level=0, weight=next(weights))
                    for mover in transfer.movers
                )
                for transfer in transfers
            )
        )
    return Part(jobs=tuple(range(len(jobs))), movers=tuple(movers))


@pytest.mark.parametrize("seed", seeds(40))
def test_a_job_that_never_meets_another_changes_nothing(seed: int) -> None:
    """A job that comes when all others have gone has each link to itself; so have the others."""
    rng = random.Random(seed)
    jobs, rates = draw_jobs(rng), np.array([rng.uniform(0.3, 2.0) for _ in range(LINKS)])
    settings = Settings(exact=True, jitter=0.0, compiled=False)
    before = play(jobs, rates, settings=settings)
    end_s = max(job.ended_s or 0.0 for job in before.jobs)
    way = tuple((link, 1.0) for link in range(LINKS))
    step = Step(compute_s=1.0, begins_s=1.0, transfers=(Transfer(movers=(Mover(way=way, seconds=1.0),)),))
    late = pack(Playing(steps=(step,), starts_s=end_s + 1.0, iterations=3))
    after = play([*jobs, late], rates, settings=settings)
    assert [job.ended_s for job in after.jobs[:-1]] == pytest.approx([job.ended_s for job in before.jobs], rel=1e-9)
    assert after.jobs[-1].seconds == pytest.approx(1.0 + max(1.0 / float(rates.min()), 1.0), rel=1e-9)
