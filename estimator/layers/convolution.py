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

from dataclasses import dataclass
from itertools import pairwise

from estimator.layers.operators import convolution, elementwise, gemm
from estimator.layers.parts import Piece, refuse_tokenless
from estimator.layers.split import Split
from models_zoo.layers import Bottleneck, Classifier, ConvUnit
from profiles.vocabulary import Collective, CollectiveOp, Infeasible, Operator, Phase

_STATISTIC_BYTES = 4  # batch norm's mean and deviation of a channel, and the loss: fp32 whatever the compute dtype
_INDEX_BYTES = 8


def refuse_conv_unit(layer: ConvUnit, split: Split) -> Infeasible | None:
    """Output channels that tp does not divide."""
    return _undivided(split, c_out=layer.c_out)


def conv_unit_piece(layer: ConvUnit, split: Split) -> Piece:
    """A convolution with optional batch norm, ReLU and max-pool.

    Collectives: all-gather of the output forward, all-reduce of the input's gradient backward (not in a first layer).
    """
    c_out, width, tp = layer.c_out // split.tp, split.width, split.tp
    image = _Map(batch=split.samples, height=layer.height, width=layer.width)
    made = image.through(layer.kernel, layer.stride, layer.padding)
    operators = _convolution(
        "conv",
        (image, made),
        (layer.c_in, c_out),
        layer.kernel,
        layer.stride,
        width,
        batch_norm=layer.batch_norm,
        input_grad=not layer.first,
    )
    if layer.relu:
        kept = tp > 1 or layer.pool > 0
        operators.append(_relu("relu", made.elements(c_out), width, saved=kept))
    output = made
    if layer.pool:
        output = made.through(layer.pool, layer.pool_stride, layer.pool_padding)
        operators.append(_pool(made.elements(c_out), output.elements(c_out), width, keeps_input=not layer.relu))
    input_bytes = image.elements(layer.c_in) * width
    output_bytes = output.elements(layer.c_out) * width
    collectives: list[_Wanted] = [("all_gather", output_bytes, "forward", "output")]
    if not layer.first:
        collectives.append(("all_reduce", input_bytes, "backward", "input"))
    weights = layer.c_in * layer.kernel**2 + int(layer.bias) + 2 * int(layer.batch_norm)
    return _piece(tp, operators, collectives, parameters=c_out * weights, boundaries=(input_bytes, output_bytes))


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
    projected = layer.stride != 1 or layer.c_in != layer.c_out
    # With tp = 1 the product that follows reads the very tensor that ReLU keeps; with more it reads a gathered copy.
    gathered = tp > 1
    operators = [
        *_convolution("conv1", (image, image), (layer.c_in, own_reduced), 1, 1, width),
        _relu("relu1", image.elements(own_reduced), width),
        *_convolution("conv2", (image, made), (reduced, own_wide), 3, layer.stride, width, saves_input=gathered),
        _relu("relu2", made.elements(own_wide), width),
        *_convolution("conv3", (made, made), (wide, c_out), 1, 1, width, saves_input=gathered),
    ]
    norms = 2 * (own_reduced + own_wide + c_out)
    weights = own_reduced * layer.c_in + 9 * own_wide * reduced + c_out * wide + norms
    if projected:
        channels = (layer.c_in, c_out)
        operators += _convolution("shortcut", (image, made), channels, 1, layer.stride, width, saves_input=False)
        weights += c_out * layer.c_in + 2 * c_out
    last = made.elements(c_out)
    operators += [
        # Forward reads two and writes one; backward adds the shortcut's gradient to the input's.
        elementwise("add", elements=last, width=width, forward_passes=3, backward_passes=3),
        _relu("relu3", last, width, saved=gathered),
    ]
    input_bytes = image.elements(layer.c_in) * width
    output_bytes = made.elements(layer.c_out) * width
    inner_bytes = (image.elements(reduced) * width, made.elements(wide) * width)
    collectives: list[_Wanted] = [
        ("all_gather", inner_bytes[0], "forward", "conv2 input"),
        ("all_gather", inner_bytes[1], "forward", "conv3 input"),
        ("all_gather", output_bytes, "forward", "output"),
        ("reduce_scatter", inner_bytes[1], "backward", "conv3 input"),
        ("reduce_scatter", inner_bytes[0], "backward", "conv2 input"),
        ("all_reduce", input_bytes, "backward", "input"),
    ]
    return _piece(tp, operators, collectives, parameters=weights, boundaries=(input_bytes, output_bytes))


def refuse_classifier(layer: Classifier, split: Split) -> Infeasible | None:
    """Output features that tp does not divide."""
    return _undivided(split, **{f"fc{number}": count for number, count in enumerate(layer.features[1:], start=1)})


def classifier_piece(layer: Classifier, split: Split) -> Piece:
    """A classifier: average pool or flatten, fully connected layers, cross-entropy.

    Between two fully connected layers stand ReLU and dropout (VGG, Simonyan and Zisserman 2014, section 3.1). Each of
    them splits its output features; the loss is computed whole on every rank.
    """
    names = [f"fc{i}" for i in range(1, len(layer.features))]
    tp, width, batch = split.tp, split.width, split.samples
    image = _Map(batch=batch, height=layer.height, width=layer.width)
    channels = layer.features[0] if layer.average_pool else layer.features[0] // (layer.height * layer.width)
    input_bytes = image.elements(channels) * width
    operators: list[Operator] = []
    if layer.average_pool:
        passes = {"forward_passes": 1, "backward_passes": 1}
        pooled = image.elements(channels)
        operators.append(elementwise("average_pool", elements=pooled, width=width, saved_bytes=input_bytes, **passes))
    forward: list[_Wanted] = []
    backward: list[_Wanted] = [("all_reduce", input_bytes, "backward", "input")]
    parameters = 0
    for name, (k, n) in zip(names, pairwise(layer.features), strict=True):
        operators.append(gemm(name, m=batch, n=n // tp, k=k, width=width, bias=True))
        parameters += (n // tp) * (k + 1)
        forward.append(("all_gather", batch * n * width, "forward", f"{name} output"))
        if name != names[-1]:
            backward.insert(0, ("reduce_scatter", batch * n * width, "backward", f"{name} output"))
            hidden = batch * n // tp
            operators.append(_relu(f"{name} relu", hidden, width))
            passes = {"forward_passes": 2, "backward_passes": 2}
            # The mask is one byte an element.
            operators.append(elementwise(f"{name} dropout", elements=hidden, width=width, saved_bytes=hidden, **passes))
    logits = batch * layer.features[-1]
    # Kept: log-probabilities, the targets, and the sum of the targets' weights.
    kept = logits * _STATISTIC_BYTES + batch * _INDEX_BYTES + _STATISTIC_BYTES
    passes = {"forward_passes": 3, "backward_passes": 3}
    operators.append(
        elementwise(
            "loss",
            elements=logits,
            width=_STATISTIC_BYTES,
            saved_bytes=kept,
            forward_kernels=2,
            backward_kernels=2,
            **passes,
        )
    )
    return _piece(tp, operators, forward + backward, parameters=parameters, boundaries=(input_bytes, _STATISTIC_BYTES))


_Wanted = tuple[CollectiveOp, int, Phase, str]


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


def _piece(
    tp: int, operators: list[Operator], wanted: list[_Wanted], *, parameters: int, boundaries: tuple[int, int]
) -> Piece:
    """The layer of these operators, its collectives where there are several ranks."""
    collectives = tuple(
        Collective(op=op, bytes=size_bytes, phase=phase, ranks=tp, name=name) for op, size_bytes, phase, name in wanted
    )
    return Piece(
        operators=tuple(operators),
        collectives=collectives if tp > 1 else (),
        parameters=parameters,
        saved_bytes=sum(operator.saved_bytes for operator in operators),
        input_bytes=boundaries[0],
        output_bytes=boundaries[1],
    )


def _convolution(
    name: str,
    maps: tuple[_Map, _Map],
    channels: tuple[int, int],
    kernel: int,
    stride: int,
    width: int,
    *,
    batch_norm: bool = True,
    input_grad: bool = True,
    saves_input: bool = True,
) -> list[Operator]:
    """A convolution from one map to another and the batch norm behind it, which keeps its input and statistics."""
    (before, after), (c_in, c_out) = maps, channels
    product = convolution(
        name,
        batch=before.batch,
        c_in=c_in,
        c_out=c_out,
        out_h=after.height,
        out_w=after.width,
        kernel=kernel,
        stride=stride,
        width=width,
        input_elements=c_in * before.height * before.width,
        input_grad=input_grad,
        saves_input=saves_input,
    )
    if not batch_norm:
        return [product]
    made = after.elements(c_out)
    # Forward reads for the statistics, reads and writes; backward reads input and gradient twice and writes once.
    norm = elementwise(
        f"{name} norm",
        elements=made,
        width=width,
        forward_passes=3,
        backward_passes=5,
        saved_bytes=made * width + 2 * c_out * _STATISTIC_BYTES,
        forward_kernels=2,
        backward_kernels=2,
    )
    return [product, norm]


def _relu(name: str, elements: int, width: int, *, saved: bool = True) -> Operator:
    return elementwise(
        name,
        elements=elements,
        width=width,
        forward_passes=2,
        backward_passes=3,
        saved_bytes=elements * width if saved else 0,
    )


def _pool(elements: int, pooled: int, width: int, *, keeps_input: bool) -> Operator:
    """Max-pool: keeps the place of each maximum, and its input where no ReLU before it does."""
    moved = (elements + pooled) * width + pooled * _INDEX_BYTES
    kept = pooled * _INDEX_BYTES + (elements * width if keeps_input else 0)
    return Operator(
        name="pool", kind="memory", shape=(elements,), forward_bytes=moved, backward_bytes=moved, saved_bytes=kept
    )
