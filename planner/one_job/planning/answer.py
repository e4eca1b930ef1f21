"""The answer of `plan`: the best plan, what vouches for it, why it is the best, and what another one does otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from estimator.pricing.training import Training
from planner.one_job.explicit.effects import Effect
from planner.one_job.explicit.whole import describe_training, read_whole
from planner.one_job.planning.searching import kind_of_search, plan_model
from planner.one_job.planning.whole_training import train_plan
from planner.one_job.search.certificate import Certificate, certify
from planner.shared.inputs import load_any_place, open_existing
from planner.shared.options.search import PlanOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan, plan_to_json, plan_to_values, save_plan
from profiles.errors import NothingFits
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.one_job.planning.plan_comparison import PlanComparison
    from planner.one_job.planning.why import Asked, WhyNot
    from planner.one_job.search.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class PlanAnswer:
    """`certificate` None: nothing vouches for the plan, as for a Cell's. The others are None where they are not asked
    for; `effects` are the assumptions that move the plan's figures most, `details` what a page says
    besides (`plan_details`)."""

    plan: Plan
    certificate: Certificate | None
    explanation: Explanation | None = None
    comparison: PlanComparison | None = None
    effects: tuple[Effect, ...] = ()
    why: tuple[WhyNot, ...] = ()
    training: Training | None = None
    details: Mapping[str, Any] | None = None

    @property
    def described_training(self) -> dict[str, Any] | None:
        """The whole training as a value that `json.dumps` takes."""
        return None if self.training is None else describe_training(self.training)

    def to_json(self) -> str:
        """Return it as text: the plan as in its file, or an object with the plan and what was asked besides."""
        besides = (self.explanation, self.comparison, self.why or None, self.training, self.details)
        if all(each is None for each in besides):
            return plan_to_json(self.plan)
        value: dict[str, Any] = {"plan": plan_to_values(self.plan)}
        if self.explanation is not None:
            from planner.one_job.search.explain import describe_explanation

            value["explanation"] = describe_explanation(self.explanation)
        if self.comparison is not None:
            from planner.one_job.planning.plan_comparison import describe_plan_comparison

            value["comparison"] = describe_plan_comparison(self.comparison)
        if self.why:
            from planner.one_job.planning.why import describe_why_not

            value["why"] = [describe_why_not(answer) for answer in self.why]
        if self.training is not None:
            value["training"] = self.described_training
        if self.details is not None:
            value |= self.details
        return json.dumps(value, indent=2, allow_nan=False) + "\n"


def answer_plan(options: PlanOptions) -> PlanAnswer:
    """Search, and say and write what the options ask for. Raise InputError for wrong input, which is said before the
    search, and NothingFits where there is no plan."""
    if options.timeline is not None:
        from planner.one_job.timeline.save import timeline_form

        timeline_form(options.timeline)
    if options.compare is not None:
        load_plan(options.compare)
    whole = read_whole(options)
    answer = _search(options)
    training = None if whole is None else train_plan(whole, answer.plan, load_any_place(options.cluster))
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
    return replace(answer, comparison=comparison, training=training)


def _search(options: PlanOptions) -> PlanAnswer:
    asked = _asked(options)
    explanation = None
    if options.explains:
        from planner.one_job.planning.explaining import explain_model

        explanation = explain_model(options)
        if not asked:
            return PlanAnswer(
                plan=explanation.plan,
                certificate=explanation.certificate,
                explanation=explanation,
                effects=explanation.effects,
            )
    try:
        planned = plan_model(options)
    except NothingFits as failure:
        raise NothingFits(f"{failure}{_what_to_try(str(failure), options)}", result=failure.result) from None
    why: tuple[WhyNot, ...] = ()
    if asked and planned.best is not None and planned.request is not None:
        from planner.one_job.planning.why import explain_why_not

        why = explain_why_not(planned.best, planned.request, asked, progress=options.say)
    certificate = None if planned.best is None else certify(planned.best)
    return PlanAnswer(
        plan=planned.plan, certificate=certificate, explanation=explanation, effects=planned.effects, why=why
    )


def _what_to_try(reason: str, options: PlanOptions) -> str:
    """What may help where memory lacks."""
    if "GiB a device" not in reason:
        return ""
    narrower = f", --qlora {options.lora} holds frozen weights in 4 bits" if options.lora else ""
    return f" (--largest seq-len, micro-batch or model tells what fits{narrower})"


def _asked(options: PlanOptions) -> tuple[Asked, ...]:
    """What `--why` asks for, read before any search. Raise InputError where no search can tell."""
    if not options.why:
        return ()
    from planner.one_job.planning.why import read_asked

    asked = tuple(map(read_asked, options.why))
    kind = kind_of_search(options)
    if kind != "exact":
        expected = "the exact search: no option of Cells, no traced module"
        raise options.wrong("why", found=f"--search {kind}", expected=expected)
    if options.profile_budget is not None:
        raise options.wrong("why", found="--profile-budget too", expected="one of them")
    return asked
