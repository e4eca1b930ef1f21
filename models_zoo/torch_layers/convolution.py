"""Image layers as local shards: each rank computes its own output channels from all input channels.

Inputs and outputs are whole on every rank; `estimator.layers.convolution` says which collectives follow and why.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models_zoo.layers import Bottleneck, Classifier, ConvUnit
from models_zoo.torch_layers.basic import Linear
from models_zoo.torch_layers.parallel import TensorParallel, copy_to, dtype_of, gather, gather_whole
from profiles.vocabulary import Shard

_DROPOUT = 0.5
_CHANNELS = 1


def build_convolution(layer: ConvUnit | Bottleneck | Classifier, shard: Shard, tp: TensorParallel) -> nn.Module:
    """The local shard of `layer` on rank `tp.rank`, in the shard's dtype.

    Images (b, c, h, w) to images; a classifier takes images and targets (b,) to a scalar loss. Raise ValueError where
    `tp` and `shard` disagree on the degree or the degree does not divide the output channels.
    """
    if tp.degree != shard.tp:
        raise ValueError(f"found a group of {tp.degree} ranks for a shard with tp={shard.tp}, expected equal degrees")
    kinds = {ConvUnit: _ConvUnit, Bottleneck: _Bottleneck, Classifier: _Classifier}
    return kinds[type(layer)](layer, tp, dtype_of(shard))


def example_images(
    layer: ConvUnit | Bottleneck | Classifier,
    shard: Shard,
    device: torch.device | str,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, ...]:
    """Random images, requiring a gradient unless the layer is the first, and targets (b,) for a classifier."""
    channels = layer.features[0] if isinstance(layer, Classifier) else layer.c_in
    if isinstance(layer, Classifier) and not layer.average_pool:
        channels //= layer.height * layer.width
    images = torch.randn(
        (shard.micro_batch_per_rank, channels, layer.height, layer.width),
        dtype=dtype_of(shard),
        device=device,
        generator=generator,
        requires_grad=not (isinstance(layer, ConvUnit) and layer.first),
    )
    if not isinstance(layer, Classifier):
        return (images,)
    targets = torch.randint(layer.features[-1], (shard.micro_batch_per_rank,), device=device, generator=generator)
    return images, targets


class _Convolution(nn.Module):  # type: ignore[misc]
    """This rank's output channels of a square convolution, with optional batch norm over them."""

    def __init__(
        self,
        c_in: int,
        c_out: int,
        kernel: int,
        tp: TensorParallel,
        *,
        dtype: torch.dtype,
        stride: int = 1,
        padding: int = 0,
        bias: bool = False,
        norm: bool = True,
    ) -> None:
        super().__init__()
        local = _own_channels(c_out, tp)
        self.conv = nn.Conv2d(c_in, local, kernel, stride, padding, bias=bias, dtype=dtype)
        # Weights and statistics of batch norm stay in fp32, as in mixed-precision training.
        self.norm = nn.BatchNorm2d(local) if norm else None

    def forward(self, x: Tensor) -> Tensor:
        made = self.conv(x)
        return made if self.norm is None else self.norm(made)


class _ConvUnit(nn.Module):  # type: ignore[misc]
    def __init__(self, layer: ConvUnit, tp: TensorParallel, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.tp = layer, tp
        self.conv = _Convolution(
            layer.c_in,
            layer.c_out,
            layer.kernel,
            tp,
            dtype=dtype,
            stride=layer.stride,
            padding=layer.padding,
            bias=layer.bias,
            norm=layer.batch_norm,
        )

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        made = self.conv(x if layer.first else copy_to(x, self.tp))
        if layer.relu:
            made = F.relu_(made)
        if layer.pool:
            made = F.max_pool2d(made, layer.pool, layer.pool_stride, layer.pool_padding)
        return gather_whole(made, self.tp, _CHANNELS)


class _Bottleneck(nn.Module):  # type: ignore[misc]
    def __init__(self, layer: Bottleneck, tp: TensorParallel, dtype: torch.dtype) -> None:
        super().__init__()
        self.tp = tp
        wide, reduced, stride = layer.width_channels, layer.reduced_channels or layer.width_channels, layer.stride
        self.own = _own_channels(layer.c_out, tp)
        self.conv1 = _Convolution(layer.c_in, reduced, 1, tp, dtype=dtype)
        self.conv2 = _Convolution(reduced, wide, 3, tp, dtype=dtype, stride=stride, padding=1)
        self.conv3 = _Convolution(wide, layer.c_out, 1, tp, dtype=dtype)
        projected = stride != 1 or layer.c_in != layer.c_out
        self.shortcut = _Convolution(layer.c_in, layer.c_out, 1, tp, dtype=dtype, stride=stride) if projected else None

    def forward(self, x: Tensor) -> Tensor:
        x = copy_to(x, self.tp)
        made = gather(F.relu_(self.conv1(x)), self.tp, _CHANNELS)
        made = gather(F.relu_(self.conv2(made)), self.tp, _CHANNELS)
        made = self.conv3(made)
        beside = x.narrow(_CHANNELS, self.tp.rank * self.own, self.own) if self.shortcut is None else self.shortcut(x)
        return gather_whole(F.relu_(made.add_(beside)), self.tp, _CHANNELS)


class _Classifier(nn.Module):  # type: ignore[misc]
    def __init__(self, layer: Classifier, tp: TensorParallel, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.tp = layer, tp
        sizes = zip(layer.features[:-1], layer.features[1:], strict=True)
        self.linears = nn.ModuleList(Linear(k, _own_channels(n, tp), dtype=dtype, bias=True) for k, n in sizes)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        layer, (*hidden, last) = self.layer, self.linears
        x = copy_to(images, self.tp)
        if layer.average_pool:
            x = F.avg_pool2d(x, (layer.height, layer.width))
        x = x.flatten(1)
        for linear in hidden:
            x = F.relu_(linear(x))
            if self.training:
                # torch's own dropout keeps a whole tensor on CPUs; this one keeps a byte an element everywhere.
                x = torch.native_dropout(x, _DROPOUT, True)[0]
            x = gather(x, self.tp, _CHANNELS)
        logits = gather_whole(last(x), self.tp, _CHANNELS)
        return F.cross_entropy(logits.float(), targets)


def _own_channels(count: int, tp: TensorParallel) -> int:
    if count % tp.degree:
        raise ValueError(f"found {count} output channels, expected a multiple of tp={tp.degree}")
    return count // tp.degree
