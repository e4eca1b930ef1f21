"""Which options go where: to the Cells, to an explicit plan, to a whole training; and what contradicts what."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, cast

from estimator.cells.job import CELL_SCHEDULES
from planner.one_job.explicit.estimate import Whole
from planner.one_job.explicit.reading import read_plan
from planner.one_job.explicit.request import ExplicitRequest, read_explicit
from planner.shared.options import EstimateOptions, JobOptions, PlanOptions, beyond_default, options_of, with_defaults
from planner.shared.plan_file import load_plan
from profiles.errors import InputError
from profiles.store import ProfileStore

EXPLICIT = "an explicit plan, which --tp, --pp, --dp or another degree makes it"


def options_of_cells(options: EstimateOptions) -> JobOptions:
    """The options of an estimate of Cells. InputError for what only an explicit plan can have."""
    given = with_defaults(EstimateOptions, options)
    beyond = beyond_default(PlanOptions, given)
    if beyond:
        _refuse(flag(beyond[0]), given[beyond[0]], EXPLICIT)
    if given["schedule"] not in CELL_SCHEDULES:
        _refuse("--schedule", given["schedule"], f"one of {', '.join(CELL_SCHEDULES)}, or {EXPLICIT}")
    return cast(JobOptions, {name: given[name] for name in options_of(JobOptions)})


def read_any_request(
    model: str | None,
    *,
    cluster: str | None,
    plan: Path | None,
    store: ProfileStore | None,
    options: EstimateOptions,
) -> ExplicitRequest:
    """The explicit plan of a file, or of a model, a cluster and options. InputError for both at once, or neither."""
    given = with_defaults(EstimateOptions, options)
    if plan is None:
        if model is None or cluster is None:
            _refuse("MODEL" if model is None else "--cluster", "nothing", "a model and a cluster, or --plan")
        return read_explicit(model, cluster=cluster, store=store, options=given)
    if model is not None:
        _refuse("--plan", f"a model too ({model})", "one of them: the plan file names its model")
    known = options_of(EstimateOptions)
    fixed = [
        name
        for name in beyond_default(EstimateOptions, given)
        if known[name][1].group != "training" and name != "profiles"
    ]
    if fixed:
        _refuse(flag(fixed[0]), f"{given[fixed[0]]} beside --plan", "none: the plan file fixes it")
    return read_plan(load_plan(plan), where=str(plan), store=store, cluster=cluster)


def whole_training(options: EstimateOptions) -> Whole | None:
    """The whole training that is asked for, None for none. InputError for its settings without tokens."""
    given = with_defaults(EstimateOptions, options)
    settings = {
        name: given[name] for name, (_, option) in options_of(PlanOptions).items() if option.group == "training"
    }
    for name, value in settings.items():
        if value is not None and value < 0:
            _refuse(flag(name), value, "at least 0")
    tokens = settings["train_tokens"]
    if tokens is None:
        alone = [name for name, value in settings.items() if value]
        if alone:
            _refuse(flag(alone[0]), settings[alone[0]], "--train-tokens beside it")
        return None
    if not tokens:
        _refuse("--train-tokens", tokens, "above 0")
    return Whole(**settings)


def flag(name: str) -> str:
    """An option's name on the command line."""
    return f"--{name.replace('_', '-')}"


def _refuse(key: str, found: Any, expected: str) -> NoReturn:
    raise InputError(where="estimate", key=key, found=found, expected=expected)
