"""A whole stage timed as one piece with torch, eager or compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from estimator.host.children import child_processes
from estimator.profiling.measure_torch import build_shard, measure_modules
from estimator.profiling.setting import Setting
from models_zoo.layers import Classifier, Embedding, Head, Layer, TracedLayer, TransformerBlock
from profiles.measurements import Measurement
from profiles.vocabulary import Infeasible, Shard

Role = Literal["plain", "decoder_start", "cross", "loss"]


def measure_stage(
    layers: Sequence[Layer], shard: Shard, setting: Setting, *, compiled: bool, backend: str = "inductor"
) -> Measurement | Infeasible:
    """Time and memory of contiguous `layers`, all held as `shard`, as one module on one device.

    `compiled` runs it through torch.compile with `backend`; the time to compile is not in the figures. Infeasible as in
    `measure_layer`, and where the compiler fails (the default needs a C++ compiler on a CPU).
    """

    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        stage, inputs = build_stage(layers, shard, setting.device)
        return (torch.compile(stage, backend=backend) if compiled else stage), inputs

    if not compiled:
        return measure_modules(layers, shard, setting, build=build)
    with child_processes() as children, children.answer_for_all():  # It starts compilers.
        return measure_modules(layers, shard, setting, build=build)


class _Stage(nn.Module):  # type: ignore[misc]
    """Layers one after another. Besides its input it takes, in this order as its layers come to need them: an
    encoder's output (unless the encoder is in it), the decoder's ids, the targets."""

    def __init__(self, modules: Sequence[nn.Module], roles: Sequence[Role]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(modules)
        self.roles = tuple(roles)

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        waiting = list(others)
        memory = None
        for layer, role in zip(self.layers, self.roles, strict=True):
            if role == "decoder_start":
                memory, x = x, layer(waiting.pop(0))
            elif role == "cross":
                memory = waiting.pop(0) if memory is None else memory
                x = layer(x, memory)
            elif role == "loss":
                x = layer(x, waiting.pop(0))
            else:
                x = layer(x)
        return x


def _role(layer: Layer, *, first: bool) -> Role:
    match layer:
        case Embedding() if not first:
            return "decoder_start"
        case TransformerBlock(cross_attention=cross) if cross is not None:
            return "cross"
        case Head() | Classifier():
            return "loss"
    return "plain"


def build_stage(layers: Sequence[Layer], shard: Shard, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module of contiguous `layers` on `device`, and its inputs, random like those of its layers."""
    traced = [layer for layer in layers if isinstance(layer, TracedLayer)]
    if traced:
        from estimator.frontends.torch_piece import build_traced

        return build_traced(traced, shard, device)
    roles = [_role(layer, first=number == 0) for number, layer in enumerate(layers)]
    modules, inputs = [], []
    has_memory = False
    for number, (layer, role) in enumerate(zip(layers, roles, strict=True)):
        module, layer_inputs = build_shard(layer, shard, device)
        modules.append(module)
        if number == 0:
            inputs.append(layer_inputs[0])
        if role == "decoder_start":
            inputs.append(layer_inputs[0])
        elif role == "loss" or (role == "cross" and not has_memory):
            inputs.append(layer_inputs[1])
        has_memory = has_memory or role in ("decoder_start", "cross")
    return _Stage(modules, roles), tuple(inputs)
