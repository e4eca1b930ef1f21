"""Which shards the Cells of a job need: what `cellplan profile --cluster` measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from estimator.cells.cell import CellEstimate, CellRules, estimate_cell
from estimator.cells.job import Job
from estimator.cells.stage_places import places_of
from estimator.cells.stage_pricing import Hardware, StagePricing
from estimator.cells.stages import stage_counts
from estimator.pricing.layer_times import nothing_measured
from estimator.pricing.measured import profiled_shard
from estimator.profiling.plan import ProfileTask, plan_shards
from models_zoo.layers import Layer
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError
from profiles.vocabulary import Infeasible, Shard


def plan_cell_profile(job: Job, cluster: Cluster, device: str) -> tuple[ProfileTask, ...]:
    """Return the distinct shards in the stages of all Cells of `job` on the free devices of type `device` in `cluster`,
    for every micro-batch count that the planner compares: data-parallel-only and tensor-parallel-only, without
    recomputation (whose time follows from forward's). The order is that of `plan_profile`.

    Raise InputError if the cluster has no free device of that type.
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
    for pricing, cell in _all_cells(job, cluster, slots):
        for layer, shard in _shards_of(pricing, cell):
            wanted.setdefault(shard, set()).add(layer)
    return plan_shards(job.model, wanted)


def _all_cells(job: Job, cluster: Cluster, slots: list[DeviceSlot]) -> Iterator[tuple[StagePricing, CellEstimate]]:
    device = cluster.group_of(slots[0]).device
    hardware = Hardware(cluster=cluster, device=device, link_tables=(), lookup=nothing_measured)
    for stages in stage_counts(len(slots), len(job.model.layers)):
        for count in replace(job, micro_batches="best").micro_batch_counts(devices=len(slots), stages=stages):
            pricing = StagePricing(replace(job, micro_batches=count), hardware)
            cell = estimate_cell(pricing, slots, stages, CellRules())
            if isinstance(cell, CellEstimate):
                yield pricing, cell


def _shards_of(pricing: StagePricing, cell: CellEstimate) -> Iterator[tuple[Layer, Shard]]:
    stages, micro_batch = cell.setup.stages, cell.setup.micro_batch
    for place in places_of([stage.chunks[0] for stage in stages], [stage.slots for stage in stages], micro_batch):
        devices = len(place.slots)
        for dp, tp in dict.fromkeys([(devices, 1), (1, devices)]):
            works = (
                Infeasible(reason="", lacking="divisibility")
                if micro_batch % dp
                else pricing.works(place, pricing.ways(place, dp=dp, tp=tp)[0])
            )
            for layer, split in () if isinstance(works, Infeasible) else works[0].layers:
                shard = profiled_shard(layer, split)
                if shard is not None:
                    yield layer, shard
