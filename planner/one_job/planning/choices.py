"""Questions that take several searches: what fewer devices or less memory cost, how few devices meet a time, which of
several clusters to rent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from estimator.pricing.training import Training, WholeTraining
from planner.one_job.explicit.effects import Effect
from planner.one_job.explicit.whole import describe_training, read_whole
from planner.one_job.planning.searching import Planned, plan_model
from planner.one_job.planning.whole_training import train_plan
from planner.one_job.search.best import Best, effects_of, find_best
from planner.one_job.search.spaces.objectives import plan_amount
from planner.one_job.search.spaces.request import DeviceSpace, SearchRequest
from planner.shared.inputs import load_any_place
from planner.shared.options.search import FrontOptions, SearchOptions, SideBySideOptions, SmallestOptions
from planner.shared.plan import Plan
from profiles.errors import NothingFits
from profiles.prices import read_prices
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

MOST_POINTS = 16
STEP = 0.06
"""Share of the memory by which the points of a front differ at least."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer: the best plan under some limit, what an iteration of it takes of each objective (None where nothing
    tells), and the memory that its fullest device needs with its reserve. `plan` None: nothing fits, `reason` says why.
    `best` is what the search found, where it was the exact one."""

    cluster: str
    devices: int
    plan: Plan | None
    reason: str | None = None
    needed_bytes: int | None = None
    proved: bool = False
    cost: float | None = None
    energy_j: float | None = None
    training: Training | None = None
    best: Best | None = field(default=None, repr=False, compare=False)

    @property
    def iteration_time_s(self) -> float | None:
        """Seconds of an iteration."""
        return None if self.plan is None else self.plan.estimate.iteration_time_s

    @property
    def described_training(self) -> dict[str, Any] | None:
        """The whole training as a value that `json.dumps` takes."""
        return None if self.training is None else describe_training(self.training)

    def effects(self) -> tuple[Effect, ...]:
        """Return what the assumptions that move the plan's figures most are worth."""
        return () if self.best is None else effects_of(self.best)

    def as_dict(self) -> dict[str, Any]:
        """Return the choice as values that `json.dumps` takes; the plan by its degrees."""
        tokens = None if self.plan is None else self.plan.estimate.tokens_per_s_per_device
        return {
            "cluster": self.cluster,
            "devices": self.devices,
            "iteration_time_s": self.iteration_time_s,
            "tokens_per_s_per_device": tokens,
            "tokens_per_s_in_all": None if tokens is None else tokens * self.devices,
            "needed_memory_bytes": self.needed_bytes,
            "cost_per_iteration": self.cost,
            "energy_per_iteration_j": self.energy_j,
            "proved": self.proved,
            "plan": None if self.plan is None else _degrees(self.plan),
            "training": self.described_training,
            "reason": self.reason,
        }


def _degrees(plan: Plan) -> dict[str, Any]:
    """A plan by its degrees, those of its first stage."""
    stage = plan.stages[0]
    return {
        "pp": len(plan.stages),
        "tp": stage.tp,
        "cp": stage.cp,
        "dp": stage.dp,
        "ep": stage.ep,
        "vpp": len(stage.chunks),
        "micro_batches": plan.batch.micro_batches,
        "micro_batch": plan.batch.micro_batch,
        "schedule": plan.schedule,
        "zero": stage.sharding.zero,
        "recompute": stage.recompute.kind,
    }


def front(options: FrontOptions) -> tuple[Choice, ...]:
    """The plans that no other one beats in both time and devices (or memory of a device), the fastest first.

    Against memory each search allows `STEP` less than the last plan needs, until nothing fits.
    Against devices, limits go down from all by quarters of a power of two, whole nodes while there are several.
    """
    first = best_choice(options)
    if first is None:
        reason = f"{options.model} on {options.cluster}: no plan fits, so there is no front"
        raise NothingFits(reason, result={"choices": []})
    found = [first]
    if options.against == "devices":
        for limit in fewer_devices(found[0].devices):
            nearer = best_choice(replace(options, devices=limit))
            if nearer is not None:
                found.append(nearer)
        return _undominated(found, lambda choice: choice.devices)
    while len(found) < MOST_POINTS:
        less = best_choice(options, memory_below=round((1 - STEP) * (found[-1].needed_bytes or 0)))
        if less is None:
            break
        found.append(less)
    return _undominated(found, lambda choice: choice.needed_bytes or 0)


def smallest(options: SmallestOptions) -> Choice:
    """Return the best plan on the fewest devices on which an iteration takes at most `meet_s` seconds; raise
    NothingFits where it takes longer even on all. A plan may leave devices idle, so more of them never take longer:
    bisection finds the fewest."""
    best = best_choice(options)
    if best is None or best.plan is None:
        raise NothingFits(f"{options.model} on {options.cluster}: no plan fits", result={"choices": []})
    took = best.plan.estimate.iteration_time_s
    if took > options.meet_s:
        raise NothingFits(
            f"{options.model} on {options.cluster}: no plan is as fast as {options.meet_s:g} s; the fastest takes"
            f" {took:.4g} s on {best.devices} devices",
            result={"choices": [], "nearest": best.as_dict()},
        )
    low, high = 0, best.devices
    while high - low > 1:
        middle = (low + high) // 2
        found = best_choice(replace(options, devices=middle))
        if found is not None and found.plan is not None and found.plan.estimate.iteration_time_s <= options.meet_s:
            best, high = found, min(middle, found.devices)
        else:
            low = middle
    return best


def side_by_side(options: SideBySideOptions) -> tuple[Choice, ...]:
    """The best plan on each of several clusters, those where nothing fits among them with the reason; NothingFits where
    that is so of all."""
    found, whole = [], read_whole(options)
    for there in each_cluster(options):
        try:
            planned = plan_model(there)
        except NothingFits as failure:
            found.append(Choice(cluster=there.cluster, devices=0, plan=None, reason=str(failure)))
            continue
        found.append(_choice(planned, there, whole))
    if all(choice.plan is None for choice in found):
        reasons = "; ".join(choice.reason or "" for choice in found)
        raise NothingFits(reasons, result={"choices": [choice.as_dict() for choice in found]})
    return tuple(found)


def each_cluster(options: SideBySideOptions) -> tuple[SideBySideOptions, ...]:
    """Return the options on each cluster alone, with the prices of its devices."""
    alone = []
    for cluster in (options.cluster, *options.beside):
        if not cluster.strip():
            raise options.wrong("beside", found=repr(cluster), expected="another cluster")
        types = load_any_place(cluster).device_types
        prices = tuple(text for text in options.price if read_prices((text,), None)[0].device in types)
        alone.append(replace(options, cluster=cluster, beside=(), price=prices))
    return tuple(alone)


def best_choice(options: SearchOptions, *, memory_below: int | None = None) -> Choice | None:
    """Return the best plan of `options` with what it takes, which needs less than so many bytes of a device; None where
    nothing fits."""

    def limited(request: SearchRequest) -> Best:
        if memory_below is None:
            return find_best(request, progress=options.say)
        return find_best(_with_less_memory(request, memory_below), progress=options.say)

    try:
        planned = plan_model(options, find=limited)
    except NothingFits:
        return None
    return _choice(planned, options, read_whole(options))


def _choice(planned: Planned, options: SearchOptions, whole: WholeTraining | None) -> Choice:
    """The plan with what it takes, and what a whole training by it does."""
    plan, best = planned.plan, planned.best
    place = planned.request.cluster if planned.request is not None else None
    amounts: dict[str, float | None] = {"cost": None, "energy": None}
    for objective in ("cost", "energy"):
        found = plan_amount(objective, plan, place) if place is not None else None
        amounts[objective] = None if found is None or isinstance(found, Infeasible) else found
    needed = None
    if best is not None:
        needed = max(rank.needed_bytes for rank in best.winner.evaluation.memory)
    return Choice(
        cluster=options.cluster,
        devices=len(plan.devices),
        plan=plan,
        needed_bytes=needed,
        proved=plan.provenance.optimality_proved,
        cost=amounts["cost"],
        energy_j=amounts["energy"],
        best=best,
        training=None if whole is None else train_plan(whole, plan, load_any_place(options.cluster)),
    )


def _with_less_memory(request: SearchRequest, below: int) -> SearchRequest:
    """The same search where a plan must need less than so many bytes of a device."""
    return replace(
        request,
        spaces=tuple(
            replace(own, space=replace(own.space, memory_below=below)) if isinstance(own, DeviceSpace) else own
            for own in request.spaces
        ),
    )


def fewer_devices(devices: int) -> list[int]:
    """Limits below `devices`: 3/4, 1/2, 3/8, 1/4 of the power of two above, and so on down to 1."""
    found, power = [], 1
    while power < devices:
        power *= 2
    while power >= 1:
        found += [limit for limit in (power, power * 3 // 4) if 1 <= limit < devices]
        power //= 2
    return list(dict.fromkeys(found))


def _undominated(found: list[Choice], size: Callable[[Choice], int]) -> tuple[Choice, ...]:
    ordered = sorted(found, key=lambda choice: (choice.iteration_time_s or 0.0, size(choice)))
    kept: list[Choice] = []
    for choice in ordered:
        if not kept or size(choice) < size(kept[-1]):
            kept.append(choice)
    return tuple(kept)
