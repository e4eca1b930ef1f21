"""Experts, latent attention and context parallelism of an explicit plan against brute force and the plain shards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers.context_parallel import context_parallel_collectives
from estimator.layers.experts import expert_rows, experts_piece
from estimator.layers.latent import latent_projections
from estimator.layers.parts import Piece
from estimator.layers.shards import shard_layer
from estimator.layers.split import Split
from models_zoo.layers import Attention, Experts, FeedForward, LatentAttention, TransformerBlock
from profiles.vocabulary import Collective, LocalLayer, Shard
from tests.oracles.expert_routing_oracle import route

HIDDEN = 64
SWIGLU = FeedForward(hidden=48, gated=True, activation="silu")
MOE = Experts(count=8, top_k=2, expert=SWIGLU, shared_hidden=96)
LATENT = LatentAttention(query_rank=24, key_value_rank=16, nope_dim=8, rope_dim=4, value_dim=8)
ATTENTION = Attention(heads=4, kv_heads=4, head_dim=12, rotary_dim=4, latent=LATENT)
LATENT_BLOCK = TransformerBlock(
    hidden=HIDDEN, attention=ATTENTION, feed_forward=SWIGLU, norm="rmsnorm", norm_bias=False
)


def split(**changes: object) -> Split:
    return replace(Split(samples=2, seq_len=64), **changes)  # type: ignore[arg-type]


def over(piece: Piece, name: str) -> list[Collective]:
    return [one for one in piece.collectives if one.name == f"experts.{name}"]


@given(ranks=st.sampled_from((1, 2, 4)), groups=st.integers(1, 4), top_k=st.integers(1, 3), multiple=st.integers(1, 5))
def test_rows_and_dispatch_equal_those_of_a_routed_micro_batch(
    ranks: int, groups: int, top_k: int, multiple: int
) -> None:
    count = ranks * groups
    tokens = count * multiple
    spec = Experts(count=count, top_k=top_k, expert=SWIGLU)
    held = split(samples=1, seq_len=tokens, ep=ranks)
    received, sent = route(ranks=ranks, tokens=tokens, top_k=top_k, count=count)
    rows = expert_rows(held, spec)
    assert [rows.per_expert] * count == received
    assert rows.computed == sum(sent[rank][0] for rank in range(ranks))
    for one in over(experts_piece(held, spec, HIDDEN), "dispatch"):
        assert one.bytes == sum(sent[0]) * HIDDEN * 2


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (2, True), (2, False)])
@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_all_ranks_together_compute_each_copy_once(tp: int, sequence_parallel: bool, ep: int, etp: int) -> None:
    held = split(tp=tp, sequence_parallel=sequence_parallel, ep=ep, etp=etp)
    rows = expert_rows(held, MOE)
    # A group of ep * etp ranks holds all experts once, each in etp parts that all compute its tokens.
    assert ep * rows.computed == rows.tokens * MOE.top_k * ep * etp
    assert rows.tokens * tp == held.rows


def test_expert_parameters_of_the_ranks_are_those_of_the_model() -> None:
    whole = experts_piece(split(), MOE, HIDDEN)
    plain = MOE.count * 3 * HIDDEN * SWIGLU.hidden
    assert whole.expert_parameters == plain
    assert whole.parameters == HIDDEN * MOE.count + 3 * HIDDEN * MOE.shared_hidden
    for ep, etp in ((2, 1), (4, 1), (8, 1), (2, 2), (4, 4)):
        part = experts_piece(split(ep=ep, etp=etp), MOE, HIDDEN)
        assert part.expert_parameters * ep * etp == plain
        assert part.parameters == whole.parameters


def test_one_rank_s_experts_are_those_of_the_plain_shard() -> None:
    block = replace(LATENT_BLOCK, attention=Attention(heads=4, kv_heads=4, head_dim=16), feed_forward=MOE)
    dense = replace(block, feed_forward=FeedForward(hidden=16))
    moe, rest = (shard_layer(one, Shard(seq_len=64)) for one in (block, dense))
    assert isinstance(moe, LocalLayer)
    assert isinstance(rest, LocalLayer)
    piece = experts_piece(split(), MOE, HIDDEN)
    assert piece.parameters + piece.expert_parameters == moe.parameters - rest.parameters + 2 * HIDDEN * 16


def test_capacity_pads_every_expert_alike() -> None:
    held = split(ep=2, capacity_factor=1.25)
    rows = expert_rows(held, MOE)
    capacity = 40  # ceil(1.25 * 2 * 128 / 8)
    assert (rows.sent, rows.per_expert, rows.groups) == (capacity * 8, capacity * 2, 4)
    assert not over(experts_piece(held, MOE, HIDDEN), "counts")


def test_imbalance_is_of_the_fullest_rank() -> None:
    even, uneven = (expert_rows(split(ep=4, imbalance=factor), MOE) for factor in (1.0, 1.5))
    assert uneven.per_expert == even.per_expert * 1.5
    assert uneven.sent == even.sent
    dispatch = [over(experts_piece(split(ep=4, imbalance=x), MOE, HIDDEN), "dispatch")[0].bytes for x in (1.0, 1.5)]
    assert dispatch[1] == 1.5 * dispatch[0]


def test_collectives_are_mirrored_in_backward() -> None:
    piece = experts_piece(split(tp=2, sequence_parallel=True, ep=4, etp=2), MOE, HIDDEN)
    turned = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "all_to_all": "all_to_all"}
    forward = [one for one in piece.collectives if one.phase == "forward" and one.name != "experts.counts"]
    backward = [one for one in piece.collectives if one.phase == "backward"]
    assert sorted((turned[one.op], one.bytes, one.axis, one.ranks) for one in forward) == sorted(
        (one.op, one.bytes, one.axis, one.ranks) for one in backward
    )
    assert {(one.axis, one.ranks) for one in over(piece, "dispatch.etp")} == {("etp", 2)}


def test_a_rank_alone_needs_no_collective() -> None:
    assert experts_piece(split(), MOE, HIDDEN).collectives == ()


def test_flops_of_all_ranks_are_those_of_one() -> None:
    def flops(held: Split) -> int:
        return sum(op.forward_flops for op in experts_piece(held, MOE, HIDDEN).operators if op.kind == "grouped_gemm")

    assert flops(split()) == flops(split(ep=4)) == flops(split(ep=2, etp=2)) == flops(split(ep=8))


def test_latent_projections_have_the_plain_shard_s_parameters() -> None:
    local = shard_layer(LATENT_BLOCK, Shard(seq_len=64))
    assert isinstance(local, LocalLayer)
    mlp, norms = 3 * HIDDEN * SWIGLU.hidden, 2 * HIDDEN
    output = ATTENTION.heads * LATENT.value_dim * HIDDEN
    piece = latent_projections(LATENT_BLOCK, ATTENTION, split())
    assert piece.parameters == local.parameters - mlp - norms - output


def test_latent_projections_gather_ranks_not_the_hidden_state() -> None:
    piece = latent_projections(LATENT_BLOCK, ATTENTION, split(tp=2, sequence_parallel=True))
    gathered = [one.bytes for one in piece.collectives if one.op == "all_gather" and one.phase == "forward"]
    assert gathered == [128 * 24 * 2, 128 * (16 + 4) * 2]


def test_latent_projections_need_a_latent_part() -> None:
    with pytest.raises(ValueError, match="latent"):
        latent_projections(LATENT_BLOCK, Attention(heads=4, kv_heads=4, head_dim=16), split())


def test_context_parallel_ring_moves_every_rank_s_keys_and_values() -> None:
    piece = context_parallel_collectives(split(cp=4), kv_heads=2, qk_dim=16, v_dim=8)
    block = 2 * 16 * 2 * (16 + 8) * 2  # samples * own tokens * heads * dims * bytes
    assert [(one.op, one.phase, one.bytes) for one in piece.collectives] == [
        ("all_gather", "forward", 4 * block),
        ("all_gather", "backward", 4 * block),
        ("reduce_scatter", "backward", 4 * block),
    ]
    assert context_parallel_collectives(split(), kv_heads=2, qk_dim=16, v_dim=8) == Piece()
    kept = context_parallel_collectives(split(cp=4), kv_heads=2, qk_dim=16, v_dim=8, queries=4)
    assert kept.saved_bytes == 2 * 16 * 4 * 8 * 2
