"""What stands beside the products of a mixture's experts: copies for a dispatcher, biases, pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.layers.experts import expert_rows, experts_piece
from estimator.layers.parts import Piece
from estimator.layers.split import Split
from models_zoo.layers import Experts, FeedForward

HIDDEN, INNER, TOKENS = 256, 128, 1024
PLAIN = Experts(count=16, top_k=4, expert=FeedForward(hidden=INNER, gated=True, activation="silu"))
BIASED = replace(PLAIN, expert=replace(PLAIN.expert, bias=True))
SPLIT = Split(samples=1, seq_len=TOKENS, ep=8)


def _moved(piece: Piece, name: str) -> int:
    return sum(op.forward_bytes + op.backward_bytes for op in piece.operators if op.name == name)


def test_a_dispatcher_that_sends_a_token_once_copies_it_where_its_experts_are() -> None:
    apart, once = (experts_piece(replace(SPLIT, sends_once=each), PLAIN, HIDDEN) for each in (False, True))
    for name in ("experts.permute", "experts.unpermute"):
        assert _moved(apart, name) > 0 == _moved(once, name)
    copies = expert_rows(SPLIT, PLAIN).computed
    arrived = TOKENS * 8 * (1 - (7 / 8) ** 4)
    assert _moved(once, "experts.sort") == pytest.approx(2 * 2 * HIDDEN * (copies + arrived), rel=1e-3)
    assert _moved(apart, "experts.sort") == 2 * 2 * HIDDEN * 2 * copies
    alone = replace(SPLIT, ep=1)
    assert experts_piece(replace(alone, sends_once=True), PLAIN, HIDDEN) == experts_piece(alone, PLAIN, HIDDEN)


def test_a_bias_of_experts_is_weighed_and_added_apart_unless_the_products_are_fused() -> None:
    plain, biased, fused = (
        experts_piece(split, spec, HIDDEN)
        for split, spec in ((SPLIT, PLAIN), (SPLIT, BIASED), (replace(SPLIT, fused_experts=True), BIASED))
    )
    results = expert_rows(SPLIT, PLAIN).computed * HIDDEN
    assert _moved(biased, "experts.bias") == 60 * results
    assert _moved(biased, "experts.activation") > 2 * _moved(plain, "experts.activation")
    assert biased.saved_bytes - plain.saved_bytes == expert_rows(SPLIT, PLAIN).computed * 2 * INNER * 2
    assert _moved(plain, "experts.bias") == _moved(fused, "experts.bias") == 0


def test_what_experts_keep_goes_to_pages_and_comes_back() -> None:
    piece = experts_piece(replace(SPLIT, stashes_experts=True), PLAIN, HIDDEN)
    kept = sum(
        op.saved_bytes for op in piece.operators if op.name in ("experts.up", "experts.down", "experts.activation")
    )
    assert _moved(piece, "experts.stash") == 4 * kept
    assert piece.saved_bytes == experts_piece(SPLIT, PLAIN, HIDDEN).saved_bytes
