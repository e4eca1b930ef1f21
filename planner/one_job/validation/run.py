"""From a run table to the document of `cellplan validate`: read, prepare, predict each row, sum up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from planner.one_job.explicit.unsaid import Evaluate, take_first_that_fits
from planner.one_job.validation.measured import measured_of
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.report import describe_validation
from planner.one_job.validation.results import RowResult, parallel_kind, size_class
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.uncertainty import generation_of
from profiles.vocabulary import Infeasible

if TYPE_CHECKING:
    from estimator.pricing.outcome import Evaluation, RankMemory
    from estimator.pricing.recipe import Setup, StageSetup
    from models_zoo.model import Model
    from planner.one_job.validation.columns import RunRow
    from profiles.store import ProfileStore

Prepare = Callable[["RunRow"], PreparedRun | Skipped]
Progress = Callable[[int, int, float | None, str], None]

STATED = (
    *("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "experts", "topk", "gpus_per_node"),
    *("micro_batch", "zero_or_fsdp", "seq_parallel"),
    *("recompute", "flash_attn", "dtype", "optimizer_notes", "framework"),
)
STATED_DEGREES = ("tp", "pp", "vpp", "dp", "cp", "ep")
"""What rows must state alike to be one run. The network is not among it: published repeats are on several clusters."""

MEMORY_SLACK = 0.1
"""A run that ran needs no other setting for an estimate of its memory that is this share too high."""

REPORT_EVERY = 10
OWN_BUGS = (ValueError, ArithmeticError, LookupError)
"""What a row may make our code raise without ending the run: the row is then listed with it and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOfModel:
    """Parameters of a model, and FLOPs that it trains one sample with (no recomputation, attention in full).

    `fingerprint` is of its layers: publishers give one name to several models, and several names to one.
    """

    fingerprint: str
    parameters: int
    flops_per_sample: int


def validate_runs(
    path: str | Path,
    *,
    evaluate: Evaluate | None = None,
    store: ProfileStore | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Predict every row of the run table at `path` from its configuration alone; see `describe_validation`.

    `evaluate` None: `estimator.pricing.evaluate.evaluate`, with measured layer times and link tables of `store`.
    Raise InputError for a file that cannot be read.
    """
    from planner.one_job.validation.rows import read_table
    from planner.one_job.validation.setups import setup_of

    if evaluate is None:
        from planner.one_job.explicit.evaluation import evaluate_with_store

        evaluate = partial(evaluate_with_store, store=store)
    table = read_table(path)
    results = predict_rows(table.rows, prepare=setup_of, evaluate=evaluate, progress=progress)
    return describe_validation(results) | {"notes": list(table.notes)}


def predict_rows(
    rows: Iterable[RunRow], *, prepare: Prepare, evaluate: Evaluate, progress: Progress | None = None
) -> tuple[RowResult, ...]:
    """A result for each of `rows`, in their order: an estimate or the reason why there is none."""
    table = tuple(rows)
    start, results = monotonic(), []
    for done, row in enumerate(table):
        if progress is not None and done % REPORT_EVERY == 0:
            left_s = (monotonic() - start) / done * (len(table) - done) if done else None
            progress(done, len(table), left_s, row.id)
        results.append(predict_row(row, prepare=prepare, evaluate=evaluate))
    return tuple(results)


def predict_row(row: RunRow, *, prepare: Prepare, evaluate: Evaluate) -> RowResult:
    """Return the result of one row. Words in it that are unknown, and what our own code fails on, become its reason."""
    try:
        prepared = prepare(row)
        if isinstance(prepared, Skipped):
            return _skipped(row, prepared.reason)
        taken = take_first_that_fits((prepared.setup, *prepared.instead), evaluate, slack=MEMORY_SLACK)
        if isinstance(taken, Infeasible):
            return _skipped(row, taken.reason)
        assumptions = (*prepared.assumptions, *taken.sentences)
        return _predicted(row, PreparedRun(setup=taken.setup, assumptions=assumptions), taken.evaluation)
    except InputError as error:  # words of this row that nobody knows: the others can still be predicted
        return _skipped(row, f"{error.key}: found {error.found}, expected {error.expected}")
    except OWN_BUGS as error:
        return _skipped(row, f"cellplan failed on it ({type(error).__name__}: {error})")


def _skipped(row: RunRow, reason: str) -> RowResult:
    """A row without an estimate, grouped by what it says of itself."""
    experts = (row.experts or 0) > 1
    measured = measured_of(row)
    kind = parallel_kind(
        dp=row.degree("dp") or 1,
        tp=row.degree("tp") or 1,
        pp=row.degree("pp") or 1,
        cp=row.degree("cp") or 1,
        fully_sharded=_fully_sharded(row),
        experts=experts,
    )
    return RowResult(
        id=row.id,
        source=row.source,
        device=row.gpu or row.cluster or "unknown",
        generation=generation_of(row.gpu or ""),
        devices=row.gpus_total or 0,
        parallel=kind,
        model_size=size_class(row.params_b * 1e9 if row.params_b else None),
        configuration=(row.model_name, row.gpu, row.gpus_total, row.global_batch, row.seq_len),
        plan=(row.id,),
        measured_iteration_time_s=measured.iteration_time_s,
        measured_peak_memory_bytes=measured.memory_bytes,
        memory_kind=measured.memory_kind,
        measured_oom=measured.out_of_memory,
        skipped=reason,
    )


def _predicted(row: RunRow, prepared: PreparedRun, outcome: Evaluation) -> RowResult:
    setup = prepared.setup
    work = _work_of(setup.model, setup.recipe.seq_len)
    short = outcome.out_of_memory
    measured = measured_of(row, setup)
    looked_at = outcome.memory[-1:] if measured.of_last_stage else outcome.memory
    return RowResult(
        id=row.id,
        source=row.source,
        device="+".join(sorted(_devices(setup))),
        generation="+".join(sorted({generation_of(device) for device in _devices(setup)})),
        devices=setup.devices,
        parallel=_parallel_kind(setup),
        model_size=size_class(work.parameters),
        configuration=_configuration(setup, work),
        plan=_plan(setup),
        stated=(
            *(getattr(row, name) for name in STATED),
            *(row.degree(name) for name in STATED_DEGREES),
        ),
        measured_iteration_time_s=measured.iteration_time_s,
        measured_peak_memory_bytes=measured.memory_bytes,
        memory_kind=measured.memory_kind,
        measured_oom=measured.out_of_memory,
        estimated_iteration_time_s=outcome.iteration_time_s,
        interval_90_s=outcome.interval_90_s,
        estimated_peak_memory_bytes=max(rank.peak_bytes for rank in looked_at),
        estimated_held_memory_bytes=max(rank.needed_bytes for rank in looked_at),
        memory_interval_90_bytes=outcome.memory_interval_90_bytes,
        estimated_oom=short is not None,
        oom_stage=None if short is None else short.stage,
        oom_part=None if short is None else _largest_part(short),
        compute=outcome.compute_provenance,
        communication=outcome.communication_provenance,
        assumptions=prepared.assumptions,
        model_flops=float(work.flops_per_sample * setup.recipe.global_batch),
        peak_flops_per_s=_peak_flops_per_s(setup),
        bubble=_bubble(setup),
    )


def _fully_sharded(row: RunRow) -> bool:
    words = row.zero_or_fsdp.lower()
    return "fsdp" in words or words.strip() in ("3", "zero-3", "zero3")


@cache
def _work_of(model: Model, seq_len: int) -> WorkOfModel:
    from estimator.layers.flops import count_model_flops

    counted = count_model_flops(model, seq_len)
    fingerprint = sha256(repr(model.layers).encode()).hexdigest()
    return WorkOfModel(fingerprint=fingerprint, parameters=counted.parameters, flops_per_sample=counted.model)


def _devices(setup: Setup) -> Counter[str]:
    return Counter(slot.device for stage in setup.stages for slot in stage.slots)


def _peak_flops_per_s(setup: Setup) -> float | None:
    """All devices' peak together, None if one has no figure for the dtype."""
    slots = {slot.device: slot for stage in setup.stages for slot in stage.slots}
    total = 0.0
    for name, count in _devices(setup).items():
        peak = setup.cluster.group_of(slots[name]).device.peak(setup.recipe.dtype)
        if peak is None:
            return None
        total += count * peak
    return total


def _bubble(setup: Setup) -> float:
    stages = len(setup.stages)
    chunks = len(setup.stages[0].chunks) if setup.recipe.schedule == "interleaved" else 1
    return 1 + (stages - 1) / (setup.micro_batches * chunks)


def _parallel_kind(setup: Setup) -> str:
    from models_zoo.layers import Experts, TransformerBlock

    stages = setup.stages
    blocks = [layer for layer in setup.model.layers if isinstance(layer, TransformerBlock)]
    return parallel_kind(
        dp=max(stage.dp for stage in stages),
        tp=max(stage.tp for stage in stages),
        pp=len(stages),
        cp=max(stage.cp for stage in stages),
        fully_sharded=any(stage.zero == 3 for stage in stages),
        experts=any(isinstance(block.feed_forward, Experts) for block in blocks),
    )


def _configuration(setup: Setup, work: WorkOfModel) -> tuple[object, ...]:
    """What is trained on what."""
    recipe = setup.recipe
    return (
        work.fingerprint,
        *sorted(_devices(setup).items()),
        recipe.global_batch,
        recipe.seq_len,
    )


def _plan(setup: Setup) -> tuple[object, ...]:
    """Every other setting, and on how many nodes."""
    nodes = {(slot.site, slot.node) for stage in setup.stages for slot in stage.slots}
    return (len(nodes), setup.micro_batch, setup.recipe, *(_stage_plan(stage) for stage in setup.stages))


def _stage_plan(stage: StageSetup) -> tuple[object, ...]:
    return tuple(getattr(stage, name) for name in stage.__dataclass_fields__ if name != "slots")


def _largest_part(rank: RankMemory) -> str:
    parts = ("weight", "gradient", "optimizer", "activation", "temporary", "communication", "reserve")
    return max(parts, key=lambda part: getattr(rank, f"{part}_bytes"))
