"""What jobs on one network are to do, by a policy, and what becomes of them then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, isfinite

from estimator.network.connections import Model
from estimator.network.fabric import Fabric
from estimator.network.missing_ways import NoWayError
from estimator.network.player.packing import pack
from estimator.network.steps import Playing
from planner.contention.checked_decision import check_decision
from planner.contention.contending import Contention, contend_as
from planner.contention.jobs_file import PlacedJob
from planner.contention.playing import playing_under
from planner.contention.policies.bound import bound_flops_per_s
from planner.contention.policies.intensity import intensities
from planner.contention.policies.loads import contending_jobs, link_seconds, path_of
from planner.contention.policies.priority import correction_factors
from planner.contention.policies.records import Decision, NetworkPolicy, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import CAP_PARTS, WITHIN, slowdowns
from planner.contention.slowing import Told
from planner.contention.viewing import Seen, Sender, contenders_of, view_of
from profiles.errors import NothingFits
from profiles.records import dataclass

Decide = Callable[[View], Decision]


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkPlan:
    """What was decided for the jobs of `now`, and what becomes of them. Of each job that shares links, its intensity on
    its paths, the factor that corrects it, and its place in the order of priorities. `bound_busy` is the share of the
    jobs' GPU-seconds that nothing can pass, as `bound_flops_per_s` is of work."""

    seen: tuple[Seen, ...]
    view: View
    decision: Decision
    now: Contention
    planned: Contention
    intensities: tuple[float | None, ...]
    factors: tuple[float | None, ...]
    priorities: tuple[int | None, ...]
    bound_flops_per_s: float
    bound_busy: float

    @property
    def changed_paths(self) -> tuple[tuple[bool, ...], ...]:
        """Of each job, of each connection with a choice, whether it takes another path than now."""
        return tuple(
            tuple(
                choice != before
                for choice, before, _ in zip(choices, seen.contender.now, seen.queue_pairs, strict=False)
            )
            for seen, choices in zip(self.seen, self.decision.paths, strict=True)
        )

    @property
    def shares_links(self) -> bool:
        """Whether any two jobs share one, now or as planned."""
        return bool(self.now.links or self.planned.links)


def see_jobs(jobs: Sequence[PlacedJob], fabric: Fabric, model: Model) -> tuple[Seen, ...]:
    """Return the jobs as policies see them; a job whose work nobody said does none. Raise NothingFits for one that
    cannot communicate."""
    senders = [
        Sender(
            id=job.id,
            traffic=job.traffic,
            seats=job.seats,
            flops=job.flops or 0.0,
            own_level=job.level,
            weight=job.weight,
            seed=job.port_seed,
        )
        for job in jobs
    ]
    try:
        return contenders_of(senders, fabric, model=model)
    except NoWayError:
        # Which of them it is says each by itself.
        for sender in senders:
            try:
                contenders_of([sender], fabric, model=model)
            except NoWayError as error:
                raise NothingFits(f"job {sender.id} cannot communicate: {error}") from None
        raise


def plan_network(
    now: Contention,
    seen: Sequence[Seen],
    levels: int,
    decide: Decide,
    *,
    jitter: float,
    told: Told | None = None,
) -> NetworkPlan:
    """Return what `decide` says of the jobs of `now`, which are `seen` so, on a fabric that leaves so many levels free,
    and what becomes of them; compute varies by the share `jitter`. `told` hears how far the latter is. Raise as
    `decide` does."""
    fabric, jobs = now.fabric, [found.job for found in now.jobs]
    view = view_of(seen, fabric, levels)
    decision = decide(view)
    seconds = link_seconds(view, decision.paths)
    contending = contending_jobs(seconds)
    own = intensities(view, seconds)
    factors = correction_factors(view, seconds, contending)
    place = {job: number for number, job in enumerate(decision.order)}
    return NetworkPlan(
        seen=tuple(seen),
        view=view,
        decision=decision,
        now=now,
        planned=contend_as(
            jobs,
            [pack(_playing(view, decision, number)) for number, job in enumerate(jobs)],
            fabric,
            alone_s=[found.alone_s for found in now.jobs],
            jitter=jitter,
            told=told,
        ),
        intensities=tuple(
            own[job] if job in contending and isfinite(own[job]) else None for job in range(len(view.jobs))
        ),
        factors=tuple(factors.get(job) for job in range(len(view.jobs))),
        priorities=tuple(place.get(job) for job in range(len(view.jobs))),
        bound_flops_per_s=bound_flops_per_s(view),
        bound_busy=_bound_busy(view, now),
    )


def _playing(view: View, decision: Decision, number: int) -> Playing:
    return playing_under(
        view.jobs[number],
        decision.paths[number],
        level=decision.levels[number],
        axis_levels=decision.axis_levels[number] if decision.axis_levels else (),
        offset_s=decision.offsets_s[number],
        period_s=decision.periods_s[number] if decision.periods_s else None,
    )


def _bound_busy(view: View, now: Contention) -> float:
    """The same linear programme, whose work is the device-seconds of compute."""
    devices = [len(found.job.seats) for found in now.jobs]
    computing = tuple(
        replace(job, flops=count * found.compute_s)
        for job, found, count in zip(view.jobs, now.jobs, devices, strict=True)
    )
    return min(1.0, bound_flops_per_s(replace(view, jobs=computing)) / sum(devices))


def decided_by(policy: NetworkPolicy, *, keep_paths: bool, slowdown_cap: float | None) -> Decide:
    """Return what decides by a policy: on the paths of now alone where they are kept. With a cap the answer keeps it,
    or NothingFits says which job does not and the smallest cap that the answer keeps."""

    def decide(view: View) -> Decision:
        asked = on_paths_of_now(view) if keep_paths else view
        decision = check_decision(policy.decide(asked), asked, where=f"policy {policy.name}")
        if keep_paths:
            decision = replace(decision, paths=tuple(job.now for job in view.jobs))
        if slowdown_cap is not None:
            check_cap(view, decision, slowdown_cap, policy.name)
        return decision

    return decide


def on_paths_of_now(view: View) -> View:
    """Return the view where no connection has another path than the one that it takes."""
    jobs = tuple(
        replace(
            job,
            paths=tuple((path_of(options, choice),) for options, choice in zip(job.paths, job.now, strict=True)),
            now=(0,) * len(job.now),
        )
        for job in view.jobs
    )
    return replace(view, jobs=jobs)


def check_cap(view: View, decision: Decision, cap: float, name: str) -> None:
    """Raise NothingFits for a job whose iteration takes more than `cap` times as long as alone, where compute does not
    vary."""
    factors = slowdowns(view.jobs, Rehearsals(view).rates_of(decision))
    worst = max(range(len(factors)), key=lambda job: (factors[job], view.jobs[job].id), default=None)
    if worst is None or factors[worst] <= cap * (1 + WITHIN):
        return
    least = ceil(factors[worst] * CAP_PARTS) / CAP_PARTS if isfinite(factors[worst]) else None
    works = "it keeps no cap" if least is None else f"the smallest cap that it keeps is {least:.4f}"
    raise NothingFits(
        f"job {view.jobs[worst].id}: under {name} its iteration takes {factors[worst]:.4g} times alone, more than"
        f" {cap:g}; {works}; --policy ours looks for an answer that keeps one"
    )
