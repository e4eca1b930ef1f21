"""A stage's layers as one rank holds them, with torch: built, given their first weights, and run a micro-batch at a
time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from models_zoo.layers import Layer
from models_zoo.parameters import layer_parameters, local_array, whole_name
from models_zoo.torch_layers.attention import AttentionHeads
from models_zoo.torch_layers.build import build_layer
from models_zoo.torch_layers.parallel import TensorParallel
from planner.one_job.running.data import Batch
from planner.one_job.running.program import (
    Program,
    Role,
    StageProgram,
    apply_role,
    first_values,
    recomputed_layers,
    role_of,
    tied_tables,
)
from planner.one_job.running.spans import Recorder
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLayer:
    """A layer's local shard; `role` says what it takes beside the activations, `table` the layer whose weight it
    shares, by its own parameter's name."""

    index: int
    layer: Layer
    role: Role
    module: nn.Module
    table: str | None


class Recomputed(nn.Module):  # type: ignore[misc]
    """A layer that keeps its input alone and runs again in backward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> Tensor:
        return checkpoint(self.inner, *inputs, use_reentrant=False)


class Chunk(nn.Module):  # type: ignore[misc]
    """Contiguous layers; see `apply_role` for the state that passes through."""

    def __init__(self, layers: Sequence[BuiltLayer], program: Program, recorder: Recorder) -> None:
        super().__init__()
        self.roles = [(built.index, built.role) for built in layers]
        self.layers = nn.ModuleList(built.module for built in layers)
        self.recorder = recorder
        self.widths = [program.width_after(built.index) for built in layers]

    def forward(self, state: tuple[Tensor, ...], batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        for (index, role), module, width in zip(self.roles, self.layers, self.widths, strict=True):
            start_s = self.recorder.now_s()
            state = apply_role(role, module, state, batch, width)
            self.recorder.add("layer", f"layer {index}", start_s, phase="forward", layer=index)
            if state[0].requires_grad:
                state[0].register_hook(partial(self._mark_backward, index))
        return state

    def _mark_backward(self, index: int, gradient: Tensor) -> None:
        """The backward of a layer begins where the gradient of its output is there."""
        del gradient
        now_s = self.recorder.now_s()
        self.recorder.add("layer", f"layer {index}", now_s, phase="backward", layer=index)


def build_stage(
    program: Program, stage: StageProgram, rank: int, tp: TensorParallel, *, seed: int, device: torch.device
) -> tuple[tuple[BuiltLayer, ...], ...]:
    """The layers of each of the stage's chunks on `device`, with the first weights that `seed` gives them: the same
    however the plan splits them. Layers of one rank that share a table share one tensor."""
    replica, index = stage.place(rank)
    shard = program.shard(stage, replica)
    recomputed = recomputed_layers(program, stage)
    tables = tied_tables(program.model)
    own_table: nn.Parameter | None = None
    chunks = []
    for first, end in stage.chunks:
        built = []
        for number in range(first, end):
            layer = program.model.layers[number]
            with torch.device(device):
                module = build_layer(layer, shard, tp).train()
            table = tables.get(number)
            _load_weights(module, layer, number, table, seed=seed, tp=stage.degrees.tp, rank=index)
            if table is not None:
                own_table = _share_table(module, table, own_table)
            if number in recomputed:
                module = _recompute(module, stage.recompute)
            role = role_of(program, number)
            built.append(BuiltLayer(index=number, layer=layer, role=role, module=module, table=table))
        chunks.append(tuple(built))
    return tuple(chunks)


def _recompute(module: nn.Module, kind: RecomputeKind) -> nn.Module:
    if kind == "full":
        return Recomputed(module)
    for part in module.modules():
        if isinstance(part, AttentionHeads):
            part.recomputes = True
    return module


def _load_weights(
    module: nn.Module, layer: Layer, number: int, table: str | None, *, seed: int, tp: int, rank: int
) -> None:
    """First values: a tied table's are the first embedding's."""
    parameters = {parameter.name: parameter for parameter in layer_parameters(layer)}
    with torch.no_grad():
        for name, tensor in module.named_parameters():
            parameter = parameters[whole_name(name)]
            drawn = first_values(parameter, seed=seed, layer=number, is_table=name == table)
            tensor.copy_(torch.from_numpy(local_array(parameter, drawn, tp=tp, rank=rank)))


def _share_table(module: nn.Module, name: str, table: nn.Parameter | None) -> nn.Parameter:
    """The rank's one table, which takes the place of this layer's copy of it."""
    holder, attribute = name.rsplit(".", 1)
    part = module.get_submodule(holder)
    if table is None:
        first_table: nn.Parameter = getattr(part, attribute)
        return first_table
    setattr(part, attribute, table)
    return table


class TorchStage:
    """`planner.one_job.running.iteration.Executor` with real layers.

    `prepare` takes the samples of an iteration before it begins. Losses are means over a rank's samples and weigh as
    many samples as they are of: gradients of an iteration are those of the mean over the global batch.
    """

    def __init__(
        self,
        program: Program,
        stage: StageProgram,
        rank: int,
        chunks: Sequence[nn.Module],
        recorder: Recorder,
        finish: Callable[[], None],
        after_backward: Callable[[], None],
    ) -> None:
        self.program, self.stage, self.chunks, self.recorder = program, stage, chunks, recorder
        self.replica, self.tp_rank = stage.place(rank)
        self.finish, self.after_backward = finish, after_backward
        self.weight = stage.shares[self.replica] / program.global_batch
        self.loss = 0.0
        self._batches: list[dict[str, Tensor]] = []
        self._running: dict[tuple[int, int], tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._losses: list[Tensor] = []

    def prepare(self, batches: Sequence[Batch], device: torch.device, dtype: torch.dtype) -> None:
        """This rank's samples of each micro-batch of the next iteration."""
        self._batches, self._losses = [to_device(batch, device, dtype) for batch in batches], []

    def forward(self, chunk: int, k: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        entered = tuple(tensor.requires_grad_() for tensor in received)
        made: tuple[Tensor, ...] = self.chunks[chunk](entered, self._batches[k])
        if self.stage.chunks[chunk][1] == len(self.program.model.layers):
            self._losses.append(made[0].detach())
            made = (made[0] * self.weight,)
        self._running[chunk, k] = (entered, made)
        return made

    def backward(self, chunk: int, k: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        entered, made = self._running.pop((chunk, k))
        torch.autograd.backward(made, received or None)
        self.after_backward()
        return tuple(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in entered)

    def take_loss(self) -> float | None:
        """This rank's part of the iteration's loss: summed over the ranks that have one it is the global batch's mean.
        None where another rank speaks for it, or the loss is in another stage."""
        if not self._losses or self.tp_rank != 0:
            return None
        return float(sum(loss.double() for loss in self._losses)) * self.weight


def to_device(batch: Batch, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """The arrays as tensors; images in the model's dtype."""
    tensors = {"inputs": torch.from_numpy(batch.inputs), "targets": torch.from_numpy(batch.targets)}
    if batch.decoder_inputs is not None:
        tensors["decoder_inputs"] = torch.from_numpy(batch.decoder_inputs)
    if tensors["inputs"].is_floating_point():
        tensors["inputs"] = tensors["inputs"].to(dtype)
    return {name: tensor.contiguous().to(device) for name, tensor in tensors.items()}
