"""Analytic image shards against torch: FLOPs, parameters, tensors kept for backward, collectives and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from estimator.layers.shards import shard_layer
from models_zoo.layers import Bottleneck, Classifier, ConvUnit
from models_zoo.torch_layers.build import build_layer, example_inputs
from models_zoo.torch_layers.parallel import Neutral
from profiles.vocabulary import Collective, DType, Infeasible, LocalLayer, Phase, Shard
from tests.processes import HANGS_S
from tests.recording_ranks import Recording

ImageLayer = ConvUnit | Bottleneck | Classifier

LAYERS: dict[str, ImageLayer] = {
    "stem": ConvUnit(
        c_in=3,
        c_out=16,
        height=32,
        width=48,
        kernel=7,
        stride=2,
        padding=3,
        pool=3,
        pool_stride=2,
        pool_padding=1,
        first=True,
    ),
    "plain": ConvUnit(c_in=8, c_out=16, height=9, width=7, kernel=3, padding=1),
    "vgg": ConvUnit(c_in=8, c_out=16, height=8, width=8, kernel=3, padding=1, batch_norm=False, bias=True),
    "vgg-pool": ConvUnit(
        c_in=8, c_out=8, height=8, width=8, kernel=3, padding=1, batch_norm=False, bias=True, pool=2, pool_stride=2
    ),
    "pool-alone": ConvUnit(c_in=8, c_out=8, height=8, width=8, kernel=3, relu=False, pool=2, pool_stride=2),
    "identity": Bottleneck(c_in=32, width_channels=8, c_out=32, height=7, width=5),
    "wider": Bottleneck(c_in=16, width_channels=8, c_out=32, height=7, width=5),
    "strided": Bottleneck(c_in=32, width_channels=16, c_out=64, height=7, width=5, stride=2),
    "alpa-wide": Bottleneck(c_in=16, reduced_channels=8, width_channels=24, c_out=32, height=7, width=5, stride=2),
    "resnet-end": Classifier(features=(32, 8), height=7, width=7),
    "vgg-end": Classifier(features=(8 * 12, 64, 64, 8), height=3, width=4, average_pool=False),
}


def analytic(layer: ImageLayer, shard: Shard) -> LocalLayer:
    local = shard_layer(layer, shard)
    assert isinstance(local, LocalLayer), local
    return local


def storage_bytes(tensors: list[Tensor], excluded: list[Tensor]) -> int:
    """Bytes of the distinct storages behind `tensors`, without those behind `excluded`."""
    kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    for t in excluded:
        kept.pop(t.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def keep_in(kept: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    return keep


def unnamed(collectives: tuple[Collective, ...] | list[Collective]) -> list[tuple[object, ...]]:
    return [(c.op, c.bytes, c.phase, c.axis, c.ranks) for c in collectives]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_counts_equal_those_of_a_run(name: str, tp: int, dtype: DType) -> None:
    layer, shard = LAYERS[name], Shard(tp=tp, micro_batch_per_rank=3, dtype=dtype)
    local, group = analytic(layer, shard), Recording(tp)
    module = build_layer(layer, shard, group)
    inputs = example_inputs(layer, shard, "cpu")
    kept: list[Tensor] = []
    with (
        FlopCounterMode(display=False) as forward,
        torch.autograd.graph.saved_tensors_hooks(keep_in(kept), lambda x: x),
    ):
        out = module(*inputs)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert local.forward_flops == forward.get_total_flops()
    assert local.backward_flops == backward.get_total_flops()
    assert local.parameters == sum(p.numel() for p in module.parameters())
    assert unnamed(local.collectives) == (unnamed(group.seen) if tp > 1 else [])
    assert local.saved_bytes == storage_bytes(kept, [*module.parameters(), *module.buffers(), out])
    assert local.input_bytes == inputs[0].nbytes
    assert local.output_bytes == out.nbytes


class Threads:
    """A rank among threads of this process, with collectives that really exchange tensors."""

    def __init__(self, rank: int, barrier: Barrier, slots: list[Tensor]) -> None:
        self.rank, self.degree = rank, barrier.parties
        self._barrier, self._slots = barrier, slots

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self._slots[self.rank] = x.clone()
        self._barrier.wait(timeout=HANGS_S)
        everyone = list(self._slots)
        self._barrier.wait(timeout=HANGS_S)
        return everyone

    def all_reduce(self, x: Tensor, phase: Phase, ranks: int | None = None) -> Tensor:
        del phase, ranks
        return torch.stack(self._exchange(x)).sum(0)

    def maximum(self, x: Tensor, phase: Phase) -> Tensor:
        del phase
        return torch.stack(self._exchange(x)).amax(0)

    def all_gather(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        del phase
        return torch.cat(self._exchange(x), dim)

    def reduce_scatter(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        return self.all_reduce(x, phase).chunk(self.degree, dim)[self.rank]


def own_slice(whole: Tensor, rank: int, degree: int) -> Tensor:
    """Every weight and statistic of an image layer is split along its first dimension."""
    return whole.chunk(degree)[rank] if whole.ndim else whole


@pytest.mark.parametrize("name", ["stem", "vgg-pool", "identity", "strided", "resnet-end", "vgg-end"])
def test_shards_together_compute_the_whole_layer(name: str) -> None:
    """Output and gradients of two ranks with real collectives equal those of one rank that holds everything."""
    layer, degree = LAYERS[name], 2
    torch.manual_seed(1)
    one = Shard(dtype="fp32", micro_batch_per_rank=3)
    training = not isinstance(layer, Classifier)  # dropout draws other numbers in a shard
    whole = build_layer(layer, one, Neutral()).train(training)
    state = {key: value.clone() for key, value in whole.state_dict().items()}
    inputs = example_inputs(layer, one, "cpu")
    out = whole(*inputs)
    weight = torch.randn(out.shape)
    (out * weight).sum().backward()

    def run_rank(group: Threads) -> tuple[nn.Module, Tensor, Tensor | None]:
        module = build_layer(layer, replace(one, tp=degree), group).train(training)
        module.load_state_dict({key: own_slice(value, group.rank, degree) for key, value in state.items()})
        image, *rest = (x.detach().clone().requires_grad_(x.requires_grad) for x in inputs)
        made = module(image, *rest)
        (made * weight).sum().backward()
        return module, made, image.grad

    barrier, slots = Barrier(degree), [torch.empty(0)] * degree
    with ThreadPoolExecutor(degree) as pool:
        ranks = list(pool.map(run_rank, [Threads(rank, barrier, slots) for rank in range(degree)]))
    for rank, (module, made, image_grad) in enumerate(ranks):
        torch.testing.assert_close(made, out, rtol=1e-4, atol=1e-4)
        if inputs[0].requires_grad:
            torch.testing.assert_close(image_grad, inputs[0].grad, rtol=1e-4, atol=1e-4)
        for own, full in zip(module.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(own.grad, own_slice(full.grad, rank, degree), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "tp", "named"),
    [
        (LAYERS["plain"], 3, "c_out = 16 "),
        (LAYERS["identity"], 16, "width_channels = 8 "),
        (LAYERS["strided"], 5, "width_channels = 16 "),
        (Classifier(features=(64, 32, 10), height=1, width=1), 4, "fc2 = 10 "),
    ],
)
def test_a_degree_that_does_not_divide_says_so_with_the_numbers(layer: ImageLayer, tp: int, named: str) -> None:
    refused = shard_layer(layer, Shard(tp=tp))
    assert isinstance(refused, Infeasible)
    assert refused.lacking == "divisibility"
    assert refused.reason.startswith(named)
    assert f"tp = {tp}" in refused.reason
    with pytest.raises(ValueError, match=f"expected a multiple of tp={tp}"):
        build_layer(layer, Shard(tp=tp, dtype="fp32"), Recording(tp))


def test_a_chain_counts_a_tensor_that_two_layers_keep_once() -> None:
    layers: list[ImageLayer] = [
        LAYERS["vgg"],
        ConvUnit(c_in=16, c_out=8, height=8, width=8, kernel=3, padding=1),
        Bottleneck(c_in=8, width_channels=8, c_out=16, height=8, width=8),
    ]
    shard = Shard(dtype="fp32", micro_batch_per_rank=2)
    modules = [build_layer(layer, shard, Neutral()) for layer in layers]
    kept: list[Tensor] = []
    x = example_inputs(layers[0], shard, "cpu")[0]
    with torch.autograd.graph.saved_tensors_hooks(keep_in(kept), lambda t: t):
        for module in modules:
            x = module(x)
    held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    assert sum(analytic(layer, shard).saved_bytes for layer in layers) == storage_bytes(kept, [*held, x])
