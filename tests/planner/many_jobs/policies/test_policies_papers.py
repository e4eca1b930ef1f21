"""The papers' policies on small views, and all baselines over whole runs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from planner.many_jobs.jobs.records import Decision, Policy, View, grant
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.policies.elasticflow import ElasticFlow, ElasticFlowLs
from planner.many_jobs.policies.gandiva import Gandiva
from planner.many_jobs.policies.gavel import Gavel
from planner.many_jobs.policies.pollux import Pollux, restart_factor
from planner.many_jobs.policies.sia import Sia
from planner.many_jobs.scheduling.beliefs import Ladders, least_counts
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.settings import Settings
from profiles.errors import InputError
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.policy_examples import HandState, HandView, apply, runs, started, suspended, waits
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import seeds

BASELINES: tuple[tuple[str, dict[str, object]], ...] = (
    ("fcfs", {}),
    ("easy-backfill", {}),
    ("priority", {}),
    ("priority", {"backfill": True, "least_run_s": 600.0}),
    ("quota", {}),
    ("gang", {}),
    ("sjf", {}),
    ("sjf", {"preemptive": True}),
    ("gandiva", {"quantum_s": 600.0}),
    ("gavel", {}),
    ("gavel", {"objective": "fairness"}),
    ("gavel", {"objective": "makespan"}),
    ("elasticflow", {}),
    ("elasticflow-ls", {}),
    ("tiresias", {}),
    ("pollux", {}),
    ("sia", {}),
)
IDS = [name + "".join(f"-{value}" for value in options.values()) for name, options in BASELINES]


def view_of(*states: HandState, now_s: float = 0.0, restart: float = 0.0) -> HandView:
    """32 of "a100" and 16 of "v100"."""
    pools = two_pools()
    return HandView(states=states, pools=pools, cells=FakeCells(pools), now_s=now_s, restart=restart)


# what is believed


def test_ladders_hold_what_fits_and_rise() -> None:
    view, ladders = view_of(), Ladders()
    big = ladders.of(view, make_job(model="gpt-30b", pool="v100", devices=16))
    assert big.counts == (16,)
    odd = ladders.of(view, make_job(devices=3))
    assert odd.counts == (1, 2, 3, 4, 8, 16, 32)
    assert all(slow < fast for slow, fast in zip(odd.rates, odd.rates[1:], strict=False))
    assert odd.rate(5) == odd.rates[3]
    assert odd.rate(0) == 0.0
    assert ladders.of(view, make_job(model="gpt-900b")).counts == ()
    assert ladders.of(view, make_job(pool="gone")).counts == ()
    view.pools = {"a100": make_pool("a100", devices=8)}
    assert ladders.of(view, make_job(devices=3)).counts == (1, 2, 3, 4, 8)


def test_a_ladder_without_belief_is_the_smallest_that_fits_in_truth() -> None:
    class Blind(FakeCells):
        def data_parallel_s(self, workload: object, pool: str, devices: int) -> float | None:
            del workload, pool, devices
            return None

    pools = two_pools()
    view = HandView(states=(), pools=pools, cells=Blind(pools))
    assert Ladders().of(view, make_job(model="moe-10b", devices=8)).counts == (2,)


def test_least_counts_pass_over_who_does_not_fit() -> None:
    view, ladders = view_of(), Ladders()
    states = [waits(make_job("a", model="gpt-30b", pool="v100", devices=16)), waits(make_job("b", submit_s=1.0))]
    known = {state.job.id: ladders.of(view, state.job) for state in states}
    assert least_counts(states, known, 15) == {"b": 1}


# Gandiva


def test_gandiva_takes_the_emptiest_pool_and_ignores_its_type() -> None:
    view = view_of(runs(make_job("r", devices=24)), waits(make_job("a", devices=8)))
    assert Gandiva().decide(view).grants == {"a": grant("v100", 8)}


def test_gandiva_shrinks_migrates_and_takes_turns() -> None:
    grown = runs(make_job("g", devices=8), devices=32)
    view = view_of(grown, runs(make_job("v", pool="v100", devices=16)), waits(make_job("a", devices=16)))
    assert Gandiva().decide(view).grants == {"g": grant("a100", 8), "a": grant("a100", 16)}
    view = view_of(runs(make_job("r", devices=8)), runs(make_job("s", devices=8)), waits(make_job("a", devices=24)))
    assert Gandiva().decide(view).grants == {"r": grant("v100", 8), "a": grant("a100", 24)}
    first, second = runs(make_job("r", devices=32)), runs(make_job("s", pool="v100", devices=16))
    view = view_of(first, second, waits(make_job("a", devices=32)), now_s=99.0)
    assert not Gandiva(quantum_s=100.0).decide(view).grants
    view.now_s = 100.0
    decision = Gandiva(quantum_s=100.0).decide(view)
    assert (started(decision), suspended(decision)) == ({"a"}, {"r"})


def test_gandiva_grows_into_idle_devices_while_it_pays() -> None:
    view = view_of(runs(make_job("r", devices=8)), now_s=9999.0)
    assert Gandiva().decide(view).grants == {"r": grant("a100", 16)}
    assert not Gandiva(grow_gain=2.0).decide(view).grants
    assert not Gandiva(grow_limit=1).decide(view).grants


# Gavel


def test_gavel_puts_each_where_it_gains_most() -> None:
    states = [waits(make_job("a", devices=16)), waits(make_job("b", devices=16)), waits(make_job("c", devices=16))]
    view = view_of(*states)
    shares = Gavel(objective="throughput").shares(view, view.waiting)
    assert sum(share.get("a100", 0.0) for share in shares.values()) == pytest.approx(2.0)
    assert sum(share.get("v100", 0.0) for share in shares.values()) == pytest.approx(1.0)
    assert started(Gavel().decide(view)) == {"a", "b", "c"}


@pytest.mark.parametrize("objective", ["fairness", "throughput"])
def test_gavel_gives_equal_jobs_equal_time(objective: str) -> None:
    pools = {"a100": make_pool("a100", nodes=1)}
    states = [waits(make_job(name, devices=8)) for name in "abc"]
    view = HandView(states=states, pools=pools, cells=FakeCells(pools))
    policy, seconds = Gavel(objective=objective, round_s=100.0), dict.fromkeys("abc", 0.0)
    for _ in range(30):
        apply(view, policy.decide(view))
        for id_ in view.running:
            seconds[id_] += 100.0
        view.now_s += 100.0
    assert seconds == dict.fromkeys("abc", 1000.0)


def test_gavel_between_rounds_only_fills() -> None:
    view = view_of(waits(make_job("a", devices=32)))
    policy = Gavel(round_s=360.0)
    apply(view, policy.decide(view))
    view.now_s = 10.0
    view.states = [*view.states, waits(make_job("b", devices=32)), waits(make_job("c", devices=4))]
    assert policy.decide(view).grants == {"c": grant("v100", 4)}
    with pytest.raises(InputError):
        Gavel(objective="speed")


# ElasticFlow


def due(id_: str, deadline_s: float, *, devices: int = 1, iterations: float = 100.0, pool: str = "v100") -> HandState:
    return waits(make_job(id_, pool=pool, devices=devices, iterations=iterations, deadline_s=deadline_s))


def test_elasticflow_drops_who_cannot_make_it_and_keeps_its_word() -> None:
    view = view_of(due("late", 1.0), due("tight", 300.0), due("easy", 1e5))
    view.arrived = ["late", "tight", "easy"]
    decision = ElasticFlow().decide(view)
    assert decision.dropped == ("late",)
    assert started(decision) == {"tight", "easy"}
    tight = decision.grants["tight"]
    assert tight is not None
    seconds = view.cells.data_parallel_s(view.waiting["tight"].job.workload, "v100", tight.devices)
    assert seconds is not None
    assert seconds * 100.0 <= 300.0


def test_elasticflow_drops_the_newcomer_not_the_admitted() -> None:
    cells = FakeCells()
    whole_s = cells.data_parallel_s(make_job().workload, "v100", 16)
    assert whole_s is not None
    policy = ElasticFlow()
    view = view_of(due("old", 120.0 * whole_s))
    view.arrived = ["old"]
    apply(view, policy.decide(view))
    copy = ElasticFlow()
    copy.restore(json.loads(json.dumps(policy.state())))
    view.now_s = 1.0
    view.states, view.arrived = [*view.states, due("new", 110.0 * whole_s)], ["new"]
    for each in (policy, copy):
        assert each.decide(view).dropped == ("new",)


def test_elasticflow_ls_scales_down_to_let_all_in() -> None:
    states = [due(str(index), 1.0, devices=8) for index in range(16)]
    view = view_of(*states)
    view.arrived = [state.job.id for state in states]
    decision = ElasticFlowLs().decide(view)
    assert not decision.dropped
    assert decision.grants == {state.job.id: grant("v100", 1) for state in states}
    few = view_of(*states[:2])
    assert ElasticFlowLs().decide(few).grants == {"0": grant("v100", 8), "1": grant("v100", 8)}


# Pollux and Sia


@pytest.mark.parametrize("seed", seeds(25))
def test_pollux_and_sia_find_the_best_of_all_divisions(seed: int) -> None:
    rng = Random(seed)
    pools = {
        "a100": make_pool("a100", nodes=1, devices_per_node=4),
        "v100": make_pool("v100", nodes=1, devices_per_node=4),
    }
    states = list[HandState]()
    for index in range(3):
        job = make_job(
            str(index),
            pool=rng.choice(("a100", "v100")),
            model=rng.choice(("bert-1.3b", "moe-2.4b", "bert-6.7b")),
            submit_s=-900.0,
        )
        states.append(rng.choice((waits(job), runs(job, granted_s=rng.choice((-900.0, -900.0, -100.0))))))
    view = HandView(states=states, pools=pools, cells=FakeCells(pools), restart=60.0)
    stays = [state.granted_s == -100.0 for state in states]  # It has worked for less time than its restart took.
    places = [None, *((pool, 1 << power) for pool in pools for power in range(3))]

    def rate(state: HandState, place: tuple[str, int]) -> float:
        seconds = view.cells.data_parallel_s(state.job.workload, *place)
        if seconds is None or view.cells.best(state.job.workload, *place) is None:
            return 0.0
        slowed = restart_factor(view, state) if state.grant and state.grant.parts[0] != place else 1.0
        return slowed / seconds

    def sia_cost(state: HandState, place: tuple[str, int] | None) -> float:
        if place is None:
            return 1.1
        plain = [rate(waits(state.job), each) for each in places if each]
        slowest = min(found for found in plain if found > 0)
        least = min(each[1] for each, found in zip(places[1:], plain, strict=True) if each and found > 0)
        return float((rate(state, place) / slowest * least) ** -0.5) if rate(state, place) else float("inf")

    def pollux_cost(state: HandState, place: tuple[str, int] | None) -> float:
        if place is None:
            return 20.0
        if place[0] != state.job.pool or not rate(state, place):
            return float("inf")
        fair = {1: 4, 2: 2, 3: 1}[sum(other.job.pool == state.job.pool for other in states)]
        plain = waits(state.job)
        least = min(count for count in (1, 2, 4) if rate(plain, (place[0], count)))
        share = rate(plain, (place[0], fair)) or rate(plain, (place[0], least)) * fair / least
        return share / rate(state, place)

    for policy, cost in ((Sia(gap=0.0), sia_cost), (Pollux(gap=0.0), pollux_cost)):
        best = min(
            sum(cost(state, place) for state, place in zip(states, division, strict=True))
            for division in product(places, repeat=3)
            if all(sum(place[1] for place in division if place and place[0] == pool) <= 4 for pool in pools)
            and all(
                not stay or (state.grant and place == state.grant.parts[0])
                for stay, state, place in zip(stays, states, division, strict=True)
            )
        )
        decision = policy.decide(view)
        held = [decision.grants.get(state.job.id, state.grant) for state in states]
        got = sum(cost(state, have.parts[0] if have else None) for state, have in zip(states, held, strict=True))
        assert got == pytest.approx(best)


def test_p_must_be_below_0() -> None:
    for made in (Sia, Pollux):
        with pytest.raises(ValueError, match="below 0"):
            made(p=1.0)


# whole runs


class Restored:
    """A policy that is written down as JSON and made anew before every decision but the first."""

    def __init__(self, name: str, options: dict[str, object]) -> None:
        self._made, self.policy = (name, options), make_policy(name, **options)
        self.name = self.policy.name

    def decide(self, view: View) -> Decision:
        held = json.loads(json.dumps(self.policy.state()))
        self.policy = make_policy(self._made[0], **self._made[1])
        self.policy.restore(held)
        return self.policy.decide(view)

    def state(self) -> object:
        return self.policy.state()

    def restore(self, state: object) -> None:
        self.policy.restore(state)


@pytest.mark.parametrize(("name", "options"), BASELINES, ids=IDS)
@pytest.mark.parametrize("round_s", [None, 300.0], ids=["events", "rounds"])
def test_all_jobs_end_also_where_nodes_fail_and_a_restored_policy_decides_alike(
    name: str, options: dict[str, object], round_s: float | None
) -> None:
    failures = Failures(mtbf_s=40_000.0, repair_s=1800.0, seed=2)
    for seed in seeds(2, least=1):
        jobs = draw_workload(Random(seed), 40)
        settings = Settings(round_s=round_s, failures=failures)
        policies: tuple[Policy, ...] = (make_policy(name, **options), Restored(name, options))
        results = [simulate(jobs, two_pools(), FakeCells(), policy, settings=settings) for policy in policies]
        first, second = (result.summary for result in results)
        assert first.violations == 0
        assert first.finished + first.dropped == len(jobs)
        assert first.dropped == 0 or name == "elasticflow"
        assert (first.jct_mean_s, first.restarts) == (second.jct_mean_s, second.restarts)


@pytest.mark.parametrize(("name", "options"), BASELINES, ids=IDS)
def test_a_pool_that_is_all_down_stops_only_its_own(name: str, options: dict[str, object]) -> None:
    pools = {"a100": make_pool("a100", devices=0), "v100": make_pool("v100", nodes=4, devices_per_node=4)}
    jobs = [make_job("a", devices=32), make_job("b", pool="v100", devices=4), make_job("c", devices=1)]
    view = HandView(states=[waits(job) for job in jobs], pools=pools, cells=FakeCells(pools), arrived=["a", "b", "c"])
    policy = make_policy(name, **options)
    decision = policy.decide(view)
    apply(view, decision)
    assert "b" in started(decision)
    view.pools = {"v100": pools["v100"]}
    view.now_s, view.arrived = 1e4, []
    apply(view, policy.decide(view))
    assert "b" in view.running


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_restarts_that_take_longer_than_a_round_leave_time_to_work(policy: str) -> None:
    """With rounds of a minute and restarts of five, whoever is moved works as long as that before it moves again."""
    pools = {"a100": make_pool("a100", nodes=1, devices_per_node=4)}
    cells = FakeCells(pools)
    jobs = [
        make_job(str(number), pool="a100", devices=1 << number % 3, model="bert-1.3b", submit_s=7.0 * number)
        for number in range(24)
    ]
    jobs = [
        replace(job, iterations=600.0 / best.iteration_time_s, duration_s=600.0)
        for job in jobs
        if (best := cells.best(job.workload, "a100", job.devices))
    ]
    result = simulate(jobs, pools, cells, make_policy(policy), settings=Settings(round_s=60.0, restart_s=300.0))
    assert result.summary.finished == len(jobs) == 24
    assert result.summary.restarts < 10 * len(jobs)
