"""The estimate of what `run` trains: the plan's setup, with the layers and the order of ranks that its program has."""

from __future__ import annotations

from dataclasses import replace

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.profiling.setting import Framework
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import read_plan
from planner.one_job.running.program import Program
from planner.shared.plan import Plan
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible


def estimate_as_run(
    plan: Plan, program: Program, store: ProfileStore, *, where: str, framework: Framework, cluster: str | None = None
) -> tuple[Setup, Evaluation | Infeasible]:
    """Return the setup of `plan`, which came from `where`, as `program` runs it, and its estimate by what `store` has
    measured with `framework`; on `cluster` (None: on its own). Raise InputError as `read_plan` does."""
    request = read_plan(_tp_fastest(plan, program), where=where, store=store, cluster=cluster)
    setup = replace(request.setups[0], model=program.model)
    return setup, evaluate_with_store(setup, store=store, profiles=framework)


def _tp_fastest(plan: Plan, program: Program) -> Plan:
    """The same plan with its ranks counted as estimates count them, and as `program` has them."""
    stages = tuple(
        replace(stage, ranks=programmed.ranks) for stage, programmed in zip(plan.stages, program.stages, strict=True)
    )
    return replace(plan, stages=stages, rank_axis_order=("tp", "cp", "dp", "pp"))
