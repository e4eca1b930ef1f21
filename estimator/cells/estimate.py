"""All Cells of a job on a cluster: one for each device type and stage count."""

from __future__ import annotations

from collections.abc import Callable

from estimator.cells.cell import CellEstimate, CellFailure, CellRules, estimate_cell
from estimator.cells.job import Job
from estimator.cells.stage_pricing import Hardware, StagePricing
from estimator.cells.stages import crius_stage_counts, stage_counts
from estimator.pricing.layer_times import Lookup, nothing_measured
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError
from profiles.vocabulary import Device, LinkTable

LookupFor = Callable[[Device], Lookup]
LinkTablesFor = Callable[[Device], tuple[LinkTable, ...]]


def estimate_cells(
    job: Job,
    cluster: Cluster,
    *,
    rules: CellRules | None = None,
    devices: int | None = None,
    stages: tuple[int, ...] | None = None,
    link_tables_for: LinkTablesFor = lambda _device: (),
    lookup_for: LookupFor = lambda _device: nothing_measured,
) -> tuple[CellEstimate | CellFailure, ...]:
    """Estimate the Cells of `job` on `devices` devices (default: all free ones) of each type in `cluster` that has as
    many free.

    `stages` are the stage counts (default: `stage_counts`, or the paper's with its partition). `lookup_for` gives the
    measured layer times of a device, `link_tables_for` its measured collectives. InputError where no type has
    enough free devices, or a stage count is below 1 or exceeds devices or layers.
    """
    rules = rules or CellRules()
    cells: list[CellEstimate | CellFailure] = []
    for slots in _slots_by_type(cluster, devices):
        device = cluster.group_of(slots[0]).device
        hardware = Hardware(
            cluster=cluster, device=device, link_tables=tuple(link_tables_for(device)), lookup=lookup_for(device)
        )
        pricing = StagePricing(job, hardware)
        counts = _stage_counts(job, len(slots), stages, rules)
        cells += [estimate_cell(pricing, slots, count, rules) for count in counts]
    return tuple(cells)


def _slots_by_type(cluster: Cluster, devices: int | None) -> list[list[DeviceSlot]]:
    """The first `devices` free slots (None: all) of each device type that has as many."""
    free = {name: [slot for slot in cluster.free_slots if slot.device == name] for name in cluster.device_types}
    least = 1 if devices is None else devices
    enough = [slots[:devices] for slots in free.values() if len(slots) >= least > 0]
    if not enough:
        raise InputError(
            where=f"cluster {cluster.text}",
            key="--devices",
            found="no free device" if devices is None else devices,
            expected="from 1 to what is free of a type: "
            + ", ".join(f"{len(slots)} of {name}" for name, slots in free.items()),
        )
    return enough


def _stage_counts(job: Job, devices: int, wanted: tuple[int, ...] | None, rules: CellRules) -> tuple[int, ...]:
    layers = len(job.model.layers)
    if wanted is None:
        return (crius_stage_counts if rules.partition == "crius" else stage_counts)(devices, layers)
    most = min(devices, layers)
    wrong = [count for count in wanted if not 1 <= count <= most]
    if wrong or not wanted:
        raise InputError(
            where="job",
            key="--stages",
            found=wrong[0] if wrong else "none",
            expected=f"from 1 to {most} ({devices} devices, {layers} layers)",
        )
    return wanted
