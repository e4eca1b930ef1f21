"""When each stage works on which micro-batch: a plan's estimate, event by event."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from estimator.pricing.outcome import Evaluation, StoppedTimes
from estimator.pricing.recipe import ScheduleName
from estimator.profiling.setting import Framework
from estimator.schedules.closed_form import time_schedule
from estimator.schedules.records import Kind, Task
from estimator.schedules.simulate import simulate_schedule
from models_zoo.user_code import NO_CODE, UserCode
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import read_plan
from planner.one_job.explicit.request import refuse_infeasible
from planner.shared.plan import Plan, PlanStage
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible

After = Literal["sync", "optimizer", "offload"]

ROUNDING = 1e-9
"""Of an iteration: a part that is shorter is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineStage:
    """A stage of the plan and its tasks in the order of time, which are the same on all of its ranks and name the
    stage's chunks by number. `stopped_s`: of a task of each kind and chunk, how long collectives stop it."""

    number: int
    planned: PlanStage
    tasks: tuple[Task, ...]
    stopped_s: Mapping[tuple[Kind, int], float]

    def stopped_in(self, kind: Kind, chunk: int | None, tasks: int) -> float:
        """Return for how long collectives stop so many tasks of one kind, and of one chunk (None: of any)."""
        chunks = range(len(self.planned.chunks)) if chunk is None else (chunk,)
        return tasks * math.fsum(self.stopped_s.get((kind, each), 0.0) for each in chunks) / len(chunks)

    @property
    def busy_s(self) -> float:
        """Seconds of its tasks."""
        return math.fsum(task.end_s - task.start_s for task in self.tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """An iteration of a plan. Stages work until `pipeline_s`; what follows lasts equally long on all of them: the part
    of the gradients' exchange that nothing hides, the optimizer's step, moving offloaded state.

    `iteration_time_s` and `bubble_s` (of the stage that limits) are the evaluation's, `planned_time_s` the plan's own.
    `iteration_time_s` is `end_s`, but for what the closed form of some schedules is off
    (`estimator.schedules.closed_form`).
    """

    model: str
    cluster: str
    schedule: ScheduleName
    micro_batch: int
    micro_batches: int
    stages: tuple[TimelineStage, ...]
    pipeline_s: float
    sync_s: float
    optimizer_s: float
    offload_s: float
    iteration_time_s: float
    bubble_s: float
    planned_time_s: float

    @property
    def after_s(self) -> dict[After, float]:
        """What follows the schedule, in its order, with its seconds."""
        moved: dict[After, float] = {"offload": self.offload_s} if self.offload_s else {}
        return {"sync": self.sync_s, "optimizer": self.optimizer_s, **moved}

    @property
    def end_s(self) -> float:
        """When everything is done."""
        return self.pipeline_s + sum(self.after_s.values())


def make_timeline(
    plan: Plan,
    *,
    where: str = "plan",
    store: ProfileStore | None = None,
    profiles: Framework | None = None,
    code: UserCode = NO_CODE,
) -> Timeline:
    """The timeline of `plan`, which came from `where`, with what `store` has measured (by `profiles` alone, where that
    is a framework); `code` is what of the user's own it may run. InputError where the plan cannot be read back or
    evaluated."""
    (setup,) = read_plan(plan, where=where, store=store, code=code).setups
    evaluation = evaluate_with_store(setup, store=store, profiles=profiles)
    if isinstance(evaluation, Infeasible):
        refuse_infeasible(evaluation)
    return timeline_of(plan, evaluation)


def timeline_of(plan: Plan, evaluation: Evaluation) -> Timeline:
    """The timeline behind `evaluation`, which is one of `plan`."""
    pipeline = evaluation.pipeline
    if pipeline is None:
        raise ValueError("evaluation.pipeline is None; expected the stages' times")
    chunks = sum(len(stage.chunks) for stage in plan.stages)
    LIMITS.steps.check(2 * plan.batch.micro_batches * chunks, where="timeline", key="--timeline")
    timed = (plan.schedule, pipeline.stages, pipeline.transfers, plan.batch.micro_batches)
    simulated = simulate_schedule(*timed)
    after_s = pipeline.sync_s + pipeline.optimizer_s
    rest_s = evaluation.iteration_time_s - time_schedule(*timed).total_s - after_s
    tasks: dict[int, list[Task]] = {number: [] for number in range(len(plan.stages))}
    for task in simulated.tasks:
        tasks[task.stage].append(task)
    return Timeline(
        model=plan.model.name,
        cluster=plan.cluster,
        schedule=plan.schedule,
        micro_batch=plan.batch.micro_batch,
        micro_batches=plan.batch.micro_batches,
        stages=tuple(
            TimelineStage(
                number=number, planned=stage, tasks=tuple(tasks[number]), stopped_s=_stopped_s(pipeline.stopped[number])
            )
            for number, stage in enumerate(plan.stages)
        ),
        pipeline_s=simulated.total_s,
        sync_s=pipeline.sync_s,
        optimizer_s=pipeline.optimizer_s,
        offload_s=rest_s if rest_s > ROUNDING * evaluation.iteration_time_s else 0.0,
        iteration_time_s=evaluation.iteration_time_s,
        bubble_s=evaluation.breakdown.bubble_s,
        planned_time_s=plan.estimate.iteration_time_s,
    )


def _stopped_s(stopped: StoppedTimes) -> dict[tuple[Kind, int], float]:
    """Of a backward whose weight gradients are put off, collectives belong to the part that is not."""
    by_kind: dict[Kind, tuple[float, ...]] = {"forward": stopped.forward_s, "backward": stopped.backward_s}
    return {(kind, chunk): each for kind, seconds in by_kind.items() for chunk, each in enumerate(seconds)}
