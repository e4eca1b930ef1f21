"""Analytic transformer shards against torch: FLOPs, parameters, tensors kept for backward, and collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from estimator.layers.shards import shard_layer
from models_zoo.layers import Attention, Embedding, FeedForward, Head, Layer, TransformerBlock
from models_zoo.torch_layers.basic import Normalize
from models_zoo.torch_layers.build import build_layer, example_inputs
from models_zoo.torch_layers.parallel import Neutral
from profiles.vocabulary import AttentionKernel, Infeasible, LocalLayer, Shard
from tests.recording_ranks import Recording, sum_partial_gradients
from tests.transformer_variants import BLOCKS, DEGREES, EXPERTS, GPT, LAYERS, LLAMA, shard

aten = torch.ops.aten


def analytic(layer: Layer, local: Shard) -> LocalLayer:
    shard = shard_layer(layer, local)
    assert isinstance(shard, LocalLayer), shard
    return shard


class _FusedNorm(torch.autograd.Function):  # type: ignore[misc]
    """What torch's fused RMSNorm keeps: input, weight and one fp32 figure a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        _, weight, _ = ctx.saved_tensors
        return torch.empty_like(grad), torch.empty_like(weight)


class GpuKernels(TorchFunctionMode):  # type: ignore[misc]
    """On the meta device, the fused operators that torch picks on a GPU: their shapes, FLOPs and saved tensors."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            query, key, value = args
            dropout, causal = kwargs["dropout_p"], kwargs["is_causal"]
            if query.shape[-1] == value.shape[-1]:
                return aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal)[0]
            return aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, dropout, causal)[0]
        if function is F.rms_norm:
            return _FusedNorm.apply(args[0], kwargs["weight"])
        return function(*args, **kwargs)


@dataclass(frozen=True)
class Observed:
    """What a run of the module showed."""

    forward_flops: int
    backward_flops: int
    parameters: int
    saved_bytes: int
    collectives: Counter[tuple[Any, ...]]
    rms_norm_bytes: int
    """Outputs of RMSNorms on CPUs."""


_ON_CPU: dict[Any, Callable[..., int]] = {
    # torch's registry omits the CPU's fused attention; the formulas are its own.
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(
        g, q, k, v
    ),
}


@contextmanager
def saved_tensors(kept: list[Tensor]) -> Iterator[None]:
    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        yield


def observe(layer: Layer, local: Shard, device: str) -> Observed:
    tp = Recording(local.tp)
    torch.manual_seed(0)
    with torch.device(device):
        module = build_layer(layer, local, tp)
    inputs = example_inputs(layer, local, device)
    kept: list[Tensor] = []
    norm_bytes: list[int] = []
    for part in module.modules():
        if isinstance(part, Normalize) and part.kind == "rmsnorm":
            part.register_forward_hook(lambda _, __, out: norm_bytes.append(out.nbytes))
    with GpuKernels() if device == "meta" else nullcontext():
        with FlopCounterMode(display=False, custom_mapping=_ON_CPU) as forward, saved_tensors(kept):
            out = module(*inputs)
        with FlopCounterMode(display=False, custom_mapping=_ON_CPU) as backward:
            (out if out.ndim == 0 else out.sum()).backward()
    sum_partial_gradients(module, tp)
    return Observed(
        forward_flops=forward.get_total_flops(),
        backward_flops=backward.get_total_flops(),
        parameters=sum(p.numel() for p in module.parameters()),
        saved_bytes=_storage_bytes(kept, [*module.parameters(), *module.buffers(), *_shared(layer, local, inputs)]),
        collectives=Counter((c.op, c.bytes, c.phase, c.ranks) for c in tp.seen),
        rms_norm_bytes=sum(norm_bytes) if device == "cpu" else 0,
    )


def _shared(layer: Layer, local: Shard, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Encoder memory, which all decoder layers share, where the layer has no gathered copy of its own."""
    crosses = isinstance(layer, TransformerBlock) and layer.cross_attention
    return [inputs[1]] if crosses and not local.sequence_parallel else []


def _storage_bytes(kept: list[Tensor], apart: list[Tensor]) -> int:
    """Bytes of the storages behind `kept`, each once, without those behind `apart`, scalars and generator states."""
    skipped = {x.untyped_storage()._cdata for x in apart}
    storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in kept if x.ndim and x.dtype != torch.uint64}
    return sum(storage.nbytes() for key, storage in storages.items() if key not in skipped)


def fused_on_cpu(layer: Layer, local: Shard) -> bool:
    """Whether the CPU's fused attention can do it: no dropout, one head dimension. Otherwise torch falls back."""
    if not isinstance(layer, TransformerBlock) or local.attention == "math":
        return True
    if not isinstance(layer.attention, Attention):
        return True
    return not layer.dropout and layer.attention.latent is None


def cases(*choices: tuple[int, bool, AttentionKernel], cpu: bool) -> list[Any]:
    found = []
    for name, layer in LAYERS.items():
        for tp, sp, kernel in choices:
            local = replace(shard(tp, sp), attention=kernel)
            if (kernel == "flash" or isinstance(layer, TransformerBlock)) and (not cpu or fused_on_cpu(layer, local)):
                found.append(pytest.param(layer, local, id=f"{name}-tp{tp}{'-sp' * sp}-{kernel}"))
    return found


FLASH: list[tuple[int, bool, AttentionKernel]] = [(tp, sp, "flash") for tp, sp in DEGREES]
ON_CPU = cases(*FLASH, (1, False, "math"), (4, True, "math"), cpu=True)
AS_ON_GPU = cases((1, False, "flash"), (4, True, "flash"), (2, False, "math"), cpu=False)


def assert_agree(found: LocalLayer, seen: Observed) -> None:
    assert (found.forward_flops, found.backward_flops) == (seen.forward_flops, seen.backward_flops)
    assert found.parameters == seen.parameters
    # On CPUs torch's RMSNorm also keeps its normalised input.
    assert found.saved_bytes + seen.rms_norm_bytes == seen.saved_bytes
    assert Counter((c.op, c.bytes, c.phase, c.ranks) for c in found.collectives) == seen.collectives


@pytest.mark.parametrize(("layer", "local"), ON_CPU)
def test_equals_a_run_on_the_cpu(layer: Layer, local: Shard) -> None:
    """FLOPs by torch's counter, parameters, bytes that autograd keeps, collectives in all three phases."""
    assert_agree(analytic(layer, local), observe(layer, local, "cpu"))


@pytest.mark.parametrize(("layer", "local"), AS_ON_GPU)
def test_equals_a_run_with_gpu_kernels(layer: Layer, local: Shard) -> None:
    """The same in bf16, with the shapes and saved tensors of torch's GPU kernels (meta device, nothing computed)."""
    half = replace(local, dtype="bf16")
    assert_agree(analytic(layer, half), observe(layer, half, "meta"))


class Traffic(TorchDispatchMode):  # type: ignore[misc]
    """Bytes that operators read and write, and how many do so; views do not."""

    _VIEWS = ("view", "_unsafe_view", "transpose", "t", "expand", "detach", "split", "slice", "unsqueeze")

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.kernels = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ not in self._VIEWS:
            tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
            # A slice is smaller than its storage, a broadcast tensor seems larger.
            self.bytes += sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in tensors)
            self.kernels += 1
        return out


@pytest.mark.parametrize("name", ["gpt", "bert", "gated_relu", "neox", "moe", "moe_shared_relu", "decoder"])
def test_traffic_and_kernels_are_those_of_the_operators_that_run(name: str) -> None:
    """Bytes within 12% and kernels within a quarter: one of torch's operators may be several kernels or passes."""
    layer, local = BLOCKS[name], Shard(seq_len=256, micro_batch_per_rank=4)
    with torch.device("meta"):
        module = build_layer(layer, local, Neutral())
    found = analytic(layer, local).operators
    with GpuKernels():
        with Traffic() as forward:
            out = module(*example_inputs(layer, local, "meta"))
        gradient = torch.ones_like(out)
        with Traffic() as backward:
            out.backward(gradient)
    assert sum(op.forward_bytes for op in found) == pytest.approx(forward.bytes, rel=0.12)
    assert sum(op.backward_bytes for op in found) == pytest.approx(backward.bytes, rel=0.12)
    assert sum(op.forward_kernels for op in found) == pytest.approx(forward.kernels, rel=0.25)
    assert sum(op.backward_kernels for op in found) == pytest.approx(backward.kernels, rel=0.25)


def test_published_activation_bytes() -> None:
    """Korthikanti et al. 2022, equations 1, 2, 4: sbh(34 + 5as/h) a layer; over t ranks sbh(10 + 24/t + 5as/(ht)), with
    sequence parallelism all of it over t, for which Megatron gathers two inputs (4/t) once more in backward."""
    block = replace(
        GPT,
        hidden=1024,
        attention=replace(GPT.self_attention, heads=16, kv_heads=16, head_dim=64),
        feed_forward=FeedForward(hidden=4096, bias=True),
        dropout=True,
    )
    s, b, h, a, t = 512, 2, 1024, 16, 8
    sbh, scores = s * b * h, 5 * a * s / h
    statistics = 2 * 8 * s * b
    local = Shard(seq_len=s, micro_batch_per_rank=b, attention="math")
    assert analytic(block, local).saved_bytes == sbh * (34 + scores) + statistics
    split = replace(local, tp=t)
    assert analytic(block, split).saved_bytes == sbh * (10 + 24 / t + scores / t) + statistics
    kept_gathered = 4 * sbh * (1 - 1 / t)
    sequence = replace(split, sequence_parallel=True)
    assert analytic(block, sequence).saved_bytes == sbh * (34 + scores) / t + statistics / t + kept_gathered


@pytest.mark.parametrize(
    ("layer", "local", "reason"),
    [
        (GPT, Shard(tp=3, seq_len=8), "attention: tp=3 neither divides nor is a multiple of 4 key-value heads"),
        (GPT, Shard(tp=8, seq_len=8), "attention: tp=8 does not divide 4 heads"),
        (LLAMA, Shard(tp=3, seq_len=8), "attention: tp=3 neither divides nor is a multiple of 2 key-value heads"),
        (
            replace(GPT, feed_forward=FeedForward(hidden=66)),
            Shard(tp=4, seq_len=8),
            "feed-forward: tp=4 does not divide 66 columns",
        ),
        (
            replace(GPT, feed_forward=replace(EXPERTS, count=6)),
            Shard(tp=4, seq_len=8),
            "experts: tp=4 does not divide 6 experts",
        ),
        (
            GPT,
            Shard(tp=4, seq_len=6, sequence_parallel=True),
            "block: tp=4 does not divide 6 tokens per sample under sequence parallelism",
        ),
    ],
)
def test_a_degree_that_a_block_cannot_have_says_why(layer: TransformerBlock, local: Shard, reason: str) -> None:
    assert shard_layer(layer, local) == Infeasible(reason=reason, lacking="divisibility")
    with pytest.raises(ValueError, match=f"expected a multiple .*of tp={local.tp}"):
        build_layer(layer, local, Recording(local.tp))


def test_unsupported_layers_say_why() -> None:
    refused = shard_layer(replace(GPT, parallel=True, placement="post"), Shard(seq_len=8))
    assert isinstance(refused, Infeasible)
    assert refused.lacking == "support"
    refused = shard_layer(Embedding(vocab=8, hidden=4, positions=16), Shard(seq_len=17))
    assert refused == Infeasible(
        reason="embedding: 17 tokens per sample exceed its 16 learned positions", lacking="support"
    )


@pytest.mark.parametrize(("tp", "rows"), [(1, 50), (4, 13), (8, 7)])
def test_the_vocabulary_is_padded_to_the_degree(tp: int, rows: int) -> None:
    local = Shard(tp=tp, seq_len=8)
    embedding, head = shard_layer(Embedding(vocab=50, hidden=4), local), shard_layer(Head(hidden=4, vocab=50), local)
    assert isinstance(embedding, LocalLayer)
    assert isinstance(head, LocalLayer)
    assert (embedding.parameters, head.parameters) == (4 * rows, 4 * rows + 8)


def test_replicated_key_value_heads_are_counted() -> None:
    """One key-value head for four ranks: each holds all of it, and their gradients are summed over the four."""
    local = shard_layer(BLOCKS["multi_query"], Shard(tp=4, seq_len=8))
    assert isinstance(local, LocalLayer)
    key_value = 2 * (32 * 8 + 8)
    assert local.replicated_parameters == key_value + 2 * 32
    assert [(c.op, c.bytes, c.ranks) for c in local.collectives if c.phase == "step"] == [
        ("all_reduce", 2 * key_value, 4)
    ]
