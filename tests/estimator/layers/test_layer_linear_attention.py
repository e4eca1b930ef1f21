"""What linear attention and predicting heads cost under a training framework: against the zoo's modules, and rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers.shards import shard_layer
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from models_zoo.layers import Head, Layer, LinearAttention, Prediction, TransformerBlock
from profiles.vocabulary import Infeasible, LocalLayer, Shard
from tests.transformer_variants import DELTA, HEADS, HYBRIDS, LLAMA, MAMBA

LINEAR = {name: layer for name, layer in HYBRIDS.items() if isinstance(layer.attention, LinearAttention)}
DENSE = {name: layer for name, layer in LINEAR.items() if name != "delta_experts"}


def work(layer: Layer, **options: Any) -> Work:
    found = layer_work(layer, Split(**{"samples": 2, "seq_len": 24, **options}))
    assert isinstance(found, Work), found
    return found


def flops(part: Work | LocalLayer) -> tuple[int, int]:
    return sum(op.forward_flops for op in part.operators), sum(op.backward_flops for op in part.operators)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", DENSE)
def test_a_framework_does_and_holds_what_the_module_does(name: str, tp: int) -> None:
    """One product for what the module projects apart, all else alike."""
    local = shard_layer(DENSE[name], Shard(tp=tp, micro_batch_per_rank=2, seq_len=24))
    assert isinstance(local, LocalLayer)
    for kernels in ("fused", "eager"):
        framework = work(DENSE[name], tp=tp, kernels=kernels)
        assert flops(framework) == flops(local)
        assert framework.parameters == local.parameters


@pytest.mark.parametrize("name", LINEAR)
def test_fused_kernels_are_fewer_and_move_less(name: str) -> None:
    fused, eager = (work(LINEAR[name], kernels=kernels) for kernels in ("fused", "eager"))
    assert sum(op.forward_kernels for op in fused.operators) < sum(op.forward_kernels for op in eager.operators)
    assert sum(op.forward_bytes for op in fused.operators) < sum(op.forward_bytes for op in eager.operators)
    assert sum(op.backward_bytes for op in fused.operators) < sum(op.backward_bytes for op in eager.operators)
    assert fused.saved_bytes <= eager.saved_bytes


@given(
    rule=st.sampled_from(["state_space", "delta"]),
    chunk=st.integers(1, 40),
    seq_len=st.integers(1, 64).map(lambda n: 4 * n),
    groups=st.sampled_from([1, 2, 4, 8]),
    sequence_parallel=st.booleans(),
)
def test_more_ranks_never_have_more_each(
    rule: str, chunk: int, seq_len: int, groups: int, sequence_parallel: bool
) -> None:
    mixer = replace(MAMBA if rule == "state_space" else DELTA, chunk=chunk, groups=groups)
    block = replace(LLAMA, attention=mixer, feed_forward=None)
    whole, half, quarter = (
        work(block, tp=tp, seq_len=seq_len, sequence_parallel=sequence_parallel and tp > 1) for tp in (1, 2, 4)
    )
    for more, fewer in ((half, whole), (quarter, half)):
        assert more.parameters <= fewer.parameters
        assert more.saved_bytes <= fewer.saved_bytes
        assert flops(more) <= flops(fewer)
        for way in ("forward_bytes", "backward_bytes"):
            assert sum(getattr(op, way) for op in more.operators) <= sum(getattr(op, way) for op in fewer.operators)


@given(chunks=st.integers(2, 200))
def test_each_chunk_costs_what_the_second_one_does(chunks: int) -> None:
    """Work grows with tokens, not with their square; but Mamba-2's product between chunks does, with chunks."""
    for name, chunk in (("delta", 2), ("mamba", 4)):
        block = replace(LINEAR[name], feed_forward=None)

        def linear(count: int, block: TransformerBlock = block, chunk: int = chunk) -> int:
            operators = work(block, seq_len=chunk * count).operators
            return sum(op.forward_flops for op in operators if not op.name.endswith(".across"))

        assert linear(chunks) - linear(1) == (chunks - 1) * (linear(2) - linear(1))


def test_full_recomputation_keeps_the_input_alone() -> None:
    plain, again = work(LINEAR["mamba"]), work(LINEAR["mamba"], recompute="full")
    assert again.saved_bytes == again.input_bytes < plain.saved_bytes
    assert flops(again) == flops(plain)
    assert sum(op.forward_flops for op in again.again) == flops(plain)[0]


@pytest.mark.parametrize(
    ("layer", "options", "reason", "lacking"),
    [
        (LINEAR["mamba"], {"cp": 2}, "passes its state along a whole sample, which cp=2 cuts", "support"),
        (LINEAR["mamba"], {"tp": 3}, "tp=3 does not divide 8 heads", "divisibility"),
        (LINEAR["mamba"], {"tp": 8}, "tp=8 cuts the 8 elements", "divisibility"),
        (replace(LLAMA, attention=replace(DELTA, groups=4, heads=12)), {"tp": 6}, "nor is a multiple of 4 groups", ""),
        (replace(HYBRIDS["attention_alone"], parallel=True), {}, "a parallel residual", "support"),
        (HEADS["predicting"], {"tp": 3}, "tp=3 neither divides nor is a multiple of 2", "divisibility"),
    ],
)
def test_what_cannot_be_held_says_why(layer: Layer, options: dict[str, Any], reason: str, lacking: str) -> None:
    refused = layer_work(layer, Split(**{"samples": 2, "seq_len": 24, **options}))
    assert isinstance(refused, Infeasible)
    assert reason in refused.reason
    assert refused.lacking == (lacking or "divisibility")


def test_a_further_token_costs_its_blocks_and_one_more_projection() -> None:
    block = LINEAR["mamba"]
    plain = Head(hidden=32, vocab=50, norm="rmsnorm", norm_bias=False)
    ahead = replace(plain, prediction=Prediction(count=1, blocks=(block,)))
    rows, projection = 2 * 24, 2 * 2 * 24 * 32 * 50
    more = flops(work(ahead))[0] - flops(work(plain))[0]
    assert more == flops(work(block))[0] + projection + 2 * rows * 64 * 32
    assert work(ahead).is_end
    table, join, norms = 50 * 32, 2 * 32 * 32, 3 * 32
    assert work(ahead).parameters - work(plain).parameters == work(block).parameters + table + join + norms
    tied = work(replace(ahead, tied=True)).parameters
    assert work(ahead).parameters - tied == table
    twice = work(replace(plain, prediction=Prediction(count=2, blocks=(block,))))
    assert flops(twice)[0] - flops(work(ahead))[0] == more


def test_a_records_sizes_must_fit() -> None:
    with pytest.raises(ValueError, match="whole heads in a group"):
        replace(MAMBA, groups=3)
    with pytest.raises(ValueError, match="expected whole heads in a group and a divisor"):
        replace(MAMBA, norm_size=5)
    with pytest.raises(ValueError, match="no plain vocabulary projection"):
        Head(hidden=32, vocab=0, prediction=Prediction(count=1, blocks=(LLAMA,)))
    with pytest.raises(ValueError, match="mixer of tokens, expected Attention"):
        TransformerBlock(hidden=32, attention=MAMBA, feed_forward=None).self_attention  # noqa: B018
