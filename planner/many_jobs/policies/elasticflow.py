"""ElasticFlow: deadlines first, then devices by marginal return; and its loosened variant without deadlines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import cast

from planner.many_jobs.jobs.records import Decision, Grant, JobState, View, grant
from planner.many_jobs.scheduling.beliefs import Ladder, Ladders, least_counts
from planner.many_jobs.scheduling.queueing import Rounds, decision_for
from planner.many_jobs.scheduling.slots import Demand, Plan, slot_edges

States = Mapping[str, JobState]
Return = Callable[[int], float]
"""What the step from a rung of a job's ladder to the next is worth."""


class ElasticFlow:
    """Gu et al., "ElasticFlow: An Elastic Serverless Training Platform for Distributed Deep Learning", ASPLOS 2023.

    Admission (section 4.1, Algorithm 1): a new job with a deadline is admitted if, in order of deadlines, every
    admitted job and it have a minimum satisfactory share, see `planner.many_jobs.scheduling.slots`; else it is dropped.
    Allocation (section 4.2, Algorithm 2): all get what their share has in the first slot; then devices go one step of
    the ladder at a time to the job with the best marginal return, the least growth of its device-seconds for each
    further device. Jobs without a deadline are best effort: their smallest count after all shares, oldest first.

    Counts are powers of two (or what a job asked for), rates those of data-parallel profiles. It is made for equal
    devices, so each job stays on the pool that it asked for and each pool is a cluster of its own.

    Simplifications: device-seconds are those of running at one count to the end; an admitted job that fell behind
    (restarts, failed nodes) runs as best effort, and is dropped once it would be late on the whole pool.

    Args:
        slot_s: a full decision at most so often, and the length of the near time slots. In between only new jobs are
            admitted and free devices handed out.
    """

    name = "elasticflow"
    loose = False

    def __init__(self, *, slot_s: float = 300.0) -> None:
        self._slot_s = float(slot_s)
        self._rounds = Rounds(slot_s)
        self._ladders = Ladders()
        self._admitted: set[str] = set()

    def decide(self, view: View) -> Decision:
        """Pool by pool."""
        self._admitted.difference_update(view.departed)
        due = self._rounds.due(view.now_s)
        arrived = set(view.arrived)
        pools = self._concerned(view, due, arrived)
        wanted, dropped = dict[str, Grant](), list[str]()
        for pool, states in pools.items():
            ladders = {id_: self._ladders.of(view, state.job) for id_, state in states.items()}
            able = {id_: state for id_, state in states.items() if ladders[id_].counts}
            plan = dict[str, int]()
            if not self.loose:
                dropped += [id_ for id_, state in states.items() if id_ not in able and _is_past(view, state)]
                plan, late = self._admit(view, view.pools[pool].devices, able, ladders, arrived, planned=due)
                dropped += late
                able = {id_: state for id_, state in able.items() if id_ not in late}
            if due:
                counts = self._allocate(view.pools[pool].devices, able, ladders, plan)
            else:
                idle = [state for id_, state in able.items() if id_ in view.waiting]
                counts = least_counts(idle, ladders, view.free[pool])
            wanted.update({id_: grant(pool, count) for id_, count in counts.items()})
        if due:
            return decision_for(view, wanted, dropped)
        return Decision(grants=dict(wanted), dropped=tuple(dropped))

    def _concerned(self, view: View, due: bool, arrived: set[str]) -> dict[str, dict[str, JobState]]:
        """The jobs of each pool. Between full decisions: of pools where somebody asks to be admitted, and the waiting
        ones of pools with free devices."""
        asking = set[str]()
        for id_ in arrived:
            state = None if self.loose else view.waiting.get(id_)
            if state is not None and state.job.deadline_s is not None:
                asking.add(state.job.pool)
        all_of = set(view.pools) if due else asking
        pools: dict[str, dict[str, JobState]] = {
            name: {} for name in view.pools if name in all_of or view.free[name] > 0
        }
        if all_of:
            for id_, state in view.running.items():
                if state.job.pool in all_of and state.job.pool in pools:
                    pools[state.job.pool][id_] = state
        for id_, state in view.waiting.items():
            if state.job.pool in pools:
                pools[state.job.pool][id_] = state
        return pools

    def _admit(
        self,
        view: View,
        capacity: int,
        states: States,
        ladders: Mapping[str, Ladder],
        arrived: set[str],
        *,
        planned: bool,
    ) -> tuple[dict[str, int], list[str]]:
        """Admit new jobs in order of submission. Returns what the shares of the admitted have in the first slot, and
        who is dropped, for want of a share or because it would be late whatever it got. Not `planned`: the shares
        matter only for admission."""
        late, admitted, fresh = list[str](), list[tuple[str, Demand]](), list[tuple[str, Demand]]()
        for id_, state in states.items():
            if state.job.deadline_s is None:
                continue
            demand = _demand(view, state, ladders[id_])
            if id_ in arrived and id_ not in self._admitted:
                fresh.append((id_, demand))
            elif _can_make_it(view, state, demand, capacity):
                self._admitted.add(id_)
                admitted.append((id_, demand))
            else:
                late.append(id_)
                self._admitted.discard(id_)
        if not fresh and not planned:
            return {}, late
        last_s = max((demand.due_s for _, demand in (*admitted, *fresh)), default=0.0)
        plan = Plan(capacity, slot_edges(max(self._slot_s, 1.0), last_s))
        for id_, demand in sorted(admitted, key=lambda entry: entry[1].due_s):
            plan.add(id_, demand)
        for id_, demand in fresh:
            if plan.add(id_, demand):
                self._admitted.add(id_)
            else:
                late.append(id_)
        return {id_: int(share[0]) for id_, share in plan.shares().items()}, late

    def _allocate(
        self, capacity: int, states: States, ladders: Mapping[str, Ladder], plan: Mapping[str, int]
    ) -> dict[str, int]:
        """Devices of each job now: those of its share; then the smallest count for who has no share; then, if there are
        devices left, for those whose share starts later; then by marginal return."""
        counts = {id_: count for id_, count in plan.items() if count}
        for group in (
            [state for id_, state in states.items() if id_ not in plan],
            [states[id_] for id_, count in plan.items() if not count],
        ):
            counts.update(least_counts(group, ladders, capacity - sum(counts.values())))
        return by_marginal_return(counts, self._returns(states, counts, ladders), ladders, capacity)

    def _returns(self, states: States, counts: Mapping[str, int], ladders: Mapping[str, Ladder]) -> dict[str, Return]:
        return {id_: saved_device_s(ladders[id_], states[id_].remaining_iterations) for id_ in counts}

    def state(self) -> object:
        """Who is admitted, and the clock of the rounds."""
        return {"admitted": sorted(self._admitted), "round": self._rounds.last_s}

    def restore(self, state: object) -> None:
        """What `state` gave."""
        held = cast("dict[str, object]", state)
        self._admitted = set(cast("list[str]", held["admitted"]))
        self._rounds.last_s = cast("float | None", held["round"])


class ElasticFlowLs(ElasticFlow):
    """ElasticFlow with loosened deadlines (Crius section 8.3): no deadline counts and nobody is dropped. All get their
    smallest count, oldest first, so that at high load jobs are scaled down to let more in. What is left goes one step
    at a time to the job whose rate, relative to that on the devices asked for, grows most for each further device (the
    throughput-oriented policy of Crius section 8.1; without deadlines, saving device-seconds would leave long jobs at
    their smallest count)."""

    name = "elasticflow-ls"
    loose = True

    def _returns(self, states: States, counts: Mapping[str, int], ladders: Mapping[str, Ladder]) -> dict[str, Return]:
        return {id_: gained_rate(ladders[id_], states[id_].job.devices) for id_ in counts}


def _demand(view: View, state: JobState, ladder: Ladder) -> Demand:
    """What the job has left, and when it is due; a restart that it still has to pay comes off the time."""
    deadline_s = cast("float", state.job.deadline_s)
    restart_s = view.restart_s(state.job) if state.grant is None and state.attained_device_s > 0 else 0.0
    return Demand(work=state.remaining_iterations, due_s=max(0.0, deadline_s - view.now_s - restart_s), ladder=ladder)


def _can_make_it(view: View, state: JobState, demand: Demand, capacity: int) -> bool:
    """Whether the job would be in time with the whole pool by its profile, or as it is seen to run now."""
    if demand.ladder.rate(capacity) * demand.due_s >= demand.work * (1 - 1e-9):
        return True
    seen_s = view.iteration_time_s(state.job, state.grant) if state.grant else None
    return seen_s is not None and seen_s * demand.work <= demand.due_s * (1 + 1e-9)


def _is_past(view: View, state: JobState) -> bool:
    return state.job.deadline_s is not None and view.now_s >= state.job.deadline_s


def saved_device_s(ladder: Ladder, work: float) -> Return:
    """Device-seconds to the end, count x work / rate, that a step of the ladder saves (mostly: costs, below 0) for each
    further device (ElasticFlow section 4.2, Algorithm 2)."""

    def saved(rung: int) -> float:
        now, then = ladder.counts[rung], ladder.counts[rung + 1]
        return work * (now / ladder.rates[rung] - then / ladder.rates[rung + 1]) / (then - now)

    return saved


def gained_rate(ladder: Ladder, asked: int) -> Return:
    """What a step of the ladder adds to the rate for each further device, relative to the rate on what was asked."""
    unit = ladder.rate(asked) or ladder.rates[0]

    def gained(rung: int) -> float:
        more = ladder.counts[rung + 1] - ladder.counts[rung]
        return (ladder.rates[rung + 1] - ladder.rates[rung]) / unit / more

    return gained


def by_marginal_return(
    counts: Mapping[str, int], returns: Mapping[str, Return], ladders: Mapping[str, Ladder], capacity: int
) -> dict[str, int]:
    """Raise counts one step of their ladders at a time while devices are left, each time the job with the largest
    return for its next step; a step that no longer fits is passed over."""
    raised = dict(counts)
    left = capacity - sum(raised.values())
    rungs = {id_: ladders[id_].counts.index(count) for id_, count in raised.items()}
    heap = [(-returns[id_](rung), id_) for id_, rung in rungs.items() if rung + 1 < len(ladders[id_].counts)]
    heapify(heap)
    while heap and left > 0:
        _, id_ = heappop(heap)
        ladder, rung = ladders[id_], rungs[id_]
        more = ladder.counts[rung + 1] - ladder.counts[rung]
        if more > left:
            continue
        left -= more
        rungs[id_] = rung = rung + 1
        raised[id_] = ladder.counts[rung]
        if rung + 1 < len(ladder.counts):
            heappush(heap, (-returns[id_](rung), id_))
    return raised
