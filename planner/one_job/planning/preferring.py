"""Of plans that are equally fast the one that is safe to fit: a second search, where the best plan's memory is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from estimator.pricing.evaluate import evaluate
from estimator.pricing.headroom import memory_fit, memory_half_width, safe_memory_bytes
from estimator.pricing.outcome import Evaluation
from planner.one_job.search.best import Best, BestSearch, describe_found, sum_counts
from planner.one_job.search.mixed.space import pricing_of
from planner.one_job.search.spaces.request import DeviceSpace, SearchRequest
from planner.shared.words import SAFE_TAKEN
from profiles.errors import NothingFits

EQUALLY_FAST = 0.01
"""By how much more of the objective a plan that is safe is still taken before the best one that is not."""

Progress = Callable[[str], None]


def find_preferred(request: SearchRequest, *, progress: Progress | None = None) -> Best:
    """Return the best plan; where its memory is not `safe`, the best of those that need no more than is safe, if that
    is within `EQUALLY_FAST`: an assumption says what the other one would gain. Raise NothingFits as `find_best`.

    Both searches prove what they find: the first that nothing is better, the second, which goes on where that ended,
    that nothing better needs so little memory.
    """
    search = BestSearch(request, within=1 + EQUALLY_FAST, progress=progress)
    best = search.find()
    verdict = memory_fit(best.winner.evaluation).verdict
    if verdict == "safe":
        return best
    most = best.winner.found.value * (1 + EQUALLY_FAST)
    try:
        safe = search.find_with_less(_with_safe_memory(request, best), most)
    except NothingFits:
        return best
    return _preferred(request, best, safe)


def _preferred(request: SearchRequest, best: Best, safe: Best) -> Best:
    """The safe plan on the devices as they are, with both searches behind it; the best one where it is not safe after
    all, as devices of several types may have it."""
    setup = replace(safe.winner.setup, cluster=best.winner.setup.cluster)
    pricing = safe.winner.space.pricing if len(request.spaces) == 1 else pricing_of(request.spaces)
    evaluation = evaluate(setup, pricing)
    if not isinstance(evaluation, Evaluation) or memory_fit(evaluation).verdict != "safe":
        return best
    counts = sum_counts([best.counts, safe.counts])
    proved = best.proved and safe.proved
    plan = safe.plan
    return replace(
        safe,
        plan=replace(
            plan,
            cluster=best.plan.cluster,
            assumptions=(*plan.assumptions, _what_the_other_gains(best, safe)),
            provenance=replace(plan.provenance, search_space_size=max(1, counts.plans), optimality_proved=proved),
        ),
        winner=replace(safe.winner, setup=setup, evaluation=evaluation),
        proved=proved,
        counts=counts,
    )


def _what_the_other_gains(best: Best, safe: Best) -> str:
    """A sentence about the plan that was not taken."""
    fit = memory_fit(best.winner.evaluation)
    gain = 1 - best.winner.found.value / safe.winner.found.value
    return (
        f"{SAFE_TAKEN}, that of the fastest is not ({fit.verdict}, {fit.interval_share:.0%} of its"
        f" 90% interval fits): {describe_found(best.winner.found)} would gain {gain:.2%} (--memory-margin 0 takes it)"
    )


def _with_safe_memory(request: SearchRequest, best: Best) -> SearchRequest:
    """The request in which a plan may need as much of a device as is safe with the best plan's interval."""
    half_width = memory_half_width(best.winner.evaluation)

    def safe_bytes(part: DeviceSpace) -> int:
        device = part.cluster.group_of(part.space.slots[0]).device
        context_bytes = part.evaluator.recipe.software.memory.context_bytes
        return safe_memory_bytes(device.memory_bytes, context_bytes, half_width)

    # Plans take as long as before: what has been priced for the request is not priced again.
    spaces = (replace(part, space=replace(part.space, memory_below=safe_bytes(part) + 1)) for part in request.spaces)
    return replace(request, spaces=tuple(spaces))
