"""The paces that an event changes, followed as far as they go: after each they are those of all movers, found anew."""

from __future__ import annotations

import random

import numpy as np
import pytest

from estimator.network.player import events, paces
from estimator.network.player.folding import FoldedMover, Part
from estimator.network.player.packing import Packed, pack
from estimator.network.player.score import Score, State, fresh_state
from estimator.network.player.scoring import Watch, as_lists, make_score
from estimator.network.rates import Ways, fair_paces
from estimator.network.steps import Mover, Playing, Step, Transfer
from tests.seeds import seeds

WATCH = Watch(jitter=0.0, seed=0, window=0, most_windows=1, tolerance=0.01, compares=False, log_rows=0)


def draw_jobs(rng: random.Random, links: int, levels: int) -> list[Packed]:
    """Jobs of one transfer of one to three movers over a few links each, so that a change may go far."""
    jobs = []
    for _ in range(rng.randint(3, 14)):
        movers = []
        for _ in range(rng.randint(1, 3)):
            way = [(link, rng.choice((0.5, 1.0, 1.0, 2.0))) for link in sorted(rng.sample(range(links), 3))]
            movers.append(Mover(way=tuple(way), seconds=rng.uniform(0.2, 1.0), most=rng.choice((1.0, 1.0, 0.3))))
        step = Step(compute_s=rng.uniform(0.1, 1.0), begins_s=0.05, transfers=(Transfer(movers=tuple(movers)),))
        weight, level = rng.choice((1.0, 1.0, 2.5)), rng.randrange(levels)
        starts_s, iterations = rng.choice((0.0, rng.uniform(0.0, 3.0))), rng.randint(3, 6)
        jobs.append(pack(Playing(steps=(step,), level=level, weight=weight, starts_s=starts_s, iterations=iterations)))
    return jobs


def begin_play(jobs: list[Packed], rates: np.ndarray) -> tuple[Score, State]:
    """All jobs as one part, nothing folded."""
    movers = []
    for job in jobs:
        ends = np.cumsum(job.entry_count)
        entries = list(zip(job.entry_link.tolist(), job.entry_amount.tolist(), strict=True))
        columns = (ends - job.entry_count, ends, job.mover_seconds, job.mover_most, job.mover_level, job.mover_weight)
        movers.append(
            tuple(
                FoldedMover(way=tuple(entries[first:end]), seconds=s, most=most, level=level, weight=weight)
                for first, end, s, most, level, weight in zip(*(column.tolist() for column in columns), strict=True)
            )
        )
    part = Part(jobs=tuple(range(len(jobs))), movers=tuple((of_job,) for of_job in movers))
    score = make_score(part, jobs, [str(job) for job in range(len(jobs))], rates, WATCH)
    return as_lists(score), as_lists(fresh_state(score))


def expected(score: Score, active: list[int]) -> np.ndarray:
    """The paces of the active movers, from all links of their ways."""
    entries = [range(score.entry_first[mover], score.entry_first[mover + 1]) for mover in active]
    ways = Ways(
        users=np.repeat(np.arange(len(active)), [len(its) for its in entries]),
        links=np.array([score.entry_link[entry] for its in entries for entry in its]),
        amounts=np.array([score.entry_amount[entry] for its in entries for entry in its]),
        user_count=len(active),
        link_count=len(score.bytes_per_s),
    )
    return fair_paces(
        ways,
        np.array(score.bytes_per_s),
        most=np.array([score.most[mover] for mover in active]),
        weights=np.array([score.weight[mover] for mover in active]),
        levels=np.array([score.level[mover] for mover in active]),
    )


@pytest.mark.parametrize("levels", [1, 3, 150])
@pytest.mark.parametrize("patience", [0, 6])
@pytest.mark.parametrize("seed", seeds(25))
def test_paces_after_every_event(seed: int, patience: int, levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paces, "PATIENCE", patience)
    rng = random.Random(f"{seed} {levels}")
    links = rng.randint(4, 12)
    rates = np.array([rng.choice((0.5, 1.0, 1.0, 3.0)) for _ in range(links)])
    score, state = begin_play(draw_jobs(rng, links, levels), rates)
    looked = 0
    for count in range(1, 400):
        if events.advance(score, state, float("inf"), count) == events.ALL_GONE:
            break
        active = [mover for mover, its in enumerate(state.mover_active) if its]
        if active:
            looked += 1
            found = [state.mover_pace[mover] for mover in active]
            np.testing.assert_allclose(found, expected(score, active), rtol=1e-9, atol=1e-12)
    assert looked > 20
