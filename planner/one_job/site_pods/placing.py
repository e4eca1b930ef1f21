"""A plan placed into the pods of each of its sites, beside what schedulers do by default, the paper, and the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.one_job.pods.least_spread import METHOD as SPREAD
from planner.one_job.pods.methods import METHODS
from planner.one_job.site_pods.affinity import (
    COLUMNS,
    SHIPPED,
    Affinity,
    Distance,
    Row,
    estimated_affinity,
    job_ratios,
    nearest_affinity,
    read_database,
)
from planner.one_job.site_pods.axis_spread import axis_spreads
from planner.one_job.site_pods.candidates import Candidate, candidates, seating_by
from planner.one_job.site_pods.least_time import Evaluate, LeastTime, Timed, place_by_time
from planner.one_job.site_pods.site_job import SiteJob, site_job
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

TIME = "time"
WHOLE_DATABASE = "shipped"
EQUAL_TIME = 5e-4
"""Times closer than this to another are told as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWishes:
    """How a plan is placed: `method` is `time` or one of `planner.one_job.pods.methods`; `alpha` what a DP group's
    spread weighs (None: by the database at `affinity`, or the estimator); `most_pods` how many pods a group of an axis
    may touch."""

    method: str = TIME
    alpha: float | None = None
    affinity: Path | None = None
    distance: Distance = "log"
    or_estimate: bool = False
    most_pods: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InPods:
    """The stages of a plan in one site, placed: by `affinity`, with what was looked at."""

    job: SiteJob
    affinity: Affinity
    placed: LeastTime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInPods:
    """A plan whose stages sit in pods, by site. `setup` and `evaluation` are of the whole plan; `notes` say of sites
    where it stays as it was why."""

    setup: Setup
    evaluation: Evaluation
    sites: tuple[InPods, ...]
    notes: tuple[str, ...]

    @property
    def spreads(self) -> dict[str, int]:
        """Pods of the widest group of each axis."""
        return axis_spreads(self.setup)


def database(path: Path) -> tuple[Row, ...]:
    """Return the rows of an affinity file, or those that come with the program. Raise InputError for what is none, or
    has none."""
    rows = read_database(SHIPPED if str(path) == WHOLE_DATABASE else path)
    if not rows:
        raise InputError(where=str(path), found="no row", expected=f"rows of {', '.join(COLUMNS)}")
    return rows


def place_plan(setup: Setup, evaluate: Evaluate, wishes: PodWishes) -> PlanInPods | Infeasible:
    """Return a plan with its ranks on the best nodes of its sites, one site after another; Infeasible where a site has
    too few free nodes, or nothing meets the wishes. Raise InputError for a method that there is not, or a database
    without the device."""
    if wishes.method != TIME and wishes.method not in METHODS:
        raise InputError(where="pods", key="method", found=wishes.method, expected=f"time or {', '.join(METHODS)}")
    sites = tuple(dict.fromkeys(slot.site for stage in setup.stages for slot in stage.slots))
    placed_sites: list[InPods] = []
    notes: list[str] = []
    evaluation: Evaluation | None = None
    for name in sites:
        job = site_job(setup, name)
        if isinstance(job, Infeasible):
            notes.append(f"{name}: not placed into pods: {job.reason}")
            continue
        if job is None:
            continue
        shortage = job.shortage()
        if shortage is not None:
            return shortage
        in_pods = _in_site(job, evaluate, wishes, whole=len(sites) == 1)
        if isinstance(in_pods, Infeasible):
            return in_pods
        placed_sites.append(in_pods)
        setup, evaluation = in_pods.placed.best.setup, in_pods.placed.best.evaluation
    if evaluation is None:
        priced = evaluate(setup)
        if isinstance(priced, Infeasible):
            return priced
        evaluation = priced
    missed = _missed(setup, wishes)
    if missed is not None:
        return missed
    return PlanInPods(setup=setup, evaluation=evaluation, sites=tuple(placed_sites), notes=tuple(notes))


def _in_site(job: SiteJob, evaluate: Evaluate, wishes: PodWishes, *, whole: bool) -> InPods | Infeasible:
    affinity = affinity_of(job, evaluate, wishes)
    limits = wishes.most_pods if whole else None
    if wishes.method == TIME:
        placed = place_by_time(job, affinity.alpha, candidates(job, affinity.alpha), evaluate, allowed=_within(limits))
        if isinstance(placed, Infeasible):
            return _limit_missed(job, affinity, limits) or placed
        return InPods(job=job, affinity=affinity, placed=placed)
    seating = seating_by(job, wishes.method, affinity.alpha)
    if isinstance(seating, Infeasible):
        return seating
    named = Candidate(name=wishes.method, seating=seating)
    others = (one for one in candidates(job, affinity.alpha) if one.name != wishes.method)
    placed = place_by_time(job, affinity.alpha, _first(named, others), evaluate, exchanges=False)
    if isinstance(placed, Infeasible):
        return placed
    chosen = next((one for one in placed.candidates if one.name == wishes.method), None)
    if chosen is None:
        return Infeasible(reason=f"the placement by {wishes.method} cannot be priced", lacking="support")
    placed = LeastTime(best=chosen, candidates=placed.candidates, priced=placed.priced, bound_s=placed.bound_s)
    return InPods(job=job, affinity=affinity, placed=placed)


def affinity_of(job: SiteJob, evaluate: Evaluate, wishes: PodWishes) -> Affinity:
    """Return the affinity that is asked for; 0.5 where the job has no aligned placements. Raise InputError for a
    database that is none, or has no row of the device and no leave to estimate."""
    if wishes.alpha is not None:
        return Affinity(j_dp=0.0, j_pp=0.0, source="--alpha", said=wishes.alpha)
    if wishes.affinity is not None:
        rows, ratios = database(wishes.affinity), job_ratios(job)
        if not wishes.or_estimate or any(row.device == ratios.device for row in rows):
            return nearest_affinity(rows, ratios, where=str(wishes.affinity), distance=wishes.distance)
    estimate = estimated_affinity(job, evaluate)
    if isinstance(estimate, Infeasible):
        return Affinity(j_dp=0.0, j_pp=0.0, source=f"none: {estimate.reason}")
    return estimate


def beside(other: Timed, best: Timed) -> str:
    """Return how much slower or faster `other` is than `best`, in words."""
    more = other.time_s / best.time_s - 1
    return "as fast" if abs(more) < EQUAL_TIME else f"{abs(more):.1%} {'slower' if more > 0 else 'faster'}"


def why_it_loses(other: Timed, best: Timed) -> str:
    """Return a sentence: how much slower, and which axes' groups are wider than in the best placement."""
    said = beside(other, best)
    mine, its = axis_spreads(other.setup), axis_spreads(best.setup)
    wider = [
        f"{axis.upper()} groups over {count} pod{'s' * (count > 1)} ({its[axis]})"
        for axis, count in mine.items()
        if count != its.get(axis, count)
    ]
    return "; ".join([said, *wider]) if wider else f"{said}; the same spread"


def _first(named: Candidate, others: Iterator[Candidate]) -> Iterator[Candidate]:
    yield named
    yield from others


def _within(limits: Mapping[str, int] | None) -> Callable[[Setup], bool]:
    def allowed(setup: Setup) -> bool:
        return not limits or all(count <= limits.get(axis, count) for axis, count in axis_spreads(setup).items())

    return allowed


def _missed(setup: Setup, wishes: PodWishes) -> Infeasible | None:
    """What of the limits the placement that was made does not meet."""
    spreads, limits = axis_spreads(setup), wishes.most_pods or {}
    over = [f"{axis} over {spreads[axis]} pods" for axis in limits if spreads.get(axis, 1) > limits[axis]]
    if not over:
        return None
    asked = ", ".join(f"{axis}={most}" for axis, most in limits.items())
    return Infeasible(
        reason=f"no placement meets --max-spread {asked}: nearest has {', '.join(over)}", lacking="devices"
    )


def _limit_missed(job: SiteJob, affinity: Affinity, limits: Mapping[str, int] | None) -> Infeasible | None:
    """The nearest miss of a limit on spread: that of the placement of least spread."""
    if not limits:
        return None
    seating = seating_by(job, SPREAD, affinity.alpha)
    if isinstance(seating, Infeasible):
        return seating
    return _missed(job.seated(seating), PodWishes(most_pods=limits))
