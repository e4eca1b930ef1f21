"""Image layers: each rank computes its own output channels from all input channels. Images are (b, c, h, w).

Inputs and outputs are whole on every rank; `estimator.layers.convolution` says which collectives follow and why.
Batch norm uses the micro-batch's own statistics; running ones, which training does not read, are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from models_zoo.jax_layers.basic import NORM_EPS, dropout, key_for, key_of_rank, linear
from models_zoo.jax_layers.parallel import Array, Region, Weights, inside
from models_zoo.layers import Bottleneck, Classifier, ConvUnit

Params = Mapping[str, Array]
_DROPOUT = 0.5
_CHANNELS = 1
_LAYOUT = ("NCHW", "OIHW", "NCHW")


def conv_unit(layer: ConvUnit, region: Region, params: Params, x: Array, *, key: Array | None = None) -> Array:
    """Images to images; `key` is not used."""
    del key
    made = _convolve(inside(params, region).under("conv"), region.vary(x), layer.stride, layer.padding)
    if layer.relu:
        made = jax.nn.relu(made)
    if layer.pool:
        padding = ((0, 0), (0, 0), *[(layer.pool_padding, layer.pool_padding)] * 2)
        window, stride = (1, 1, layer.pool, layer.pool), (1, 1, layer.pool_stride, layer.pool_stride)
        made = lax.reduce_window(made, np.array(-np.inf, made.dtype), lax.max, window, stride, padding)
    return region.gather_whole(made, _CHANNELS)


def bottleneck(layer: Bottleneck, region: Region, params: Params, x: Array, *, key: Array | None = None) -> Array:
    """Images to images; `key` is not used."""
    del key
    weights = inside(params, region)
    x = region.vary(x)
    made = region.gather(jax.nn.relu(_convolve(weights.under("conv1"), x)), _CHANNELS)
    made = region.gather(jax.nn.relu(_convolve(weights.under("conv2"), made, layer.stride, 1)), _CHANNELS)
    made = _convolve(weights.under("conv3"), made)
    if layer.stride != 1 or layer.c_in != layer.c_out:
        beside = _convolve(weights.under("shortcut"), x, layer.stride)
    else:
        channels = layer.c_out // region.tp
        beside = lax.dynamic_slice_in_dim(x, region.rank() * channels, channels, _CHANNELS)
    return region.gather_whole(jax.nn.relu(made + beside), _CHANNELS)


def classifier(
    layer: Classifier, region: Region, params: Params, images: Array, targets: Array, *, key: Array | None = None
) -> Array:
    """Images and targets (b,) to a scalar loss."""
    weights = inside(params, region).under("linears")
    x = region.vary(images)
    x = x.mean((2, 3)) if layer.average_pool else x.reshape(x.shape[0], -1)
    last = len(layer.features) - 2
    for number in range(last):
        x = jax.nn.relu(linear(weights.under(str(number)), x))
        x = region.gather(dropout(x, key_of_rank(key_for(key, number), region), _DROPOUT), _CHANNELS)
    logits = region.gather_whole(linear(weights.under(str(last)), x), _CHANNELS).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits, -1), targets[:, None], -1).mean()


def check_channels(layer: ConvUnit | Bottleneck | Classifier, region: Region) -> None:
    """Raise ValueError where the degree does not divide every product's output channels."""
    match layer:
        case ConvUnit():
            counts: tuple[int, ...] = (layer.c_out,)
        case Bottleneck():
            counts = (layer.reduced_channels or layer.width_channels, layer.width_channels, layer.c_out)
        case Classifier():
            counts = layer.features[1:]
    for count in counts:
        region.share(count, "output channels")


def _convolve(weights: Weights, x: Array, stride: int = 1, padding: int = 0) -> Array:
    """This rank's output channels of a square convolution, with batch norm over them where there is one."""
    made = lax.conv_general_dilated(
        x, weights["conv.weight"], (stride, stride), [(padding, padding)] * 2, dimension_numbers=_LAYOUT
    )
    if "conv.bias" in weights:
        made = made + weights["conv.bias"][:, None, None]
    if "norm.weight" not in weights:
        return made
    wide = made.astype(jnp.float32)
    wide = wide - wide.mean((0, 2, 3), keepdims=True)
    scale = lax.rsqrt(jnp.square(wide).mean((0, 2, 3), keepdims=True) + NORM_EPS)
    normed = wide * scale * weights["norm.weight"][:, None, None] + weights["norm.bias"][:, None, None]
    return normed.astype(made.dtype)
