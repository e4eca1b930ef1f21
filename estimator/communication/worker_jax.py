"""One rank of a link measurement with JAX: a process with one device, which `measure_torch` starts for backend xla.

Collectives are XLA's, with gloo between the processes of a CPU; send_recv is what `cellplan run` carries arrays from
stage to stage with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from estimator.communication.measuring import Measured
from estimator.communication.messages import Messenger
from estimator.communication.timing import BUSY_SIZE, time_between_computing, time_calls
from estimator.communication.world_jax import JaxWorld, joined_world, local_coordinator
from estimator.host.worker_processes import read_request
from profiles.vocabulary import CollectiveOp

AXIS = "rank"
_ELEMENT_BYTES = 4
_ROUND_TRIP_TAG = 0


class JaxRanks:
    """`estimator.communication.timing.Ranks`: the first of a world's ranks."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self._least, self._most = (self._over_all(over) for over in (jax.lax.pmin, jax.lax.pmax))
        self._square = jnp.ones((BUSY_SIZE, BUSY_SIZE), jnp.float32)
        self._product = jax.jit(jnp.matmul)

    def _over_all(self, over: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
        body = jax.shard_map(
            lambda x: over(x[0], AXIS), mesh=self.mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec()
        )
        program: Callable[[Any], Any] = jax.jit(body)
        return program

    def barrier(self) -> None:
        self.slowest([0.0])

    def synchronize(self) -> None:
        """Calls wait for their own results."""

    def compute(self) -> None:
        jax.block_until_ready(self._product(self._square, self._square))

    def slowest(self, seconds: list[float]) -> list[float]:
        return self._agreed(self._most, seconds)

    def fastest(self, seconds: list[float]) -> list[float]:
        return self._agreed(self._least, seconds)

    def _agreed(self, program: Callable[[Any], Any], seconds: list[float]) -> list[float]:
        mine = np.array([seconds], np.float32)
        agreed = program(self.row(mine))
        return [float(value) for value in np.asarray(agreed.addressable_data(0))]

    def row(self, mine: Any) -> Any:
        """An array (ranks, ...) of which this rank's row is `mine` (1, ...)."""
        sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))
        (device,) = sharding.addressable_devices
        shape = (self.mesh.size, *mine.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, [jax.device_put(mine, device)])


def measure(task: dict[str, Any], world: JaxWorld) -> Iterator[Measured]:
    """Run the cases of `task`, a `measuring.Task` as a dictionary, as one of the ranks of `world`; every rank of a
    case's group gets its results."""
    counts = sorted({ranks for _, ranks in task["cases"]})
    groups = {ranks: JaxRanks(world.devices[:ranks]) for ranks in counts if world.rank < ranks}
    for op, ranks in task["cases"]:
        for size in task["sizes"] if ranks in groups else ():
            yield _measure_size(op, ranks, size, task, groups[ranks], world)
    world.barrier("measured")  # Nobody takes its connections down while another still reads from them.


def _measure_size(
    op: CollectiveOp, ranks: int, size: int, task: dict[str, Any], group: JaxRanks, world: JaxWorld
) -> Measured:
    elements = max(1, math.ceil(size / (_ELEMENT_BYTES * ranks))) * ranks
    if op == "send_recv":
        sent = np.ones(elements, np.float32)
        call: Callable[[], object] = partial(_round_trip, world.messenger, sent, world.rank, ranks)
        seconds = tuple(both_ways / 2 for both_ways in time_calls(call, task["repeats"], group))
    else:
        call = _prepare(op, elements, group)
        seconds = (
            (time_between_computing(call, task["repeats"], group),)
            if task["busy"]
            else time_calls(call, task["repeats"], group)
        )
    return Measured(
        op=op, ranks=2 if op == "send_recv" else ranks, nodes=1, bytes=elements * _ELEMENT_BYTES, seconds=seconds
    )


def _round_trip(messenger: Messenger, sent: Any, rank: int, ranks: int) -> None:
    """From the first rank to the last and back, onto the device each time; the ranks between stand by."""
    if rank not in (0, ranks - 1):
        return
    peer = ranks - 1 - rank
    for turn in ("send", "take") if rank == 0 else ("take", "send"):
        if turn == "send":
            messenger.send(peer, _ROUND_TRIP_TAG, sent)
        else:
            jax.block_until_ready(jax.device_put(messenger.take(peer, _ROUND_TRIP_TAG).view(np.float32)))


def _prepare(op: CollectiveOp, elements: int, group: JaxRanks) -> Callable[[], Any]:
    """The call to time. Each rank has a row of its own: what it puts in."""
    row_elements = elements // group.mesh.size if op == "all_gather" else elements
    rows = group.row(np.ones((1, row_elements), np.float32))
    bodies: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: jax.lax.psum(x, AXIS),
        "all_gather": lambda x: jax.lax.all_gather(x[0], AXIS, tiled=True)[None],
        "reduce_scatter": lambda x: jax.lax.psum_scatter(x[0], AXIS, tiled=True)[None],
        "all_to_all": lambda x: jax.lax.all_to_all(x[0], AXIS, 0, 0, tiled=True)[None],
    }
    spec = PartitionSpec() if op == "all_reduce" else PartitionSpec(AXIS)
    program = jax.jit(jax.shard_map(bodies[op], mesh=group.mesh, in_specs=PartitionSpec(AXIS), out_specs=spec))
    return lambda: jax.block_until_ready(program(rows))


def main() -> None:
    """Read the request that `measure_torch` writes and measure; rank 0 writes a JSON line for each result."""
    request = read_request()
    task, rank = request["task"], request["rank"]
    coordinator = local_coordinator(Path(request["store"]), rank, task["timeout_s"])
    with (
        Path(request["results"]).open("a", encoding="utf-8") as lines,
        joined_world(rank, request["world_size"], coordinator, timeout_s=task["timeout_s"]) as world,
    ):
        for timing in measure(task, world):
            if rank == 0:
                print(json.dumps(asdict(timing)), file=lines, flush=True)


if __name__ == "__main__":
    main()
