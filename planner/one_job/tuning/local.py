"""`plan --profile-budget`: candidate plans on local workers are really run, where that can change which one is best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.profiling.lookup import LOCAL_DEVICE
from estimator.profiling.setting import Framework
from planner.one_job.explicit.recording import record_plan
from planner.one_job.running.program import program_of
from planner.one_job.running.run import run_plan
from planner.one_job.search.best import Candidate as SearchCandidate
from planner.one_job.search.best import describe_found, evaluate_found
from planner.one_job.search.exact import search
from planner.one_job.search.spaces.constraints import Number
from planner.one_job.search.spaces.request import DeviceSpace, SearchRequest
from planner.one_job.search.spaces.space import ways_of
from planner.one_job.tuning.measured import MEASURED_LOG_SPREAD, Rules, ask_where_it_matters, foresee, log_spread
from planner.one_job.tuning.records import Candidate, OutOfMemory, Tuning, tune
from planner.one_job.tuning.traits import traits_of
from planner.shared.options.running import RunOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import save_plan
from profiles.errors import InputError, NothingFits
from profiles.records import dataclass

STEPS, WARM_UPS = 3, 1
START_S = 15.0
"""What starting the workers of a run takes, until one has been seen: they import their framework."""
SHAPE: tuple[Number, ...] = ("tp", "pp", "dp", "cp", "ep", "etp")

LocalPlan = SearchCandidate
Measure = Callable[[Plan], float | OutOfMemory]
"""Seconds of an iteration of the plan, really run."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A plan chosen among `candidates` by running some of them; its assumptions say which."""

    plan: Plan
    candidates: tuple[Candidate[LocalPlan], ...]
    tuning: Tuning


def choose_by_running(
    request: SearchRequest,
    *,
    budget_s: float,
    measure: Measure,
    rules: Rules | None = None,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[str], None] | None = None,
) -> Chosen:
    """The fastest plan measured, where no other can be faster; or, where the budget ends before, the one that is then
    expected to be fastest. InputError where the cluster is not this machine, NothingFits where no plan runs."""
    _check(request)
    chosen = rules or Rules()
    candidates, priced = find_candidates(request)
    if not candidates:
        raise NothingFits(f"{request.reference} on {request.cluster.text}: no plan that run knows fits")
    meter = _Meter(request, measure, clock, budget_s, progress or (lambda _: None))
    tuning = tune(candidates, meter, ask_where_it_matters(chosen), may_measure=meter.may_measure)
    number = _choose(candidates, tuning, chosen)
    if number is None:
        raise NothingFits(
            f"{request.reference} on {request.cluster.text}: none of the {len(candidates)} plans that were estimated to"
            " fit ran; all were short of memory"
        )
    plan = _record(request, candidates[number].plan, (*request.assumptions, *_say(candidates, tuning, chosen)))
    covered = replace(plan.provenance, search_space_size=max(1, priced), optimality_proved=False)
    return Chosen(plan=replace(plan, provenance=covered), candidates=candidates, tuning=tuning)


def find_candidates(request: SearchRequest) -> tuple[tuple[Candidate[LocalPlan], ...], int]:
    """For each way to share the workers the best plans of every micro-batch and schedule that `run` knows, and how many
    plans were priced for them."""
    by_setup: dict[Setup, SearchCandidate] = {}
    priced = 0
    for space in request.spaces:
        for part in _by_shape(space):
            result = search(part.space, part.evaluator, most_families=request.limit)
            priced += result.counts.plans
            for plan in (result.best, *result.runners_up):
                if plan is not None:
                    candidate = evaluate_found(plan, space)
                    by_setup.setdefault(candidate.setup, candidate)
    runnable = [plan for plan in by_setup.values() if _can_run(request, plan)]
    candidates = tuple(
        Candidate(
            plan=plan,
            estimated_s=plan.evaluation.iteration_time_s,
            log_spread=_spread(plan.evaluation),
            traits=traits_of(plan.setup),
        )
        for plan in sorted(runnable, key=lambda plan: plan.evaluation.iteration_time_s)
    )
    return candidates, priced


def run_here(store: Path | None, framework: Framework) -> Measure:
    """Runs a plan with as many workers of this machine, a few steps; the fastest one counts, as others share it."""

    def measure(plan: Plan) -> float | OutOfMemory:
        with TemporaryDirectory(prefix="cellplan-") as folder:
            path = Path(folder) / "plan.json"
            save_plan(plan, path)
            try:
                ran = run_plan(
                    RunOptions(path, backend=framework, device="cpu", steps=STEPS, warm_up=WARM_UPS, store=store)
                )
            except NothingFits as error:
                return OutOfMemory(reason=str(error))
        assert ran is not None, "no launcher started this"
        return float(min(ran["measured"]["iteration_times_s"]))

    return measure


class _Meter:
    """Measures, and minds the budget: a run is begun where it is expected to end within what is left."""

    def __init__(
        self,
        request: SearchRequest,
        measure: Measure,
        clock: Callable[[], float],
        budget_s: float,
        progress: Callable[[str], None],
    ) -> None:
        self._progress = progress
        self._request, self._measure, self._clock = request, measure, clock
        self._end_s = clock() + budget_s
        self._starts_s: list[float] = []

    def may_measure(self, candidate: Candidate[LocalPlan]) -> bool:
        """Whether the budget has room for it."""
        start_s = max(self._starts_s, default=START_S)
        return self._clock() + start_s + (STEPS + WARM_UPS) * candidate.estimated_s <= self._end_s

    def measure(self, plan: LocalPlan) -> float | OutOfMemory:
        """Seconds of an iteration."""
        begun = self._clock()
        self._progress(f"running {describe_found(plan.found)}")
        took = self._measure(_record(self._request, plan, self._request.assumptions))
        if not isinstance(took, OutOfMemory):
            self._starts_s.append(self._clock() - begun - (STEPS + WARM_UPS) * took)
        return took


def _check(request: SearchRequest) -> None:
    def refuse(stated: str, expected: str) -> None:
        raise InputError(where="plan", key="--profile-budget", found=stated, expected=expected)

    if any(part.device != LOCAL_DEVICE for part in request.spaces):
        refuse(f"the cluster {request.cluster.text}", "local:1xWORKERS, whose plans can be run here")
    if request.objective != "time":
        refuse(f"--objective {request.objective}", "time, which a run measures")


def _by_shape(whole: DeviceSpace) -> Iterator[DeviceSpace]:
    """The space in parts, one for each way to share the workers that `run` may know."""
    columns = ways_of(whole.space).columns
    shapes = sorted({tuple(int(columns[name][i]) for name in SHAPE) for i in range(len(columns["tp"]))})
    constraints = whole.space.constraints
    for shape in shapes:
        fix = dict(constraints.fix) | dict(zip(SHAPE, shape, strict=True))
        yield replace(whole, space=replace(whole.space, constraints=replace(constraints, fix=fix)))


def _can_run(request: SearchRequest, candidate: SearchCandidate) -> bool:
    try:
        program_of(_record(request, candidate, ()), request.model, where=request.reference)
    except InputError:
        return False
    return True


def _spread(evaluation: Evaluation) -> float:
    sources = {evaluation.compute_provenance, evaluation.communication_provenance} - {None}
    return MEASURED_LOG_SPREAD if sources == {"measured"} else log_spread(evaluation.interval_90_s)


def _record(request: SearchRequest, plan: SearchCandidate, assumptions: tuple[str, ...]) -> Plan:
    return record_plan(plan.setup, plan.evaluation, reference=request.reference, assumptions=assumptions)


def _choose(candidates: tuple[Candidate[LocalPlan], ...], tuning: Tuning, rules: Rules) -> int | None:
    """The best one measured where that is final, else the one of the least expected time; None where none runs."""
    best = tuning.best
    if tuning.final and best is not None:
        return best.number
    outlook = foresee(candidates, tuning.measurements, rules.errors)
    number = int(np.argmin(outlook.mean))
    return number if np.isfinite(outlook.mean[number]) else None


def _say(candidates: tuple[Candidate[LocalPlan], ...], tuning: Tuning, rules: Rules) -> Iterator[str]:
    """What was measured, in sentences."""
    count, done = len(candidates), tuning.measurements
    if count == 1:
        yield "nothing was run: there is one candidate plan"
        return
    ended = (
        f"no other one is more than {rules.gain:.0%} faster with odds above {rules.odds:.0%}"
        if tuning.final
        else "then --profile-budget had no room for another: the plan is the one expected to be fastest"
    )
    yield f"chosen by running {len(done)} of {count} candidate plans on this machine, {STEPS} steps each; {ended}"
    for measured in done:
        candidate = candidates[measured.number]
        took = "out of memory" if measured.seconds is None else f"measured {measured.seconds * 1e3:.1f} ms"
        yield f"{took}, estimated {candidate.estimated_s * 1e3:.1f} ms: {describe_found(candidate.plan.found)}"
