"""Matchings over kinds of jobs beside every matching of the jobs, and beside Edmonds' algorithm."""

from __future__ import annotations

import sys
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Use
from planner.many_jobs.scheduling.interleaving import interleaved_s
from planner.many_jobs.scheduling.job_matching import Rules, group_kinds, match_kinds, weight
from profiles.errors import InputError
from tests.oracles.matching_oracle import heaviest
from tests.planner.many_jobs.scheduling.test_interleaving import draw_use
from tests.seeds import examples, seeds

pytest.importorskip("scipy")


def drawn_weights(rng: Random, kinds: int) -> dict[tuple[int, int], float]:
    return {
        (one, other): rng.choice((0.0, -1.0, 0.5, rng.random(), rng.random()))
        for one in range(kinds)
        for other in range(one, kinds)
    }


def matched(counts: list[int], weights: dict[tuple[int, int], float]) -> tuple[float, list[int]]:
    """What the matching found weighs, and how many of each kind it pairs."""
    pairs = match_kinds(counts, lambda one, other: weights[one, other])
    used = [0] * len(counts)
    for (one, other), times in pairs.items():
        used[one] += times
        used[other] += times
    return sum(weights[pair] * times for pair, times in pairs.items()), used


def test_no_matching_is_heavier() -> None:
    for seed in seeds(300):
        rng = Random(seed)
        counts = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 5))]
        weights = drawn_weights(rng, len(counts))
        jobs = [kind for kind, count in enumerate(counts) for _ in range(count)]
        found, used = matched(counts, weights)
        assert all(own <= count for own, count in zip(used, counts, strict=True))
        assert found == pytest.approx(heaviest(jobs, weights))


def test_as_heavy_as_edmonds_finds() -> None:
    nx = pytest.importorskip("networkx")
    for seed in seeds(60, least=20):
        rng = Random(seed)
        counts = [rng.randrange(1, 6) for _ in range(rng.randrange(3, 9))]
        weights = drawn_weights(rng, len(counts))
        jobs = [kind for kind, count in enumerate(counts) for _ in range(count)]
        graph = nx.Graph()
        for one in range(len(jobs)):
            for other in range(one):
                worth = weights[min(jobs[one], jobs[other]), max(jobs[one], jobs[other])]
                if worth > 0:
                    graph.add_edge(one, other, weight=worth)
        edmonds = sum(graph[one][other]["weight"] for one, other in nx.max_weight_matching(graph))
        assert matched(counts, weights)[0] == pytest.approx(edmonds)


def test_a_triangle_is_no_trap() -> None:
    """The relaxed programme takes half of each of three pairs; there is one pair and one who is alone."""
    assert matched([1, 1, 1], {(a, b): 1.0 for a in range(3) for b in range(a, 3)})[0] == 1.0


@settings(max_examples=examples(40))
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_what_holds_of_groups(seed: int, most_jobs: int) -> None:
    rng, rules = Random(seed), Rules(most_jobs=most_jobs)
    uses = [draw_use(rng) for _ in range(rng.randrange(1, 5))]
    counts = [rng.randrange(0, 5) for _ in uses]
    groups = group_kinds(uses, counts, rules)
    for kind, count in enumerate(counts):
        assert sum(name.count(kind) * times for name, times in groups.items()) == count
    for name in groups:
        own = [uses[kind] for kind in name]
        assert len(own) <= most_jobs
        if len(own) > 1:
            assert weight(own, rules) > 0
            assert interleaved_s(own) <= 0.95 * sum(use.iteration_s for use in own) + 1e-12
            assert all(interleaved_s(own) <= len(own) * use.iteration_s + 1e-12 for use in own)


def test_rounds_of_grouping_make_groups_of_four() -> None:
    """Two rounds of matching make four; who gains too little, or would wait too long for its mate, stays alone."""
    idle = Use(iteration_s=10.0, compute_s=0.3, memory_bytes=1, device_memory_bytes=4)
    waits = Use(iteration_s=0.9, compute_s=0.8, memory_bytes=1, device_memory_bytes=4)
    assert group_kinds([idle], [4], Rules(most_jobs=2)) == {(0,): 4}
    even = Use(iteration_s=2.0, compute_s=1.0, memory_bytes=1, device_memory_bytes=4)
    assert group_kinds([even], [4], Rules(most_jobs=2)) == {(0, 0): 2}
    assert group_kinds([even], [4], Rules(most_jobs=4)) == {(0, 0, 0, 0): 1}
    assert group_kinds([even], [5], Rules(most_jobs=4)) == {(0,): 1, (0, 0, 0, 0): 1}
    assert group_kinds([even, waits], [1, 1], Rules()) == {(0,): 1, (1,): 1}


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"cellplan\[schedule\]"):
        match_kinds([3, 5, 7], lambda one, other: 1.0 + one + 0.01 * other)
