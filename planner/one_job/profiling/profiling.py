"""What `planner.api.profile` does: which of a model's layer shards are measured, on a device of this machine."""

from __future__ import annotations

from typing import Any, cast

from estimator.frontends.load import load_any_model
from estimator.host.capacity import thread_limit
from estimator.pricing.recipe import OptimizerName
from estimator.profiling.cells import plan_cell_profile
from estimator.profiling.contention import ensure_contention
from estimator.profiling.frameworks import choose_framework, load_profiler
from estimator.profiling.lookup import LOCAL_DEVICE
from estimator.profiling.plan import ProfileTask, plan_profile
from estimator.profiling.run import ensure_rate
from estimator.profiling.setting import Setting
from models_zoo.model import Model, without_dropout
from planner.one_job.cells.request import read_request
from planner.one_job.profiling.profile_run import BUDGET_SPENT, StageRequest, cut_out, run_profile
from planner.shared.inputs import load_any_place, token_count
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.measuring import ProfileOptions
from profiles.cluster import most_on_one_node
from profiles.errors import NothingFits
from profiles.hardware import device_names, load_device
from profiles.store import ProfileStore
from profiles.vocabulary import AttentionKernel


def profile_model(options: ProfileOptions) -> dict[str, Any]:
    """Measure into the store what is asked for of the model and not there, the shards of its Cells on a cluster or
    those that `options` name, and return what is known of them then."""
    model = load_any_model(options.model, options.user_code)
    setting = _setting(options, model)
    thread_limit().check(options.threads, where="profile", key="--threads")
    if options.cluster is not None:
        load_any_place(options.cluster)  # A cluster that is none is said before anything is measured.
    with ProfileStore(options.store) as opened:
        if options.cluster is not None:
            return _profile_cells(options, options.cluster, setting, opened)
        return _profile_shards(options, model, setting, opened)


def _setting(options: ProfileOptions, model: Model) -> Setting:
    """InputError for what the framework cannot measure."""
    framework = choose_framework(model, options.framework)
    if framework == "jax" and options.stage is not None:
        raise options.wrong("stage", found="JAX", expected="torch, for a stage as one piece")
    setting = Setting(framework=framework, device=options.device, threads=options.threads, optimizer=options.optimizer)
    load_profiler(framework)  # A framework that is lacking is said before a store is made.
    return setting


def _profile_cells(options: ProfileOptions, cluster: str, setting: Setting, store: ProfileStore) -> dict[str, Any]:
    ensure_rate(store, setting, options.dtype)  # The cluster local:NxM is described by them.
    asked = EstimateOptions(
        options.model,
        cluster=cluster,
        global_batch=options.global_batch,
        seq_len=options.seq_len,
        dtype=options.dtype,
        optimizer=cast(OptimizerName, options.optimizer),
        attention=options.attention,
        sequence_parallel=options.sequence_parallel,
        user_code_limit=options.user_code_limit,
    )
    request = read_request(asked, store=store)
    device = _device_name(setting)
    tasks = plan_cell_profile(request.job, request.cluster, device)
    workers = most_on_one_node([slot for slot in request.cluster.slots if slot.device == device])
    ensure_contention(store, setting, workers, options.dtype)
    return run_profile(store, tasks, setting, stage=None, budget_s=options.budget, progress=options.progress)


def _profile_shards(options: ProfileOptions, model: Model, setting: Setting, store: ProfileStore) -> dict[str, Any]:
    # As `run` trains it on this host's CPU, and as estimates of its workers ask for it (`planner.shared.inputs`).
    trained = without_dropout(model) if _device_name(setting) == LOCAL_DEVICE else model
    part = trained if options.stage is None else cut_out(trained, options.stage)
    tasks = plan_profile(
        part,
        degrees=options.tp,
        micro_batches_per_rank=options.micro_batch,
        seq_len=token_count(model, options.seq_len),
        dtype=options.dtype,
        attention=options.attention or _best_attention(_device_name(setting)),
        sequence_parallel=options.sequence_parallel,
        recompute=options.recompute,
    )
    _refuse_degrees(tasks, options)
    piece = None if options.stage is None else StageRequest(layers=part.layers, compiled=options.compile)
    result = run_profile(store, tasks, setting, stage=piece, budget_s=options.budget, progress=options.progress)
    refuse_nothing(result)
    return result


def refuse_nothing(result: dict[str, Any]) -> None:
    """Raise NothingFits where no layer could be measured for what it asks of the device."""
    reasons = [layer["reason"] for layer in result["layers"] if not layer["measured"]]
    spent = any(BUDGET_SPENT in reason for reason in reasons)
    if reasons and len(reasons) == len(result["layers"]) and not spent:
        raise NothingFits(f"profile: no layer can be measured; the first: {reasons[0]}", result=result)


def _refuse_degrees(tasks: tuple[ProfileTask, ...], options: ProfileOptions) -> None:
    """Raise InputError for a degree that most of the layers cannot have: there is no stage to measure them for."""
    for degree in options.tp:
        of_degree = [task for task in tasks if task.shard.tp == degree]
        reasons = [task.infeasible.reason for task in of_degree for _ in range(task.multiplicity) if task.infeasible]
        if 2 * len(reasons) > sum(task.multiplicity for task in of_degree):
            raise options.wrong("tp", found=degree, expected=f"degrees that the layers can have ({reasons[0]})")


def _device_name(setting: Setting) -> str:
    return load_profiler(setting.framework).identify_device(setting).device


def _best_attention(device: str) -> AttentionKernel:
    """What estimates take for granted on `device`: flash where it has it. A device outside the catalogue does."""
    return "math" if device in device_names() and not load_device(device).flash_attention else "flash"
