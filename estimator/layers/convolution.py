"""Image layers: output channels split over the tensor-parallel ranks.

A layer's input and output stand in full on every tp rank. Each convolution or fully connected layer computes its own
c_out / tp output channels from all input channels; batch norm, ReLU, pooling and dropout act on those channels alone,
then an all-gather over channels feeds the next product (the f and g of Megatron-LM, Shoeybi et al. 2019, section 3,
with channels for columns). Backward, a rank's gradient of a gathered tensor is a partial sum:

- a tensor gathered inside a layer: one reduce-scatter, each rank needs its own channels only;
- a layer's input: one all-reduce, whatever the number of products that read it;
- a layer's output: the gradient comes complete to every rank, which takes its slice without communication.

Kept for backward: a layer counts its input and what it makes inside, never its output. With tp = 1 the in-place ReLU at
a layer's end keeps that output, and the next convolution keeps the same tensor as its input: it is counted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from estimator.layers.operators import convolution, elementwise, gemm
from estimator.layers.parts import Piece, all_reduce, dropout, join, memory_pass, of, refuse_tokenless
from estimator.layers.split import Split
from models_zoo.layers import Bottleneck, Classifier, ConvUnit
from profiles.records import dataclass
from profiles.vocabulary import Collective, Infeasible, Operator, Phase

_STATISTIC_BYTES = 4  # batch norm's mean and deviation of a channel, and the loss: fp32 whatever the compute dtype
_INDEX_BYTES = 8


def refuse_conv_unit(layer: ConvUnit, split: Split) -> Infeasible | None:
    """Output channels that tp does not divide."""
    return _undivided(split, c_out=layer.c_out)


def conv_unit_piece(layer: ConvUnit, split: Split) -> Piece:
    """A convolution with optional batch norm, ReLU and max-pool.

    Collectives: all-gather of the output forward, all-reduce of the input's gradient backward (not in a first layer).
    """
    c_out = layer.c_out // split.tp
    image = _Map(batch=split.samples, height=layer.height, width=layer.width)
    made = output = image.through(layer.kernel, layer.stride, layer.padding)
    pieces = [
        _convolution(
            "conv",
            (image, made),
            (layer.c_in, c_out),
            (layer.kernel, layer.stride),
            split,
            bias=layer.bias,
            batch_norm=layer.batch_norm,
            input_grad=not layer.first,
        )
    ]
    if layer.relu:
        pieces.append(_relu("relu", made.elements(c_out), split, saved=split.tp > 1 or layer.pool > 0))
    if layer.pool:
        output = made.through(layer.pool, layer.pool_stride, layer.pool_padding)
        pooled = made.elements(c_out), output.elements(c_out)
        pieces.append(of(_pool(*pooled, split.width, keeps_input=not layer.relu)))
    input_bytes, output_bytes = image.elements(layer.c_in) * split.width, output.elements(layer.c_out) * split.width
    pieces.append(_gather("output", output_bytes, split))
    return _layer(pieces, split, input_bytes, output_bytes, input_grad=not layer.first)


def refuse_bottleneck(layer: Bottleneck, split: Split) -> Infeasible | None:
    """Output channels of a convolution that tp does not divide."""
    wide = layer.width_channels
    return _undivided(split, width_channels=wide, reduced_channels=layer.reduced_channels or wide, c_out=layer.c_out)


def bottleneck_piece(layer: Bottleneck, split: Split) -> Piece:
    """A ResNet bottleneck (He et al. 2015, figure 5; the stride in the 3x3 convolution).

    Every convolution has batch norm and no bias. The shortcut is the input, or a 1x1 convolution of it where channels
    or size change; each rank adds its own channels of it before the output's gather.
    """
    wide, reduced = layer.width_channels, layer.reduced_channels or layer.width_channels
    tp, width = split.tp, split.width
    own_reduced, own_wide, c_out = reduced // tp, wide // tp, layer.c_out // tp
    image = _Map(batch=split.samples, height=layer.height, width=layer.width)
    made = image.through(3, layer.stride, 1)
    # With tp = 1 the product that follows reads the very tensor that ReLU keeps; with more it reads a gathered copy.
    gathered = tp > 1
    pieces = [
        _convolution("conv1", (image, image), (layer.c_in, own_reduced), (1, 1), split),
        _relu("relu1", image.elements(own_reduced), split),
        _gather("conv2 input", image.elements(reduced) * width, split, scattered=True),
        _convolution("conv2", (image, made), (reduced, own_wide), (3, layer.stride), split, saves_input=gathered),
        _relu("relu2", made.elements(own_wide), split),
        _gather("conv3 input", made.elements(wide) * width, split, scattered=True),
        _convolution("conv3", (made, made), (wide, c_out), (1, 1), split, saves_input=gathered),
    ]
    if layer.stride != 1 or layer.c_in != layer.c_out:
        channels, window = (layer.c_in, c_out), (1, layer.stride)
        pieces.append(_convolution("shortcut", (image, made), channels, window, split, saves_input=False))
    last = made.elements(c_out)
    input_bytes, output_bytes = image.elements(layer.c_in) * width, made.elements(layer.c_out) * width
    pieces += [
        # Forward reads two and writes one; backward adds the shortcut's gradient to the input's.
        memory_pass("add", last, split, forward=3.0, backward=3.0),
        _relu("relu3", last, split, saved=gathered),
        _gather("output", output_bytes, split),
    ]
    return _layer(pieces, split, input_bytes, output_bytes)


def refuse_classifier(layer: Classifier, split: Split) -> Infeasible | None:
    """Output features that tp does not divide."""
    return _undivided(split, **{f"fc{number}": count for number, count in enumerate(layer.features[1:], start=1)})


def classifier_piece(layer: Classifier, split: Split) -> Piece:
    """A classifier: average pool or flatten, fully connected layers, cross-entropy.

    Between two fully connected layers stand ReLU and dropout (VGG, Simonyan and Zisserman 2014, section 3.1). Each of
    them splits its output features; the loss is computed whole on every rank.
    """
    tp, width, batch = split.tp, split.width, split.samples
    image = _Map(batch=batch, height=layer.height, width=layer.width)
    channels = layer.features[0] if layer.average_pool else layer.features[0] // (layer.height * layer.width)
    pooled = image.elements(channels)
    pieces: list[Piece] = []
    if layer.average_pool:
        pieces.append(memory_pass("average_pool", pooled, split, forward=1.0, backward=1.0, saved_bytes=pooled * width))
    last = len(layer.features) - 1
    for number, (k, n) in enumerate(pairwise(layer.features), start=1):
        name = f"fc{number}"
        product = gemm(name, m=batch, n=n // tp, k=k, width=width, bias=True)
        pieces += [of(product, parameters=n // tp * (k + 1))]
        pieces.append(_gather(f"{name} output", batch * n * width, split, scattered=number < last))
        if number < last:
            hidden = batch * n // tp
            pieces += [_relu(f"{name} relu", hidden, split), dropout(f"{name} dropout", hidden, split)]
    pieces.append(of(_loss(batch, layer.features[-1])))
    return _layer(pieces, split, pooled * width, _STATISTIC_BYTES)


def _loss(batch: int, classes: int) -> Operator:
    """Cross-entropy in fp32. Kept: log-probabilities, the targets, and the sum of the targets' weights."""
    return elementwise(
        "loss",
        elements=batch * classes,
        width=_STATISTIC_BYTES,
        forward_passes=3,
        backward_passes=3,
        saved_bytes=batch * classes * _STATISTIC_BYTES + batch * _INDEX_BYTES + _STATISTIC_BYTES,
        forward_kernels=2,
        backward_kernels=2,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Map:
    """The size of a feature map, whatever its channels."""

    batch: int
    height: int
    width: int

    def elements(self, channels: int) -> int:
        return self.batch * channels * self.height * self.width

    def through(self, kernel: int, stride: int, padding: int) -> _Map:
        """The map that a square window makes of this one."""
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size in (self.height, self.width))
        return _Map(batch=self.batch, height=height, width=width)


def _undivided(split: Split, **channels: int) -> Infeasible | None:
    for name, count in channels.items():
        if count % split.tp:
            return Infeasible(
                reason=f"{name} = {count} output channels do not divide by tp = {split.tp}", lacking="divisibility"
            )
    return refuse_tokenless("an image layer", split)


def _layer(
    pieces: Sequence[Piece], split: Split, input_bytes: int, output_bytes: int, *, input_grad: bool = True
) -> Piece:
    """The pieces as a layer, which sums its input's gradient last; collectives in the order in which a pass comes to
    them."""
    summed = all_reduce("input", input_bytes, split, phase="backward") if input_grad else Piece()
    layer = join((summed, *pieces))
    forward = [collective for collective in layer.collectives if collective.phase == "forward"]
    backward = [collective for collective in layer.collectives if collective.phase == "backward"]
    return replace(
        layer, collectives=(*forward, *reversed(backward)), input_bytes=input_bytes, output_bytes=output_bytes
    )


def _gather(name: str, size_bytes: int, split: Split, *, scattered: bool = False) -> Piece:
    """Channels of all ranks together; `scattered`: gradients come as partial sums, of which each rank needs its own."""
    if split.tp == 1:
        return Piece()

    def over_ranks(op: Literal["all_gather", "reduce_scatter"], phase: Phase) -> Collective:
        return Collective(op=op, bytes=size_bytes, phase=phase, ranks=split.tp, name=name)

    back = (over_ranks("reduce_scatter", "backward"),) if scattered else ()
    return Piece(collectives=(over_ranks("all_gather", "forward"), *back))


def _convolution(
    name: str,
    maps: tuple[_Map, _Map],
    channels: tuple[int, int],
    window: tuple[int, int],
    split: Split,
    *,
    bias: bool = False,
    batch_norm: bool = True,
    input_grad: bool = True,
    saves_input: bool = True,
) -> Piece:
    """A convolution from one map to another by a square `window` (size, stride), and the batch norm behind it, which
    keeps its input and statistics."""
    (before, after), (c_in, c_out), (kernel, stride) = maps, channels, window
    product = convolution(
        name,
        batch=before.batch,
        c_in=c_in,
        c_out=c_out,
        out_h=after.height,
        out_w=after.width,
        kernel=kernel,
        stride=stride,
        width=split.width,
        input_elements=c_in * before.height * before.width,
        input_grad=input_grad,
        saves_input=saves_input,
    )
    piece = of(product, parameters=c_out * (c_in * kernel**2 + int(bias)))
    if not batch_norm:
        return piece
    made = after.elements(c_out)
    # Forward reads for the statistics, reads and writes; backward reads input and gradient twice and writes once.
    norm = memory_pass(
        f"{name} norm",
        made,
        split,
        forward=3.0,
        backward=5.0,
        saved_bytes=made * split.width + 2 * c_out * _STATISTIC_BYTES,
        forward_kernels=2,
        backward_kernels=2,
    )
    return join((piece, norm, Piece(parameters=2 * c_out)))


def _relu(name: str, elements: int, split: Split, *, saved: bool = True) -> Piece:
    kept = elements * split.width if saved else 0
    return memory_pass(name, elements, split, forward=2.0, backward=3.0, saved_bytes=kept)


def _pool(elements: int, pooled: int, width: int, *, keeps_input: bool) -> Operator:
    """Max-pool: keeps the place of each maximum, and its input where no ReLU before it does."""
    moved = (elements + pooled) * width + pooled * _INDEX_BYTES
    kept = pooled * _INDEX_BYTES + (elements * width if keeps_input else 0)
    return Operator(
        name="pool", kind="memory", shape=(elements,), forward_bytes=moved, backward_bytes=moved, saved_bytes=kept
    )
