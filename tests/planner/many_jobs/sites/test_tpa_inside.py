"""The choice inside a site: labels, the integer program and trying everything give the same."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from random import Random

import pytest

from planner.many_jobs.sites import inside
from planner.many_jobs.sites.inside import InsideOption, best_inside, patterns_of
from tests.oracles.inside_milp import best_inside_by_milp
from tests.seeds import seeds, some


def draw_option(rng: Random, room: tuple[int, ...], dp: int, pp: int, *, even: bool) -> InsideOption:
    """Costs at random; `even`: they do not change with the units, which are alike then."""
    patterns = patterns_of(room, dp)

    def shape(pattern: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(pattern)) if even else pattern

    sync = {shape(pattern): rng.randint(0, 20) / 4 for pattern in patterns}
    pairs: dict[object, float] = {}

    def hop(one: tuple[int, ...], other: tuple[int, ...]) -> float:
        if even:
            key: object = tuple(sorted(zip(one, other, strict=True)))
        else:
            key = (one, other)
        return pairs.setdefault(key, rng.randint(0, 8) / 8)

    return InsideOption(
        pp=pp,
        compute_s=rng.randint(10, 60) / 4,
        micro_batches=rng.randint(1, 5),
        room=room,
        alike=(0,) * len(room) if even else tuple(range(len(room))),
        patterns=patterns,
        sync_s=tuple(sync[shape(pattern)] for pattern in patterns),
        hop_s=tuple(tuple(hop(one, other) for other in patterns) for one in patterns),
    )


def draw_options(seed: int) -> list[InsideOption]:
    """Every (d, p) on two or three units."""
    rng = Random(seed)
    even = seed % 2 == 0
    room = (rng.randint(1, 3),) * rng.randint(2, 3) if even else tuple(rng.randint(0, 3) for _ in range(3))
    total = sum(room)
    return [
        draw_option(rng, room, dp, pp, even=even)
        for dp in range(1, total + 1)
        for pp in range(1, total // dp + 1)
        if dp * pp <= total and pp <= 4
    ]


def least(options: list[InsideOption]) -> float:
    """By trying every sequence of patterns of every option."""
    best = math.inf
    for option in options:
        for stages in itertools.product(range(len(option.patterns)), repeat=option.pp):
            try:
                best = min(best, option.total_s(stages))
            except ValueError:
                continue
    return best


@pytest.mark.parametrize("first", some(range(0, 60, 20), 1))
def test_labels_find_what_trying_everything_finds(first: int) -> None:
    for seed in range(first, first + 20):
        options = draw_options(seed)
        if not options:
            continue
        found = best_inside(options)
        assert found is not None
        assert found.total_s == options[found.option].total_s(found.stages)
        assert found.total_s == pytest.approx(least(options), rel=1e-12)


def test_few_labels_are_still_a_choice_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits, and no bound says that it is the best; on these small ones it is near."""
    monkeypatch.setattr(inside, "MOST_FOLLOWERS", 8)
    for seed in range(20):
        options = draw_options(seed)
        if options:
            choice = best_inside(options)
            assert choice is not None
            assert choice.total_s == options[choice.option].total_s(choice.stages)
            assert least(options) * (1 - 1e-12) <= choice.total_s <= 1.5 * least(options)


def test_the_integer_program_has_the_same_optimum() -> None:
    for seed in range(200, 240):
        options = sorted(draw_options(seed), key=lambda one: one.least_s)[:6]
        found, solved = best_inside(options), best_inside_by_milp(options)
        assert (found is None) == (solved is None)
        if found is not None and solved is not None:
            assert solved.total_s == pytest.approx(found.total_s, rel=1e-6)
            assert solved.total_s >= found.total_s - 1e-9


def test_nothing_is_found_where_nothing_fits_or_is_better() -> None:
    assert best_inside([]) is None
    rng = Random(0)
    crowded = draw_option(rng, (2, 1), 2, 1, even=False)
    crowded = replace(crowded, pp=2)
    assert best_inside([crowded]) is None
    assert best_inside_by_milp([crowded]) is None
    fine = draw_option(rng, (2, 2), 2, 2, even=True)
    found = best_inside([fine])
    assert found is not None
    assert best_inside([fine], below_s=found.total_s) is None
    with pytest.raises(ValueError, match="inside"):
        fine.total_s((0,))


def test_patterns() -> None:
    assert patterns_of((2, 1), 2) == ((1, 1), (2, 0))
    assert patterns_of((1,), 2) == ()
    for seed in seeds(20):
        rng = Random(seed)
        room, replicas = tuple(rng.randint(0, 3) for _ in range(rng.randint(1, 4))), rng.randint(1, 5)
        every = [one for one in itertools.product(*(range(most + 1) for most in room)) if sum(one) == replicas]
        assert sorted(patterns_of(room, replicas)) == sorted(every)
