"""Products without matrix units, operands of several widths, and work that sees a part of the tokens alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.product_time import conv_seconds, gemm_seconds
from models_zoo.layers import Attention, FeedForward, Head, Layer, TransformerBlock
from profiles.efficiencies import load_operator_efficiencies
from profiles.hardware import load_device
from profiles.vocabulary import DType


def _rate(name: str, dtype: DType, size: int, *, cool: bool = False) -> float:
    """Share of the peak that a square product reaches; `cool`: at a clock that no load lowers."""
    device, known = load_device(name), load_operator_efficiencies(name)
    if cool:
        known = replace(known, gemm=replace(known.gemm, power_loss=0.0))
    seconds = gemm_seconds(size, size, size, device=device, dtype=dtype, efficiencies=known)
    return 2 * size**3 / seconds / (device.peak(dtype) or 0.0)


@pytest.mark.parametrize("name", ["v100-32gb", "a100-80gb", "h100", "b200"])
def test_plain_units_are_filled_by_products_too_small_for_matrix_units(name: str) -> None:
    assert _rate(name, "fp32", 1024) > _rate(name, "fp16", 1024)
    assert 0.5 < _rate(name, "fp32", 2048) <= 1.0


def test_a_narrower_type_is_faster_but_less_so_than_its_peak() -> None:
    shares = [_rate("h100", dtype, 2048, cool=True) for dtype in ("tf32", "bf16", "fp8")]
    assert all(wide > narrow for wide, narrow in pairwise(shares))


def test_convolutions_in_fp32_have_their_own_share() -> None:
    known = load_operator_efficiencies("v100-32gb")
    device = load_device("v100-32gb")
    shape = (64, 64, 64, 56, 56, 3, 3, 1)

    def seconds(plain_share: float, dtype: DType) -> float:
        efficiencies = replace(known, plain_conv_share=plain_share)
        return conv_seconds(shape, device=device, dtype=dtype, efficiencies=efficiencies)

    assert seconds(0.5, "fp32") > seconds(1.0, "fp32")
    assert seconds(0.5, "fp16") == seconds(1.0, "fp16")


SPLIT = Split(samples=2, seq_len=512, dtype="bf16")


def _work(layer: Layer, split: Split = SPLIT) -> Work:
    work = layer_work(layer, split)
    assert isinstance(work, Work)
    return work


def test_a_head_of_few_positions_does_that_part_of_the_work() -> None:
    head = Head(hidden=256, vocab=4096, norm=None, transform=True, bias=True)
    whole, part = _work(head), _work(replace(head, predicted=128))
    flops = [sum(op.forward_flops for op in work.operators) for work in (whole, part)]
    assert flops[0] == 4 * flops[1]
    assert whole.saved_bytes == 4 * part.saved_bytes
    assert whole.parameters == part.parameters
    assert _work(replace(head, predicted=512)).operators == whole.operators


def test_a_window_bounds_attentions_work() -> None:
    def attention_flops(window: int | None, seq_len: int) -> int:
        block = TransformerBlock(
            hidden=256,
            attention=Attention(heads=4, kv_heads=4, head_dim=64, window=window),
            feed_forward=FeedForward(hidden=512),
        )
        work = _work(block, replace(SPLIT, seq_len=seq_len))
        return sum(op.forward_flops for op in work.operators if op.kind == "attention")

    assert attention_flops(128, 8192) == 2 * attention_flops(128, 4096)
    assert attention_flops(None, 8192) == 4 * attention_flops(None, 4096)
    assert attention_flops(128, 4096) < attention_flops(None, 4096) / 10
    assert attention_flops(4096, 4096) == attention_flops(None, 4096)
