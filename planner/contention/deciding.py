"""`cellplan contention`'s second half: what jobs on a network are to do, by the options of the command."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from planner.contention.chosen_policy import ChosenPolicy, choose_policy
from planner.contention.contending import Contention
from planner.contention.contention_file import ContentionFile, PolicyRow, check_cluster, load_contention
from planner.contention.emitting.environment import takes_axis_levels
from planner.contention.emitting.fabric_levels import levels_of_fabric
from planner.contention.emitting.nccl_release import Release, read_release
from planner.contention.emitting.priority_map import MLNX_QOS, SONIC, PriorityMap
from planner.contention.emitting.transports import Transport, transport_of
from planner.contention.given_plan import decision_of_file
from planner.contention.jobs_file import PlacedJob
from planner.contention.planning import Decide, NetworkPlan, plan_network, see_jobs
from planner.contention.policies.front import fairness_front
from planner.contention.policies.ours import plays_for
from planner.contention.policies.records import Decision, View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import slowdowns, work_per_s
from planner.contention.settings import map_of_file
from planner.contention.slowing import Told
from planner.contention.viewing import Seen
from planner.shared.options.contention import ContentionOptions
from profiles.cluster import Cluster
from profiles.errors import InputError
from profiles.records import dataclass, replace

BELIEF_SEEDS = 5
"""So many draws of errors are tried of each size."""
NAMES_SHOWN = 6
NO_CHOICE = {
    "infiniband": "InfiniBand goes by destination and has no source ports",
    "spray": "the fabric sprays packets over all ways, there are no paths to choose",
    "dimension-order": "a torus goes by dimension, there are no paths to choose",
}
"""By how a fabric routes, why connections have one way alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """What the command was asked to decide by, all that can be wrong about it checked: a policy, or a file that was
    decided before; the fabric's levels; the release of the jobs' NCCL, None where nobody declares it."""

    policy: ChosenPolicy
    given: ContentionFile | None
    map: PriorityMap
    transport: Transport
    nccl: str | None = None

    @property
    def release(self) -> Release | None:
        """The release of the jobs' NCCL as numbers."""
        return None if self.nccl is None else read_release(self.nccl)


@dataclass(frozen=True, kw_only=True)
class Belief:
    """What the policy brings where what it believes is wrong by the share `error`, in the mean of several draws; `lost`
    is a share of what it brings where nothing is wrong, negative where errors happen to help."""

    error: float
    flops_per_s: float
    lost: float


@dataclass(frozen=True, kw_only=True)
class FrontPoint:
    """An answer: the work of all jobs, the worst slowdown and whose it is, the levels of the jobs; `proved`: nothing
    with that slowdown does more."""

    flops_per_s: float
    slowdown: float
    job: str
    levels: tuple[int | None, ...]
    proved: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Decided:
    """What was decided and what came of it. `levels`: how many there are of them."""

    plan: NetworkPlan
    policy: PolicyRow
    levels: int
    asked: Asked
    beliefs: tuple[Belief, ...]
    front: tuple[FrontPoint, ...]
    notes: tuple[str, ...]


def read_asked(options: ContentionOptions, cluster: Cluster) -> Asked:
    """Return what the options ask for. Raise InputError for a policy, a part or a level that there is not, and for a
    file of another cluster."""
    given = None
    if options.network_plan is not None:
        given = load_contention(options.network_plan)
        check_cluster(given, cluster, str(options.network_plan))
    if options.transport != "auto":
        transport: Transport = options.transport
    else:
        transport = transport_of(cluster) if given is None else given.cluster.transport
    of = None if given is None or options.priority_map is not None else map_of_file(given, options.network_plan)
    if of is None:
        levels = options.levels if given is None else given.levels
        of = levels_of_fabric(options.priority_map, transport, levels=levels, reserved=options.reserved)
    if options.emit_map and of.source in (MLNX_QOS, SONIC) and options.priority_map is None:
        found, expected = "the levels of a file alone", "--priority-map, too: a map keeps what other traffic has"
        raise InputError(where=options.command, key="--emit-map", found=found, expected=expected)
    nccl = given.nccl if options.nccl is None and given is not None else options.nccl
    asked = Asked(policy=choose_policy(options), given=given, map=of, transport=transport, nccl=nccl)
    if asked.release is not None and transport not in ("roce", "infiniband"):
        expected = "none: what NCCL is told of levels it is told over RoCE and InfiniBand"
        raise InputError(where=options.command, key="--nccl", found=nccl, expected=expected)
    return asked


def decide(
    options: ContentionOptions,
    asked: Asked,
    jobs: Sequence[PlacedJob],
    now: Contention,
    told: Told | None = None,
) -> Decided | None:
    """Return what the jobs of `now` are to do; None where nobody asked and the work of a job that shares links is not
    known, without which nothing can be compared. `told` hears how far it is.

    Raises:
        InputError: work that is not known, a level that there is not, a decision that is none on these jobs, a file of
            jobs that have gone. NothingFits: a cap that nothing keeps.
    """
    unknown = _unknown_work(now)
    if unknown:
        if not options.decides:
            return None
        raise _work_needed(options, unknown)
    levels = len(asked.map.levels)
    if asked.policy.is_static and asked.given is None:
        _check_own_levels(jobs, levels, str(options.jobs))
    seen = see_jobs(jobs, now.fabric, options.model)
    if asked.given is None and not takes_axis_levels(asked.transport, asked.release):
        seen = tuple(replace(each, contender=replace(each.contender, axes=())) for each in seen)
    if told is not None:
        most = plays_for(len(jobs))
        asked.policy.tell(lambda count: told(min(count, most), most, "cases played"))
    decides = _decides(options, asked, jobs, seen, now)
    plan = plan_network(now, seen, levels, decides, jitter=options.jitter, told=told)
    own = [level for level in plan.decision.levels if level is not None]
    return Decided(
        plan=plan,
        policy=asked.policy.row if asked.given is None else asked.given.policy,
        levels=max(levels, max(own, default=0) + 1) if asked.policy.unlimited else levels,
        asked=asked,
        beliefs=tuple(_beliefs(options, asked.policy, plan)),
        front=tuple(_front(options, asked.policy, plan)) if options.front else (),
        notes=tuple(_notes(options, asked, plan)),
    )


def _decides(
    options: ContentionOptions, asked: Asked, jobs: Sequence[PlacedJob], seen: Sequence[Seen], now: Contention
) -> Decide:
    given = asked.given
    if given is not None:
        where = str(options.network_plan)
        return lambda view: decision_of_file(given, jobs, seen, view, now.fabric, where)
    return asked.policy.decide() if now.links else kept


def kept(view: View) -> Decision:
    """Return the decision that nothing changes, of jobs that share no link: no other does more."""
    return Decision(
        paths=tuple(job.now for job in view.jobs),
        levels=(None,) * len(view.jobs),
        offsets_s=(0.0,) * len(view.jobs),
        proved=True,
    )


def _unknown_work(now: Contention) -> list[str]:
    """The jobs that share links and whose work nobody said."""
    contending = sorted({job for link in now.links for job in link.jobs})
    return [now.jobs[job].job.id for job in contending if now.jobs[job].job.flops is None]


def _work_needed(options: ContentionOptions, unknown: Sequence[str]) -> InputError:
    shown = ", ".join(unknown[:NAMES_SHOWN]) + (
        f" and {len(unknown) - NAMES_SHOWN} more" if unknown[NAMES_SHOWN:] else ""
    )
    return InputError(
        where=str(options.jobs),
        key="traffic.flops",
        found=f"none for {shown}",
        expected="the FLOP of an iteration on all devices of each job that shares links: said, or by `model` or `plan`;"
        " `cellplan run` and `cellplan profile` measure them",
    )


def _check_own_levels(jobs: Sequence[PlacedJob], levels: int, where: str) -> None:
    for number, job in enumerate(jobs):
        if job.level >= levels:
            expected = f"0 to {levels - 1}: the levels that the fabric leaves free"
            raise InputError(where=where, key=f"jobs[{number}].level", found=job.level, expected=expected)


def _beliefs(options: ContentionOptions, policy: ChosenPolicy, plan: NetworkPlan) -> list[Belief]:
    if not options.believe or not plan.now.links:
        return []
    rehearsals, view = Rehearsals(plan.view), plan.view
    true_work = work_per_s(view.jobs, rehearsals.rates_of(plan.decision))
    beliefs = []
    for error in options.believe:
        works = [
            work_per_s(view.jobs, rehearsals.rates_of(policy.decide(error=error, seed=seed)(view)))
            for seed in range(BELIEF_SEEDS)
        ]
        lost = 1 - mean(works) / true_work if true_work > 0 else 0.0
        beliefs.append(Belief(error=error, flops_per_s=mean(works), lost=lost))
    return beliefs


def _front(options: ContentionOptions, policy: ChosenPolicy, plan: NetworkPlan) -> list[FrontPoint]:
    searching = policy.searching
    if searching is None:
        raise options.wrong("front", found=f"it with {options.policy}", expected="--policy ours, which keeps caps")
    if not plan.now.links:
        return []
    view, points = plan.view, []
    for point in fairness_front(view, plays=searching.plays, seed=searching.seed):
        factors = slowdowns(view.jobs, Rehearsals(view).rates_of(point.decision))
        worst = max(range(len(factors)), key=lambda job: (factors[job], view.jobs[job].id))
        points.append(
            FrontPoint(
                flops_per_s=point.flops_per_s,
                slowdown=point.slowdown,
                job=view.jobs[worst].id,
                levels=point.decision.levels,
                proved=point.proved,
            )
        )
    return points


def _notes(options: ContentionOptions, asked: Asked, plan: NetworkPlan) -> list[str]:
    routing, notes = plan.now.fabric.routing, []
    connections = sum(len(seen.queue_pairs) for seen in plan.seen)
    hashed = sum(
        choice is not None and not pair.offer[choice].known
        for seen, choices in zip(plan.seen, plan.decision.paths, strict=True)
        for pair, choice in zip(seen.queue_pairs, choices, strict=False)
    )
    left = sum(seen.left for seen in plan.seen)
    if not plan.now.links:
        return ["nothing to do: no two jobs share a link"]
    if routing.kind in NO_CHOICE:
        notes.append(NO_CHOICE[routing.kind] + ": levels alone are decided")
    elif hashed:
        notes.append(
            f"which ports lead where is a guess for {hashed} of {connections} connections, by a hash"
            f" ({routing.hash}, seed {routing.seed}) that no vendor publishes; `cellplan network probe` finds it out"
        )
    if options.seeds > 1:
        notes.append(
            f"now is the mean of {options.seeds} hashes; what is decided is for the fabric's own, and played there"
        )
    if left:
        notes.append(f"{left} connections of jobs with very many keep the paths that hashes give them")
    searching = asked.policy.searching
    if searching is not None and asked.given is None and not plan.decision.proved:
        plays = searching.plays or plays_for(len(plan.decision.order))
        notes.append(f"the search ends after some {plays} played cases of all jobs; --policy-option plays=N takes N")
    if plan.decision.given_up:
        notes.append(
            f"{max(plan.decision.given_up, 1e-6):.2%} of the most work that was found is given up, so that fewer jobs"
            " change; --policy-option give_up=0 gives up none"
        )
    if asked.policy.unlimited and asked.given is None:
        notes.append(f"{options.policy} gives each job a level of its own, as no fabric has them")
    if any(found.job.weight != 1 for found in plan.now.jobs):
        notes.append(
            "weights say who gets how much inside a level; work counts alike, whoever does it, unless"
            " --policy-option worth=weighted"
        )
    return notes
