"""What backward computes again: named modules of blocks, the tensors that they make unnecessary, whole layers."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from estimator.layers.recomputing import MODULES
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from models_zoo.catalogue import load_model
from models_zoo.layers import Attention, Experts, FeedForward, LatentAttention, TransformerBlock
from profiles.vocabulary import Operator, RecomputeModule

HIDDEN, INNER, ROWS = 256, 128, 1024
EXPERTS = Experts(count=8, top_k=2, expert=FeedForward(hidden=INNER, gated=True, activation="silu"), shared_hidden=64)
LATENT = LatentAttention(query_rank=64, key_value_rank=32, nope_dim=32, rope_dim=16, value_dim=32)
MIXTURE = TransformerBlock(
    hidden=HIDDEN,
    attention=Attention(heads=4, kv_heads=4, head_dim=48, latent=LATENT),
    feed_forward=EXPERTS,
    norm="rmsnorm",
)
SPLIT = Split(samples=1, seq_len=ROWS, ep=4, recompute="selective")


def _work(*modules: RecomputeModule, split: Split = SPLIT, block: TransformerBlock = MIXTURE) -> Work:
    work = layer_work(block, replace(split, selective=modules))
    assert isinstance(work, Work)
    return work


def _again(work: Work) -> set[str]:
    return {op.name for op in work.again}


def test_every_module_is_described_and_attentions_core_by_its_pieces() -> None:
    assert set(MODULES) | {"core_attn", "by_operator"} == set(get_args(RecomputeModule))
    assert _again(_work("core_attn")) == {"attention.flash"}


@pytest.mark.parametrize(
    ("module", "names", "freed_elements"),
    [
        ("moe_act", {"experts.activation"}, 2 * ROWS * INNER),
        ("layernorm", {"attention.norm", "mlp.norm"}, 2 * ROWS * HIDDEN),
        (
            "mla_up_proj",
            {"attention.query_up", "attention.key_value_up", "attention.assemble"},
            4 * ROWS * (2 * 48 + 32),
        ),
    ],
)
def test_a_module_runs_again_and_its_result_is_not_kept(
    module: RecomputeModule, names: set[str], freed_elements: int
) -> None:
    work, plain = _work(module), _work()
    assert names <= _again(work) <= names | {"attention.rotary"}
    assert not work.again_collectives
    assert plain.saved_bytes - work.saved_bytes == pytest.approx(2 * freed_elements, rel=0.02)


def test_a_mixture_that_runs_again_exchanges_its_tokens_again() -> None:
    work, plain = _work("moe"), _work()
    assert _again(work) == {op.name for op in plain.operators if op.name.startswith("experts.")}
    assert [each.name for each in work.again_collectives] == [
        each.name for each in plain.collectives if each.phase == "forward" and each.name.startswith("experts.")
    ]
    kept = sum(op.saved_bytes for op in plain.operators if op.name.startswith("experts."))
    router = next(op.saved_bytes for op in plain.operators if op.name == "experts.router")
    assert plain.saved_bytes - work.saved_bytes == kept - router


def test_a_dense_feed_forward_keeps_its_input_alone() -> None:
    block = next(layer for layer in load_model("gpt-tiny").layers if isinstance(layer, TransformerBlock))
    split = Split(samples=1, seq_len=128, recompute="selective")
    work, plain = _work("mlp", split=split, block=block), _work(split=split, block=block)
    assert _again(work) == {"mlp.up", "mlp.activation", "mlp.down"}
    assert plain.saved_bytes - work.saved_bytes >= 2 * 128 * 4 * block.hidden


def test_modules_that_are_not_there_change_nothing_and_whole_layers_run_as_a_whole() -> None:
    assert _work("mlp") == _work()
    full = _work("moe", split=replace(SPLIT, recompute="full"))
    assert full.again == full.operators
    assert full.saved_bytes == full.input_bytes
    assert not _work("moe", split=replace(SPLIT, recompute="none")).again


def test_fused_experts_take_less_of_memory_and_cast_nothing_between_their_products() -> None:
    def named(split: Split, name: str) -> Operator:
        return next(op for op in _work(split=split).operators if op.name == name)

    plain, fused = (replace(SPLIT, dtype="mxfp8", fused_experts=each) for each in (False, True))
    assert named(fused, "experts.up").narrow_gradient
    assert named(fused, "experts.down").narrow_input
    assert named(fused, "experts.activation").forward_bytes < named(plain, "experts.activation").forward_bytes
    assert named(fused, "experts.activation").backward_bytes < named(plain, "experts.activation").backward_bytes


def test_of_pytorchs_policy_attention_and_every_other_product_keep_their_results() -> None:
    block = next(layer for layer in load_model("llama3-8b").layers if isinstance(layer, TransformerBlock))
    split = Split(samples=1, seq_len=128, recompute="selective")
    work, plain = _work("by_operator", split=split, block=block), _work(split=split, block=block)
    hidden, kv, inner, rows = 4096, 1024, 14336, 128
    products = {op.name: op.shape for op in work.again if op.kind == "gemm"}
    # Queries, keys, values, output, gate, up, down: the second, fourth and sixth run again.
    assert products == {
        "attention.qkv": (rows, kv, hidden),
        "attention.output": (rows, hidden, hidden),
        "mlp.up": (rows, inner, hidden),
    }
    assert not [op for op in work.again if op.kind == "attention"]
    assert {"attention.norm", "mlp.norm", "mlp.activation"} <= _again(work)
    # Kept: the input, queries, values, attention's result with its statistics, the gate and what is projected down.
    kept = 2 * rows * (4 * hidden + kv + inner) + 4 * rows * 32
    assert work.saved_bytes == pytest.approx(kept, rel=2e-3)
    assert work.saved_bytes < plain.saved_bytes
