"""The layer graph against counts done by hand and the papers' formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.layers.graph import build_graph, cut_bytes, repeated_parameters, shared_weights
from models_zoo.families import nmt
from models_zoo.layers import Embedding, Head, SharedWeights
from profiles.errors import InputError
from profiles.vocabulary import Infeasible, Shard
from tests.zoo_families import gpt

TINY = gpt("tiny", hidden=32, layers=3, heads=4, vocab=101, seq_len=16)
SHARD = Shard(micro_batch_per_rank=2, seq_len=16)


def test_totals_of_a_small_gpt_by_hand() -> None:
    graph = build_graph(TINY, shard=SHARD)
    block = 12 * 32**2 + 13 * 32
    assert graph.parameters == 101 * 32 + 16 * 32 + 3 * block + 2 * 32
    assert [node.parameters for node in graph.nodes] == [117 * 32, block, block, block, 2 * 32 + 101 * 32]
    tokens = 2 * 16
    forward = 3 * (24 * tokens * 32**2 + 4 * tokens * 16 * 32) + 2 * tokens * 32 * 101
    assert sum(node.forward_flops for node in graph.nodes) == forward
    # Flash attention computes the scores once more in backward.
    assert sum(node.backward_flops for node in graph.nodes) == 2 * forward + 3 * 2 * tokens * 16 * 32
    products = build_graph(TINY, shard=replace(SHARD, attention="math"))
    assert sum(node.backward_flops for node in products.nodes) == 2 * forward


def test_identical_layers_are_one() -> None:
    graph = build_graph(TINY, shard=SHARD)
    assert [count for _, count in graph.distinct] == [1, 3, 1]
    assert len({node.name for node in graph.nodes}) == 5


def test_cuts_carry_one_activation_and_none_follows_the_last_layer() -> None:
    graph = build_graph(TINY, shard=SHARD)
    assert [node.cut_bytes for node in graph.nodes] == [2 * 16 * 32 * 2] * 4 + [0]
    split = replace(SHARD, tp=2, sequence_parallel=True)
    assert cut_bytes(TINY, 1, split) == 2 * 16 * 32 * 2 // 2


def test_the_encoders_output_travels_to_the_last_layer_that_attends_to_it() -> None:
    model = nmt("t", hidden=32, layers=2, heads=4, ffn_hidden=64, vocab=101, seq_len=16)
    one = 2 * 16 * 32 * 2
    # encoder embedding, 2 encoder blocks | decoder embedding, 2 decoder blocks, head
    assert [cut_bytes(model, i, SHARD) // one for i in range(7)] == [1, 1, 1, 2, 2, 1, 0]


def test_a_table_shared_by_both_embeddings_and_the_head_counts_once() -> None:
    model = nmt("t", hidden=32, layers=1, heads=4, ffn_hidden=64, vocab=101, seq_len=16)
    graph = build_graph(model, shard=SHARD)
    attention, norm, feed_forward = 4 * 32**2, 2 * 32, 2 * 32 * 64 + 64 + 32
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert graph.parameters == 101 * 32 + encoder + decoder


def test_the_shared_table_of_a_rank() -> None:
    assert shared_weights(TINY, 1) == (SharedWeights(parameters=101 * 32, holders=(0, 4)),)
    assert shared_weights(TINY, 2) == (SharedWeights(parameters=51 * 32, holders=(0, 4)),)
    embedding, *blocks, head = TINY.layers
    assert isinstance(embedding, Embedding)
    assert isinstance(head, Head)
    factored = replace(TINY, layers=(replace(embedding, factor=8), *blocks, replace(head, factor=8)))
    assert shared_weights(factored, 1) == (SharedWeights(parameters=101 * 8, holders=(0, 4)),)
    assert shared_weights(replace(TINY, layers=(embedding, *blocks, replace(head, tied=False))), 1) == ()
    model = nmt("t", hidden=32, layers=2, heads=4, ffn_hidden=64, vocab=101, seq_len=16)
    assert [one.holders for one in shared_weights(model, 1)] == [(0, 3, 6)]


def test_each_group_of_shared_weights_counts_once() -> None:
    shared = (SharedWeights(parameters=7, holders=(0, 5)), SharedWeights(parameters=100, holders=(1, 2, 4)))
    assert repeated_parameters(shared, 0, 6) == 7 + 2 * 100
    assert repeated_parameters(shared, 0, 3) == 100
    assert repeated_parameters(shared, 2, 6) == 100
    assert repeated_parameters(shared, 3, 6) == 0


def test_collectives_of_each_degree_or_why_there_are_none() -> None:
    graph = build_graph(TINY, shard=SHARD, degrees=(1, 2, 8))
    by_degree = dict(graph.nodes[1].collectives_by_degree)
    assert by_degree[1] == ()
    # Megatron-LM (Shoeybi et al. 2019, section 3): two all-reduces forward and two backward.
    assert isinstance(by_degree[2], tuple)
    assert [(c.op, c.phase, c.bytes, c.ranks) for c in by_degree[2]].count(("all_reduce", "forward", 2048, 2)) == 2
    assert [(c.op, c.phase, c.bytes, c.ranks) for c in by_degree[2]].count(("all_reduce", "backward", 2048, 2)) == 2
    assert isinstance(by_degree[8], Infeasible)
    assert by_degree[8].lacking == "divisibility"


def test_more_tokens_than_learned_positions_are_refused() -> None:
    with pytest.raises(InputError, match=r"model tiny: found .*17 tokens per sample"):
        build_graph(TINY, shard=replace(SHARD, seq_len=17))
