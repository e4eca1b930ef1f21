"""One rank's stage with JAX: its weights and compiled chunks, the micro-batches under way in it, an iteration's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from models_zoo.jax_layers.parallel import DTYPES, Array
from planner.one_job.running.data import Batch
from planner.one_job.running.jax_chunk import ChunkLayer, ChunkPrograms, State, chunk_keys, chunk_layers, chunk_programs
from planner.one_job.running.jax_exchange import JaxCarrier, TableExchange
from planner.one_job.running.jax_gradients import Gradients
from planner.one_job.running.jax_leaves import TABLE, layer_weights, leaves_of
from planner.one_job.running.jax_mesh import PER_REPLICA, from_whole, local_of, stage_devices
from planner.one_job.running.jax_weights import StageWeights
from planner.one_job.running.program import Program, Route
from planner.one_job.running.spans import Recorder


class JaxStage:
    """`planner.one_job.running.iteration.Executor` of a rank. Whatever it returns is ready.

    Collectives inside a compiled program cannot be told apart from its compute, so there are no `collective` and
    `layer` spans.
    """

    def __init__(self, program: Program, rank: int, devices: Sequence[Any], *, learning_rate: float, seed: int) -> None:
        self.program, self.stage, self.rank = program, program.stage_of(rank), rank
        self.devices = stage_devices(program, self.stage, devices, rank)
        weights = {index: layer_weights(program, self.stage, index) for index in self.stage.layer_indices()}
        self.leaves = leaves_of(program, self.stage, weights)
        self.chunks = [chunk_layers(program, self.stage, chunk, weights) for chunk in range(len(self.stage.chunks))]
        self.gradients = Gradients(self.leaves, self.devices, [chunk_keys(layers) for layers in self.chunks])
        self.programs = [self._compiled(layers) for layers in self.chunks]
        self.weights = StageWeights(
            self.leaves, self.devices, optimizer=program.optimizer, learning_rate=learning_rate, seed=seed
        )
        self._losses: list[Array] = []
        self._batches: list[dict[str, Array]] = []
        self._running: dict[tuple[int, int], tuple[State, Any]] = {}

    def _compiled(self, layers: Sequence[ChunkLayer]) -> ChunkPrograms:
        first, last = layers[0].weights.index, layers[-1].weights.index
        lane = self.devices.lane
        return chunk_programs(
            layers,
            self.gradients.leaves,
            lane,
            activation_spec=self.devices.activation_spec,
            entering=len(self.program.boundary_shapes(first)) if first else 0,
            loss_weight=lane.share / self.program.global_batch if last + 1 == len(self.program.model.layers) else None,
        )

    def prepare(self, batches: Sequence[Batch]) -> None:
        """The samples of each micro-batch of the next iteration, and empty gradients: waited for."""
        names = {name for layers in self.chunks for layer in layers for name in layer.batch_names}
        self._batches = [self._placed(batch, names) for batch in batches]
        self.gradients.begin(self.weights.weights)
        self._losses = []
        jax.block_until_ready((self._batches, self.gradients.pending()))

    def _placed(self, batch: Batch, names: set[str]) -> dict[str, Array]:
        lane = self.devices.lane
        first, _ = self.stage.samples(lane.first)
        samples = slice(first, first + lane.replicas * lane.share)
        arrays = {}
        for name in names:
            values = getattr(batch, name)[samples]
            kind = np.int32 if np.issubdtype(values.dtype, np.integer) else DTYPES[self.program.dtype]
            arrays[name] = from_whole(values.astype(kind), lane.sharding(PER_REPLICA))
        return arrays

    def forward(self, chunk: int, k: int, received: State) -> State:
        """Micro-batch `k` through a chunk."""
        made, kept = self.programs[chunk].forward(self.gradients.weights_of(chunk), received, self.batch_of(chunk, k))
        self._running[chunk, k] = received, kept
        jax.block_until_ready((made, kept))
        if self.stage.chunks[chunk][1] == len(self.program.model.layers):
            self._losses.append(made[0])
            return ()
        return made  # type: ignore[no-any-return]

    def backward(self, chunk: int, k: int, received: State) -> State:
        """Gradients of what `forward` made (none of a loss) to those of what it received."""
        entered, kept = self._running.pop((chunk, k))
        weights, sums = self.gradients.weights_of(chunk), self.gradients.sums_of(chunk)
        added, made = self.programs[chunk].backward(weights, entered, self.batch_of(chunk, k), kept, received, sums)
        self.gradients.put(chunk, added)
        jax.block_until_ready((made, self.gradients.pending()))
        return made  # type: ignore[no-any-return]

    def take_loss(self) -> float | None:
        """This rank's part of the iteration's loss: its replica's mean loss, weighed by its samples. None where another
        rank speaks for it, or the loss is in another stage."""
        replica, tp_rank = self.stage.place(self.rank)
        if not self._losses or tp_rank != 0:
            return None
        total = sum(float(np.asarray(local_of(losses))[0]) for losses in self._losses)
        return total * self.stage.shares[replica] / self.program.global_batch

    def batch_of(self, chunk: int, k: int) -> dict[str, Array]:
        """What a chunk takes of a micro-batch's samples."""
        batch = self._batches[k]
        return {name: batch[name] for layer in self.chunks[chunk] for name in layer.batch_names}


class JaxIterations:
    """A stage's iterations on one rank: the stage itself, and what ends an iteration."""

    def __init__(self, stage: JaxStage, table: TableExchange | None, recorder: Recorder) -> None:
        self.stage, self.table, self.recorder = stage, table, recorder

    def forward(self, chunk: int, k: int, received: State) -> State:
        """See `JaxStage.forward`."""
        return self.stage.forward(chunk, k, received)

    def backward(self, chunk: int, k: int, received: State) -> State:
        """See `JaxStage.backward`."""
        return self.stage.backward(chunk, k, received)

    def finish(self) -> None:
        """Gradients summed over the replicas and the holders of a shared table, the step, and the weights that it
        made handed to all replicas."""
        weights = self.stage.weights
        with self.recorder.span("sync", "gradients"):
            reduced = jax.block_until_ready(weights.reduce(self.stage.gradients.take()))
            if self.table is not None:
                reduced[TABLE] = self.table.add_others(reduced[TABLE], self.recorder)
        with self.recorder.span("optimizer", "optimizer"):
            stepped = jax.block_until_ready(weights.step(reduced))
        with self.recorder.span("sync", "weights"):
            weights.gather(stepped)
            jax.block_until_ready(weights.weights)

    def rehearse(self, batches: Sequence[Batch], carrier: JaxCarrier, compiled: Callable[[], None]) -> None:
        """Compile everything, on one micro-batch of zeros and without the other stages. No weight changes. `compiled`
        is called after each program."""
        stage = self.stage
        stage.prepare(batches)
        for chunk, (first, end) in enumerate(stage.stage.chunks):
            stage.forward(chunk, 0, self._zeros(first, carrier) if first else ())
            compiled()
            last = end == len(stage.program.model.layers)
            stage.backward(chunk, 0, () if last else self._zeros(end, carrier))
            compiled()
        stage.gradients.begin(stage.weights.weights)  # of zero
        stage.weights.rehearse(stage.gradients.take())
        jax.block_until_ready(stage.weights.weights)
        compiled()

    def _zeros(self, layer: int, carrier: JaxCarrier) -> State:
        """What a neighbour would send of the tensors that enter `layer`."""
        stage = self.stage
        route = Route(way="forward", sender=0, receiver=stage.stage.number, chunk=0, layer=layer, k=0)
        return tuple(carrier.zeros(route, number) for number in range(len(stage.program.boundary_shapes(layer))))
