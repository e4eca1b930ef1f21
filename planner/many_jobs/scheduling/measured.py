"""A book of Cells with measured times where a profile store has them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from estimator.pricing.layer_times import Lookup
from estimator.profiling.lookup import lookup_in_store, usable_link_tables
from models_zoo.layers import Layer
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from profiles.cluster import Cluster
from profiles.errors import InputError
from profiles.store import ProfileStore
from profiles.vocabulary import LayerTime, Shard

OPTIMIZER = "adamw"
"""The default of `estimator.cells.job.cell_recipe`, which Cells are of."""


def cells_on(cluster: Cluster, store: Path | None) -> EstimatedCells:
    """The Cells of this cluster; with a store its layer times and link tables count wherever it has them, and the rest
    is modelled. InputError where there is no such store, or it is none."""
    pools = pools_of(cluster)
    if store is None:
        return EstimatedCells(cluster=cluster, pools=pools)
    if not store.exists():
        raise InputError(where="simulate", key="--store", found=store, expected="an existing profile store")
    with ProfileStore(store) as opened:
        devices = {group.device.name for site in cluster.sites for group in site.nodes}
        tables = {device: usable_link_tables(opened, device) for device in devices}
        digest = sha256(repr(opened.contents()).encode()).hexdigest()
    return EstimatedCells(
        cluster=cluster,
        pools=pools,
        lookup_for=lambda device: _lookup(store, device.name),
        link_tables_for=lambda device: tables[device.name],
        measured=digest,
    )


def _lookup(store: Path, device: str) -> Lookup:
    """Asks the store once about each shard, and keeps it open no longer than that."""
    times: dict[tuple[Layer, Shard], LayerTime | None] = {}

    def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
        if (layer, shard) not in times:
            with ProfileStore(store) as opened:
                times[layer, shard] = lookup_in_store(opened, device=device, optimizer=OPTIMIZER)(layer, shard)
        return times[layer, shard]

    return look_up
