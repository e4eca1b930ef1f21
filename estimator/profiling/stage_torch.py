"""A whole stage timed as one piece, eager or compiled, and set against the sum of its layers.

Crius (section 5.1) compiles a stage as it would run and profiles that ("distributed-equivalent compilation"): a
compiler fuses across layers, so that a stage may take less than its layers one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from estimator.profiling.measure_torch import build_shard, measure_modules
from estimator.profiling.setting import Setting, low_quantile
from models_zoo.layers import Classifier, Embedding, Head, Layer, TransformerBlock
from profiles.measurements import Measurement
from profiles.vocabulary import Infeasible, Shard

Role = Literal["plain", "decoder_start", "cross", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageComparison:
    """Seconds and saved bytes of a stage as one piece and as the sum of its layers, each measured alone."""

    layers_forward_s: float
    layers_backward_s: float
    layers_optimizer_s: float
    layers_saved_bytes: int
    stage_forward_s: float
    stage_backward_s: float
    stage_optimizer_s: float
    stage_saved_bytes: int

    @property
    def ratio(self) -> float:
        """Forward and backward of the stage over those of its layers: below 1 the whole is faster."""
        return (self.stage_forward_s + self.stage_backward_s) / (self.layers_forward_s + self.layers_backward_s)


def measure_stage(
    layers: Sequence[Layer], shard: Shard, setting: Setting, *, compiled: bool, backend: str = "inductor"
) -> Measurement | Infeasible:
    """Time and memory of contiguous `layers`, all held as `shard`, as one module on one device.

    `compiled` runs it through torch.compile with `backend`; the time to compile is not in the figures. Infeasible as in
    `measure_layer`, and where the compiler fails (the default needs a C++ compiler on a CPU).
    """

    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        stage, inputs = _build_stage(layers, shard, setting.device)
        return (torch.compile(stage, backend=backend) if compiled else stage), inputs

    return measure_modules(layers, shard, setting, build=build)


def compare_stage(
    layers: Sequence[Layer], stage: Measurement, measured: Mapping[Layer, Measurement]
) -> StageComparison:
    """`stage` against the sum over `layers` of what each took alone, low quantiles both. KeyError for a layer that is
    not in `measured`."""
    alone = [measured[layer] for layer in layers]
    return StageComparison(
        layers_forward_s=sum(low_quantile(one.forward_s) for one in alone),
        layers_backward_s=sum(low_quantile(one.backward_s) for one in alone),
        layers_optimizer_s=sum(low_quantile(one.optimizer_s) for one in alone),
        layers_saved_bytes=sum(one.saved_bytes for one in alone),
        stage_forward_s=low_quantile(stage.forward_s),
        stage_backward_s=low_quantile(stage.backward_s),
        stage_optimizer_s=low_quantile(stage.optimizer_s),
        stage_saved_bytes=stage.saved_bytes,
    )


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


def _build_stage(layers: Sequence[Layer], shard: Shard, device: str) -> tuple[_Stage, tuple[Tensor, ...]]:
    """The stage's module and its inputs, random like those of its layers."""
    roles = [_role(layer, first=number == 0) for number, layer in enumerate(layers)]
    modules, inputs = [], []
    has_memory = False
    for number, (layer, role) in enumerate(zip(layers, roles, strict=True)):
        module, own = build_shard(layer, shard, device)
        modules.append(module)
        if number == 0:
            inputs.append(own[0])
        if role == "decoder_start":
            inputs.append(own[0])
        elif role == "loss" or (role == "cross" and not has_memory):
            inputs.append(own[1])
        has_memory = has_memory or role in ("decoder_start", "cross")
    return _Stage(modules, roles), tuple(inputs)
