"""From the words of a request to records: the model, the job, the cluster, what is measured, and what was assumed."""

from __future__ import annotations

import shlex
from collections import Counter

from estimator.cells.cell import CellEstimate, CellFailure, CellRules
from estimator.cells.estimate import estimate_cells
from estimator.cells.job import CELL_SCHEDULES, Job, cell_recipe, default_global_batch
from estimator.cells.stage_pricing import Hardware
from estimator.frontends.load import load_any_model
from estimator.pricing.layer_times import Lookup, nothing_measured
from estimator.profiling.lookup import LOCAL_DEVICE, find_origins, lookup_in_store, usable_link_tables
from estimator.profiling.setting import Framework
from planner.one_job.explicit.request import recompute_rules
from planner.shared.inputs import place_of, token_count, trained_on
from planner.shared.options.estimate import DegreeOptions, EstimateOptions
from planner.shared.options.record import entries
from planner.shared.options.training import SoftwareOptions
from planner.shared.options.whole import WholeTrainingOptions
from planner.shared.training_software import training_software
from profiles.cluster import Cluster, most_on_one_node
from profiles.efficiencies import load_operator_efficiencies
from profiles.errors import InputError, NothingFits
from profiles.measurements import Origin
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import Device, LinkTable

Cell = CellEstimate | CellFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job on a cluster, and which Cells are asked for. `assumptions` are sentences about what nobody said.

    `reference` is what the user called the model; `devices` and `stages` None mean all. `profiles`: whose count.
    """

    reference: str
    job: Job
    cluster: Cluster
    devices: int | None
    stages: tuple[int, ...] | None
    rules: CellRules
    assumptions: tuple[str, ...]
    profiles: Framework | None = None


EXPLICIT = "an explicit plan, which --tp, --pp, --dp, another degree or --software makes it"


def check_cells(options: EstimateOptions) -> None:
    """Raise InputError for options that only an explicit plan can have."""
    for name in (*entries(SoftwareOptions), *entries(DegreeOptions), *entries(WholeTrainingOptions)):
        if name in options.changed():
            raise options.wrong(name, found=getattr(options, name), expected=EXPLICIT)
    if options.schedule not in (None, *CELL_SCHEDULES):
        expected = f"one of {', '.join(CELL_SCHEDULES)}, or {EXPLICIT}"
        raise options.wrong("schedule", found=options.schedule, expected=expected)


def read_request(options: EstimateOptions, *, store: ProfileStore | None) -> Request:
    """Return the records behind a request for Cells; raise InputError where a part of it is wrong."""
    check_cells(options)
    reference, cluster = options.model, options.cluster
    if reference is None or cluster is None:
        lacking = "no model" if reference is None else "no cluster"
        raise InputError(where="estimate", found=lacking, expected="a model and a cluster, or a plan file")
    model = load_any_model(reference, options.user_code)
    tokens = token_count(model, options.seq_len)
    place = place_of(cluster, model, options, store=store)
    model, undropped = trained_on(model, place)
    assumptions = [*place.notes, *undropped]
    global_batch = options.global_batch
    if global_batch is None:
        free = Counter(slot.device for slot in place.free_slots)
        devices = options.devices or max(free.values(), default=1)
        global_batch, sentence = default_global_batch(model, tokens, devices)
        assumptions.append(sentence)
    devices_there = tuple({slot.device: place.group_of(slot).device for slot in place.free_slots}.values())
    _, dtype = training_software(options, model, devices_there, assumptions)
    if global_batch < 1:
        raise InputError(where="job", key="--global-batch", found=global_batch, expected="at least 1")
    job = Job(
        model=model,
        recipe=cell_recipe(
            global_batch=global_batch,
            seq_len=tokens,
            dtype=dtype,
            optimizer=options.optimizer,
            schedule=options.schedule or "1f1b",
        ),
        attention=options.attention,
        recompute="auto" if options.recompute == "auto" else recompute_rules(options.recompute)[0],
        zero=(0, 1, 2, 3) if options.zero is None else (options.zero,),
        sequence_parallel=bool(options.sequence_parallel),
        micro_batches=options.micro_batches or "fit",
        micro_batch_per_rank=options.micro_batch,
    )
    return Request(
        reference=reference,
        job=job,
        cluster=place,
        devices=options.devices,
        stages=options.stages,
        rules=CellRules(partition=options.partition, formula=options.formula, assembly=options.assembly),
        assumptions=(*assumptions, *_describe_defaults(job), *model.notes),
        profiles=options.profiles,
    )


def _origins(request: Request, store: ProfileStore, device: str) -> tuple[Origin, ...]:
    job = request.job
    return find_origins(
        store,
        job.model.layers,
        device=device,
        optimizer=job.recipe.optimizer,
        dtype=job.recipe.dtype,
        seq_len=job.recipe.seq_len,
        framework=request.profiles,
    )


def find_cells(request: Request, store: ProfileStore | None) -> tuple[Cell, ...]:
    """As `search_cells`, but NothingFits if none of them can be had."""
    cells = search_cells(request, store)
    if not can_be_had(cells):
        raise NothingFits(why_nothing_fits(request, cells))
    return cells


def why_nothing_fits(request: Request, cells: tuple[Cell, ...]) -> str:
    """A sentence about `cells`, none of which can be had, and the one that lacks least."""
    failures = [cell for cell in cells if isinstance(cell, CellFailure)]
    return f"{request.reference} on {request.cluster.text}: {_describe_nearest_miss(failures)}"


def search_cells(request: Request, store: ProfileStore | None) -> tuple[Cell, ...]:
    """Return all Cells that were asked for, those that cannot be had among them, with measured times from `store`."""
    return estimate_cells(
        request.job,
        request.cluster,
        rules=request.rules,
        devices=request.devices,
        stages=request.stages,
        link_tables_for=lambda device: _tables_for(request, store, device),
        lookup_for=lambda device: _lookup_for(request, store, device),
    )


def hardware_of(request: Request, store: ProfileStore | None, cell: CellEstimate) -> Hardware:
    """Return what `cell` runs on, with what `store` has measured of it."""
    device = request.cluster.group_of(cell.setup.stages[0].slots[0]).device
    return Hardware(
        cluster=request.cluster,
        device=device,
        link_tables=_tables_for(request, store, device),
        lookup=_lookup_for(request, store, device),
    )


def _tables_for(request: Request, store: ProfileStore | None, device: Device) -> tuple[LinkTable, ...]:
    return usable_link_tables(store, device.name, request.profiles) if store else ()


def _lookup_for(request: Request, store: ProfileStore | None, device: Device) -> Lookup:
    origins = _origins(request, store, device.name) if store else ()
    if store is None or not origins:
        return nothing_measured
    devices = [slot for slot in request.cluster.free_slots if slot.device == device.name]
    return lookup_in_store(
        store,
        device=device.name,
        optimizer=request.job.recipe.optimizer,
        origin=origins[0],
        workers=most_on_one_node(devices[: request.devices]),
    )


def can_be_had(cells: tuple[Cell, ...]) -> bool:
    """Whether any of `cells` can be had."""
    return any(isinstance(cell, CellEstimate) for cell in cells)


def best_cell(cells: tuple[Cell, ...]) -> CellEstimate:
    """Return the fastest of the Cells that can be had; of equals the first."""
    possible = (cell for cell in cells if isinstance(cell, CellEstimate))
    return min(possible, key=lambda cell: cell.iteration_time_s)


def count_assemblies(cells: tuple[Cell, ...]) -> int:
    """Return how many assemblies were compared in all Cells."""
    return sum(cell.assemblies for cell in cells if isinstance(cell, CellEstimate))


def describe_sources(request: Request, cell: CellEstimate, store: ProfileStore | None) -> tuple[str, ...]:
    """Return sentences on where the Cell's measured layer times come from, unless from all that this host has measured;
    and on what stands in for measurements that it lacks."""
    device, evaluation = cell.device, cell.evaluation
    origins = _origins(request, store, device) if store else ()
    said = []
    if evaluation.compute_provenance != "modelled" and (len(origins) > 1 or device != LOCAL_DEVICE):
        others = f"; {len(origins) - 1} more in the store not used" if len(origins) > 1 else ""
        said.append(f"layer times of {device} measured on {_describe_origin(origins[0])}{others}")
    if evaluation.compute_provenance != "measured":
        stages = cell.setup.stages
        degrees = ",".join(map(str, sorted({stage.tp for stage in stages})))
        samples = ",".join(map(str, sorted({cell.setup.samples_per_rank(stage) for stage in stages})))
        which = "none" if evaluation.compute_provenance == "modelled" else "not all"
        stand_in = load_operator_efficiencies(device).stand_in()
        said.append(
            f"{which} of the shards that the best Cell needs (tp {degrees}, {samples} samples per rank) are profiled on"
            f" {device}: {stand_in} fills in;"
            f" {_profile_command(request, device, origins)}"
        )
    if evaluation.communication_provenance not in ("measured", None):
        lacking = evaluation.communication_provenance == "modelled"
        which = "no collective has" if lacking else "not all collectives have"
        tables = "tables of other sizes, ranks or operations, else " if evaluation.link_table_ids else ""
        said.append(f"{which} a measured link table at its size: {tables}the links' catalogue rates fill in")
    return tuple(said)


def _describe_origin(origin: Origin) -> str:
    threads = f", {origin.threads} thread{'s' if origin.threads > 1 else ''}" if origin.threads else ""
    return f"{origin.hardware} ({origin.software}{threads})"


def _profile_command(request: Request, device: str, origins: tuple[Origin, ...]) -> str:
    """How to measure what the Cells of `request` on `device` need, in words."""
    job, recipe = request.job, request.job.recipe
    local = device == LOCAL_DEVICE
    words = ["cellplan", "profile", request.reference, "--cluster", request.cluster.text]
    words += [
        "--device",
        "cpu" if local else "cuda:0",
        "--global-batch",
        str(job.global_batch),
        "--dtype",
        recipe.dtype,
    ]
    options: tuple[tuple[str, object, object], ...] = (
        ("--seq-len", recipe.seq_len, job.model.seq_len),
        ("--optimizer", recipe.optimizer, "adamw"),
        ("--attention", job.attention, None),
        ("--threads", origins[0].threads if local and origins else 1, 1),
    )
    words += [word for name, value, default in options if value != default for word in (name, str(value))]
    words += ["--sequence-parallel"] if job.sequence_parallel else []
    return f"`{shlex.join(words)}`{'' if local else f' on a machine with {device}'} measures them"


def _describe_defaults(job: Job) -> tuple[str, ...]:
    """What a plan takes for granted, in sentences."""
    recipe = job.recipe
    precision = recipe.dtype if recipe.dtype in ("fp32", "tf32") else f"{recipe.dtype} with fp32 master weights"
    attention = f"{job.attention} attention" if job.attention else "flash attention where the device has it, else math"
    given = job.micro_batch_per_rank
    per_rank = (
        f"{given} samples per rank of a data-parallel stage with an even share of the devices; a tensor-parallel stage"
        " takes the whole micro-batch on every rank (--micro-batch)"
    )
    if job.recompute == "auto":
        recompute = "only where needed to fit, in as few layers as need be"
    else:
        kind, layers = job.recompute
        recompute = kind if layers is None else f"{kind} of {layers} layers a stage"
    zero = "ZeRO 0 to 3 as each stage is fastest" if len(job.zero) > 1 else f"ZeRO {job.zero[0]}"
    beside = " and ".join(sorted(recipe.overlap)) or "no"
    return (
        *([per_rank] if given else []),
        f"{recipe.schedule} schedule, {recipe.optimizer} in {precision}, gradients in {recipe.grad_dtype}, {attention}",
        f"{zero} (--zero); recomputation {recompute} (--recompute); sequence parallelism beside tp where it can be",
        f"{beside} communication beside compute, as {recipe.software.name} software does",
    )


def _describe_nearest_miss(failures: list[CellFailure]) -> str:
    lacking = [cell for cell in failures if cell.failure.lacking_bytes is not None]
    nearest = min(lacking or failures, key=lambda cell: cell.failure.lacking_bytes or 0)
    reason = f"{nearest.devices} x {nearest.device}, stages {nearest.stages}: {nearest.failure.reason}"
    if nearest.failure.lacking_bytes is not None:
        return f"nothing fits; the nearest miss, {reason}; it lacks {nearest.failure.lacking_bytes / 2**30:.1f} GiB"
    return f"nothing is possible; {reason}"
