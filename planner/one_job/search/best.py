"""The search of all spaces of a request, and its winner as a plan with everything that vouches for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup, ZeroStage
from estimator.schedules.simulate import total_by_events_s
from planner.one_job.explicit.effects import Effect, assumption_effects
from planner.one_job.explicit.recording import record_plan
from planner.one_job.explicit.request import canonical
from planner.one_job.search.exact import Search, search_parts
from planner.one_job.search.mixed.describing import MixedFound, describe_mixed, mixed_found
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.found import Counts, Found, SearchResult
from planner.one_job.search.spaces.request import DeviceSpace, SearchRequest
from planner.one_job.search.spaces.software import split_by_software
from planner.one_job.search.spaces.space import fills_evenly
from planner.one_job.tools.base.shape import Shape
from planner.shared.plan import Plan
from profiles.errors import NothingFits
from profiles.limits import LIMITS
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

if TYPE_CHECKING:
    from planner.one_job.search.mixed.search import MixedResult, MixedSearch

SAME = 1e-9
"""Relative difference up to which a plan priced in bulk and by itself count as the same."""

Progress = Callable[[str], None]
"""Called with a sentence about how far the search is."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan of the search, evaluated by itself."""

    found: Found
    space: DeviceSpace
    setup: Setup
    evaluation: Evaluation

    @cached_property
    def simulated_s(self) -> float | None:
        """The iteration by events, None where the closed form is all there is."""
        return simulated_s(self.setup, self.evaluation)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best plan of a request, and the certificate: `lower_bound` is what no plan of the space falls below, in the
    unit of the objective; `gap` how far above it the best one may be."""

    plan: Plan
    winner: Candidate
    lower_bound: float
    proved: bool
    counts: Counts

    @property
    def gap(self) -> float:
        """Relative; 0 where the best plan is proved."""
        return max(0.0, self.winner.found.value / self.lower_bound - 1) if self.lower_bound > 0 else math.inf


def effects_of(best: Best) -> tuple[Effect, ...]:
    """Return what the assumptions that move the best plan's figures most are worth."""
    winner, pricing = best.winner, best.winner.space.pricing
    return assumption_effects(
        winner.setup, winner.evaluation, best.plan.assumptions, lambda setup: evaluate(setup, pricing)
    )


def find_best(request: SearchRequest, *, below: float = math.inf, progress: Progress | None = None) -> Best:
    """The plan of the least objective, on one type of device or on several groups of them
    (`planner.one_job.search.mixed.search`), if that is less than `below`; NothingFits with the nearest miss where none
    fits."""
    return BestSearch(request, progress=progress).find(below)


class BestSearch:
    """The search for the best plan of a request, which goes on where it ended for one that needs less memory: plans of
    up to `within` times the best one's value stay in sight."""

    def __init__(self, request: SearchRequest, *, within: float = 1.0, progress: Progress | None = None) -> None:
        self._request, self._within, self._progress = request, within, progress
        self._searches: list[Search] = []
        self._groups: MixedSearch | None = None

    def find(self, below: float = math.inf) -> Best:
        """Return the best plan of a value less than `below`. Raise NothingFits where none fits."""
        request, progress = self._request, self._progress
        self._groups = groups = _search_of_groups(request, progress, below, self._within)
        least = min(below, _just_above(groups))
        self._searches = [
            Search(
                part.space,
                part.evaluator,
                ((None, least),),
                lambda devices, part=part: request.weight(part, devices),  # type: ignore[misc]
                _reported(part, progress),
                self._within,
            )
            for part in _parts_of(request)
        ]
        return _best_of(request, self._run(request), groups, below)

    def find_with_less(self, narrower: SearchRequest, below: float) -> Best:
        """Return the best plan of the request with less memory (`memory_below` of its spaces), of a value less than
        `below`, which is no more than `within` times what `find` found. Raise NothingFits where there is none."""
        if self._groups is not None:
            self._groups.narrow(narrower, below)
        for part, search_of_part in zip(_parts_of(narrower), self._searches, strict=True):
            search_of_part.narrow(part.space, below)
        return _best_of(narrower, self._run(narrower), self._groups, below)

    def _run(self, request: SearchRequest) -> list[tuple[DeviceSpace, SearchResult]]:
        limit = request.limit
        return [(part, each.run(limit)[0]) for part, each in zip(_parts_of(request), self._searches, strict=True)]


def _parts_of(request: SearchRequest) -> list[DeviceSpace]:
    """The spaces of `request`, each of one software."""
    return [part for whole in request.spaces for part in split_by_software(whole)]


def find_best_parts(
    request: SearchRequest, parts: Sequence[SearchRequest], *, progress: Progress | None = None
) -> tuple[Best | None, ...]:
    """The best plan of each of `parts`, as `find_best` finds it, None where nothing fits. They are the request but for
    narrower constraints, and are searched together. Each has the work of its own `limit`, which is the same for all."""
    of_groups = [_search_of_groups(part, progress) for part in parts]
    below = [_just_above(groups) for groups in of_groups]
    by_part: list[list[tuple[DeviceSpace, SearchResult]]] = [[] for _ in parts]
    for number, whole in enumerate(request.spaces):
        for own in split_by_software(whole):
            open_there = own.space.constraints.zero
            narrowed = [_under(part.spaces[number].space.constraints, open_there) for part in parts]
            results = search_parts(
                own.space,
                own.evaluator,
                narrowed,
                weight=lambda devices, own=own: request.weight(own, devices),  # type: ignore[misc]
                below=below,
                most_families=request.limit,
                progress=_reported(own, progress),
            )
            for searched, limits, result in zip(by_part, narrowed, results, strict=True):
                searched.append((replace(own, space=replace(own.space, constraints=limits)), result))
    best: list[Best | None] = []
    for part, groups, searched in zip(parts, of_groups, by_part, strict=True):
        try:
            best.append(_best_of(part, searched, groups))
        except NothingFits:
            best.append(None)
    return tuple(best)


def _under(constraints: Constraints, stages: tuple[ZeroStage, ...]) -> Constraints:
    """`constraints` under those of their stages of ZeRO that are in `stages`."""
    return replace(constraints, zero=tuple(zero for zero in constraints.zero if zero in stages))


def _best_of(
    request: SearchRequest,
    results: list[tuple[DeviceSpace, SearchResult]],
    groups: MixedSearch | None,
    below: float = math.inf,
) -> Best:
    """The best of the plans found on each type of device, and of those on several groups that are less than `below`."""
    alone = [(result.best, part) for part, result in results if result.best is not None]
    first = min(alone, key=lambda pair: pair[0].value, default=None)
    mixed = None if groups is None else groups.finish(below if first is None else first[0].value)
    candidate = None if mixed is None else _mixed_candidate(request, mixed)
    if candidate is None and first is None:
        raise NothingFits(why_nothing(request, results), result={"plan": None, "nearest": _describe_miss(results)})
    everywhere: list[SearchResult | MixedResult] = [
        *(result for _, result in results),
        *([] if mixed is None else [mixed]),
    ]
    counts = sum_counts([result.counts for result in everywhere])
    proved = all(result.proved for result in everywhere)
    if candidate is None:
        assert first is not None
        candidate = evaluate_found(*first)
    return Best(
        plan=_plan_of(request, candidate, counts, () if mixed is None else mixed.notes, proved=proved),
        winner=candidate,
        lower_bound=min(result.lower_bound for result in everywhere),
        proved=proved,
        counts=counts,
    )


def _search_of_groups(
    request: SearchRequest, progress: Progress | None, below: float = math.inf, within: float = 1.0
) -> MixedSearch | None:
    """The search of plans of less than `below` on several groups of devices, which has found some good plan where that
    was quick; None where there is one group, which plans fill evenly: such a request does without the modules."""
    if len(request.spaces) == 1 and fills_evenly(request.spaces[0].space):
        return None
    from planner.one_job.search.mixed.search import begin_mixed

    groups = begin_mixed(request, most=request.limit, progress=progress, within=within)
    groups.value = below  # what is not less is no plan to be found
    if len(request.spaces) == len(groups.space.groups) == 2 and not groups.nothing:
        # All devices of two types together are most often the fastest: that bounds what each can do alone.
        groups.try_quickly()
    return groups


def _just_above(groups: MixedSearch | None) -> float:
    """What plans on one type of device have to be below if they are to be as good as one on several groups."""
    return math.inf if groups is None else groups.value * (1 + SAME)


def _mixed_candidate(request: SearchRequest, mixed: MixedResult) -> Candidate | None:
    """The plan that was found on several groups, where one was."""
    setup, evaluation = mixed.setup, mixed.evaluation
    if setup is None or evaluation is None or evaluation.pipeline is None:
        return None
    pace = setup.stages[evaluation.pipeline.bottleneck]
    part = next(part for part in request.spaces if part.device == pace.slots[0].device)
    tables = {table.id: table for other in request.spaces for table in other.pricing.link_tables}
    return Candidate(
        found=mixed_found(setup, evaluation, mixed.value),
        space=replace(
            part, evaluator=replace(part.evaluator, pricing=part.pricing.but(link_tables=tuple(tables.values())))
        ),
        setup=setup,
        evaluation=evaluation,
    )


def _reported(part: DeviceSpace, progress: Progress | None) -> Callable[[int, float, float], None]:
    def report(families: int, bound: float, value: float) -> None:
        if progress is not None:
            best = "no plan fits yet" if math.isinf(value) else f"best {value:.4g}, nothing below {bound:.4g}"
            progress(f"{part.device}: {families} families of plans priced, {best}")

    return report


def setup_of(plan: Found, part: DeviceSpace) -> Setup:
    """The setup that a found plan is."""
    pipeline = part.evaluator.pipeline(plan.degrees, plan.placement)
    if isinstance(pipeline, Infeasible):
        raise RuntimeError(f"a plan that was priced is not possible: {pipeline.reason}")
    recipe = part.evaluator.recipe
    state = plan.state
    gradients = part.evaluator.overlap_under(state.zero) & {"dp"}
    return canonical(
        Setup(
            model=part.space.model,
            cluster=part.cluster,
            recipe=replace(recipe, schedule=plan.schedule, overlap=(recipe.overlap - {"dp"}) | gradients),
            stages=pipeline.stage_setups(plan.cut, plan.rule, state),
            micro_batch=plan.degrees.samples * plan.degrees.dp,
        )
    )


def evaluate_found(plan: Found, part: DeviceSpace) -> Candidate:
    """The plan by itself, and by events. RuntimeError if that is not what the search took it for: a bug."""
    setup = setup_of(plan, part)
    evaluation = evaluate(setup, part.pricing)
    if isinstance(evaluation, Infeasible):
        raise RuntimeError(f"a plan that was priced is not possible: {evaluation.reason}")
    took = evaluation.iteration_time_s
    if not math.isclose(took, plan.iteration_time_s, rel_tol=SAME):
        raise RuntimeError(f"priced at {plan.iteration_time_s} s in bulk and at {took} s by itself")
    return Candidate(found=plan, space=part, setup=setup, evaluation=evaluation)


def pipeline_steps(setup: Setup) -> int:
    """Return how many forward and backward passes of a chunk the iteration has on all its stages."""
    return 2 * setup.micro_batches * sum(len(stage.chunks) for stage in setup.stages)


def simulated_s(setup: Setup, evaluation: Evaluation) -> float | None:
    """The iteration with its pipeline run event by event in place of the closed form; None where there is one stage
    alone, or more steps than the limit."""
    pipeline = evaluation.pipeline
    if pipeline is None or len(setup.stages) == 1 or pipeline_steps(setup) > LIMITS.steps.most:
        return None
    events_s = total_by_events_s(setup.recipe.schedule, pipeline.stages, pipeline.transfers, setup.micro_batches)
    breakdown = evaluation.breakdown
    busy_s = evaluation.iteration_time_s - pipeline.sync_s - pipeline.optimizer_s - breakdown.offload_s
    return events_s + (evaluation.iteration_time_s - busy_s)


def _plan_of(
    request: SearchRequest, winner: Candidate, counts: Counts, notes: tuple[str, ...], *, proved: bool
) -> Plan:
    assumed = (*request.assumptions, *notes)
    plan = record_plan(winner.setup, winner.evaluation, reference=request.reference, assumptions=assumed)
    covered = replace(plan.provenance, search_space_size=max(1, counts.plans), optimality_proved=proved)
    return replace(plan, provenance=covered)


def sum_counts(counts: list[Counts]) -> Counts:
    """Of several spaces together."""
    removed: Counter[str] = Counter()
    for count in counts:
        removed.update(count.removed)
    names = [part.name for part in fields(Counts) if part.name != "removed"]
    return Counts(removed=dict(removed), **{name: sum(getattr(count, name) for count in counts) for name in names})


def why_nothing(request: SearchRequest, results: list[tuple[DeviceSpace, SearchResult]]) -> str:
    """A sentence about spaces without a plan that fits: the nearest miss, or what removed them all."""
    named = f"{request.reference} on {request.cluster.text}"
    nearest = _nearest_miss(results)
    if nearest is not None:
        miss, part = nearest
        return (
            f"{named}: no plan fits; the nearest miss lacks {miss.lacking_bytes / 2**30:.1f} GiB a device:"
            f" {describe_found(miss)} on {part.device}"
        )
    lacking = [
        f"{part.device} has no {part.space.dtype} rate"
        f" (it has {', '.join(name for name, _ in device.peak_flops_per_s)}; --dtype)"
        for part in request.spaces
        if (device := request.cluster.group_of(part.space.slots[0]).device).peak(part.space.dtype) is None
    ]
    if len(lacking) == len(request.spaces):
        return f"{named}: no plan is possible: {'; '.join(lacking)}"
    refusals = dict.fromkeys(filter(None, map(_state_refusal, request.spaces)))
    if len(refusals) == 1:
        return f"{named}: no plan is possible: {next(iter(refusals))}"
    removed = sum_counts([result.counts for _, result in results]).removed
    reasons = "; ".join(
        f"{why} ({number} ways)"
        for why, number in sorted(removed.items(), key=lambda pair: (not pair[0].startswith("your"), -pair[1]))
    )
    return f"{named}: no plan is possible; of the ways to share the devices each falls to one of: {reasons or 'no way'}"


def _nearest_miss(results: list[tuple[DeviceSpace, SearchResult]]) -> tuple[Found, DeviceSpace] | None:
    """The plan that lacks the least memory, and the space that it is of; None where none was priced."""
    near = [(result.nearest, part) for part, result in results if result.nearest is not None]
    return min(near, key=lambda pair: pair[0].lacking_bytes, default=None)


def _describe_miss(results: list[tuple[DeviceSpace, SearchResult]]) -> dict[str, Any] | None:
    """The nearest miss as a value that `json.dumps` takes."""
    nearest = _nearest_miss(results)
    if nearest is None:
        return None
    miss, part = nearest
    return {"device": part.device, "plan": describe_found(miss), "lacking_bytes_per_device": int(miss.lacking_bytes)}


def _state_refusal(part: DeviceSpace) -> str | None:
    """Why the named tool holds weights, gradients and optimizer state in none of the ways that are open to replicas."""
    limits, tool = part.space.constraints, part.space.constraints.training_tool
    shape = Shape(job=part.space.training, dp=2, pp=limits.fix.get("pp", limits.least.get("pp", 1)))
    if tool is None or not tool.allows_degrees(shape) or limits.open_zero(shape):
        return None
    stages = [zero for zero in limits.zero if limits.permits("zero", zero)]
    states = (replace(shape, zero=zero, shard=2 if zero else 1) for zero in stages)
    return "; ".join(dict.fromkeys(str(refusal) for state in states if (refusal := tool.state_refusal(state))))


def describe_found(plan: Found) -> str:
    """A plan in a line.

    tp 2, pp 4, dp 8, 1 sample a rank, interleaved in 2 chunks, ZeRO 1, full recomputation of 3 layers
    """
    if isinstance(plan, MixedFound):
        return describe_mixed(plan)
    degrees = plan.degrees
    named = [("tp", degrees.tp), ("pp", degrees.pp), ("dp", degrees.dp), ("cp", degrees.cp), ("ep", degrees.ep)]
    parts = [f"{name} {value}" for name, value in named if value > 1 or name in ("tp", "pp", "dp")]
    if degrees.ep > 1 and degrees.etp > 1:
        parts.append(f"etp {degrees.etp}")
    parts.append(f"{degrees.samples} sample{'s' if degrees.samples > 1 else ''} a rank")
    chunks = len(plan.cut[0])
    parts.append(f"{plan.schedule} in {chunks} chunks" if chunks > 1 else plan.schedule)
    shard = f" over {plan.state.shard} ranks" if plan.state.shard else ""
    parts.append(f"ZeRO {plan.state.zero}{shard}")
    kind, layers = plan.rule
    if kind != "none":
        parts.append(f"{kind} recomputation" + (f" of {layers} layers a stage" if layers is not None else ""))
    if plan.state.offload:
        parts.append("optimizer on the host")
    return ", ".join(parts)
