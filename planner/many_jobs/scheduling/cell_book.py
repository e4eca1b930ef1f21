"""The Cells of workloads on a cluster's pools, from the estimator, kept for whoever asks again.

A Cell takes the first devices of its pool, or where the network above its nodes has parts those that are near each
other in it (`near_slots`): where exactly a job sits does not change its Cell. Everything is computed when it is first
asked for; `save` and `load` carry it over from run to run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from estimator.cells.cell import CellEstimate, CellFailure, CellRules, ChosenCell, choose_cell, estimate_cell
from estimator.cells.estimate import LinkTablesFor, LookupFor
from estimator.cells.job import Job as TrainingJob
from estimator.cells.job import cell_recipe
from estimator.cells.rules import MicroBatchRule
from estimator.cells.stage_places import places_of
from estimator.cells.stage_pricing import Hardware, StagePricing
from estimator.cells.stages import crius_stage_counts
from estimator.frontends.load import load_file_model
from estimator.pricing.layer_times import nothing_measured
from models_zoo.model import Model
from planner.many_jobs.jobs.records import CellOption, Pool, Workload
from planner.many_jobs.sites.near_nodes import near_slots
from planner.shared.garbage import collection_paused
from planner.shared.version import VERSION
from profiles.cluster import Cluster, DeviceSlot, Site
from profiles.errors import InputError
from profiles.files import read_json, write_atomically
from profiles.records import dataclass
from profiles.vocabulary import Device, DType, Infeasible

SCHEMA = "cellplan.cells/1"
SeatKey = tuple[Workload, str, int, int, tuple[Any, ...]]
"""Of a Cell (workload, pool, devices, stages) on devices of some shape (`planner.many_jobs.simulation.seat_shapes`)."""
MOST_PRICINGS = 8
"""Workloads whose priced stages are kept for further Cells of theirs."""


def pools_of(cluster: Cluster) -> dict[str, Pool]:
    """The cluster's groups of equal nodes by name (`pool_name`). Of a group that is partly free the whole nodes."""
    named: dict[str, Pool] = {}
    for site in cluster.sites:
        for number, group in enumerate(site.nodes):
            name = pool_name(cluster, site, number)
            nodes = group.count if group.free is None else group.free // group.devices
            if nodes:
                named[name] = Pool(
                    name=name,
                    site=site.name,
                    device=group.device.name,
                    nodes=nodes,
                    devices_per_node=group.devices,
                    devices=nodes * group.devices,
                )
    return named


def pool_prices(cluster: Cluster) -> dict[str, float]:
    """What a device costs an hour, by pool; of those that the cluster file prices."""
    groups = {
        pool_name(cluster, site, number): group for site in cluster.sites for number, group in enumerate(site.nodes)
    }
    return {
        name: group.price_per_device_hour for name, group in groups.items() if group.price_per_device_hour is not None
    }


def left_out(cluster: Cluster) -> dict[tuple[str, str], int]:
    """Free devices that no pool has, since not all of their node is free, by site and type of device."""
    counts: dict[tuple[str, str], int] = {}
    for site in cluster.sites:
        for group in site.nodes:
            if group.free is not None and group.free % group.devices:
                key = (site.name, group.device.name)
                counts[key] = counts.get(key, 0) + group.free % group.devices
    return counts


def pool_name(cluster: Cluster, site: Site, number: int) -> str:
    """The device's name, after the site's where there are several, numbered where that is not yet unique.

    a100-40gb, north/a100-40gb, north/a100-40gb#1
    """
    device = site.nodes[number].device.name
    name = device if len(cluster.sites) == 1 else f"{site.name}/{device}"
    return f"{name}#{number}" if sum(other.device.name == device for other in site.nodes) > 1 else name


def common_dtype(cluster: Cluster) -> DType:
    """What every device of the cluster can train in: bf16, or else fp16, or else fp32."""
    devices = {group.device for site in cluster.sites for group in site.nodes}
    wanted: tuple[DType, ...] = ("bf16", "fp16")
    return next((dtype for dtype in wanted if all(device.peak(dtype) for device in devices)), "fp32")


@dataclass(kw_only=True, eq=False)
class EstimatedCells:
    """`planner.many_jobs.jobs.records.CellBook` by `estimator.cells.cell`. `micro_batches` as in
    `estimator.cells.job.Job`; `lookup_for`, `link_tables_for`: what is measured of a device. `measured`: a hash of what
    is measured, by which saved Cells are told apart. `seats`: what an iteration takes of a Cell on seats of a shape, by
    how much thinner the network is, for who prices these. The only state is caches."""

    cluster: Cluster
    pools: Mapping[str, Pool]
    micro_batches: MicroBatchRule = "fit"
    rules: CellRules = field(default_factory=CellRules)
    lookup_for: LookupFor = lambda _device: nothing_measured
    link_tables_for: LinkTablesFor = lambda _device: ()
    measured: str = ""
    seats: dict[SeatKey, dict[float, float]] = field(default_factory=dict, repr=False)
    _slots: dict[str, list[DeviceSlot]] = field(default_factory=dict, repr=False)
    _near: dict[tuple[str, int], tuple[DeviceSlot, ...]] = field(default_factory=dict, repr=False)
    _models: dict[str, Model] = field(default_factory=dict, repr=False)
    _jobs: dict[Workload, TrainingJob] = field(default_factory=dict, repr=False)
    _pricings: dict[tuple[Workload, Device], StagePricing] = field(default_factory=dict, repr=False)
    _cells: dict[tuple[Workload, str, int, int], CellOption | None] = field(default_factory=dict, repr=False)
    _options: dict[tuple[Workload, str, int], tuple[CellOption, ...]] = field(default_factory=dict, repr=False)
    _data_parallel: dict[tuple[Workload, str, int], float | None] = field(default_factory=dict, repr=False)
    _least: dict[tuple[Workload, str], int | None] = field(default_factory=dict, repr=False)
    _kept: dict[str, int] = field(default_factory=dict, repr=False)

    def options(self, workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
        """Return the Cells on so many devices that fit, for 1, 2, 4, ... stages (Crius section 6.1), fastest first."""
        if workload.logged_devices is not None:
            return _as_logged(workload, pool, devices)
        key = (workload, pool, devices)
        if key not in self._options:
            fitting: list[CellOption] = []
            if 1 <= devices <= self.pools[pool].devices:
                counts = crius_stage_counts(devices, len(self._job(workload).model.layers))
                with collection_paused():
                    cells = [self.cell(workload, pool, devices, count) for count in counts]
                fitting = sorted(
                    (cell for cell in cells if cell), key=lambda cell: (cell.iteration_time_s, cell.stages)
                )
            self._options[key] = tuple(fitting)
        return self._options[key]

    def best(self, workload: Workload, pool: str, devices: int) -> CellOption | None:
        """The fastest Cell there; None where none fits."""
        return next(iter(self.options(workload, pool, devices)), None)

    def cell(self, workload: Workload, pool: str, devices: int, stages: int) -> CellOption | None:
        """One Cell; None where it does not fit."""
        key = (workload, pool, devices, stages)
        if key not in self._cells:
            pricing = self._pricing(workload, pool, devices)
            with collection_paused():
                cell = choose_cell(pricing, self._first(pool, devices), stages, self.rules)
            self._cells[key] = (
                CellOption(
                    pool=pool,
                    devices=devices,
                    stages=stages,
                    iteration_time_s=cell.iteration_time_s,
                    assembly=cell.assembly,
                )
                if isinstance(cell, ChosenCell)
                else None
            )
        return self._cells[key]

    def estimate(self, workload: Workload, pool: str, devices: int, stages: int) -> CellEstimate | CellFailure:
        """Return one Cell in full; computed anew at each call."""
        pricing = self._pricing(workload, pool, devices)
        return estimate_cell(pricing, self._first(pool, devices), stages, self.rules)

    def data_parallel_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        """Seconds an iteration as a scheduler believes that profiles data parallelism alone (Crius section 8.1). Where
        that never fits on the pool it takes the smallest Cell that does to scale with the devices."""
        if workload.logged_devices is not None:
            return next((cell.iteration_time_s for cell in _as_logged(workload, pool, devices)), None)
        key = (workload, pool, devices)
        if key not in self._data_parallel:
            self._data_parallel[key] = self._believed_s(workload, pool, devices)
        return self._data_parallel[key]

    def least_devices(self, workload: Workload, pool: str) -> int | None:
        """The smallest power of two on which some Cell fits; None where none does on the whole pool. What is known as
        it was logged alone fits on its own devices."""
        logged = workload.logged_devices
        if logged is not None:
            return logged if logged <= self.pools[pool].devices else None
        key = (workload, pool)
        if key not in self._least:
            total = self.pools[pool].devices
            counts = (1 << k for k in range(total.bit_length()))
            self._least[key] = next((count for count in counts if self.options(workload, pool, count)), None)
        return self._least[key]

    def save(self, place: Path) -> None:
        """Write what is known to a file, if that is more than it was last read or written with; of a folder, to the
        file of this cluster there."""
        if self._count() == self._kept.get("count"):
            return
        path = self.file_in(place)
        rows = [
            [
                *asdict(workload).values(),
                pool,
                devices,
                stages,
                option and [option.iteration_time_s, list(option.assembly)],
            ]
            for (workload, pool, devices, stages), option in self._cells.items()
        ]
        beliefs = [
            [*asdict(workload).values(), pool, devices, seconds]
            for (workload, pool, devices), seconds in self._data_parallel.items()
        ]
        seats = [
            [*asdict(workload).values(), *cell, list(times.items())] for (workload, *cell), times in self.seats.items()
        ]
        content = {"schema": SCHEMA, "of": self._digest(), "cells": rows, "data_parallel": beliefs, "seats": seats}
        write_atomically(path, json.dumps(content, separators=(",", ":")) + "\n")
        self._kept["count"] = self._count()

    def _count(self) -> int:
        """How much is known."""
        return len(self._cells) + len(self._data_parallel) + sum(map(len, self.seats.values()))

    def load(self, place: Path) -> bool:
        """Read what another run knew from a file, or from this cluster's in a folder; False where there is none. Raise
        InputError where it is no file of Cells, or of another cluster's, which `save` would write over."""
        path = self.file_in(place)
        if not path.exists():
            return False
        try:
            content = read_json(path)
            if content["schema"] != SCHEMA:
                raise ValueError(content["schema"])
            if content["of"] != self._digest():
                stated = "Cells of another cluster, other measurements or another version of cellplan"
                expected = "this cluster's, a file that is not there yet, or a folder, in which each has its own"
                raise InputError(where=str(path), key="of", found=stated, expected=expected)
            for model, batch, tokens, dtype, pool, devices, stages, option in content["cells"]:
                workload = Workload(model=model, global_batch=batch, seq_len=tokens, dtype=dtype)
                self._cells[workload, pool, devices, stages] = option and CellOption(
                    pool=pool,
                    devices=devices,
                    stages=stages,
                    iteration_time_s=_seconds(option[0]),
                    assembly=tuple(map(str, option[1])),
                )
            for model, batch, tokens, dtype, pool, devices, seconds in content["data_parallel"]:
                workload = Workload(model=model, global_batch=batch, seq_len=tokens, dtype=dtype)
                self._data_parallel[workload, pool, devices] = None if seconds is None else _seconds(seconds)
            for model, batch, tokens, dtype, pool, devices, stages, shape, times in content.get("seats", ()):
                workload = Workload(model=model, global_batch=batch, seq_len=tokens, dtype=dtype)
                self.seats[workload, pool, devices, stages, _as_tuple(shape)] = {
                    _seconds(thinned): _seconds(seconds) for thinned, seconds in times
                }
        except InputError:
            raise
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(where=str(path), found=str(error), expected=f"a file of schema {SCHEMA}") from error
        self._kept["count"] = self._count()
        return True

    def file_in(self, place: Path) -> Path:
        """The file of this cluster in a folder, or the file itself."""
        return place / f"{self._digest()[:16]}.json" if place.is_dir() else place

    def _digest(self) -> str:
        where = (self.cluster.sites, self.cluster.site_links, *([self.measured] if self.measured else []))
        content = repr((VERSION, *where, self.micro_batches, self.rules))
        return sha256(content.encode()).hexdigest()

    def _believed_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        if not 1 <= devices <= self.pools[pool].devices:
            return None
        own_s = self._replicated_s(workload, pool, devices)
        total = self.pools[pool].devices
        if own_s is not None:
            return own_s
        if any(self._replicated_s(workload, pool, 1 << k) for k in range(total.bit_length())):
            return None
        least = self.least_devices(workload, pool)
        best = None if least is None else self.best(workload, pool, least)
        return None if best is None or least is None else best.iteration_time_s * least / devices

    def _replicated_s(self, workload: Workload, pool: str, devices: int) -> float | None:
        """One stage of nothing but replicas; None where that does not fit."""
        pricing, slots = self._pricing(workload, pool, devices), self._first(pool, devices)
        job = pricing.job
        for count in job.micro_batch_counts(devices=devices, stages=1):
            micro_batch = job.global_batch // count
            (place,) = places_of([(0, len(job.model.layers))], [slots], micro_batch)
            options = pricing.options(place, dp=devices, tp=1)
            if not isinstance(options, Infeasible):
                fastest = min(options, key=lambda option: option.time_s * count + option.tail_s)
                return pricing.iteration_s([fastest], micro_batch)
        return None

    def _job(self, workload: Workload) -> TrainingJob:
        if workload not in self._jobs:
            if workload.model not in self._models:
                self._models[workload.model] = load_file_model(workload.model)
            model = self._models[workload.model]
            self._jobs[workload] = TrainingJob(
                model=model,
                recipe=cell_recipe(
                    global_batch=workload.global_batch,
                    seq_len=model.seq_len if workload.seq_len is None else workload.seq_len,
                    dtype=workload.dtype,
                ),
                micro_batches=self.micro_batches,
            )
        return self._jobs[workload]

    def _first(self, pool: str, devices: int) -> tuple[DeviceSlot, ...]:
        if not self._slots:
            for slot in self.cluster.free_slots:
                name = pool_name(self.cluster, self.cluster.site(slot.site), slot.group)
                self._slots.setdefault(name, []).append(slot)
        if (pool, devices) not in self._near:
            self._near[pool, devices] = near_slots(self.cluster.site(self.pools[pool].site), self._slots[pool], devices)
        return self._near[pool, devices]

    def hardware(self, pool: str, devices: int) -> Hardware:
        """Return what Cells on so many devices of a pool are priced on."""
        device = self.cluster.group_of(self._first(pool, devices)[0]).device
        return Hardware(
            cluster=self.cluster,
            device=device,
            link_tables=tuple(self.link_tables_for(device)),
            lookup=self.lookup_for(device),
        )

    def _pricing(self, workload: Workload, pool: str, devices: int) -> StagePricing:
        """One for all Cells of a workload on one type of device."""
        hardware = self.hardware(pool, devices)
        key = (workload, hardware.device)
        if key not in self._pricings:
            while len(self._pricings) >= MOST_PRICINGS:
                del self._pricings[next(iter(self._pricings))]
            job = self._job(workload)
            alike = (pricing for (other, _), pricing in self._pricings.items() if other == workload)
            recipe = job.recipe_on(hardware.device)
            # What ranks hold is the same on all types of device on which the recipe is.
            held = next((pricing.held for pricing in alike if pricing.recipe == recipe), None)
            self._pricings[key] = StagePricing(job, hardware, held)
        return self._pricings[key]


def _as_logged(workload: Workload, pool: str, devices: int) -> tuple[CellOption, ...]:
    """The one Cell of what is known as it was logged alone, on the devices that it ran on."""
    if devices != workload.logged_devices:
        return ()
    return (CellOption(pool=pool, devices=devices, stages=1, iteration_time_s=1.0, assembly=("dp",)),)


def _as_tuple(value: Any) -> Any:
    """Lists as tuples, at any depth; TypeError and the like for what is no number."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value + 0


def _seconds(value: object) -> float:
    """What stands in a file for a time; ValueError where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} for seconds above 0")
    return float(value)
