"""The answer of `plan`: the best plan, what vouches for it, why it is the best, and what another one does otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.one_job.explicit.effects import Effect
from planner.one_job.planning.searching import plan_model
from planner.one_job.search.certificate import Certificate, certify
from planner.shared.inputs import open_existing
from planner.shared.options.search import PlanOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan, plan_to_json, save_plan
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.one_job.planning.plan_comparison import PlanComparison
    from planner.one_job.search.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class PlanAnswer:
    """`certificate` None: nothing vouches for the plan, as for a Cell's. The others are None where they are not asked
    for; `effects` are the assumptions that move the plan's figures most."""

    plan: Plan
    certificate: Certificate | None
    explanation: Explanation | None = None
    comparison: PlanComparison | None = None
    effects: tuple[Effect, ...] = ()

    def to_json(self) -> str:
        """Return it as text: the plan as in its file, or an object with the plan and what was asked besides."""
        if self.explanation is None and self.comparison is None:
            return plan_to_json(self.plan)
        value = {"plan": json.loads(plan_to_json(self.plan))}
        if self.explanation is not None:
            from planner.one_job.search.explain import describe_explanation

            value["explanation"] = describe_explanation(self.explanation)
        if self.comparison is not None:
            from planner.one_job.planning.plan_comparison import describe_plan_comparison

            value["comparison"] = describe_plan_comparison(self.comparison)
        return json.dumps(value, indent=2, allow_nan=False) + "\n"


def answer_plan(options: PlanOptions) -> PlanAnswer:
    """Search, and say and write what the options ask for. Raise InputError for wrong input, which is said before the
    search, and NothingFits where there is no plan."""
    if options.timeline is not None:
        from planner.one_job.timeline.save import timeline_form

        timeline_form(options.timeline)
    if options.compare is not None:
        load_plan(options.compare)
    answer = _search(options)
    if options.output is not None:
        save_plan(answer.plan, options.output)
    comparison = None
    if options.compare is not None:
        from planner.one_job.planning.plan_comparison import compare_with_file

        comparison = compare_with_file(
            answer.plan, options.compare, store=options.store, profiles=options.profiles, code=options.user_code
        )
    if options.timeline is not None:
        from planner.one_job.timeline.events import make_timeline
        from planner.one_job.timeline.save import save_timeline

        with open_existing(options.store) as opened:
            drawn = make_timeline(
                answer.plan, where="plan", store=opened, profiles=options.profiles, code=options.user_code
            )
        save_timeline(drawn, options.timeline)
    return replace(answer, comparison=comparison)


def _search(options: PlanOptions) -> PlanAnswer:
    if options.explain:
        from planner.one_job.planning.explaining import explain_model

        explanation = explain_model(options)
        return PlanAnswer(plan=explanation.plan, certificate=explanation.certificate, explanation=explanation)
    planned = plan_model(options)
    certificate = None if planned.best is None else certify(planned.best)
    return PlanAnswer(plan=planned.plan, certificate=certificate, effects=planned.effects)
