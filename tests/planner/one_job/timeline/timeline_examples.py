"""Timelines for the tests: of real plans, and of made-up stages of any number."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from estimator.pricing.recipe import ScheduleName
from estimator.schedules.records import Kind, StageTimes, Task, Transfers
from estimator.schedules.simulate import simulate_schedule
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.timeline.events import Timeline, TimelineStage
from planner.shared.plan import Plan
from tests.planner.one_job.explicit.explicit_plan_examples import request_of
from tests.planner.shared.plan_examples import example_stage

PLANS: dict[str, dict[str, Any]] = {
    "one stage": {"tp": 2},
    "gpipe": {"pp": 2, "schedule": "gpipe"},
    "1f1b": {"pp": 4, "zero": 1},
    "interleaved": {"pp": 2, "vpp": 2},
    "zb-h1": {"pp": 2, "schedule": "zb-h1", "recompute": "full"},
    "dualpipe": {"pp": 2, "schedule": "dualpipe"},
    "offloaded": {"pp": 2, "offload": ("optimizer",)},
}


@cache
def plan_named(name: str) -> Plan:
    """One of `PLANS`: gpt-tiny on eight devices."""
    return estimate_explicit(request_of(global_batch=64, micro_batch=2, **PLANS[name])).plan


TASK_S: dict[Kind, float] = {"forward": 0.01, "backward": 0.02}


@cache
def made_up(
    schedule: ScheduleName,
    *,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    overlapped: bool = True,
    stopped: float = 0.0,
) -> Timeline:
    """A backward takes twice a forward, gradients and optimizer as long as a forward; messages a tenth. `stopped`: the
    share of both that collectives stop."""
    chunks = 2 if schedule == "dualpipe" else chunks
    times = StageTimes(forward_s=(0.01,) * chunks, backward_s=(0.02,) * chunks, weight_s=(0.01,) * chunks)
    transfers = Transfers(forward_s=(0.001,) * stages, overlapped=overlapped)
    simulated = simulate_schedule(schedule, [times] * stages, transfers, micro_batches)
    tasks: list[list[Task]] = [[] for _ in range(stages)]
    for task in simulated.tasks:
        tasks[task.stage].append(task)
    return Timeline(
        model="a-model",
        cluster="h100:1x8",
        schedule=schedule,
        micro_batch=1,
        micro_batches=micro_batches,
        stages=tuple(
            TimelineStage(
                number=number,
                planned=replace(
                    example_stage(0, 1, (2 * number, 2 * number + 1), dp=1, tp=2),
                    chunks=tuple((chunk * stages + number, chunk * stages + number + 1) for chunk in range(chunks)),
                    device="h100",
                ),
                tasks=tuple(own),
                stopped_s={
                    (kind, chunk): stopped * seconds
                    for kind, seconds in TASK_S.items()
                    for chunk in range(chunks)
                    if stopped
                },
            )
            for number, own in enumerate(tasks)
        ),
        pipeline_s=simulated.total_s,
        sync_s=0.01,
        optimizer_s=0.01,
        offload_s=0.0,
        iteration_time_s=simulated.total_s + 0.02,
        bubble_s=0.1,
        planned_time_s=simulated.total_s + 0.02,
    )
