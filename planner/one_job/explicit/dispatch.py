"""Which plan an estimate is of: that of a file, or that of a model, a cluster and options."""

from __future__ import annotations

from planner.one_job.explicit.reading import read_plan
from planner.one_job.explicit.request import ExplicitRequest, read_explicit
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import entries
from planner.shared.options.topology import beside
from planner.shared.options.whole import WholeTrainingOptions
from planner.shared.plan_file import load_plan
from profiles.store import ProfileStore

BESIDE_A_FILE = (
    *("plan", "cluster", "topology", "profiles", "store", "output", "timeline", "network", "code", "user_code_limit"),
    *("beside_jobs", "memory_margin"),
    *entries(WholeTrainingOptions),
)
"""Options that a plan file leaves open."""


def read_any_request(options: EstimateOptions, *, store: ProfileStore | None) -> ExplicitRequest:
    """Return the explicit plan of a file, or of a model, a cluster and options. Raise InputError for both at once, or
    neither."""
    if options.plan is None:
        return read_explicit(options, store=store, as_planned=True)
    if options.model is not None:
        expected = "one of them: the plan file names its model"
        raise options.wrong("plan", found=f"a model too ({options.model})", expected=expected)
    for name in options.changed():
        if name not in BESIDE_A_FILE:
            option_said = f"{getattr(options, name)} beside --plan"
            raise options.wrong(name, found=option_said, expected="none: the plan file fixes it")
    recorded, code = load_plan(options.plan), options.user_code
    return read_plan(
        recorded,
        where=str(options.plan),
        store=store,
        cluster=options.cluster if options.topology is None else beside(recorded.cluster, options.topology),
        code=code,
        margin=options.memory_margin,
    )
