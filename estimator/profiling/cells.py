"""Which shards the Cells of a job need: what `cellplan profile --cluster` measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from estimator.cell import CellEstimate
from estimator.estimate import estimate_cells
from estimator.job import Job
from estimator.profiling.plan import ProfileTask, plan_shards
from estimator.stage_options import Machine, Parallelism, shard_of
from estimator.stages import stage_counts
from models_zoo.layers import Layer
from profiles.cluster import Cluster
from profiles.vocabulary import Infeasible, Shard


def plan_cell_profile(job: Job, cluster: Cluster) -> tuple[ProfileTask, ...]:
    """The distinct shards in the stages of all Cells of `job` on `cluster`, for every micro-batch count that the
    planner compares: data-parallel-only and tensor-parallel-only, without recomputation (whose time follows from
    forward's). The order is that of `plan_profile`."""
    wanted: dict[Shard, set[Layer]] = {}
    for machine, cell in _all_cells(job, cluster):
        for layer, shard in _shards_of(job, machine, cell):
            wanted.setdefault(shard, set()).add(layer)
    return plan_shards(job.model, wanted)


def _all_cells(job: Job, cluster: Cluster) -> Iterator[tuple[Machine, CellEstimate]]:
    most = max(sum(slot.device == name for slot in cluster.free_slots) for name in cluster.device_types)
    for stages in stage_counts(most, len(job.model.layers)):
        for count in job.micro_batch_counts(devices=most, stages=stages):
            for machine, cell in estimate_cells(replace(job, micro_batches=count), cluster, stages=(stages,)):
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
