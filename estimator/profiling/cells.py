"""Which shards the Cells of a job need: what `cellplan profile --cluster` measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from estimator.cells.cell import CellEstimate, CellRules, estimate_cell
from estimator.cells.estimate import make_machine
from estimator.cells.job import Job
from estimator.cells.stage_options import Machine, Parallelism, shard_of
from estimator.cells.stages import stage_counts
from estimator.layer_times import nothing_measured
from estimator.profiling.plan import ProfileTask, plan_shards
from models_zoo.layers import Layer
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError
from profiles.vocabulary import Infeasible, Shard


def plan_cell_profile(job: Job, cluster: Cluster, device: str) -> tuple[ProfileTask, ...]:
    """The distinct shards in the stages of all Cells of `job` on the free devices of type `device` in `cluster`, for
    every micro-batch count that the planner compares: data-parallel-only and tensor-parallel-only, without
    recomputation (whose time follows from forward's). The order is that of `plan_profile`.

    InputError if the cluster has no free device of that type.
    """
    slots = [slot for slot in cluster.free_slots if slot.device == device]
    if not slots:
        raise InputError(
            where=f"cluster {cluster.text}",
            key="--device",
            found=device,
            expected=f"a device of one of its types, with one free: {', '.join(cluster.device_types)}",
        )
    wanted: dict[Shard, set[Layer]] = {}
    for machine, cell in _all_cells(job, cluster, slots):
        for layer, shard in _shards_of(job, machine, cell):
            wanted.setdefault(shard, set()).add(layer)
    return plan_shards(job.model, wanted)


def _all_cells(job: Job, cluster: Cluster, slots: list[DeviceSlot]) -> Iterator[tuple[Machine, CellEstimate]]:
    machine = make_machine(job, cluster, slots, link_tables=(), lookup_for=lambda _device: nothing_measured)
    for stages in stage_counts(len(slots), len(job.model.layers)):
        for count in replace(job, micro_batches="best").micro_batch_counts(devices=len(slots), stages=stages):
            cell = estimate_cell(replace(job, micro_batches=count), machine, slots, stages, CellRules())
            if isinstance(cell, CellEstimate):
                yield machine, cell


def _shards_of(job: Job, machine: Machine, cell: CellEstimate) -> Iterator[tuple[Layer, Shard]]:
    for stage in cell.stages:
        devices = len(stage.slots)
        for dp, tp in dict.fromkeys([(devices, 1), (1, devices)]):
            shard = shard_of(job, machine.device, Parallelism(dp=dp, tp=tp), cell.micro_batch)
            if not isinstance(shard, Infeasible):
                for layer in job.model.layers[stage.first : stage.end]:
                    yield layer, shard
