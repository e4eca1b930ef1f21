"""What adapters, frozen weights, narrow operands and 8-bit activations keep, against tensors that torch saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from models_zoo.layers import Attention, Experts, FeedForward, Head, TransformerBlock
from profiles.vocabulary import AdapterTargets, DType, FrozenAs

ROWS, HIDDEN, HEADS, KV_HEADS, INNER, RANK = 32, 64, 8, 2, 160, 4
DIM = HIDDEN // HEADS
BLOCK = TransformerBlock(
    hidden=HIDDEN,
    attention=Attention(heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, rotary_dim=DIM),
    feed_forward=FeedForward(hidden=INNER, gated=True, activation="silu"),
    norm="rmsnorm",
)
Product = Callable[[Tensor, int], Tensor]


class Keeping(torch.autograd.Function):  # type: ignore[misc]
    """A fused kernel: a result of some width, for which `kept` are saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        return x.new_empty(x.shape[0], width)


class Kept(torch.autograd.Function):  # type: ignore[misc]
    """A kernel that keeps its inputs and its own result."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, *inputs: Tensor) -> Tensor:
        out = result.clone()
        ctx.save_for_backward(out, *inputs)
        return out


def norm(x: Tensor) -> Tensor:
    return Keeping.apply(x, x.shape[1], x, torch.empty(x.shape[0]))


def frozen(x: Tensor, n: int) -> Tensor:
    return F.linear(x, torch.empty(n, x.shape[1], dtype=x.dtype))


def adapted(x: Tensor, n: int) -> Tensor:
    down, up = (torch.empty(*shape, dtype=x.dtype, requires_grad=True) for shape in ((RANK, x.shape[1]), (n, RANK)))
    return frozen(x, n) + F.linear(F.linear(x, down), up)


def eight_bit(x: Tensor, n: int) -> Tensor:
    return Keeping.apply(x, n, x.to(torch.float8_e4m3fn))


def learning(x: Tensor, n: int) -> Tensor:
    return F.linear(x, torch.empty(n, x.shape[1], dtype=x.dtype, requires_grad=True))


def run(inner: Product, feed_forward: Product, *, narrow_activations: bool = False) -> None:
    x = torch.empty(ROWS, HIDDEN, dtype=torch.bfloat16, requires_grad=True) * 1.0
    mixed = inner(norm(x), (HEADS + 2 * KV_HEADS) * DIM)
    turned = Keeping.apply(mixed, mixed.shape[1])
    queries, keys_and_values = torch.split(turned, [HIDDEN, 2 * KV_HEADS * DIM], dim=1)
    x = x + inner(Kept.apply(queries, queries, keys_and_values, torch.empty(ROWS, HEADS)), HIDDEN)
    wide = feed_forward(norm(x), 2 * INNER)
    stored = wide.to(torch.float8_e4m3fn) if narrow_activations else wide
    feed_forward(Keeping.apply(wide, INNER, stored), HIDDEN)


def saved_bytes(**options: Any) -> int:
    """Bytes of the activations that a block saves, each storage once, parameters left out."""
    storages: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.shape[0] == ROWS:
            storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(**options)
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def work(block: TransformerBlock = BLOCK, **split: Any) -> Work:
    described = layer_work(block, Split(**{"samples": 1, "seq_len": ROWS, **split}))
    assert isinstance(described, Work), described
    return described


@pytest.mark.parametrize(("targets", "feed_forward"), [("all", adapted), ("attention", frozen)])
def test_frozen_weights_keep_nothing_and_adapters_their_inputs(targets: AdapterTargets, feed_forward: Product) -> None:
    described = work(lora_rank=RANK, frozen=True, lora_targets=targets)
    assert described.saved_bytes == saved_bytes(inner=adapted, feed_forward=feed_forward)


def test_narrow_operands_are_kept_in_place_of_wide_ones() -> None:
    assert work().saved_bytes == saved_bytes(inner=learning, feed_forward=learning)
    narrow = work(dtype="fp8", keeps_narrow=True)
    assert narrow.saved_bytes == saved_bytes(inner=eight_bit, feed_forward=eight_bit)
    # Software that casts anew keeps the wide ones.
    assert work(dtype="fp8").saved_bytes == work().saved_bytes


def test_activations_keep_their_input_in_eight_bits_where_told() -> None:
    described = work(lora_rank=RANK, frozen=True, lora_targets="attention", narrow_activations=True)
    measured = saved_bytes(inner=adapted, feed_forward=frozen, narrow_activations=True)
    assert described.saved_bytes == measured


def test_adapters_beside_attention_are_of_its_projections_alone() -> None:
    whole, some = (work(lora_rank=RANK, frozen=True, lora_targets=targets) for targets in ("all", "attention"))
    feed_forward = RANK * (HIDDEN + 2 * INNER + INNER + HIDDEN)
    assert whole.trainable_parameters - some.trainable_parameters == feed_forward
    assert some.parameters - some.trainable_parameters == whole.parameters - whole.trainable_parameters


@pytest.mark.parametrize("dtype", ["fp8", "mxfp8", "nvfp4"])
def test_experts_keep_the_narrow_copy_of_what_they_multiply(dtype: DType) -> None:
    block = replace(BLOCK, feed_forward=Experts(count=4, top_k=2, expert=FeedForward(hidden=INNER, gated=True)))
    wide, narrow = work(block), work(block, dtype=dtype, keeps_narrow=True)
    inputs = 2 * ROWS * (HIDDEN + INNER)
    attention = ROWS * HIDDEN
    share = {"fp8": 1.0, "mxfp8": 33 / 32, "nvfp4": 9 / 16}[dtype]
    # Queries' product keeps less, the output's product its own copy beside the kernel's result.
    expected = inputs * (2 - share) + attention * (2 - share) - attention * share
    assert wide.saved_bytes - narrow.saved_bytes == pytest.approx(expected, abs=4)
    frozen_experts = work(block, lora_rank=RANK, frozen=True, lora_targets="attention")
    assert wide.saved_bytes - frozen_experts.saved_bytes == 2 * inputs - 2 * ROWS * RANK * 2


@pytest.mark.parametrize(("in_place", "bytes_"), [(True, 4 + 2), (False, 4 + 8)])
def test_a_loss_on_its_fp32_logits_holds_these_and_the_16_bit_ones(in_place: bool, bytes_: int) -> None:
    """Megatron's vocabulary-parallel loss exponentiates, divides and takes the gradient in one buffer."""
    vocab = 1000
    head = Head(hidden=HIDDEN, vocab=vocab, norm=None, tied=False)
    described = layer_work(head, Split(samples=1, seq_len=ROWS, loss_in_place=in_place))
    assert isinstance(described, Work)
    assert described.saved_bytes + described.temporary_bytes == ROWS * vocab * bytes_ + ROWS * HIDDEN * 2
    fused = layer_work(head, Split(samples=1, seq_len=ROWS, fused_cross_entropy=True))
    assert isinstance(fused, Work)
    assert fused.saved_bytes == ROWS * vocab * 2 + ROWS * HIDDEN * 2


def test_an_activation_that_weighs_keeps_its_input_alone() -> None:
    block = replace(BLOCK, feed_forward=Experts(count=4, top_k=2, expert=FeedForward(hidden=INNER, gated=True)))
    apart, together = work(block), work(block, weighs_inside=True)
    assert apart.saved_bytes - together.saved_bytes == 2 * ROWS * 2 * INNER * 2


@pytest.mark.parametrize(("held", "moved"), [("nf4", 2.52), ("gptq", 16.5)])
def test_frozen_weights_of_four_bits_are_widened_before_each_product(held: FrozenAs, moved: float) -> None:
    plain, described = (work(lora_rank=RANK, frozen=True, frozen_as=kind) for kind in ("held", held))
    weights = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV_HEADS * DIM + 3 * HIDDEN * INNER
    for passed in ("forward_bytes", "backward_bytes"):
        more = sum(getattr(op, passed) for op in described.operators) - sum(
            getattr(op, passed) for op in plain.operators
        )
        assert more == pytest.approx(moved * weights, rel=1e-3)
    assert described.saved_bytes == plain.saved_bytes
    # What learns is held as always.
    assert work(frozen_as=held).operators == work().operators
