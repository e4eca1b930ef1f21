"""Pieces of arrays between stages and of a shared table's gradients, carried as messages from process to process.

XLA's own transfers between the processes of a CPU make the sender wait until the receiver takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from estimator.communication.messages import Messenger, Sending
from models_zoo.jax_layers.parallel import DTYPES, Array
from models_zoo.model import TokenInput
from planner.one_job.running.exchange import Take, message_tag
from planner.one_job.running.jax_mesh import DP, PER_REPLICA, TP, StageDevices, local_of, with_local
from planner.one_job.running.program import Program, Route
from planner.one_job.running.regions import Range, length_of, region_of
from planner.one_job.running.spans import Recorder
from planner.one_job.running.tied_table import TablePeers, in_order

TABLE_TAG = 0


class JaxCarrier:
    """`planner.one_job.running.exchange.Carrier` of a rank's arrays."""

    def __init__(self, program: Program, rank: int, devices: StageDevices, messenger: Messenger) -> None:
        self.program, self.rank, self.devices, self.messenger = as_jax_holds(program), rank, devices, messenger
        self.dtype = np.dtype(DTYPES[program.dtype])
        self._gather = jax.jit(lambda x: x, out_shardings=devices.lane.sharding(PER_REPLICA))

    def cut(self, array: Array, samples: Range, places: Range) -> NDArray[Any]:
        return np.ascontiguousarray(np.asarray(local_of(array))[slice(*samples), slice(*places)])

    def send(self, part: NDArray[Any], route: Route, peer: int, number: int) -> Sending:
        return self.messenger.send(peer, message_tag(self.program, route, number), part)

    def receive(self, size: tuple[int, ...], route: Route, peer: int, number: int) -> Take:
        tag = message_tag(self.program, route, number)
        return lambda: self.messenger.take(peer, tag).view(self.dtype).reshape(size)

    def empty(self, size: tuple[int, ...]) -> NDArray[Any]:
        return np.empty(size, self.dtype)

    def whole(self, local: NDArray[Any], route: Route, number: int, *, gathers: bool) -> Array:
        lane, tp = self.devices.lane, self.devices.stage.degrees.tp
        length, *rest = self.program.boundary_shapes(route.layer)[number]
        spec = PartitionSpec(DP, TP) if tp > 1 and local.shape[1] != length else PER_REPLICA
        array = with_local(local, (lane.replicas * lane.share, length, *rest), lane.sharding(spec))
        return jax.block_until_ready(self._gather(array)) if gathers else array

    def zeros(self, route: Route, number: int) -> Array:
        """What would come of zeros."""
        length, *rest = self.program.boundary_shapes(route.layer)[number]
        region = region_of(self.program.stage_of(self.rank), self.rank, length)
        local = np.zeros((length_of(region.samples), length_of(region.own), *rest), self.dtype)
        return self.whole(local, route, number, gathers=region.held != region.own)


def as_jax_holds(program: Program) -> Program:
    """Return the program with sequence parallelism where activations are tokens alone: elsewhere ranks hold all of
    them."""
    if isinstance(program.model.input, TokenInput):
        return program
    whole = (replace(stage, degrees=replace(stage.degrees, sequence_parallel=False)) for stage in program.stages)
    return replace(program, stages=tuple(whole))


class TableExchange:
    """The gradients of a table that several stages hold, added in the stages' order."""

    def __init__(self, peers: TablePeers, messenger: Messenger) -> None:
        self.peers, self.messenger = peers, messenger
        self._add: Callable[[list[Array]], Array] = jax.jit(lambda parts: sum(parts[1:], parts[0]))

    def add_others(self, gradient: Array, recorder: Recorder) -> Array:
        """Return the sum over all holders of `gradient` (padded rows, columns), which is summed over this stage's
        replicas."""
        peers, local = self.peers, np.asarray(local_of(gradient))
        totals = {number: np.zeros_like(local) for number in peers.holders}
        totals[peers.stage] = local
        size = sum(length_of(peer.rows) for peer in peers.receives) * local[:1].nbytes
        with recorder.span("collective", "send_recv", axis="tied", ranks=len(peers.holders), bytes=size):
            for peer in peers.sends:
                self.messenger.send(peer.rank, TABLE_TAG, local[slice(*peer.rows)].copy())
            for peer in peers.receives:
                rows = self.messenger.take(peer.rank, TABLE_TAG).view(local.dtype)
                totals[peer.stage][slice(*peer.rows)] = rows.reshape(-1, local.shape[1])
        total = self._add([jax.device_put(part, local_of(gradient).device) for part in in_order(totals)])
        return jax.block_until_ready(with_local(total, gradient.shape, gradient.sharding))
