"""This machine as a cluster of two workers, and its Cells from what is measured on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from bench.scheduling.live.crew import Place, Seat
from bench.scheduling.live.neighbours import CrowdedCells
from estimator.communication.measure_torch import measure_links
from estimator.frontends.load import load_file_model
from estimator.pricing.layer_times import Lookup
from estimator.profiling.contention import ensure_contention
from estimator.profiling.lookup import LOCAL_DEVICE, lookup_in_store, usable_link_tables
from estimator.profiling.plan import ProfileTask
from estimator.profiling.run import ensure_rate, profile_layers
from estimator.profiling.setting import Setting
from models_zoo.layers import Layer
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from planner.shared.inputs import load_place
from profiles.cluster import Cluster
from profiles.store import ProfileStore
from profiles.vocabulary import LayerTime, Shard

WORKERS = 2
MENU = (
    Workload(model="gpt-tiny", global_batch=16, dtype="fp32"),
    Workload(model="bert-mini", global_batch=8, dtype="fp32"),
    Workload(model="moe-mini", global_batch=8, dtype="fp32"),
    Workload(model="wide-resnet-mini", global_batch=16, dtype="fp32"),
)
SIZES = tuple(1 << k for k in range(10, 27, 2))


@dataclass(frozen=True, kw_only=True)
class LocalCells:
    """The same Cells twice: every worker with a busy neighbour, which is what policies see, and without."""

    crowded: EstimatedCells
    alone: EstimatedCells


def local_cells(store: ProfileStore, menu: Sequence[Workload]) -> LocalCells:
    """Measures into the store what the Cells of `menu` need and it lacks: rates, contention, links, layers."""
    setting = Setting()
    ensure_rate(store, setting, "fp32")
    ensure_contention(store, setting, WORKERS, "fp32")
    if not usable_link_tables(store, LOCAL_DEVICE, "torch"):
        for table in measure_links(
            link_name="loopback", backend="gloo", ranks=(WORKERS,), sizes=SIZES, busy=True, timeout_s=300.0
        ):
            store.put_link_table(table)
    cluster = load_place(
        f"local:1x{WORKERS}",
        load_file_model(menu[0].model),
        store=store,
        dtype="fp32",
        seq_len=load_file_model(menu[0].model).seq_len,
        optimizer=setting.optimizer,
    )
    profile_layers(store, _needed(cluster, menu), setting)
    lookup = lookup_in_store(store, device=LOCAL_DEVICE, optimizer=setting.optimizer, workers=WORKERS)
    return LocalCells(
        crowded=_cells(cluster, lookup, store, crowded=True), alone=_cells(cluster, lookup, store, crowded=False)
    )


def _cells(cluster: Cluster, lookup: Lookup, store: ProfileStore | None, *, crowded: bool) -> EstimatedCells:
    tables = usable_link_tables(store, LOCAL_DEVICE, "torch") if store else ()
    return (CrowdedCells if crowded else EstimatedCells)(
        cluster=cluster,
        pools=pools_of(cluster),
        lookup_for=lambda _device: lookup,
        link_tables_for=lambda _device: tables,
    )


def _needed(cluster: Cluster, menu: Sequence[Workload]) -> list[ProfileTask]:
    """Every shard that pricing the menu's Cells asks for, but those recomputed, whose times follow from the others."""
    asked: dict[tuple[Layer, Shard], None] = {}

    def note(layer: Layer, shard: Shard) -> LayerTime | None:
        if shard.recompute == "none":
            asked[layer, shard] = None
        return None

    cells = _cells(cluster, note, None, crowded=True)
    for workload in menu:
        for pool in cells.pools.values():
            for devices in (1, WORKERS):
                cells.options(workload, pool.name, devices)
    return [ProfileTask(layer=layer, shard=shard, name=type(layer).__name__, multiplicity=1) for layer, shard in asked]


def local_places(cells: EstimatedCells) -> dict[Seat, Place]:
    """A worker on each core."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    (pool,) = cells.pools.values()
    return {
        (pool.name, 0, index): Place(cores=(usable[index],) if len(usable) >= WORKERS else None)
        for index in range(WORKERS)
    }
