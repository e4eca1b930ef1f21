"""A stage's devices: one mesh of its replicas and tensor-parallel ranks, cut into lanes whose replicas share alike.

Every rank is a process with one device. Programs over a mesh are run by all ranks of it, each of which holds its own
part of their arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from models_zoo.jax_layers.parallel import AXIS, Array
from models_zoo.model import TokenInput
from planner.one_job.running.program import Program, StageProgram
from profiles.records import dataclass

REPLICATE, SHARD, TP = "replicate", "shard", AXIS
DP = (REPLICATE, SHARD)
"""The replicas: `replicate` groups of `shard` ranks that may share state (ZeRO, HSDP)."""
EVERYWHERE = PartitionSpec()
PER_REPLICA = PartitionSpec(DP)
PER_DEVICE = PartitionSpec((*DP, TP))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Replicas `first` to `first + replicas` of a stage, which take `share` samples each and run as one program over
    `mesh`, the axes replicate, shard and tp."""

    mesh: Mesh
    first: int
    replicas: int
    share: int

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDevices:
    """Where a stage runs, as one of its ranks sees it. A program takes as many samples on each of its devices, so where
    replicas share a micro-batch unevenly each is a lane of its own (`is_split`); else one lane has them all. `lane` is
    this rank's.

    `splits_tokens` says whether activations between layers are split over tp (sequence parallelism).
    """

    stage: StageProgram
    mesh: Mesh
    lane: Lane
    splits_tokens: bool

    @property
    def is_split(self) -> bool:
        """Whether the stage has several lanes."""
        return self.lane.replicas < self.stage.degrees.dp

    @property
    def activation_spec(self) -> PartitionSpec:
        """Of what passes from layer to layer."""
        return PartitionSpec(DP, TP) if self.splits_tokens else PER_REPLICA

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def join(self, part: Array, spec: PartitionSpec) -> Array:
        """One array over the stage from the lanes': its first dimension counts replicas (spec: DP first)."""
        if not self.is_split:
            return part
        return with_local(local_of(part), (self.stage.degrees.dp, *part.shape[1:]), self.sharding(spec))

    def split(self, whole: Array, spec: PartitionSpec) -> Array:
        """What the lane holds of an array that is alike in all replicas: no copies."""
        return with_local(local_of(whole), whole.shape, self.lane.sharding(spec)) if self.is_split else whole


def stage_devices(program: Program, stage: StageProgram, devices: Sequence[Any], rank: int) -> StageDevices:
    """The stage on the devices of its ranks as `rank` sees it: rank r has devices[r]."""
    shard = stage.shard if stage.zero else 1
    placed = np.empty(len(stage.ranks), dtype=object)
    placed[:] = [devices[rank] for rank in stage.ranks]
    mesh = Mesh(placed.reshape(stage.degrees.dp // shard, shard, stage.degrees.tp), (*DP, TP))
    lane = Lane(mesh=mesh, first=0, replicas=stage.degrees.dp, share=stage.shares[0])
    if len(set(stage.shares)) > 1:
        replica, _ = stage.place(rank)
        row = placed.reshape(stage.degrees.dp, 1, 1, stage.degrees.tp)[replica]
        lane = Lane(mesh=Mesh(row, (*DP, TP)), first=replica, replicas=1, share=stage.shares[replica])
    splits = stage.splits_tokens and isinstance(program.model.input, TokenInput)
    return StageDevices(stage=stage, mesh=mesh, lane=lane, splits_tokens=splits)


def from_whole(values: NDArray[Any], sharding: NamedSharding) -> Array:
    """An array that every rank of `sharding` knows the whole of; each puts its part on its device."""
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def with_local(local: Any, shape: tuple[int, ...], sharding: NamedSharding) -> Array:
    """An array of `shape` of which this rank's part is `local`."""
    (device,) = sharding.addressable_devices
    return jax.make_array_from_single_device_arrays(shape, sharding, [jax.device_put(local, device)])


def local_of(array: Array) -> Array:
    """This rank's part of an array, on its device."""
    return array.addressable_data(0)


def axes_of(spec: PartitionSpec) -> tuple[str, ...]:
    """The mesh axes that a spec names."""
    parts = [(part,) if isinstance(part, str) else part for part in spec if part]
    return tuple(axis for part in parts for axis in part)
