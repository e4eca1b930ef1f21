"""What `planner.api.estimate` does for one explicit plan: its estimate, as a value for JSON."""

from __future__ import annotations

from functools import partial
from typing import Any

from planner.one_job.explicit.dispatch import read_any_request
from planner.one_job.explicit.estimate import describe_estimated, estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.shared.inputs import open_existing
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan_file import save_plan
from profiles.errors import NothingFits


def estimate_plan(options: EstimateOptions) -> dict[str, Any]:
    """Return the estimate of one explicit plan; write the plan and its timeline where the options say, if it fits.
    Raise NothingFits, with the same value in it, if it does not."""
    if options.timeline is not None:
        from planner.one_job.timeline.save import timeline_form

        timeline_form(options.timeline)
    with open_existing(options.store) as opened:
        request = read_any_request(options, store=opened)
        evaluate = partial(evaluate_with_store, store=opened, profiles=options.profiles)
        estimated = estimate_explicit(request, whole=options, evaluate=evaluate)
        result = describe_estimated(estimated)
        if estimated.shortfall is not None:
            message = f"{request.reference} on {estimated.plan.cluster}: the plan does not fit; {estimated.shortfall}"
            raise NothingFits(message, result=result)
        if options.output is not None:
            save_plan(estimated.plan, options.output)
        if options.timeline is not None:
            from planner.one_job.timeline.events import make_timeline
            from planner.one_job.timeline.save import save_timeline

            drawn = make_timeline(
                estimated.plan, where="plan", store=opened, profiles=options.profiles, code=options.user_code
            )
            save_timeline(drawn, options.timeline)
    return result
