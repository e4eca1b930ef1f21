"""The profiling loop: what the store has is reused, the rest measured in order until the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from estimator.profiling.frameworks import framework_of, load_profiler
from estimator.profiling.plan import ProfileTask
from estimator.profiling.setting import Setting, layer_key
from estimator.profiling.user_layers import user_layers
from models_zoo.layers import TracedLayer
from profiles.measurements import DeviceRates, Measurement, MeasurementKey
from profiles.records import dataclass
from profiles.vocabulary import DType, Infeasible

Measure = Callable[[ProfileTask, float], Measurement | Infeasible]
"""Measures a task; the float is how many seconds it should take at most (may be infinite)."""

Progress = Callable[[int, int, float, str], None]
"""Called with tasks done, tasks in all, expected seconds left (0 while nothing is known) and what comes next."""

MINIMUM_PASSES = 3
"""Forward and backward passes that any measurement takes: one to warm up, two samples."""


class Store(Protocol):
    """Where measurements are kept: what profiling needs of `profiles.store.ProfileStore`, whose methods these are."""

    def get(self, key: MeasurementKey) -> Measurement | None: ...

    def put(self, key: MeasurementKey, measurement: Measurement) -> None: ...

    def rates(self, device: str, *, hardware: str | None = None, threads: int | None = None) -> DeviceRates | None: ...

    def put_rates(self, rates: DeviceRates) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """What a profile run did. `left_to_model` holds the tasks that the budget did not allow, `infeasible` those that
    cannot be had, by plan or because the machine refused, with the reason."""

    measured: int
    reused: int
    left_to_model: tuple[ProfileTask, ...]
    infeasible: tuple[tuple[ProfileTask, Infeasible], ...]
    elapsed_s: float


def profile_layers(
    store: Store,
    tasks: Sequence[ProfileTask],
    setting: Setting,
    *,
    budget_s: float | None = None,
    progress: Progress | None = None,
) -> ProfileReport:
    """Profile `tasks` as `run_profile` does, with the framework and on the device of `setting`; the device's rates are
    measured first, within the budget.

    Raise InputError for a framework that is not installed, or a device that it does not have here.
    """
    start = time.monotonic()
    profiler = load_profiler(setting.framework)
    identity = profiler.identify_device(setting)
    profiler.start(setting)
    flops_per_s = ensure_rate(store, setting, tasks[0].shard.dtype) if tasks else None

    with user_layers() as measure_user:

        def measure(task: ProfileTask, limit_s: float) -> Measurement | Infeasible:
            repeats = replace(setting.repeats, limit_s=min(setting.repeats.limit_s, limit_s))
            limited = replace(setting, repeats=repeats)
            if isinstance(task.layer, TracedLayer):
                return measure_user((task.layer,), task.shard, limited)
            return profiler.measure_layer(task, limited)

        return run_profile(
            store,
            tasks,
            key_of=lambda task: layer_key(task.layer, task.shard, identity, optimizer=setting.optimizer),
            measure=measure,
            budget_s=None if budget_s is None else budget_s - (time.monotonic() - start),
            flops_per_s=flops_per_s,
            progress=progress,
        )


def ensure_rate(store: Store, setting: Setting, dtype: DType) -> float:
    """Return the measured FLOP/s of the device of `setting` in `dtype`; measured now, and stored, if it is not known.
    What another framework reached on it is known too."""
    profiler = load_profiler(setting.framework)
    identity = profiler.identify_device(setting)
    stored = store.rates(identity.device, hardware=identity.hardware, threads=identity.threads)
    if stored is not None and stored.software != identity.software:
        stored = stored if framework_of(stored.software) != setting.framework else None
    rates = dict(stored.flops_per_s) if stored is not None else {}
    if dtype not in rates:
        measured = profiler.measure_rates(setting, dtype)
        rates |= dict(measured.flops_per_s)
        store.put_rates(replace(stored or measured, flops_per_s=tuple(sorted(rates.items()))))
    return rates[dtype]


def run_profile(
    store: Store,
    tasks: Sequence[ProfileTask],
    *,
    key_of: Callable[[ProfileTask], MeasurementKey],
    measure: Measure,
    budget_s: float | None = None,
    flops_per_s: float | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ProfileReport:
    """Measure `tasks` in order into `store`, skipping what is there: a killed run resumes where it stopped.

    Each result is committed before the next task starts. The store is asked again right before each measurement, so
    that what another run has finished meanwhile is not measured again; should both measure the same, the later result
    stands. (Two runs on one device still disturb each other's figures.)

    A task that is expected not to fit into what is left of `budget_s` is left to the model; lighter ones behind it may
    still fit. None means no limit, 0 to measure nothing. `flops_per_s`, the device's measured rate, tells of a first
    task that is too dear; without it nothing is known before one task is done.
    """
    start = clock()
    feasible = [(task, key_of(task)) for task in tasks if task.infeasible is None]
    infeasible = _impossible_by_plan(tasks)
    pending = [(task, key) for task, key in feasible if store.get(key) is None]
    reused, measured = len(feasible) - len(pending), 0
    left_to_model: list[ProfileTask] = []
    costs: list[tuple[float, float]] = []
    predict_s = partial(_predict_task_s, costs=costs, flops_per_s=flops_per_s)

    for number, (task, key) in enumerate(pending):
        left_s = float("inf") if budget_s is None else budget_s - (clock() - start)
        if progress is not None:
            wanted_s = sum(predict_s(later) for later, _ in pending[number:])
            progress(len(feasible) - len(pending) + number, len(feasible), min(wanted_s, max(0.0, left_s)), task.label)
        if store.get(key) is not None:
            reused += 1
            continue
        if left_s <= 0 or predict_s(task) > left_s:
            left_to_model.append(task)
            continue
        begin = clock()
        result = measure(task, left_s)
        costs.append((task.work, clock() - begin))
        if isinstance(result, Infeasible):
            infeasible.append((task, result))
            continue
        store.put(key, result)
        measured += 1
    if progress is not None:
        progress(len(feasible), len(feasible), 0.0, "done")
    return ProfileReport(
        measured=measured,
        reused=reused,
        left_to_model=tuple(left_to_model),
        infeasible=tuple(infeasible),
        elapsed_s=clock() - start,
    )


def _impossible_by_plan(tasks: Sequence[ProfileTask]) -> list[tuple[ProfileTask, Infeasible]]:
    return [(task, task.infeasible) for task in tasks if task.infeasible is not None]


def _predict_task_s(task: ProfileTask, *, costs: Sequence[tuple[float, float]], flops_per_s: float | None) -> float:
    """Seconds that measuring `task` should take: by the device's rate where nothing has been measured yet."""
    if not costs and flops_per_s:
        return MINIMUM_PASSES * task.work / flops_per_s
    return predict_cost_s(task.work, costs)


def predict_cost_s(work: float, costs: Sequence[tuple[float, float]]) -> float:
    """Seconds that measuring a task of `work` should take, from (work, seconds) of tasks already done; 0 from none.

    As long as the dearest of those no heavier than the lightest one that is at least as heavy; beyond the heaviest, in
    proportion to the work.

    >>> predict_cost_s(5.0, [(10.0, 2.0), (1.0, 0.5)]), predict_cost_s(20.0, [(10.0, 2.0)])
    (2.0, 4.0)
    """
    heavier = [done for done, _ in costs if done >= work]
    if heavier:
        return max(seconds for done, seconds in costs if done <= min(heavier))
    if not costs:
        return 0.0
    heaviest, seconds = max(costs)
    return max([seconds * work / heaviest if heaviest else seconds, *(s for _, s in costs)])
