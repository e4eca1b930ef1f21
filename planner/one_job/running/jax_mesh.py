"""A stage's devices: one mesh of its replicas and tensor-parallel ranks, cut into lanes whose replicas share alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models_zoo.jax_layers.parallel import AXIS, Array
from models_zoo.model import TokenInput
from planner.one_job.running.program import Program, StageProgram

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
    """Where a stage runs. A program takes as many samples on each of its devices, so where replicas share a micro-batch
    unevenly each is a lane of its own; else one lane has them all.

    `splits_tokens` says whether activations between layers are split over tp (sequence parallelism).
    """

    stage: StageProgram
    mesh: Mesh
    lanes: tuple[Lane, ...]
    splits_tokens: bool

    @property
    def activation_spec(self) -> PartitionSpec:
        """Of what passes from layer to layer."""
        return PartitionSpec(DP, TP) if self.splits_tokens else PER_REPLICA

    def sharding(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self.mesh, spec)

    def device(self, replica: int, tp_rank: int) -> Any:
        """The device of that replica and tensor-parallel index."""
        return self.mesh.devices.reshape(-1, self.stage.degrees.tp)[replica, tp_rank]

    def join(self, parts: Sequence[Array], spec: PartitionSpec) -> Array:
        """One array over the stage from one of each lane: its first dimension counts replicas (spec: DP first)."""
        if len(parts) == 1:
            return parts[0]
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        arrays = [shard.data for part in parts for shard in part.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, self.sharding(spec), arrays)

    def split(self, whole: Array, spec: PartitionSpec) -> tuple[Array, ...]:
        """What each lane's devices hold of an array that is alike in all replicas: no copies."""
        if len(self.lanes) == 1:
            return (whole,)
        held = {shard.device: shard.data for shard in whole.addressable_shards}
        return tuple(
            jax.make_array_from_single_device_arrays(
                whole.shape, lane.sharding(spec), [held[device] for device in lane.mesh.devices.flat]
            )
            for lane in self.lanes
        )


def stage_devices(program: Program, stage: StageProgram, devices: Sequence[Any]) -> StageDevices:
    """The stage on the devices of its ranks: rank r has devices[r]."""
    shard = stage.shard if stage.zero else 1
    placed = np.empty(len(stage.ranks), dtype=object)
    placed[:] = [devices[rank] for rank in stage.ranks]
    mesh = Mesh(placed.reshape(stage.degrees.dp // shard, shard, stage.degrees.tp), (*DP, TP))
    lanes: tuple[Lane, ...] = (Lane(mesh=mesh, first=0, replicas=stage.degrees.dp, share=stage.shares[0]),)
    if len(set(stage.shares)) > 1:
        rows = placed.reshape(stage.degrees.dp, 1, 1, stage.degrees.tp)
        lanes = tuple(
            Lane(mesh=Mesh(row, (*DP, TP)), first=replica, replicas=1, share=share)
            for replica, (row, share) in enumerate(zip(rows, stage.shares, strict=True))
        )
    splits = stage.splits_tokens and isinstance(program.model.input, TokenInput)
    return StageDevices(stage=stage, mesh=mesh, lanes=lanes, splits_tokens=splits)


def axes_of(spec: PartitionSpec) -> tuple[str, ...]:
    """The mesh axes that a spec names."""
    parts = [(part,) if isinstance(part, str) else part for part in spec if part]
    return tuple(axis for part in parts for axis in part)
