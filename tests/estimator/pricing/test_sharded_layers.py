"""Weights that are gathered one by one from ranks' pieces, against flat buffers: what it costs and how it grows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.layers.work import layer_work
from estimator.pricing.recipe import Recipe
from estimator.pricing.sharded_layers import matrices_of
from estimator.pricing.software import load_framework
from estimator.pricing.stage_work import split_of
from profiles.cluster_file import load_cluster
from profiles.training_parameters import load_training_parameters
from profiles.vocabulary import Infeasible
from tests.explicit_examples import build, evaluated, with_recipe
from tests.zoo_families import gpt

TODAY = load_framework("deepspeed").software
OF_2021 = load_framework("deepspeed@0.3").software
MODEL = gpt("gpt", hidden=4096, layers=4, heads=32, vocab=51200, seq_len=2048)
PIECE_S = load_training_parameters().of("launch_piece_s")


def seconds(nodes: int, *, in_turn: bool, recompute: str = "full") -> float:
    cluster = load_cluster(f"a100-80gb:{nodes}x8")
    recipe = Recipe(
        global_batch=8 * nodes,
        seq_len=2048,
        dtype="fp16",
        grad_dtype="fp16",
        overlap=frozenset({"dp"}),
        software=OF_2021 if in_turn else TODAY,
    )
    return evaluated(build(MODEL, cluster, recipe, dp=8 * nodes, zero=3, recompute=recompute)).iteration_time_s


def test_weights_in_turn_cost_more_the_more_ranks_have_a_piece_of_each() -> None:
    in_turn = [seconds(nodes, in_turn=True) for nodes in (4, 16, 64, 256)]
    flat = [seconds(nodes, in_turn=False) for nodes in (4, 16, 64, 256)]
    more = [slow - fast for slow, fast in zip(in_turn, flat, strict=True)]
    assert in_turn == sorted(in_turn)
    assert flat == sorted(flat)
    assert more == sorted(more)
    assert more[0] > 0


def test_a_recomputed_layer_is_gathered_once_more() -> None:
    """Beyond what recomputation computes: the same layers, gathered three times, take longer by a gather of each."""
    once_more = seconds(64, in_turn=True) - seconds(64, in_turn=True, recompute="none")
    computed = seconds(64, in_turn=False) - seconds(64, in_turn=False, recompute="none")
    assert once_more - computed > 4 * 4 * 512 * PIECE_S


@pytest.mark.parametrize("zero", [1, 2])
def test_copied_pieces_grow_with_ranks_and_weights(zero: int) -> None:
    """16 ranks, a piece of each of a layer's weights for each: copied before the sum and after the gathering."""
    cluster = load_cluster("h100:2x8")
    recipe = Recipe(global_batch=16, seq_len=512, software=replace(load_framework("nanotron").software, bucket_bytes=0))
    setup = build(MODEL, cluster, recipe, dp=16, zero=zero)
    plain = with_recipe(setup, software=replace(recipe.software, copies_pieces=False))
    weights = 0
    for index, layer in enumerate(MODEL.layers):
        work = layer_work(layer, split_of(setup, setup.stages[0], index, recomputed=False))
        assert not isinstance(work, Infeasible)
        weights += matrices_of(work) + work.vectors
    longer_s = evaluated(setup).iteration_time_s - evaluated(plain).iteration_time_s
    assert longer_s == pytest.approx(2 * 16 * weights * PIECE_S)


def test_the_weights_of_a_gpt_layer() -> None:
    """Four matrices with a bias each, and two norms of two vectors."""
    setup = build(MODEL, load_cluster("h100:2x8"), Recipe(global_batch=16, seq_len=512), dp=16)
    work = layer_work(MODEL.layers[1], split_of(setup, setup.stages[0], 1, recomputed=False))
    assert not isinstance(work, Infeasible)
    assert (matrices_of(work), work.vectors) == (4, 8)
