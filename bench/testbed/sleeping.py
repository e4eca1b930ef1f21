"""A stage whose layers sleep as long as a profile says they compute; what it communicates is real.

Sleeping needs no core, so that 16 workers on two cores wait for each other and for their links as on 16 devices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from estimator.communication.worker_torch import all_gather_single, reduce_scatter_single
from estimator.layers.shards import shard_layer
from planner.one_job.running.program import Program, StageProgram
from planner.one_job.running.regions import region_of
from planner.one_job.running.spans import Recorder
from planner.one_job.running.torch_groups import Grouped, Groups
from profiles.vocabulary import Collective, Infeasible, Phase

WIDTH = 4
"""Bytes of an element: everything that is sent is fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSleep:
    """Seconds of one layer's passes and of its part of the optimizer's step, and the collectives of each pass."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    parameters: int
    collectives: tuple[Collective, ...]


def layer_sleeps(
    program: Program, stage: StageProgram, replica: int, times: dict[int, tuple[float, float, float]]
) -> dict[int, LayerSleep]:
    """What each layer of `stage` does on a rank; `times` holds (forward, backward, optimizer) seconds by layer."""
    found = {}
    for index in stage.layer_indices():
        local = shard_layer(program.model.layers[index], program.shard(stage, replica))
        assert not isinstance(local, Infeasible)
        forward_s, backward_s, optimizer_s = times[index]
        found[index] = LayerSleep(
            forward_s=forward_s,
            backward_s=backward_s,
            optimizer_s=optimizer_s,
            parameters=local.parameters,
            collectives=local.collectives,
        )
    return found


class SleepingStage:
    """`planner.one_job.running.iteration.Executor` that computes nothing."""

    def __init__(
        self,
        program: Program,
        stage: StageProgram,
        rank: int,
        sleeps: dict[int, LayerSleep],
        groups: Groups,
        tp: Grouped,
        recorder: Recorder,
    ) -> None:
        self.program, self.stage, self.rank, self.sleeps = program, stage, rank, sleeps
        self.groups, self.tp, self.recorder = groups, tp, recorder
        self.ends = len(program.model.layers)
        parts = groups.shard.size() if stage.zero else 1
        size = -(-sum(one.parameters for one in sleeps.values()) // parts) * parts
        self.gradients = torch.ones(size)
        self.own = torch.ones(size // parts)
        self.buffers: dict[tuple[str, int], Tensor] = {}

    def forward(self, chunk: int, k: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        del k, received
        first, end = self.stage.chunks[chunk]
        self._passes([self.sleeps[index] for index in range(first, end)], "forward")
        return self._boundary(end) if end < self.ends else ()

    def backward(self, chunk: int, k: int, received: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        del k, received
        first, end = self.stage.chunks[chunk]
        self._passes([self.sleeps[index] for index in reversed(range(first, end))], "backward")
        return self._boundary(first) if first else ()

    def finish(self) -> None:
        """Gradients summed, the step slept, weights gathered: as `planner.one_job.running.torch_weights` does."""
        with self.recorder.span("sync", "gradients"):
            if self.stage.zero:
                with self._note("reduce_scatter", self.gradients, self.groups.shard):
                    reduce_scatter_single(self.own, self.gradients, group=self.groups.shard)
            elif self.stage.degrees.dp > 1:
                with self._note("all_reduce", self.gradients, self.groups.replicas):
                    dist.all_reduce(self.gradients, group=self.groups.replicas)
        with self.recorder.span("optimizer", "optimizer"):
            sleep(sum(one.optimizer_s for one in self.sleeps.values()) / (self.stage.shard if self.stage.zero else 1))
        if self.stage.zero:
            with self.recorder.span("sync", "weights"), self._note("all_gather", self.gradients, self.groups.shard):
                all_gather_single(self.gradients, self.own, group=self.groups.shard)

    def _passes(self, layers: Sequence[LayerSleep], phase: Phase) -> None:
        """One sleep up to each collective: every sleep ends a little late."""
        due_s = 0.0
        for layer in layers:
            own = [one for one in layer.collectives if one.phase == phase]
            part_s = (layer.forward_s if phase == "forward" else layer.backward_s) / (len(own) + 1)
            for one in own:
                sleep(due_s + part_s)
                due_s = 0.0
                self._communicate(one)
            due_s += part_s
        sleep(due_s)

    def _communicate(self, one: Collective) -> None:
        buffer = self.buffers.get((one.op, one.bytes))
        if buffer is None:
            share = self.tp.degree if one.op == "all_gather" else 1
            buffer = self.buffers[one.op, one.bytes] = torch.ones(max(1, one.bytes // WIDTH // share))
        match one.op:
            case "all_reduce":
                with self.recorder.span(
                    "collective", one.op, phase=one.phase, axis="tp", ranks=one.ranks, bytes=one.bytes
                ):
                    dist.all_reduce(buffer, group=self.tp.group)
            case "all_gather":
                self.tp.all_gather(buffer, 0, one.phase)
            case "reduce_scatter":
                self.tp.reduce_scatter(buffer, 0, one.phase)
            case _:
                raise ValueError(f"found {one.op}, expected a collective of tensor-parallel ranks")

    def _boundary(self, layer: int) -> tuple[Tensor, ...]:
        """Something of the right size that enters `layer`, as this rank holds it."""
        found = []
        for shape in self.program.boundary_shapes(layer):
            region = region_of(self.stage, self.rank, shape[0])
            size = (region.samples[1] - region.samples[0], region.held[1] - region.held[0], *shape[1:])
            found.append(torch.ones(size))
        return tuple(found)

    def _note(self, op: str, moved: Tensor, group: dist.ProcessGroup):  # type: ignore[no-untyped-def]
        return self.recorder.span("collective", op, axis="dp", ranks=group.size(), bytes=moved.nbytes)


def sleep(seconds: float) -> None:
    """Until so much later than now: what waking up late took of one sleep, the loop that follows does not add to."""
    end_s = time.perf_counter() + seconds
    while True:
        left_s = end_s - time.perf_counter()
        if left_s <= 0:
            return
        time.sleep(left_s)
