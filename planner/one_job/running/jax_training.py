"""All stages of a plan trained by one controller with JAX: it dispatches, devices work through their queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from models_zoo.jax_layers.parallel import DTYPES, Array
from planner.one_job.running.data import Batch, Data
from planner.one_job.running.jax_chunk import ChunkLayer, ChunkPrograms, State, chunk_keys, chunk_layers, chunk_programs
from planner.one_job.running.jax_exchange import Boundary, TableExchange
from planner.one_job.running.jax_gradients import Gradients
from planner.one_job.running.jax_leaves import TABLE, Tree, layer_weights, leaves_of
from planner.one_job.running.jax_mesh import EVERYWHERE, PER_REPLICA, Lane, StageDevices, stage_devices
from planner.one_job.running.jax_timeline import Awaited, Note
from planner.one_job.running.jax_weights import StageWeights
from planner.one_job.running.program import Program, StageProgram
from planner.one_job.running.schedule import Place, Task, merged_order

Lanes = tuple[State, ...]
"""A chunk's input or output, or their gradients: what each lane of the stage holds."""


class JaxStage:
    """One stage: its weights and compiled chunks, and the micro-batches that are under way in it."""

    def __init__(
        self,
        program: Program,
        stage: StageProgram,
        devices: Sequence[Any],
        *,
        learning_rate: float,
        seed: int,
    ) -> None:
        self.program, self.stage = program, stage
        self.devices = stage_devices(program, stage, devices)
        weights = {index: layer_weights(program, stage, index) for index in stage.layer_indices()}
        self.leaves = leaves_of(program, stage, weights)
        self.chunks = [chunk_layers(program, stage, chunk, weights) for chunk in range(len(stage.chunks))]
        self.gradients = Gradients(self.leaves, self.devices, [chunk_keys(layers) for layers in self.chunks])
        self.programs = [[self._compiled(layers, lane) for lane in self.devices.lanes] for layers in self.chunks]
        self.weights = StageWeights(
            self.leaves, self.devices, optimizer=program.optimizer, learning_rate=learning_rate, seed=seed
        )
        self.tokens = [jax.device_put(np.int32(0), lane.sharding(EVERYWHERE)) for lane in self.devices.lanes]
        self.losses: list[tuple[Array, ...]] = []
        self._batches: list[list[dict[str, Array]]] = []
        self._running: dict[tuple[int, int], list[tuple[State, Any]]] = {}

    def _compiled(self, layers: Sequence[ChunkLayer], lane: Lane) -> ChunkPrograms:
        first, last = layers[0].weights.index, layers[-1].weights.index
        return chunk_programs(
            layers,
            self.gradients.leaves,
            lane,
            activation_spec=self.devices.activation_spec,
            entering=len(self.program.boundary_shapes(first)) if first else 0,
            loss_weight=lane.share / self.program.global_batch if last + 1 == len(self.program.model.layers) else None,
        )

    def prepare(self, batches: Sequence[Batch]) -> None:
        """The samples of each micro-batch of the next iteration, onto the devices that need them."""
        names = {name for layers in self.chunks for layer in layers for name in layer.batch_names}
        self._batches = [[self._placed(batch, lane, names) for lane in self.devices.lanes] for batch in batches]
        self.gradients.begin(self.weights.weights)
        self.losses = []

    def _placed(self, batch: Batch, lane: Lane, names: set[str]) -> dict[str, Array]:
        first, _ = self.stage.samples(lane.first)
        samples = slice(first, first + lane.replicas * lane.share)
        arrays = {}
        for name in names:
            values = getattr(batch, name)[samples]
            kind = np.int32 if np.issubdtype(values.dtype, np.integer) else DTYPES[self.program.dtype]
            arrays[name] = jax.device_put(values.astype(kind), lane.sharding(PER_REPLICA))
        return arrays

    def forward(self, chunk: int, k: int, received: Lanes) -> Lanes:
        """Micro-batch `k` through a chunk."""
        running, made = [], []
        weights = self.gradients.weights_of(chunk)
        for lane, entered in enumerate(received):
            left, kept, self.tokens[lane] = self.programs[chunk][lane].forward(
                weights[lane], entered, self.batch_of(chunk, k, lane), self.tokens[lane]
            )
            running.append((entered, kept))
            made.append(left)
        self._running[chunk, k] = running
        if self.stage.chunks[chunk][1] == len(self.program.model.layers):
            self.losses.append(tuple(left[0] for left in made))
        return tuple(made)

    def backward(self, chunk: int, k: int, received: Lanes) -> Lanes:
        """Gradients of what `forward` made (none of a loss) to those of what it received."""
        weights, sums = self.gradients.weights_of(chunk), self.gradients.sums_of(chunk)
        added, made = [], []
        for lane, (entered, kept) in enumerate(self._running.pop((chunk, k))):
            total, left, self.tokens[lane] = self.programs[chunk][lane].backward(
                weights[lane],
                entered,
                self.batch_of(chunk, k, lane),
                kept,
                received[lane],
                sums[lane],
                self.tokens[lane],
            )
            added.append(total)
            made.append(left)
        self.gradients.put(chunk, added)
        return tuple(made)

    def nothing(self) -> Lanes:
        """What a chunk receives at the model's ends."""
        return ((),) * len(self.devices.lanes)

    def pending(self) -> Any:
        """All that is under way, to be waited for."""
        return self.tokens, self.weights.weights, self.gradients.pending(), self._batches

    def reduce(self) -> Tree:
        """The iteration's gradients, summed over the replicas."""
        return self.weights.reduce(self.gradients.take())

    def loss_of(self, replica: int) -> float | None:
        """A replica's part of the iteration's loss: its mean loss, weighed by its samples. None without a loss."""
        if not self.losses:
            return None
        lane = next(
            n
            for n, candidate in enumerate(self.devices.lanes)
            if candidate.first <= replica < candidate.first + candidate.replicas
        )
        place = replica - self.devices.lanes[lane].first
        total = sum(float(np.asarray(losses[lane])[place]) for losses in self.losses)
        return total * self.stage.shares[replica] / self.program.global_batch

    def batch_of(self, chunk: int, k: int, lane: int) -> dict[str, Array]:
        """What a chunk takes of a micro-batch's samples."""
        batch = self._batches[k][lane]
        return {name: batch[name] for layer in self.chunks[chunk] for name in layer.batch_names}


@dataclass(frozen=True, slots=True)
class _Crossing:
    """All arrays that pass one boundary, in one direction."""

    boundaries: tuple[Boundary, ...]

    def cross(self, made: Lanes) -> Lanes:
        arrays = [boundary.cross([lane[n] for lane in made]) for n, boundary in enumerate(self.boundaries)]
        return tuple(zip(*arrays, strict=True))


class Trainer:
    """A program on `devices`, rank r on devices[r]. ValueError or InputError where JAX cannot run it so."""

    def __init__(
        self, program: Program, devices: Sequence[Any], data: Data, *, learning_rate: float, seed: int
    ) -> None:
        self.program, self.data = program, data
        self.stages = [
            JaxStage(program, stage, devices, learning_rate=learning_rate, seed=seed) for stage in program.stages
        ]
        self.order = tuple(merged_order(program.shape))
        self.crossings = dict(_crossings(program, [stage.devices for stage in self.stages]))
        holders = [stage for stage in self.stages if TABLE in stage.leaves]
        self.holders = holders if len(holders) > 1 else []
        if self.holders:
            rows, columns = holders[0].leaves[TABLE].parameter.shape
            self.table = TableExchange([stage.devices for stage in holders], rows, columns)

    def rehearse(self, compiled: Callable[[], None] = lambda: None) -> None:
        """Compiles everything, on one micro-batch. No weight changes. `compiled` is called after each program."""
        self._prepare(0)
        self._dispatch([task for task in self.order if task.k == 0], lambda *_: compiled())
        if self.holders:
            self.table.sum([stage.reduce()[TABLE] for stage in self.holders])
        for stage in self.stages:
            stage.gradients.begin(stage.weights.weights)
            stage.weights.rehearse(stage.gradients.take())
            compiled()
        self.wait()

    def prepare(self, step: int) -> None:
        """Samples and empty gradients of iteration `step`, waited for."""
        self._prepare(step)
        self.wait()

    def iterate(self, note: Note | None = None) -> None:
        """One iteration, dispatched and not waited for; `note` hears of all that was."""
        self._dispatch(self.order, note)
        noted = note or _ignore
        reduced = [stage.reduce() for stage in self.stages]
        if self.holders:
            places = [number for number, stage in enumerate(self.stages) if stage in self.holders]
            for place, total in zip(places, self.table.sum([reduced[n][TABLE] for n in places]), strict=True):
                reduced[place][TABLE] = total
        for number, stage in enumerate(self.stages):
            noted(number, Awaited(kind="sync", name="gradients", inputs=(), result=reduced[number]))
            stepped = stage.weights.step(reduced[number])
            noted(number, Awaited(kind="optimizer", name="optimizer", inputs=(), result=stepped))
            stage.weights.gather(stepped)
            noted(number, Awaited(kind="sync", name="weights", inputs=(), result=stage.weights.weights))

    def wait(self) -> None:
        """Until all that was dispatched is done."""
        for stage in self.stages:
            jax.block_until_ready(stage.pending())

    def _prepare(self, step: int) -> None:
        start, size = step * self.program.global_batch, self.program.micro_batch
        batches = [self.data.samples(n, n + size) for n in range(start, start + self.program.global_batch, size)]
        for stage in self.stages:
            stage.prepare(batches)

    def _dispatch(self, tasks: Sequence[Task], note: Note | None) -> None:
        arrived: dict[tuple[str, Place, int], Lanes] = {}
        for task in tasks:
            stage, place = self.stages[task.stage], (task.stage, task.chunk)
            received = arrived.pop((task.way, place, task.k), None) if task.source else stage.nothing()
            assert received is not None, f"{task} before its input"
            compute = stage.forward if task.way == "forward" else stage.backward
            made = compute(task.chunk, task.k, received)
            if task.target:
                arrived[task.way, task.target, task.k] = self.crossings[task.way, place].cross(made)
            if note is not None:
                note(task.stage, _awaited(task, received, tuple(stage.tokens)))


def _awaited(task: Task, received: Lanes, tokens: tuple[Array, ...]) -> Awaited:
    return Awaited(
        kind=task.way,
        name=f"{task.way} {task.k}",
        inputs=received,
        result=tokens,
        fields={"phase": task.way, "chunk": task.chunk, "micro_batch": task.k},
        source=task.source[0] if task.source else None,
        input_bytes=sum(shard.data.nbytes for lane in received for x in lane for shard in x.addressable_shards[:1]),
    )


def _ignore(stage: int, awaited: Awaited) -> None:
    del stage, awaited


def _crossings(program: Program, devices: Sequence[StageDevices]) -> Iterator[tuple[tuple[str, Place], _Crossing]]:
    """By direction and the sender's stage and chunk."""
    places = [(stage, chunk) for chunk in range(program.shape.chunks) for stage in range(program.shape.stages)]
    for here, there in pairwise(places):
        shapes = program.boundary_shapes(program.stages[there[0]].chunks[there[1]][0])
        for way, sender, receiver in (("forward", here, there), ("backward", there, here)):
            boundaries = tuple(Boundary(devices[sender[0]], devices[receiver[0]], shape) for shape in shapes)
            yield (way, sender), _Crossing(boundaries)
