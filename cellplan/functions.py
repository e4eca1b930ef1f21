"""The functions of `cellplan`: those of `planner.api`, for what a Python user has at hand, with results to look at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cellplan.asked import ClusterLike, ModelLike, cluster_text, model_text
from cellplan.result import Result
from cellplan.results import (
    CellsResult,
    ExplicitResult,
    PlacementResult,
    PlanResult,
    SimulationResult,
    ValidationResult,
)
from planner import api
from planner.shared.options.search import PlanOptions

F = TypeVar("F", bound=Callable[..., Result])


def _options_of(command: Any) -> Callable[[F], F]:
    """Show the options of `command` in a function's signature, beside its own parameters."""

    def shown(function: F) -> F:
        stated = [part for part in inspect.signature(function).parameters.values() if part.kind is not part.VAR_KEYWORD]
        names = {part.name for part in stated}
        more = [part for name, part in inspect.signature(command).parameters.items() if name not in names]
        options = [part.replace(kind=part.KEYWORD_ONLY) for part in more]
        signature = inspect.signature(function).replace(parameters=[*stated, *options])
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return shown


@_options_of(api.plan)
def plan(
    model: ModelLike, *, cluster: ClusterLike, inputs: Any = None, params: Any = None, **options: Any
) -> PlanResult:
    """Return the best plan of `model` on the free devices of `cluster`.

    `model`: a zoo name, a path to a config.json, `package.module:factory`, the keys of a config, or a live torch module
    or JAX function with example `inputs`, batch first (and the tree `params` of the function), alone or as the tuple
    that a factory would return; it is traced here and stays as it is. `cluster`: text, what a cluster file holds as a
    dict, or a record. `options` are those of `planner.api.plan`. Raise InputError, NothingFits or MachineError.
    """
    asked = PlanOptions(model_text(model, inputs, params), cluster=cluster_text(cluster), **options)
    return PlanResult(answer=api.plan(asked), options=asked)


@_options_of(api.estimate)
def estimate(
    model: ModelLike = None,
    *,
    cluster: ClusterLike | None = None,
    inputs: Any = None,
    params: Any = None,
    **options: Any,
) -> Result:
    """Return how fast `model` trains on `cluster`: its Cells (a CellsResult), or with a degree of parallelism, a
    software or a plan file that one plan (an ExplicitResult). Models, clusters and errors as of `plan`, `options` those
    of `planner.api.estimate`."""
    document = api.estimate(
        None if model is None else model_text(model, inputs, params),
        cluster=None if cluster is None else cluster_text(cluster),
        **options,
    )
    return ExplicitResult(document=document) if "plan" in document else CellsResult(document=document)


@_options_of(api.place)
def place(
    model: ModelLike, *, cluster: ClusterLike, inputs: Any = None, params: Any = None, **options: Any
) -> PlacementResult:
    """Return over which sites of `cluster` a job of `devices` devices runs, on which of them, under which plan. Models,
    clusters and errors as of `plan`, `options` those of `planner.api.place`."""
    document = api.place(model_text(model, inputs, params), cluster=cluster_text(cluster), **options)
    return PlacementResult(document=document)


@_options_of(api.simulate)
def simulate(trace: str | Path, *, cluster: ClusterLike, **options: Any) -> SimulationResult:
    """Return what becomes of the jobs of a `trace` on `cluster` under a `policy`. Clusters and errors as of `plan`,
    `options` those of `planner.api.simulate`."""
    return SimulationResult(simulated=api.simulate(Path(trace), cluster=cluster_text(cluster), **options))


@_options_of(api.validate)
def validate(path: str | Path, **options: Any) -> ValidationResult:
    """Return how far predictions are off the measured runs in the CSV table at `path`. `options` are those of
    `planner.api.validate`."""
    return ValidationResult(document=api.validate(Path(path), **options))


def load_plan(path: str | Path) -> ExplicitResult:
    """Return the plan in the file at `path`, estimated again. Raise InputError where it is none."""
    return ExplicitResult(document=api.estimate(plan=Path(path)))
