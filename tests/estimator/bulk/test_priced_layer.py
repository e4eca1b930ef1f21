"""A layer priced from what its operators and its plain pass take, against its passes added up from the start."""

from __future__ import annotations

import random

import pytest

from estimator.bulk.passes import vector_of
from estimator.bulk.priced_layer import PricedLayer
from estimator.bulk.records import BatchedDegrees
from estimator.bulk.shards import RankShards
from estimator.pricing.memory_moment import layer_bytes
from estimator.pricing.pass_time import PassSum
from estimator.pricing.recipe import Overlap, Recipe
from estimator.pricing.software import load_frameworks
from models_zoo.catalogue import load_model
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Infeasible, RecomputeKind, held_bytes
from tests.search_examples import evaluator_of
from tests.seeds import seeds

KINDS: tuple[RecomputeKind, ...] = ("none", "selective", "full")


def _shards(rng: random.Random) -> RankShards | None:
    model = load_model(rng.choice(["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "bert-2.6b", "gpt-tiny"]))
    overlaps: tuple[Overlap, ...] = ("dp", "tp", "p2p", "ep")
    recipe = Recipe(
        global_batch=16,
        seq_len=model.seq_len,
        software=rng.choice(list(load_frameworks().values())).software,
        overlap=frozenset(rng.sample(overlaps, rng.randint(0, 4))),
    )
    evaluator = evaluator_of(model, load_cluster(rng.choice(["h100:2x4", "a100-80gb:1x8"])), recipe)
    tp = rng.choice([1, 2, 4])
    degrees = BatchedDegrees(
        tp=tp,
        pp=1,
        dp=8 // tp,
        ep=rng.choice([1, 2, 4]) if any(name in model.name for name in ("mixtral", "deepseek")) else 1,
        samples=rng.choice([1, 2]),
        sequence_parallel=tp > 1,
    )
    kinds = evaluator.kinds(degrees, evaluator.placement(1, evaluator.cluster.free_slots))
    return None if isinstance(kinds, Infeasible) else kinds[0].shards


@pytest.mark.parametrize("seed", seeds(60, share=6))
def test_a_layer_is_priced_as_its_passes_add_up(seed: int) -> None:
    shards = _shards(random.Random(seed))
    if shards is None:
        return
    machine = shards.machine
    for number, kind in enumerate(shards.layers.kinds):
        for recompute in KINDS if kind.recomputable else KINDS[:1]:
            priced = shards.price((number, recompute != "none"), recompute)
            assert isinstance(priced, PricedLayer)
            forward, backward = PassSum(), PassSum()
            forward.add_forward(priced.work, machine, None, times=1)
            backward.add_backward(priced.work, machine, None, times=1)
            assert priced.forward == pytest.approx(vector_of(forward), rel=1e-12)
            assert priced.backward == pytest.approx(vector_of(backward), rel=1e-12)
            width = held_bytes(shards.setup.recipe.dtype)
            assert priced.extra_bytes == layer_bytes(priced.work, width, shards.features)
