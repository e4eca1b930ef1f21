"""The best assembly: both ways to find it against brute force in rationals, and what must hold for any problem."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.cells.assembly import (
    Assembly,
    AssemblyProblem,
    assemble_enumerate,
    assemble_exact,
    evaluate_assembly,
)
from estimator.cells.latency import LATENCY
from profiles.vocabulary import Infeasible
from tests.oracles.assembly_oracle import best_assembly, exact_iteration_time
from tests.seeds import examples, seeds


def random_problem(rng: random.Random, sizes: list[int], draw: Callable[[], float]) -> AssemblyProblem:
    transfer, tail = rng.choice([0.0, 0.5, 2.0]), rng.choice([0.0, 1.0, 8.0])
    return AssemblyProblem(
        time_s=tuple(tuple(draw() for _ in range(k)) for k in sizes),
        tail_s=tuple(tuple(tail * draw() for _ in range(k)) for k in sizes),
        transfer_s=tuple(
            tuple(tuple(transfer * draw() for _ in range(after)) for _ in range(before))
            for before, after in pairwise(sizes)
        ),
        micro_batches=rng.choice([1, 2, 4 * len(sizes)]),
    )


@pytest.mark.parametrize("latency", LATENCY)
@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_exact_and_enumeration_equal_brute_force(latency: str, levels: int) -> None:
    """Eighths of a second, so that ties are exact; few levels make many ties."""
    rng = random.Random(f"{latency} {levels}")
    for _ in seeds(80):
        sizes = [rng.randint(1, 3) for _ in range(rng.randint(1, 5))]
        problem = random_problem(rng, sizes, lambda: rng.randint(0, levels) / 8)
        least, choices = best_assembly(problem, latency)
        for assemble in (assemble_exact, assemble_enumerate):
            assembly = assemble(problem, latency)
            assert isinstance(assembly, Assembly)
            assert (Fraction(assembly.iteration_time_s), assembly.choices) == (least, choices)


@pytest.mark.parametrize("latency", LATENCY)
@pytest.mark.parametrize("at_once", [1, 1024])
def test_exact_equals_enumeration_in_many_stages(latency: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimator.cells.assembly._LANES", at_once)
    rng = random.Random(latency)
    for _ in seeds(40):
        problem = random_problem(rng, [2] * rng.randint(6, 11), rng.random)
        assembly = assemble_exact(problem, latency)
        assert assembly == assemble_enumerate(problem, latency)
        assert isinstance(assembly, Assembly)
        exact = float(exact_iteration_time(problem, assembly.choices, latency))
        assert assembly.iteration_time_s == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("latency", LATENCY)
def test_sixty_four_stages(latency: str) -> None:
    """Beyond enumeration: no assembly that differs in one or two neighbouring stages, and no random one, is faster."""
    rng = random.Random(64)
    problem = random_problem(rng, [2] * 64, rng.random)
    problem = replace(problem, tail_s=tuple((rng.random() * 20, rng.random()) for _ in range(64)), micro_batches=256)
    best = assemble_exact(problem, latency)
    assert isinstance(best, Assembly)
    others = [tuple(rng.randint(0, 1) for _ in range(64)) for _ in range(100)]
    for i in range(64):
        for width in (1, 2):
            others += [tuple(1 - x if i <= k < i + width else x for k, x in enumerate(best.choices))]
    for choices in others:
        assert evaluate_assembly(problem, choices, latency).iteration_time_s >= best.iteration_time_s * (1 - 1e-12)


def test_the_papers_formula_chooses_the_slower_transfer() -> None:
    """The issue's two stages of 6 and 9, B = 16, behind one that costs nothing and may send in 2 s or in 4 s."""
    problem = AssemblyProblem(
        time_s=((0, 0), (6,), (9,)), tail_s=((0, 0), (0,), (0,)), transfer_s=(((2,), (4,)), ((0,),)), micro_batches=16
    )
    default, crius = assemble_exact(problem), assemble_exact(problem, "crius")
    assert isinstance(default, Assembly)
    assert isinstance(crius, Assembly)
    assert (default.choices, default.iteration_time_s) == ((0, 0, 0), 152)
    assert (crius.choices, crius.iteration_time_s) == ((1, 0, 0), 109)


def test_tails_are_paid_once_and_by_the_longest() -> None:
    problem = AssemblyProblem(
        time_s=((1, 2), (1, 2)), tail_s=((9, 0), (9, 0)), transfer_s=(((0, 0), (0, 0)),), micro_batches=2
    )
    assembly = assemble_exact(problem)
    assert isinstance(assembly, Assembly)
    assert (assembly.choices, assembly.iteration_time_s) == ((1, 1), 6)
    assembly = assemble_exact(replace(problem, micro_batches=9))
    assert isinstance(assembly, Assembly)
    assert (assembly.choices, assembly.iteration_time_s, assembly.tail_s) == ((0, 0), 19, 9)


def test_a_stage_without_options_is_named() -> None:
    problem = AssemblyProblem(time_s=((1,), ()), tail_s=((1,), ()), transfer_s=(((),),), micro_batches=2)
    for assemble in (assemble_exact, assemble_enumerate):
        assert assemble(problem) == Infeasible(reason="stage 1 has no option left", lacking="support")


def test_wrong_problems_are_refused() -> None:
    good = AssemblyProblem(time_s=((1,), (1,)), tail_s=((1,), (1,)), transfer_s=(((0,),),), micro_batches=2)
    wrong_fields: tuple[dict[str, Any], ...] = (
        {"time_s": ()},
        {"micro_batches": 0},
        {"tail_s": ((1,),)},
        {"tail_s": ((1,), (1, 2))},
        {"transfer_s": ()},
        {"transfer_s": (((0, 1),),)},
        {"transfer_s": (((0,), (1,)),)},
        {"time_s": ((1,), (-1,))},
        {"tail_s": ((1,), (float("inf"),))},
        {"transfer_s": (((float("nan"),),),)},
    )
    for wrong in wrong_fields:
        with pytest.raises(ValueError, match="expected"):
            replace(good, **wrong)
    large = random_problem(random.Random(0), [2] * 23, lambda: 1.0)
    with pytest.raises(ValueError, match="expected at most 4194304"):
        assemble_enumerate(large)


sizes = st.lists(st.integers(1, 3), min_size=1, max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(sizes, st.randoms(use_true_random=False), st.sampled_from(sorted(LATENCY)))
def test_properties(sizes: list[int], rng: random.Random, latency: str) -> None:
    problem = random_problem(rng, sizes, rng.random)
    best = assemble_exact(problem, latency)
    assert isinstance(best, Assembly)

    scaled = replace(
        problem,
        time_s=tuple(tuple(4 * t for t in row) for row in problem.time_s),
        tail_s=tuple(tuple(4 * s for s in row) for row in problem.tail_s),
        transfer_s=tuple(tuple(tuple(4 * c for c in row) for row in table) for table in problem.transfer_s),
    )
    assert assemble_exact(scaled, latency) == evaluate_assembly(scaled, best.choices, latency)

    more = assemble_exact(replace(problem, micro_batches=problem.micro_batches + 1), latency)
    assert isinstance(more, Assembly)
    assert more.iteration_time_s >= best.iteration_time_s * (1 - 1e-12)

    last = len(sizes) - 1
    fewer = replace(
        problem,
        time_s=(*problem.time_s[:last], problem.time_s[last][:1]),
        tail_s=(*problem.tail_s[:last], problem.tail_s[last][:1]),
        transfer_s=(*problem.transfer_s[:-1], *(tuple(row[:1] for row in t) for t in problem.transfer_s[-1:])),
    )
    restricted = assemble_exact(fewer, latency)
    assert isinstance(restricted, Assembly)
    assert restricted.iteration_time_s >= best.iteration_time_s * (1 - 1e-12)

    slower = replace(
        problem, transfer_s=tuple(tuple(tuple(c + 0.25 for c in row) for row in t) for t in problem.transfer_s)
    )
    slower_best = assemble_exact(slower, "cellplan")
    default = assemble_exact(problem, "cellplan")
    assert isinstance(slower_best, Assembly)
    assert isinstance(default, Assembly)
    assert slower_best.iteration_time_s >= default.iteration_time_s * (1 - 1e-12)
