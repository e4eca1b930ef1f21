"""Paths and what is put on links, against the plain sums that they are short for."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from estimator.network.steps import Mover, Step, Transfer
from planner.contention.policies.loads import link_seconds, path_of, spread_paths
from planner.contention.policies.path_selection import least_congested_paths
from planner.contention.policies.records import Choice, Contender, Path, View
from tests.seeds import seeds

LINKS = 9


def draw_job(number: int, rng: random.Random) -> Contender:
    paths = []
    for _ in range(rng.randint(1, 4)):
        ends = rng.sample(range(3), rng.randint(0, 2))
        middles = rng.sample(range(3, LINKS), rng.randint(1, 4))
        paths.append(tuple(tuple((link, 1.0) for link in sorted((*ends, middle))) for middle in middles))
    if rng.random() < 0.3:
        paths.append((((0, 0.25), (4, 0.75)),))
    way = tuple((connection, rng.choice((0.0, 1.0, rng.random()))) for connection in range(len(paths)))
    transfer = Transfer(movers=(Mover(way=way, seconds=rng.random()),), times=rng.randint(1, 2))
    return Contender(
        id=f"job{number}",
        devices=8,
        flops=1.0,
        alone_s=rng.uniform(0.5, 2.0),
        steps=(Step(compute_s=1.0, transfers=(transfer,)),),
        paths=tuple(paths),
        now=tuple(rng.randrange(len(options)) for options in paths),
    )


def draw_view(seed: int) -> View:
    rng = random.Random(seed)
    jobs = tuple(draw_job(number, rng) for number in range(rng.randint(1, 6)))
    rates = tuple(rng.choice((0.0, 1.0, 2.0, rng.uniform(0.5, 3.0))) for _ in range(LINKS))
    return View(jobs=jobs, bytes_per_s=rates, levels=2)


def sizes(job: Contender) -> list[float]:
    (step,) = job.steps
    (transfer,) = step.transfers
    return [transfer.times * mover.seconds * rate for mover in transfer.movers for _, rate in mover.way]


@pytest.mark.parametrize("seed", seeds(80))
def test_each_connection_takes_the_path_that_no_other_beats(seed: int) -> None:
    view = draw_view(seed)
    order = random.Random(seed).sample(range(len(view.jobs)), len(view.jobs))
    busy: dict[int, float] = defaultdict(float)
    chosen: list[tuple[Choice, ...]] = [()] * len(view.jobs)
    for number in order:
        job = view.jobs[number]
        for options, size in zip(job.paths, sizes(job), strict=True):

            def congestion(path: int, options: tuple[Path, ...] = options) -> tuple[float, float, int]:
                loads = [busy[link] if view.bytes_per_s[link] else float("inf") for link, _ in options[path]]
                return max(loads, default=0.0), sum(loads), path

            best = min(range(len(options)), key=congestion)
            chosen[number] += (best,)
            for link, share in options[best]:
                rate = view.bytes_per_s[link]
                busy[link] += size * share / rate / job.alone_s if rate else float("inf")
    assert least_congested_paths(view, order) == tuple(chosen)


@pytest.mark.parametrize("seed", seeds(80))
def test_seconds_of_links_are_those_of_each_connection_together(seed: int) -> None:
    view = draw_view(seed)
    rng = random.Random(seed)
    drawn = tuple(tuple(rng.choice((now, None)) for now in job.now) for job in view.jobs)
    for paths in (spread_paths(view), drawn):
        for job, choices, found in zip(view.jobs, paths, link_seconds(view, paths), strict=True):
            expected: dict[int, float] = defaultdict(float)
            for options, choice, size in zip(job.paths, choices, sizes(job), strict=True):
                for link, share in path_of(options, choice) if size else ():
                    rate = view.bytes_per_s[link]
                    expected[link] += size * share / rate if rate else float("inf")
            assert list(found.items()) == list(expected.items())
            told = job.as_told(id="other", own_level=1, now=job.now)
            assert told.sending is job.sending
