"""What a page says of a plan besides its file: what it puts on links, and what its estimate guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator.profiling.setting import Framework
from models_zoo.user_code import UserCode
from planner.one_job.explicit.estimate import describe_guesses
from planner.one_job.explicit.evaluation import evaluate_with_store, pricing_with_store
from planner.one_job.explicit.link_loads import describe_link_loads
from planner.one_job.explicit.reading import read_plan
from planner.shared.inputs import open_existing
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_of_values
from profiles.errors import InputError
from profiles.vocabulary import Infeasible


def plan_details(
    plan: Plan | dict[str, Any], *, store: Path | None, profiles: Framework | None, code: UserCode
) -> dict[str, Any]:
    """Return `link_loads` (`describe_link_loads`) and `guesses` (`describe_guesses`) of a plan, or of its file's
    values, with what the file `store` has measured, if there is one; both None where it cannot be read back."""
    planned = plan if isinstance(plan, Plan) else plan_of_values(plan)
    nothing: dict[str, Any] = {"link_loads": None, "guesses": None}
    with open_existing(store) as opened:
        try:
            (setup,) = read_plan(planned, where="plan", store=opened, code=code).setups
        except InputError:
            return nothing
        evaluation = evaluate_with_store(setup, store=opened, profiles=profiles)
        if isinstance(evaluation, Infeasible):
            return nothing
        pricing = pricing_with_store(setup, store=opened, profiles=profiles)
        loads = describe_link_loads(setup, pricing, iteration_time_s=planned.estimate.iteration_time_s)
    return {"link_loads": loads, "guesses": describe_guesses(planned, evaluation)}
