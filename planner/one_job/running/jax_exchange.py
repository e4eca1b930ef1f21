"""Arrays between devices that hold them in different parts: pieces are cut, carried and put together on the devices.

See `planner.one_job.running.regions` for who holds and sends what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from models_zoo.jax_layers.parallel import Array
from planner.one_job.running.jax_mesh import DP, PER_REPLICA, TP, StageDevices
from planner.one_job.running.regions import Range, Region, overlap, region_of, table_rows, within


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a device holds of an array's first two dimensions; `replica` and `tp_rank` are its place in its stage."""

    device: Any
    replica: int
    tp_rank: int
    region: Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A part of what `device` holds, in its own counting."""

    device: Any
    rows: Range
    columns: Range


Puzzle = tuple[tuple[Cut, ...], ...]
"""Cuts that make up one device's part: row by row."""


def cuts_for(wanted: Holding, sources: Sequence[Holding]) -> Puzzle:
    """What makes up the `own` part of `wanted`. Sources answer for parts that do not overlap and cover it."""
    cuts_by_row: dict[int, list[tuple[int, Cut]]] = {}
    here = wanted.region
    for source in sources:
        there = source.region
        rows, columns = overlap(here.samples, there.samples), overlap(here.own, there.own)
        if rows and columns:
            cut = Cut(device=source.device, rows=within(rows, there.samples), columns=within(columns, there.held))
            cuts_by_row.setdefault(rows[0], []).append((columns[0], cut))
    return tuple(
        tuple(cut for _, cut in sorted(row, key=lambda pair: pair[0])) for _, row in sorted(cuts_by_row.items())
    )


def _cut_out(array: Array, first: tuple[int, int], end: tuple[int, int]) -> Array:
    return lax.slice(array, (*first, *(0 for _ in array.shape[2:])), (*end, *array.shape[2:]))


_cut = jax.jit(_cut_out, static_argnums=(1, 2))
_put_together = jax.jit(lambda rows: jnp.concatenate([jnp.concatenate(row, 1) for row in rows]))


def carry(puzzles: Mapping[Any, Puzzle], arrays: Mapping[Any, Array]) -> dict[Any, Array]:
    """Each device's part of `puzzles`, from what the devices of `arrays` hold. Nothing is waited for."""
    cuts = [(device, cut) for device, puzzle in puzzles.items() for row in puzzle for cut in row]
    pieces = [_piece(arrays[cut.device], cut) for _, cut in cuts]
    moved = iter(jax.device_put(pieces, [device for device, _ in cuts]))
    carried = {}
    for device, puzzle in puzzles.items():
        rows = [[next(moved) for _ in row] for row in puzzle]
        carried[device] = rows[0][0] if len(rows) == len(rows[0]) == 1 else _put_together(rows)
    return carried


def _piece(array: Array, cut: Cut) -> Array:
    if cut.rows == (0, array.shape[0]) and cut.columns == (0, array.shape[1]):
        return array
    return _cut(array, (cut.rows[0], cut.columns[0]), (cut.rows[1], cut.columns[1]))


class Boundary:
    """The way from one stage to another for arrays of one shape (after the samples)."""

    def __init__(self, sender: StageDevices, receiver: StageDevices, shape: tuple[int, ...]) -> None:
        self.receiver, self.shape = receiver, shape
        there = list(_holdings(sender, shape[0]))
        here = list(_holdings(receiver, shape[0]))
        alike = shape[0] % sender.stage.degrees.tp != 0
        self.puzzles = {
            wanted.device: cuts_for(wanted, _answering(there, wanted, sender.stage.degrees.tp) if alike else there)
            for wanted in here
        }
        region = here[0].region
        self.gathers = region.own != region.held
        parted = receiver.stage.degrees.tp > 1 and region.own != (0, shape[0])
        self.spec = PartitionSpec(DP, TP) if parted else PER_REPLICA
        self.whole = [jax.jit(lambda x: x, out_shardings=lane.sharding(PER_REPLICA)) for lane in receiver.lanes]

    def cross(self, lanes: Sequence[Array]) -> tuple[Array, ...]:
        """The array of each of the receiver's lanes, from those of the sender's."""
        held = {shard.device: shard.data for array in lanes for shard in array.addressable_shards}
        carried = carry(self.puzzles, held)
        made = []
        for lane, whole in zip(self.receiver.lanes, self.whole, strict=True):
            arrays = [carried[device] for device in lane.mesh.devices.flat]
            shape = (lane.replicas * lane.share, *self.shape)
            array = jax.make_array_from_single_device_arrays(shape, lane.sharding(self.spec), arrays)
            made.append(whole(array) if self.gathers else array)
        return tuple(made)


def _holdings(place: StageDevices, length: int) -> Iterator[Holding]:
    stage = place.stage
    if not place.splits_tokens:
        stage = replace(stage, degrees=replace(stage.degrees, sequence_parallel=False))
    for replica, index in product(range(stage.degrees.dp), range(stage.degrees.tp)):
        region = region_of(stage, stage.rank_at(replica, index), length)
        yield Holding(device=place.device(replica, index), replica=replica, tp_rank=index, region=region)


def _answering(there: Sequence[Holding], wanted: Holding, tp: int) -> list[Holding]:
    """Of ranks that answer for the same, one for each replica: they take turns."""
    return [holding for holding in there if holding.tp_rank == wanted.tp_rank % tp]


class TableExchange:
    """The summed gradients of a table that several stages hold, added in the stages' order on each: all copies stay
    equal to the last bit."""

    def __init__(self, holders: Sequence[StageDevices], rows: int, columns: int) -> None:
        self.holders = holders
        self.puzzles: dict[tuple[int, int], dict[Any, Puzzle]] = {}
        for here, receiver in enumerate(holders):
            for there, sender in enumerate(holders):
                if here == there:
                    continue
                self.puzzles[here, there] = {
                    wanted.device: cuts_for(
                        wanted,
                        [
                            source
                            for source in _table_holdings(sender, rows, columns)
                            if source.replica == wanted.replica % sender.stage.degrees.dp
                        ],
                    )
                    for wanted in _table_holdings(receiver, rows, columns)
                }
        self.add = jax.jit(lambda parts: sum(parts[1:], parts[0]))

    def sum(self, gradients: Sequence[Array]) -> list[Array]:
        """Of one array (padded rows, columns) for each holder the sum over all, as each holds it."""
        held = [{shard.device: shard.data for shard in array.addressable_shards} for array in gradients]
        totals = []
        for here, gradient in enumerate(gradients):
            local = gradient.sharding.shard_shape(gradient.shape)
            parts = [
                gradient
                if here == there
                else self._placed(gradient, local, carry(self.puzzles[here, there], held[there]))
                for there in range(len(gradients))
            ]
            totals.append(self.add(parts))
        return totals

    def _placed(self, gradient: Array, local: tuple[int, ...], carried: Mapping[Any, Array]) -> Array:
        arrays = [_padded(carried[shard.device], local[0]) for shard in gradient.addressable_shards]
        return jax.make_array_from_single_device_arrays(gradient.shape, gradient.sharding, arrays)


def _fill(array: Array, rows: int) -> Array:
    return jnp.pad(array, ((0, rows - array.shape[0]), (0, 0)))


_fill_up = jax.jit(_fill, static_argnums=1)


def _padded(array: Array, rows: int) -> Array:
    return array if array.shape[0] == rows else _fill_up(array, rows)


def _table_holdings(place: StageDevices, rows: int, columns: int) -> Iterator[Holding]:
    whole = (0, columns)
    for replica, index in product(range(place.stage.degrees.dp), range(place.stage.degrees.tp)):
        region = Region(samples=table_rows(place.stage, index, rows), held=whole, own=whole)
        yield Holding(device=place.device(replica, index), replica=replica, tp_rank=index, region=region)
