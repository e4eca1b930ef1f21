"""The best plans of parts of a space, found together, against a search of each part."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from planner.one_job.search.exact import search, search_parts
from planner.one_job.search.parts import make_part
from planner.one_job.search.spaces.constraints import Constraints, Number
from planner.one_job.search.spaces.space import ways_of
from tests.search_examples import random_search
from tests.seeds import seeds

NUMBERS: tuple[Number, ...] = ("tp", "pp", "cp", "dp", "ep", "vpp", "micro_batch", "micro_batches", "zero", "devices")


def narrower(limits: Constraints, rng: random.Random) -> Constraints:
    """The constraints with one more."""
    kind = rng.choice(("most", "least", "offload", "recompute"))
    if kind == "offload":
        return replace(limits, offload=False)
    if kind == "recompute":
        return replace(limits, recompute=(rng.choice(limits.recompute),))
    name, value = rng.choice(NUMBERS), rng.randint(1, 3)
    if kind == "most":
        return replace(limits, most={**limits.most, name: min(value, limits.most.get(name, value))})
    return replace(limits, least={**limits.least, name: max(value, limits.least.get(name, value))})


@pytest.mark.parametrize("seed", seeds(80, share=8))
def test_each_part_has_the_best_plan_that_a_search_of_it_finds(seed: int) -> None:
    rng = random.Random(3000 + seed)
    space, evaluator = random_search(rng)
    parts = [narrower(space.constraints, rng) for _ in range(rng.randint(1, 6))]
    for limits, together in zip(parts, search_parts(space, evaluator, parts), strict=True):
        alone = search(replace(space, constraints=limits), evaluator)
        assert together.proved
        assert (together.best is None) == (alone.best is None), limits
        if together.best is None or alone.best is None:
            continue
        assert together.best.value == pytest.approx(alone.best.value, rel=1e-12)
        assert together.lower_bound == pytest.approx(together.best.value, rel=1e-9)
        degrees, chunks = together.best.degrees, len(together.best.cut[0])
        numbers = {"tp": degrees.tp, "pp": degrees.pp, "cp": degrees.cp, "dp": degrees.dp, "ep": degrees.ep}
        numbers |= {"vpp": chunks, "micro_batch": degrees.samples, "zero": together.best.state.zero}
        assert all(limits.permits(name, value) for name, value in numbers.items())  # type: ignore[arg-type]
        assert together.best.rule[0] in limits.recompute


def test_a_limit_of_work_is_each_part_s_own() -> None:
    space, evaluator = random_search(random.Random(1))
    parts = (space.constraints, replace(space.constraints, most={"tp": 1}))
    for together in search_parts(space, evaluator, parts, most_families=0):
        assert not together.proved
        assert together.lower_bound <= search(space, evaluator).lower_bound * (1 + 1e-9)


def test_no_parts_are_no_search() -> None:
    space, evaluator = random_search(random.Random(1))
    assert search_parts(space, evaluator, ()) == ()


def test_a_part_holds_the_ways_that_its_own_space_has() -> None:
    space, _ = random_search(random.Random(5))
    limits = replace(space.constraints, least={"tp": 2})
    ways = ways_of(space)
    mask = make_part(space, ways, limits).ways
    held = {ways.degrees(number) for number in range(len(ways)) if mask[number]}
    alone = ways_of(replace(space, constraints=limits))
    assert held == {alone.degrees(number) for number in range(len(alone))}
