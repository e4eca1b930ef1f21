"""From the words of a request to records: the model, the job, the cluster, what is measured, and what was assumed."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from estimator.cells.cell import CellEstimate, CellFailure, CellRules
from estimator.cells.estimate import estimate_cells
from estimator.cells.job import Job, RecomputeRule, default_global_batch
from estimator.cells.stage_options import Machine
from estimator.frontends.load import load_any_model
from estimator.host_cpu import cpu_name
from estimator.layer_times import Lookup, nothing_measured
from estimator.memory import OPTIMIZERS, Schedule
from estimator.profiling.lookup import LOCAL_DEVICE, find_origins, lookup_in_store, usable_link_tables
from estimator.profiling.setting import Framework
from models_zoo.model import Model
from planner.shared.options.estimate import DegreeOptions, EstimateOptions, WholeTrainingOptions
from planner.shared.options.record import entries
from planner.shared.options.training import SoftwareOptions
from profiles.cluster import Cluster, most_on_one_node
from profiles.cluster_file import load_cluster
from profiles.efficiencies import load_operator_efficiencies
from profiles.errors import InputError, NothingFits
from profiles.measurements import DeviceRates, Origin, device_from_rates
from profiles.store import ProfileStore
from profiles.vocabulary import Device, DType

Cell = tuple[Machine, CellEstimate | CellFailure]


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


@contextmanager
def open_existing(path: Path | None) -> Iterator[ProfileStore | None]:
    """The profile store at `path`; None where there is no such file, which means that nothing is measured."""
    if path is None or not path.exists():
        yield None
        return
    with ProfileStore(path) as store:
        yield store


CELL_SCHEDULES: dict[str, Schedule] = {"1f1b": "1f1b", "gpipe": "gpipe"}
CELL_RECOMPUTE: dict[str, RecomputeRule] = {"auto": "auto", "none": "none", "full": "full"}
EXPLICIT = "an explicit plan, which --tp, --pp, --dp or another degree makes it"


def check_cells(options: EstimateOptions) -> None:
    """Raise InputError for options that only an explicit plan can have."""
    for name in (*entries(SoftwareOptions), *entries(DegreeOptions), *entries(WholeTrainingOptions)):
        if name in options.changed():
            raise options.wrong(name, found=getattr(options, name), expected=EXPLICIT)
    for name, words in (("optimizer", OPTIMIZERS), ("schedule", CELL_SCHEDULES), ("recompute", CELL_RECOMPUTE)):
        if getattr(options, name) not in words:
            expected = f"one of {', '.join(words)}, or {EXPLICIT}"
            raise options.wrong(name, found=getattr(options, name), expected=expected)


def read_request(options: EstimateOptions, *, store: ProfileStore | None) -> Request:
    """Return the records behind a request for Cells; raise InputError where a part of it is wrong."""
    check_cells(options)
    reference, cluster = options.model, options.cluster
    if reference is None or cluster is None:
        found = "no model" if reference is None else "no cluster"
        raise InputError(where="estimate", found=found, expected="a model and a cluster, or a plan file")
    model = load_any_model(reference)
    tokens = token_count(model, options.seq_len)
    place = load_place(cluster, model, store=store, dtype=options.dtype, seq_len=tokens, optimizer=options.optimizer)
    assumptions = list(place.notes)
    global_batch = options.global_batch
    if global_batch is None:
        free = Counter(slot.device for slot in place.free_slots)
        devices = options.devices or max(free.values(), default=1)
        global_batch, sentence = default_global_batch(model, tokens, devices)
        assumptions.append(sentence)
    job = Job(
        model=model,
        global_batch=global_batch,
        seq_len=tokens,
        dtype=options.dtype,
        optimizer_name=options.optimizer,
        schedule=CELL_SCHEDULES[options.schedule],
        recompute=CELL_RECOMPUTE[options.recompute],
        zero=options.zero or 0,
        attention=options.attention,
        sequence_parallel=options.sequence_parallel,
        micro_batches=options.micro_batches,
        micro_batch_per_rank=options.micro_batch,
    )
    return Request(
        reference=reference,
        job=job,
        cluster=place,
        devices=options.devices,
        stages=options.stages,
        rules=CellRules(partition=options.partition, formula=options.formula, assembly=options.assembly),
        assumptions=(*assumptions, *_describe_defaults(job)),
        profiles=options.profiles,
    )


def load_place(
    text: str, model: Model, *, store: ProfileStore | None, dtype: DType, seq_len: int, optimizer: str
) -> Cluster:
    """The cluster that `text` means; this host's own devices are described by what `store` has measured on them."""

    def local_device() -> Device | None:
        rates = _local_rates(store, model, dtype, seq_len, optimizer) if store else None
        return device_from_rates(rates) if rates else None

    return load_cluster(text, local_device=local_device)


def _local_rates(store: ProfileStore, model: Model, dtype: DType, tokens: int, optimizer: str) -> DeviceRates | None:
    """Rates of this host's CPU, with as many threads as its measured layer times have."""
    origins = find_origins(store, model.layers, device=LOCAL_DEVICE, optimizer=optimizer, dtype=dtype, seq_len=tokens)
    threads = origins[0].threads if origins else None
    found = store.rates(LOCAL_DEVICE, hardware=cpu_name(), threads=threads)
    return found or store.rates(LOCAL_DEVICE, hardware=cpu_name())


def _origins(request: Request, store: ProfileStore, device: str) -> tuple[Origin, ...]:
    job = request.job
    return find_origins(
        store,
        job.model.layers,
        device=device,
        optimizer=job.optimizer_name,
        dtype=job.dtype,
        seq_len=job.seq_len,
        framework=request.profiles,
    )


def token_count(model: Model, seq_len: int | None) -> int:
    """Tokens per sample: `seq_len`, or the model's own where it is None. InputError for tokens of a model without."""
    if seq_len is not None and not model.seq_len:
        raise InputError(
            where=f"model {model.name}", key="--seq-len", found=seq_len, expected="none: the model has no tokens"
        )
    return model.seq_len if seq_len is None else seq_len


def find_cells(request: Request, store: ProfileStore | None) -> tuple[Cell, ...]:
    """As `search_cells`, but NothingFits if none of them can be had."""
    cells = search_cells(request, store)
    if not can_be_had(cells):
        raise NothingFits(why_nothing_fits(request, cells))
    return cells


def why_nothing_fits(request: Request, cells: tuple[Cell, ...]) -> str:
    """A sentence about `cells`, none of which can be had, and the one that lacks least."""
    failures = [cell for _, cell in cells if isinstance(cell, CellFailure)]
    return f"{request.reference} on {request.cluster.text}: {_describe_nearest_miss(failures)}"


def search_cells(request: Request, store: ProfileStore | None) -> tuple[Cell, ...]:
    """All Cells that were asked for, those that cannot be had among them, with measured times from `store`."""

    def lookup_for(device: Device) -> Lookup:
        origins = _origins(request, store, device.name) if store else ()
        if store is None or not origins:
            return nothing_measured
        devices = [slot for slot in request.cluster.free_slots if slot.device == device.name]
        return lookup_in_store(
            store,
            device=device.name,
            optimizer=request.job.optimizer_name,
            origin=origins[0],
            workers=most_on_one_node(devices[: request.devices]),
        )

    return estimate_cells(
        request.job,
        request.cluster,
        rules=request.rules,
        devices=request.devices,
        stages=request.stages,
        link_tables_for=lambda device: usable_link_tables(store, device.name, request.profiles) if store else (),
        lookup_for=lookup_for,
    )


def can_be_had(cells: tuple[Cell, ...]) -> bool:
    """Whether any of `cells` can be had."""
    return any(isinstance(cell, CellEstimate) for _, cell in cells)


def best_cell(cells: tuple[Cell, ...]) -> tuple[Machine, CellEstimate]:
    """The fastest of the Cells that can be had; of equals the first."""
    possible = [(machine, cell) for machine, cell in cells if isinstance(cell, CellEstimate)]
    return min(possible, key=lambda found: found[1].iteration_time_s)


def count_assemblies(cells: tuple[Cell, ...]) -> int:
    """Assemblies compared in all Cells: the size of the space in which the best one is the best."""
    return sum(cell.assemblies for _, cell in cells if isinstance(cell, CellEstimate))


def describe_sources(
    request: Request, machine: Machine, cell: CellEstimate, store: ProfileStore | None
) -> tuple[str, ...]:
    """Where the Cell's measured layer times come from, unless from all that this host has measured; and what stands in
    for measurements that it lacks."""
    device = machine.device.name
    origins = _origins(request, store, device) if store else ()
    said = []
    if cell.compute_provenance != "modelled" and (len(origins) > 1 or device != LOCAL_DEVICE):
        others = f"; {len(origins) - 1} more in the store not used" if len(origins) > 1 else ""
        said.append(f"layer times of {device} measured on {_describe_origin(origins[0])}{others}")
    if cell.compute_provenance != "measured":
        used = [stage.option.parallelism for stage in cell.stages]
        degrees = ",".join(str(tp) for tp in sorted({way.tp for way in used}))
        samples = ",".join(str(count) for count in sorted({cell.micro_batch // way.dp for way in used}))
        which = "none" if cell.compute_provenance == "modelled" else "not all"
        efficiencies = load_operator_efficiencies(device)
        carried = f", carried over from {efficiencies.carried_over}" if efficiencies.carried_over else ""
        said.append(
            f"{which} of the shards that the best Cell needs (tp {degrees}, {samples} samples per rank) are profiled on"
            f" {device}: the operator model fills in ({efficiencies.architecture}{carried});"
            f" {_profile_command(request, device, origins)}"
        )
    if cell.communication_provenance not in ("measured", None):
        which = "no collective has" if cell.communication_provenance == "modelled" else "not all collectives have"
        tables = "tables of other sizes, ranks or operations, else " if cell.link_table_ids else ""
        said.append(f"{which} a measured link table at its size: {tables}the links' catalogue rates fill in")
    return tuple(said)


def _describe_origin(origin: Origin) -> str:
    threads = f", {origin.threads} thread{'s' if origin.threads > 1 else ''}" if origin.threads else ""
    return f"{origin.hardware} ({origin.software}{threads})"


def _profile_command(request: Request, device: str, origins: tuple[Origin, ...]) -> str:
    """How to measure what the Cells of `request` on `device` need, in words."""
    job = request.job
    local = device == LOCAL_DEVICE
    words = ["cellplan", "profile", request.reference, "--cluster", request.cluster.text]
    words += ["--device", "cpu" if local else "cuda:0", "--global-batch", str(job.global_batch), "--dtype", job.dtype]
    options: tuple[tuple[str, object, object], ...] = (
        ("--seq-len", job.seq_len, job.model.seq_len),
        ("--optimizer", job.optimizer_name, "adamw"),
        ("--attention", job.attention, None),
        ("--threads", origins[0].threads if local and origins else 1, 1),
    )
    words += [word for name, value, default in options if value != default for word in (name, str(value))]
    words += ["--sequence-parallel"] if job.sequence_parallel else []
    return f"`{shlex.join(words)}`{'' if local else f' on a machine with {device}'} measures them"


def _describe_defaults(job: Job) -> tuple[str, ...]:
    """What a plan takes for granted, in sentences."""
    precision = job.dtype if job.dtype in ("fp32", "tf32") else f"{job.dtype} with fp32 master weights"
    attention = f"{job.attention} attention" if job.attention else "flash attention where the device has it, else math"
    recompute = {"auto": "only where needed to fit", "none": "none", "full": "full"}[job.recompute]
    given = job.micro_batch_per_rank
    per_rank = (
        f"{given} samples per rank of a data-parallel stage with an even share of the devices; a tensor-parallel stage"
        " takes the whole micro-batch on every rank (--micro-batch)"
    )
    return (
        *([per_rank] if given else []),
        f"{job.schedule} schedule, {job.optimizer_name} in {precision}, ZeRO {job.zero}, {attention}",
        f"recomputation {recompute}; sequence parallelism {'on' if job.sequence_parallel else 'off'}",
    )


def _describe_nearest_miss(failures: list[CellFailure]) -> str:
    lacking = [cell for cell in failures if cell.failure.lacking_bytes is not None]
    nearest = min(lacking or failures, key=lambda cell: cell.failure.lacking_bytes or 0)
    reason = f"{nearest.devices} x {nearest.device}, stages {nearest.stages}: {nearest.failure.reason}"
    if nearest.failure.lacking_bytes is not None:
        return f"nothing fits; the nearest miss, {reason}; it lacks {nearest.failure.lacking_bytes / 2**30:.1f} GiB"
    return f"nothing is possible; {reason}"
