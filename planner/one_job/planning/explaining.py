"""Why a plan is the best: all the searches behind an explanation, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from estimator.profiling.lookup import LOCAL_DEVICE
from planner.one_job.planning.preferring import find_preferred
from planner.one_job.planning.searching import kind_of_search, read_best
from planner.one_job.search.best import Best, describe_found, find_best
from planner.one_job.search.explain import explain
from planner.one_job.search.explanation import Explanation
from planner.one_job.search.sensitivity import compare_best, sensitivities, variants
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.varied import (
    Variant,
    lifted,
    neighbours,
    other_devices,
    search_again,
    search_narrower,
    with_node,
)
from planner.shared.inputs import open_existing
from planner.shared.options.record import Progress
from planner.shared.options.search import PlanOptions
from profiles.errors import NothingFits
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Relief:
    """A plan that there is where one thing is other."""

    name: str
    plan: str
    iteration_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Why there is no plan, what would make one possible, and which plan lacks least (None where none was priced)."""

    reason: str
    reliefs: tuple[Relief, ...]
    nearest: Mapping[str, Any] | None = None


def explain_model(options: PlanOptions) -> Explanation:
    """Return the best plan with its explanation; raise NothingFits, with what the command prints, where there is no
    plan."""
    kind = kind_of_search(options)
    if kind != "exact":
        expected = "the exact search: no option of Cells, no traced module"
        raise options.wrong("explain", found=f"--search {kind}", expected=expected)
    if options.profile_budget is not None:
        raise options.wrong("explain", found="--profile-budget too", expected="one of them")
    with open_existing(options.store) as opened:
        request = read_best(options, store=opened)
        try:
            prefer_safe = options.memory_margin is None
            return explain_request(request, prefer_safe=prefer_safe, progress=options.progress)
        except NothingFits as failure:
            lack = failure.result
            told = describe_lack(lack) if isinstance(lack, Lack) else None
            nearest = lack.nearest if isinstance(lack, Lack) else None
            result = {"plan": None, "nearest": nearest, "explanation": told}
            raise NothingFits(str(failure), result=result) from None


def explain_request(
    request: SearchRequest, *, prefer_safe: bool = False, progress: Progress | None = None
) -> Explanation:
    """Return the best plan of a request (`prefer_safe`: of equally fast ones a safe one) with its explanation: its
    neighbours, what changes would bring, what the user's constraints cost."""
    steps = _Steps(progress)
    steps.begin("the best plan")
    try:
        best = (find_preferred if prefer_safe else find_best)(request, progress=steps.say)
    except NothingFits as failure:
        nearest = failure.result.get("nearest") if isinstance(failure.result, dict) else None
        lack = replace(_explain_nothing(request, str(failure), steps), nearest=nearest)
        raise NothingFits(str(failure), result=lack) from None
    limits = lifted(request)
    around = neighbours(request, best.winner.found)
    elsewhere = other_devices(request, best.winner.space.device)
    steps.total = 2 + len(limits) + len(around) + len(elsewhere) + len(list(variants(request, best)))
    for variant in around:
        steps.begin(variant.name)
    beside = search_narrower(request, around, best, steps.say)
    others = [(variant.name, other) for variant, other in zip(around, beside, strict=True) if other is not None]
    others += _search_all(elsewhere, best, steps)
    changed = sensitivities(request, best, step=steps.begin, progress=steps.say)
    freed = [compare_best(name, "constraint", best, again) for name, again in _search_all(limits, best, steps)]
    return explain(best, request, others=others, sensitivities=changed, constraints=freed)


class _Steps:
    """Tells which of the searches is under way, and how far it is."""

    def __init__(self, report: Progress | None) -> None:
        self.report, self.done, self.total, self.name = report, -1, 1, ""

    def begin(self, name: str) -> None:
        """The next search."""
        self.done, self.name = self.done + 1, name
        self.say("")

    def say(self, _: str) -> None:
        """The search under way got on: what it says itself would be too long beside a bar."""
        if self.report is not None:
            self.report(self.done, max(self.total, self.done + 1), None, self.name)


def _search_all(changed: tuple[Variant, ...], best: Best | None, steps: _Steps) -> list[tuple[str, Best]]:
    """The best plans of those requests that have one."""
    found = []
    for variant in changed:
        steps.begin(variant.name)
        again = search_again(variant.request, best, steps.say)
        if again is not None:
            found.append((variant.name, again))
    return found


def _explain_nothing(request: SearchRequest, reason: str, steps: _Steps) -> Lack:
    """What would make a plan possible: one of the constraints less, or a node more."""
    changed = tuple(
        Variant(name=f"without {variant.name}", request=variant.request) for variant in lifted(request)
    ) + tuple(
        Variant(name=f"one node of {own.device} more", request=with_node(request, own))
        for own in request.spaces
        if own.device != LOCAL_DEVICE
    )
    steps.total = 1 + len(changed)
    return Lack(
        reason=reason,
        reliefs=tuple(
            Relief(
                name=name,
                plan=describe_found(again.winner.found),
                iteration_time_s=again.winner.evaluation.iteration_time_s,
            )
            for name, again in _search_all(changed, None, steps)
        ),
    )


def describe_lack(found: Lack) -> dict[str, Any]:
    """As a value that `json.dumps` takes."""
    return {"reason": found.reason, "reliefs": [asdict(one) for one in found.reliefs]}
