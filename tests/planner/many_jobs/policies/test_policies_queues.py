"""Policies that give what was asked for: who goes first, who overtakes, who gives way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from planner.many_jobs.jobs.records import Decision, Job, Policy, View
from planner.many_jobs.policies.backfill import EasyBackfill, backfilled, shadow
from planner.many_jobs.policies.fcfs import Fcfs
from planner.many_jobs.policies.gang import Gang
from planner.many_jobs.policies.priority import PriorityPreemption, victims
from planner.many_jobs.policies.quota import Quota
from planner.many_jobs.policies.sjf import ShortestFirst
from planner.many_jobs.policies.tiresias import Tiresias
from planner.many_jobs.scheduling.quotas import demand_quotas, read_queues
from planner.many_jobs.simulation.engine import simulate
from profiles.errors import InputError
from tests.oracles.policy_oracle import head_start_s
from tests.policy_examples import HandState, HandView, apply, runs, started, suspended, waits
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import seeds


def view_of(*states: HandState, devices: int = 8, now_s: float = 0.0, restart: float = 0.0) -> HandView:
    """One pool "a100" of that many devices."""
    pools = {"a100": make_pool("a100", nodes=1, devices_per_node=devices)}
    return HandView(states=states, pools=pools, cells=FakeCells(pools), now_s=now_s, restart=restart)


def asks(id_: str, devices: int, *, submit_s: float = 0.0, duration_s: float = 600.0, priority: int = 0) -> Job:
    return make_job(id_, devices=devices, submit_s=submit_s, duration_s=duration_s, priority=priority)


# first come, first served


def test_fcfs_stops_at_the_first_that_does_not_fit() -> None:
    view = view_of(waits(asks("a", 4)), waits(asks("b", 8)), waits(asks("c", 1)))
    assert started(Fcfs().decide(view)) == {"a"}


def test_fcfs_has_a_queue_for_each_pool() -> None:
    pools = two_pools()
    one, other = pools
    most = pools[one].devices
    jobs = [(one, most - 1), (one, 2), (other, 1)]
    states = [waits(replace(asks(name, count), pool=pool)) for name, (pool, count) in zip("xyz", jobs, strict=True)]
    view = HandView(states=states, pools=pools, cells=FakeCells(pools))
    assert started(Fcfs().decide(view)) == {"x", "z"}
    assert started(Fcfs(one_queue=True).decide(view)) == {"x"}


@pytest.mark.parametrize(
    "hopeless",
    [
        asks("x", 16),
        replace(asks("x", 1), workload=make_job(model="gpt-900b").workload),
        replace(asks("x", 1), pool="gone"),
    ],
    ids=["larger than the pool", "no Cell fits", "pool gone"],
)
@pytest.mark.parametrize(
    "policy", [Fcfs(), EasyBackfill(), PriorityPreemption(), Quota(), Gang(), ShortestFirst(strict=True), Tiresias()]
)
def test_who_can_never_run_blocks_nobody(policy: Policy, hopeless: Job) -> None:
    view = view_of(waits(hopeless), waits(asks("b", 8)))
    view.arrived = ["x", "b"]
    assert started(policy.decide(view)) == {"b"}


# EASY backfilling


def test_easy_lets_short_and_small_jobs_by() -> None:
    states = [
        runs(asks("r", 6, duration_s=100.0)),
        waits(asks("head", 7)),
        waits(asks("long", 2, duration_s=101.0)),
        waits(asks("extra", 1, duration_s=9e9)),
        waits(asks("short", 1, duration_s=100.0)),
    ]
    assert started(EasyBackfill().decide(view_of(*states))) == {"extra", "short"}
    assert started(EasyBackfill(depth=1).decide(view_of(*states))) == set()


def test_easy_reserves_for_the_head_of_each_pool() -> None:
    pools = two_pools()
    states = [
        runs(make_job("r", pool="v100", devices=12, duration_s=100.0)),
        waits(make_job("head", pool="v100", devices=8)),
        waits(make_job("other", pool="a100", devices=32)),
        waits(make_job("late", pool="v100", devices=4, duration_s=200.0)),
    ]
    view = HandView(states=states, pools=pools, cells=FakeCells(pools))
    assert started(EasyBackfill().decide(view)) == {"other", "late"}  # 8 of 16 are extra when r ends


def test_the_shadow_time_counts_all_that_end_by_then() -> None:
    assert shadow(1, 4, [(5.0, 2), (5.0, 2), (3.0, 1)]) == (5.0, 2)
    assert shadow(1, 9, [(5.0, 2)]) == (float("inf"), 0)


@pytest.mark.parametrize("seed", seeds(300))
def test_backfilling_never_delays_the_head_and_misses_nobody(seed: int) -> None:
    rng = Random(seed)
    free = rng.randint(1, 6)
    ends = [(float(rng.randint(1, 9)), rng.randint(1, 4)) for _ in range(rng.randint(1, 5))]
    need = rng.randint(free + 1, free + sum(count for _, count in ends))
    later = [(float(rng.randint(1, 12)), rng.randint(1, 4)) for _ in range(rng.randint(1, 6))]
    due_s = head_start_s(free, need, ends)
    chosen = backfilled(free, need, ends, later)
    left, running = free, list(ends)
    for index, (length_s, count) in enumerate(later):
        harmless = count <= left and head_start_s(left - count, need, [*running, (length_s, count)]) <= due_s
        assert (index in chosen) == harmless
        if harmless:
            left -= count
            running.append((length_s, count))
    assert head_start_s(left, need, running) == due_s


class HeadWatch:
    """EASY, with a note of when each job that is head of its pool would start if nobody overtook it."""

    name = "watched"

    def __init__(self) -> None:
        self.policy, self.promised_s = EasyBackfill(), dict[str, float]()

    def decide(self, view: View) -> Decision:
        decision = self.policy.decide(view)
        for pool in view.pools:
            queue = [state.job for id_, state in view.waiting.items() if state.job.pool == pool]
            ends = [
                (state.remaining_iterations / state.job.iterations * state.job.duration_s, state.job.devices)
                for state in view.running.values()
                if state.job.pool == pool
            ]
            free = view.free[pool]
            for job in queue:
                start_s = head_start_s(free, job.devices, ends)
                if start_s > 0:
                    self.promised_s.setdefault(job.id, view.now_s + start_s)
                    break
                free -= job.devices
                ends.append((job.duration_s, job.devices))
        return decision

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        del state


@pytest.mark.parametrize("seed", seeds(25))
def test_with_exact_predictions_no_head_is_later_than_promised(seed: int) -> None:
    rng, cells, now_s, jobs = Random(seed), FakeCells(), 0.0, list[Job]()
    for number in range(40):
        now_s += rng.expovariate(1 / 60)
        pool, devices = rng.choice([("a100", rng.randint(1, 32)), ("v100", rng.randint(1, 16))])
        job = make_job(str(number), submit_s=now_s, pool=pool, devices=devices, duration_s=rng.uniform(30, 900))
        best = cells.best(job.workload, pool, devices)
        assert best is not None
        jobs.append(replace(job, iterations=job.duration_s / best.iteration_time_s))
    watch = HeadWatch()
    result = simulate(jobs, two_pools(), cells, watch)
    assert result.summary.finished == len(jobs)
    start_s = {job.id: float(start) for job, start in zip(result.jobs, result.table.start_s, strict=True)}
    assert watch.promised_s
    for id_, promised_s in watch.promised_s.items():
        assert start_s[id_] <= promised_s + 1e-6


# priorities


def test_the_important_take_from_the_least_important_and_latest() -> None:
    states = [
        runs(asks("low-old", 2), granted_s=1.0),
        runs(asks("low-new", 2), granted_s=2.0),
        runs(asks("mid", 4, priority=1), granted_s=3.0),
        waits(asks("high", 2, priority=2)),
        waits(asks("same", 2)),
    ]
    decision = PriorityPreemption().decide(view_of(*states, now_s=9.0))
    assert suspended(decision) == {"low-new"}
    assert started(decision) == {"high"}
    assert started(PriorityPreemption(preempt=False).decide(view_of(*states))) == set()
    assert started(PriorityPreemption(least_run_s=10.0).decide(view_of(*states, now_s=9.0))) == set()


def test_without_backfill_nobody_passes_a_more_important_one() -> None:
    states = [runs(asks("r", 5, priority=9)), waits(asks("big", 6, priority=1)), waits(asks("small", 1))]
    assert started(PriorityPreemption().decide(view_of(*states))) == set()
    assert started(PriorityPreemption(backfill=True).decide(view_of(*states))) == {"small"}


@pytest.mark.parametrize("seed", seeds(100))
def test_victims_suffice_and_none_can_be_spared(seed: int) -> None:
    rng = Random(seed)
    held = [(waits(asks(str(index), 1)), rng.randint(1, 5)) for index in range(rng.randint(0, 6))]
    free, need = rng.randint(0, 4), rng.randint(1, 16)
    found = victims(free, need, list(held))
    if free + sum(count for _, count in held) < need:
        assert found is None
        return
    assert found is not None
    total = free + sum(count for _, count in found)
    assert total >= need
    assert all(total - count < need for _, count in found)


# quotas


def of_queue(id_: str, queue: str, devices: int, *, priority: int = 0) -> Job:
    return make_job(id_, devices=devices, virtual_cluster=queue, priority=priority)


def test_quotas_lend_and_take_back() -> None:
    quotas: dict[str, object] = {"x": 4, "y": 4}
    lent = view_of(waits(of_queue("y1", "y", 4)), waits(of_queue("y2", "y", 4)))
    assert started(Quota(quotas=quotas).decide(lent)) == {"y1", "y2"}
    assert started(Quota(quotas=quotas, borrowing=False).decide(lent)) == {"y1"}
    states = [
        runs(of_queue("y1", "y", 4), granted_s=1.0),
        runs(of_queue("y2", "y", 4), granted_s=2.0),
        waits(of_queue("x1", "x", 4)),
        waits(of_queue("x2", "x", 1)),
    ]
    decision = Quota(quotas=quotas).decide(view_of(*states))
    assert suspended(decision) == {"y2"}
    assert started(decision) == {"x1"}
    assert not Quota(quotas=quotas, reclaim=False).decide(view_of(*states)).grants


def test_a_cohort_lends_only_to_its_own_and_within_limits() -> None:
    quotas: dict[str, object] = {
        "x": {"nominal": {"a100": 4}, "cohort": "one"},
        "y": {"nominal": 2, "cohort": "two"},
        "z": {"nominal": 2, "cohort": "two", "borrowing_limit": 1},
    }
    big, small, limited = waits(of_queue("y1", "y", 4)), waits(of_queue("y2", "y", 1)), waits(of_queue("z1", "z", 4))
    assert started(Quota(quotas=quotas).decide(view_of(big, limited))) == {"y1"}
    assert started(Quota(quotas=quotas).decide(view_of(big, small, limited))) == {"y2"}


def test_quotas_are_read_with_care(tmp_path: Path) -> None:
    path = tmp_path / "quotas.yaml"
    path.write_text("x: {nominal: {a100: 4}, borrowing_limit: 2, cohort: c}\ny: 3\n")
    view = view_of(waits(of_queue("y1", "y", 3)), waits(of_queue("y2", "y", 3)))
    assert started(Quota(quotas=str(path)).decide(view)) == {"y1"}
    wrongs: tuple[object, ...] = ([], {"x": -1}, {"x": {"nominal": "4"}}, {"x": {"quota": 4}}, {"x": True})
    for wrong in wrongs:
        with pytest.raises(InputError):
            read_queues(wrong, where="q")
    with pytest.raises(InputError):
        Quota(quotas=str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("seed", seeds(50))
def test_split_quotas_follow_demand_and_add_up(seed: int) -> None:
    rng = Random(seed)
    size = rng.randint(1, 100)
    demand = {f"vc{index}": rng.uniform(0.1, 9) for index in range(rng.randint(1, 7))}
    queues = demand_quotas({"a": size}, {"a": demand})
    assert sum(queue.nominal("a") for queue in queues.values()) == size
    total = sum(demand.values())
    assert all(abs(queues[name].nominal("a") - size * area / total) < 1 for name, area in demand.items())


# gangs


def test_a_gang_holds_the_pool_until_its_time_is_out() -> None:
    policy = Gang(hold_s=100.0, backoff_s=50.0)
    big, small, other = waits(asks("big", 8)), waits(asks("small", 1, submit_s=1.0)), runs(asks("r", 4))
    view = view_of(big, small, other)
    assert not policy.decide(view).grants
    view.now_s = 99.0
    again = Gang(hold_s=100.0, backoff_s=50.0)
    again.restore(policy.state())
    assert not again.decide(view).grants
    view.now_s = 100.0
    assert started(again.decide(view)) == {"small"}
    apply(view, Decision(grants={"small": Fcfs().decide(view_of(small)).grants["small"]}))
    view.now_s = 149.0
    assert not again.decide(view).grants
    view.now_s = 150.0
    late = waits(asks("late", 1, submit_s=150.0))
    view.states = [*view.states, late]
    assert not again.decide(view).grants
    view.states = [big]
    view.now_s = 160.0
    assert started(again.decide(view)) == {"big"}


# shortest first


def test_the_shortest_prediction_goes_first() -> None:
    states = [waits(asks("long", 4, duration_s=10.0)), waits(asks("short", 8, duration_s=90.0))]
    view = view_of(*states)
    assert started(ShortestFirst().decide(view)) == {"long"}
    view.predicted = {"long": 100.0}
    assert started(ShortestFirst().decide(view)) == {"short"}
    assert started(ShortestFirst(by_area=True).decide(view)) == {"long"}


def test_strict_order_waits_for_the_shortest() -> None:
    states = [runs(asks("r", 4)), waits(asks("short", 8, duration_s=1.0)), waits(asks("long", 1))]
    assert started(ShortestFirst().decide(view_of(*states))) == {"long"}
    assert started(ShortestFirst(strict=True).decide(view_of(*states))) == set()


def test_preemption_weighs_the_restart() -> None:
    states = [runs(asks("r", 8, duration_s=100.0)), waits(asks("w", 8, duration_s=60.0))]
    decision = ShortestFirst(preemptive=True).decide(view_of(*states, restart=30.0))
    assert (started(decision), suspended(decision)) == ({"w"}, {"r"})
    assert not ShortestFirst(preemptive=True).decide(view_of(*states, restart=50.0)).grants


# Tiresias


def test_attained_service_decides_and_long_waiting_promotes() -> None:
    policy = Tiresias(thresholds_device_s=(100.0,), promote=2.0)
    old, new = runs(asks("old", 8)), waits(asks("new", 8, submit_s=5.0))
    old.attained_device_s = 99.0
    assert not policy.decide(view_of(old, new)).grants
    old.attained_device_s = 800.0
    view = view_of(old, new)
    decision = policy.decide(view)
    assert (started(decision), suspended(decision)) == ({"new"}, {"old"})
    apply(view, decision)
    old.waited_s = 199.0
    assert not policy.decide(view).grants
    old.waited_s = 200.0  # twice the 100 s that it ran
    copy = Tiresias(thresholds_device_s=(100.0,), promote=2.0)
    copy.restore(policy.state())
    for each in (policy, copy):
        assert started(each.decide(view)) == {"old"}
    assert policy.state() == copy.state() == {"old": [800.0, 200.0]}
