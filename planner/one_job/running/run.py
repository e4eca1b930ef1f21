"""What `planner.api.run` does: a plan file is trained as it stands, and its estimate set beside it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from estimator.host.capacity import WORKER_BYTES, process_limit, thread_limit
from estimator.host.memory import free_host_memory_bytes
from estimator.pricing.outcome import Evaluation
from models_zoo.layers import without_jax
from planner.one_job.running.changed_inputs import Profiled, changed_inputs
from planner.one_job.running.comparison import describe_estimated, describe_measured, differences, say_differences
from planner.one_job.running.data import load_tokens
from planner.one_job.running.estimating import estimate_as_run
from planner.one_job.running.program import Program, program_of
from planner.one_job.running.record import Orders, RunRecord
from planner.one_job.running.traces import save_traces
from planner.shared.options.record import Progress
from planner.shared.options.running import RunOptions
from planner.shared.plan import Plan
from planner.shared.plan_checks import check_places, load_plan_model
from planner.shared.plan_file import load_plan, plan_to_json
from profiles.errors import InputError, NothingFits
from profiles.files import check_folder, resolved
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible

if TYPE_CHECKING:
    from estimator.profiling.setting import DeviceIdentity, Framework


ALLOCATED, RESIDENT = "allocator's peak", "growth of the worker's resident memory from before it built its layers"
"""What the peaks of memory of a run are."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A run moment by moment: what ran, what was noted of it, and what had been estimated (None: nothing was)."""

    program: Program
    record: RunRecord
    evaluation: Evaluation | None


def run_plan(
    options: RunOptions, *, show: Callable[[dict[str, Any], Traced], None] | None = None
) -> dict[str, Any] | None:
    """Train, compare and write what was asked for; return None on the ranks of a world that do not speak for it.
    `show` is called with the answer and what it was made from."""
    plan, path, world = load_plan(options.file), options.file, options.world
    model = load_plan_model(plan, where=str(path))
    check_places(plan, where=str(path))
    program = program_of(plan, model, where=str(path))
    _check(program, options)
    on_gpu = _uses_gpus(program, options)
    if not on_gpu:
        _check_capacity(program, options)
    orders = _orders(plan, options, on_gpu=on_gpu)
    report = _reporter(options.progress)
    with ExitStack() as stack:
        opened = _open(stack, options.store, writes=options.learn or options.profile)
        speaks = world is None or world.rank == 0
        estimate, profiled = _Estimate(None, "not asked for on this rank"), None
        if speaks:
            if options.trace is not None:
                check_folder(options.trace, where="run", key="--trace")
            profiled = _profile(opened, program, options, on_gpu=on_gpu) if options.profile else None
            estimate = _estimate(plan, program, opened, options, on_gpu=on_gpu)
            if world is None and not on_gpu:
                _check_memory(program, estimate.evaluation)
        record = _train(program, orders, options, report)
        if record is None:
            return None
        result = _describe(plan, program, record, estimate, opened, options, on_gpu=on_gpu)
        if profiled is not None:
            result["profiled"] = asdict(profiled) | {"sentence": profiled.sentence}
        if show is not None:
            show(result, Traced(program=program, record=record, evaluation=estimate.evaluation))
        return result


def _check(program: Program, options: RunOptions) -> None:
    if find_spec(options.backend) is None:
        raise InputError(
            where="run",
            key="--backend",
            found=f"{options.backend}, which is not installed",
            expected=f"an installed framework: `pip install {options.backend}`",
        )
    lacking = without_jax(program.model.layers) if options.backend == "jax" else None
    if lacking:
        expected = "torch, which runs every layer of the zoo"
        raise InputError(where="run", key="--backend", found=f"jax, for a model with {lacking}", expected=expected)
    if options.data is not None:
        load_tokens(
            options.data,
            program.model,
            seq_len=program.seq_len,
            raw_dtype=options.data_dtype,
            samples=(options.warm_up + options.steps) * program.global_batch,
        )


def _check_capacity(program: Program, options: RunOptions) -> None:
    """InputError for more threads or ranks than this machine runs at once."""
    thread_limit().check(options.threads, where="run", key="--threads")
    if options.world is None:
        process_limit(threads=options.threads).check(program.ranks, where=str(options.file), key="ranks")


def _orders(plan: Plan, options: RunOptions, *, on_gpu: bool) -> Orders:
    return Orders(
        plan=plan_to_json(plan),
        steps=options.steps,
        warm_ups=options.warm_up,
        seed=options.seed,
        learning_rate=options.learning_rate,
        backend="nccl" if on_gpu else "gloo",
        timeout_s=options.timeout,
        threads=options.threads,
        data=None if options.data is None else str(resolved(options.data)),
        data_dtype=options.data_dtype,
    )


def _uses_gpus(program: Program, options: RunOptions) -> bool:
    """Whether ranks run on GPUs: where they are asked for, or there are enough. InputError for too few."""
    if options.device == "cpu":
        return False
    needed = program.ranks if options.world is None else options.world.ranks_per_node
    gpus = _count_gpus(options.backend)
    if options.device == "cuda" and gpus < needed:
        expected = f"at least {needed}, one for each rank on this machine"
        raise InputError(where="run", key="--device", found=f"cuda with {gpus} GPUs", expected=expected)
    return gpus >= needed > 0


def _count_gpus(backend: Framework) -> int:
    if backend == "torch":
        import torch

        return int(torch.cuda.device_count())
    # JAX takes a GPU's memory where it looks for one, so that only its child process may.
    return sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))


def _open(stack: ExitStack, path: Path | None, *, writes: bool) -> ProfileStore:
    """The store, or an empty one that is forgotten where there is none and nothing is to be kept."""
    if path is not None and (writes or path.exists()):
        return stack.enter_context(ProfileStore(path))
    folder = stack.enter_context(TemporaryDirectory(prefix="cellplan-"))
    return stack.enter_context(ProfileStore(Path(folder) / "profiles.sqlite"))


@dataclass(frozen=True, slots=True)
class _Estimate:
    """The estimate or why there is none, and in which inputs it differs from the plan file's."""

    evaluation: Evaluation | None
    reason: str | None
    changed: tuple[str, ...] = ()


def _estimate(plan: Plan, program: Program, store: ProfileStore, options: RunOptions, *, on_gpu: bool) -> _Estimate:
    """The estimate of what runs here: on the plan's own cluster if that is this kind of machine, else on as many
    workers of this host."""
    from estimator.profiling.run import ensure_rate
    from estimator.profiling.setting import Setting

    local = all(device.device == "cpu" for device in plan.devices)
    cluster = None
    if not on_gpu:
        ensure_rate(store, Setting(threads=options.threads), program.dtype)
        cluster = None if local else f"local:1x{program.ranks}"
    setup, evaluation = estimate_as_run(
        plan, program, store, where=str(options.file), framework=options.backend, cluster=cluster
    )
    if isinstance(evaluation, Infeasible):
        return _Estimate(None, evaluation.reason)
    return _Estimate(evaluation, None, tuple(changed_inputs(plan, evaluation, setup.cluster.notes)) if local else ())


def _check_memory(program: Program, evaluation: Evaluation | None) -> None:
    """NothingFits before a host runs out of memory, where Linux would kill something."""
    if evaluation is None:
        return
    held = sum(
        len(stage.ranks) * rank.peak_bytes for stage, rank in zip(program.stages, evaluation.memory, strict=True)
    )
    needed, free = held + program.ranks * WORKER_BYTES, free_host_memory_bytes()
    if needed > free:
        raise NothingFits(
            f"run: {program.ranks} workers need about {needed / 2**30:.1f} GiB of this host's memory,"
            f" {free / 2**30:.1f} GiB are free; it lacks {(needed - free) / 2**30:.1f} GiB"
        )


def _profile(store: ProfileStore, program: Program, options: RunOptions, *, on_gpu: bool) -> Profiled:
    """Measure on one device what the plan's stages need and the store lacks, and how much busy workers slow down."""
    from estimator.profiling.contention import ensure_contention, stored_contention
    from estimator.profiling.plan import ProfileTask
    from estimator.profiling.run import profile_layers
    from estimator.profiling.setting import Setting

    setting = Setting(
        framework=options.backend,
        device="cuda:0" if on_gpu else "cpu",
        threads=options.threads,
        optimizer=program.optimizer,
    )
    shards = {
        (program.model.layers[index], program.shard(stage, replica)): program.model.layer_names[index]
        for stage in program.stages
        for replica in range(stage.degrees.dp)
        for index in stage.layer_indices()
    }
    tasks = [
        ProfileTask(layer=layer, shard=shard, name=name, multiplicity=1) for (layer, shard), name in shards.items()
    ]
    report = profile_layers(store, tasks, setting, progress=options.progress)
    slowdown = None
    if not on_gpu and program.ranks > 1 and program.ranks not in stored_contention(store, setting):
        slowdown = ensure_contention(store, setting, program.ranks, program.dtype)
    return Profiled(layers=report.measured, workers=program.ranks, slowdown=slowdown)


def _train(
    program: Program,
    orders: Orders,
    options: RunOptions,
    report: Callable[[int, int, str], None] | None,
) -> RunRecord | None:
    from planner.one_job.running.launch import run_here, run_in_world

    if options.world is not None:
        return run_in_world(program, orders, options.world, framework=options.backend, progress=report)
    return run_here(program, orders, pins=options.pin, framework=options.backend, progress=report)


def _reporter(progress: Progress | None) -> Callable[[int, int, str], None] | None:
    if progress is None:
        return None
    return lambda done, total, what: progress(done, total, None, what)


def _describe(
    plan: Plan,
    program: Program,
    record: RunRecord,
    estimate: _Estimate,
    store: ProfileStore,
    options: RunOptions,
    *,
    on_gpu: bool,
) -> dict[str, Any]:
    evaluation = estimate.evaluation
    result: dict[str, Any] = {
        "plan": {
            "model": plan.model.name,
            "cluster": plan.cluster,
            "ranks": program.ranks,
            "estimated_iteration_time_s": plan.estimate.iteration_time_s,
            "changed_inputs": list(estimate.changed),
        },
        "backend": options.backend,
        "device": "cuda" if on_gpu else "cpu",
        "measured": describe_measured(record, program) | {"peak_memory_is": ALLOCATED if on_gpu else RESIDENT},
        "estimated": None if evaluation is None else describe_estimated(evaluation, program),
        "estimated_reason": estimate.reason,
        "losses": [loss if math.isfinite(loss) else None for loss in record.losses],
        "differences": [],
        "notes": _notes(plan, program, on_gpu=on_gpu),
    }
    if evaluation is not None:
        rows = differences(record, program, evaluation)
        result["differences"] = rows
        result["ratio"] = evaluation.iteration_time_s / record.iteration_time_s
        result["where_they_part"] = say_differences(rows, record.iteration_time_s)
    if options.trace is not None:
        result["traces"] = [str(file) for file in save_traces(options.trace, program, record, evaluation)]
    if options.learn:
        result["learned"] = _learn(store, program, record, options, on_gpu=on_gpu)
    return result


def _notes(plan: Plan, program: Program, *, on_gpu: bool) -> list[str]:
    notes = ["without dropout, whose masks differ from plan to plan"]
    types = sorted({device.device for device in plan.devices})
    if not on_gpu and types != ["cpu"]:
        notes.append(f"run on this host's CPU in place of {' and '.join(types)}, and estimated for it")
    cores = os.cpu_count() or 1
    if not on_gpu and program.ranks > cores:
        notes.append(f"{program.ranks} workers share {cores} cores: the estimate takes each to have its own")
    return notes


def _learn(
    store: ProfileStore, program: Program, record: RunRecord, options: RunOptions, *, on_gpu: bool
) -> dict[str, Any]:
    from estimator.host.cpu import cpu_name
    from planner.one_job.running.learning import learn

    learned = learn(
        store,
        program,
        record,
        identity=_identity(options, on_gpu=on_gpu),
        workers=1 if on_gpu else program.ranks,
        link="nvlink" if on_gpu else "loopback",
        backend="nccl" if on_gpu else "xla" if options.backend == "jax" else "gloo",
        hardware=cpu_name(),
    )
    return asdict(learned)


def _identity(options: RunOptions, *, on_gpu: bool) -> DeviceIdentity:
    from estimator.profiling.frameworks import load_profiler
    from estimator.profiling.setting import Setting

    setting = Setting(framework=options.backend, device="cuda:0" if on_gpu else "cpu", threads=options.threads)
    return load_profiler(options.backend).identify_device(setting)
