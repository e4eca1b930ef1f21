"""From a layer's specification to its local shard as a module, its inputs, and a whole model end to end."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models_zoo.layers import Bottleneck, Classifier, ConvUnit, Embedding, Head, Layer, TransformerBlock
from models_zoo.model import Model, TokenInput
from models_zoo.torch_layers.blocks import Block, EmbeddingShard, HeadShard, ParallelBlock
from models_zoo.torch_layers.parallel import TensorParallel, dtype_of, region_of
from profiles.vocabulary import Shard


def build_layer(layer: Layer, shard: Shard, tp: TensorParallel) -> nn.Module:
    """Return the local shard of `layer` on rank `tp.rank`, on torch's current default device, in the shard's dtype.

    Called as `module(*example_inputs(...))`. `shard.recompute` is the caller's: wrap the module in a checkpoint.
    Raise ValueError where `tp` and `shard` disagree on the degree, the degree does not divide the layer, or it was
    traced from a user's module (its frontend builds that).
    """
    match layer:
        case Embedding():
            return EmbeddingShard(layer, region_of(shard, tp))
        case TransformerBlock():
            return (ParallelBlock if layer.parallel else Block)(layer, region_of(shard, tp))
        case Head():
            return HeadShard(layer, region_of(shard, tp))
        case ConvUnit() | Bottleneck() | Classifier():
            from models_zoo.torch_layers.convolution import build_convolution

            return build_convolution(layer, shard, tp)
    raise ValueError(f"found a {type(layer).__name__}, expected a layer of the zoo")


def example_inputs(
    layer: Layer, shard: Shard, device: torch.device | str, generator: torch.Generator | None = None
) -> tuple[Tensor, ...]:
    """Return random local inputs of one layer, `generator` on the same device.

    Embedding: ids (b, s). Block: activations (b, s, hidden) that require a gradient, and encoder memory alike where it
    has cross-attention. Head: activations and targets (b, s). Under sequence parallelism activations are s / tp long.
    """
    b, s = shard.micro_batch_per_rank, shard.seq_len
    match layer:
        case Embedding():
            return (_indices(layer.vocab, (b, s), device, generator),)
        case TransformerBlock() | Head():
            local = s // shard.tp if shard.sequence_parallel else s
            shape, dtype = (b, local, layer.hidden), dtype_of(shard)
            x = torch.randn(shape, dtype=dtype, device=device, generator=generator, requires_grad=True)
            if isinstance(layer, Head):
                return x, _indices(layer.vocab or 1, (b, s), device, generator)
            if layer.cross_attention:
                return x, torch.randn(shape, dtype=dtype, device=device, generator=generator, requires_grad=True)
            return (x,)
        case ConvUnit() | Bottleneck() | Classifier():
            from models_zoo.torch_layers.convolution import example_images

            return example_images(layer, shard, device, generator)
    raise ValueError(f"found a {type(layer).__name__}, expected a layer of the zoo")


def _indices(
    count: int, shape: tuple[int, ...], device: torch.device | str, generator: torch.Generator | None
) -> Tensor:
    return torch.randint(count, shape, device=device, generator=generator)


class Chain(nn.Module):  # type: ignore[misc]
    """A model end to end, with its tied tables shared: inputs and targets to a scalar loss.

    `decoder_inputs` are an encoder-decoder's second ids, from `TokenInput.decoder_start` on.
    """

    def __init__(self, model: Model, shard: Shard, tp: TensorParallel) -> None:
        super().__init__()
        self.layers = nn.ModuleList(build_layer(layer, shard, tp) for layer in model.layers)
        self.decoder_start = model.input.decoder_start if isinstance(model.input, TokenInput) else None
        self.uses_memory = [
            isinstance(layer, TransformerBlock) and bool(layer.cross_attention) for layer in model.layers
        ]
        for layer, module in zip(model.layers, self.layers, strict=True):
            if isinstance(layer, Embedding) and layer.tied:
                module.tokens = self.layers[0].tokens
            if isinstance(layer, Head) and layer.tied:
                module.vocabulary.weight = self.layers[0].tokens.weight
            elif isinstance(layer, Head) and layer.prediction:
                module.tokens.weight = self.layers[0].tokens.weight

    def forward(self, inputs: Tensor, targets: Tensor, decoder_inputs: Tensor | None = None) -> Tensor:
        x, memory = inputs, None
        for number, (layer, uses_memory) in enumerate(zip(self.layers[:-1], self.uses_memory[:-1], strict=True)):
            if number == self.decoder_start:
                memory, x = x, decoder_inputs
            x = layer(x, memory) if uses_memory else layer(x)
        return self.layers[-1](x, targets)


def build_model(model: Model, shard: Shard, tp: TensorParallel) -> Chain:
    """Return all layers of `model` as `build_layer` builds them, called as `module(inputs, targets[, decoder_inputs])`.

    Inputs are ids (b, s), or images, and the loss is a mean over tokens or images. Raises as `build_layer` does.
    """
    return Chain(model, shard, tp)
