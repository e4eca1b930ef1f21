"""Ways to cut the layers: contiguous, whole, and the lightest as brute force finds it."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from models_zoo.catalogue import load_model
from planner.one_job.search.spaces.cuts import FEW, Cut, cuts_of, lightest
from tests.seeds import seeds
from tests.zoo_families import gpt


def _edges(cut: Cut) -> list[tuple[int, int]]:
    """The ranges in the order of the layers."""
    return [stage[chunk] for chunk in range(len(cut[0])) for stage in cut]


@pytest.mark.parametrize("seed", seeds(200))
def test_the_lightest_cut_is_that_of_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    weights = tuple(rng.choice([rng.random(), 1.0, 5 * rng.random()]) for _ in range(rng.randint(1, 9)))
    chunks = rng.randint(1, len(weights))
    edges = lightest(weights, chunks)
    assert edges[0] == 0
    assert edges[-1] == len(weights)
    assert len(edges) == chunks + 1
    assert all(first < end for first, end in itertools.pairwise(edges))

    def heaviest(cut: tuple[int, ...]) -> float:
        return max(sum(weights[first:end]) for first, end in itertools.pairwise(cut))

    every = ((0, *inner, len(weights)) for inner in itertools.combinations(range(1, len(weights)), chunks - 1))
    assert heaviest(edges) == pytest.approx(min(map(heaviest, every)))


@pytest.mark.parametrize("model", ["gpt-tiny", "llama3-8b", "wide-resnet-tiny", "mixtral-8x7b"])
@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (4, 1), (4, 2), (3, 2), (7, 1)])
def test_cuts_cover_the_layers_in_order(model: str, pp: int, vpp: int) -> None:
    found = load_model(model)
    weights = [1.0 + (number % 3) for number in range(len(found.layers))]
    cuts = cuts_of(found, pp=pp, vpp=vpp, weights=weights)
    assert len(cuts) == len(set(cuts))
    if len(found.layers) < pp * vpp:
        assert not cuts
    for cut in cuts:
        ranges = _edges(cut)
        assert len(ranges) == pp * vpp
        assert ranges[0][0] == 0
        assert ranges[-1][1] == len(found.layers)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))
        assert all(first < end for first, end in ranges)


def test_few_cuts_are_all_of_them() -> None:
    model = gpt("g", hidden=64, layers=5, heads=4, vocab=100, seq_len=64)
    cuts = cuts_of(model, pp=3, vpp=1, weights=[1.0] * len(model.layers))
    assert len(cuts) == math.comb(len(model.layers) - 1, 2) <= FEW


def test_a_heavy_head_leaves_the_last_stage_fewer_blocks() -> None:
    model = gpt("g", hidden=64, layers=40, heads=4, vocab=100, seq_len=64)
    weights = [0.0, *[1.0] * 40, 3.0]
    cuts = cuts_of(model, pp=4, vpp=1, weights=weights)
    last = {stage_layers[0][1] - stage_layers[0][0] - 1 for stage_layers in (cut[-1] for cut in cuts)}
    assert {6, 7, 8} <= last
