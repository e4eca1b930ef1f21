"""Arnold's queue: what its listing gets wrong, its variants, and what must hold of zones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Announcement, Decision, Job, View
from planner.many_jobs.policies.arnold import Arnold, Variant
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failure, Failures
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Settings
from profiles.errors import InputError
from profiles.network import equal_pods
from tests.planner.many_jobs.simulation.simulation_workloads import announce, draw_workload
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import examples
from tests.simulation_examples import PowerCells

POOLS = (make_pool("a", nodes=4, devices_per_node=8),)


def job(id_: str, submit_s: float, nodes: int, run_s: float, *, priority: int = 0, preemptible: bool = False) -> Job:
    """A job on whole nodes that runs so long on them."""
    devices = 8 * nodes
    made = make_job(id_, submit_s=submit_s, pool="a", devices=devices, iterations=run_s * nodes, duration_s=run_s)
    return replace(made, priority=priority, preemptible=preemptible)


def planned(nodes: int, *, submit_s: float = 100.0, known_s: float = 10.0, cancelled: bool = False) -> Job:
    """To come at 100 s, by what is known from 10 s on."""
    plan = Announcement(known_s=known_s, arrival_s=100.0, cancelled=cancelled)
    return replace(job("big", submit_s, nodes, 50.0), planned=plan)


def run(jobs: Sequence[Job], variant: str = "arnold", **told: object) -> Result:
    policy = make_policy("arnold", variant=variant, **told)
    return simulate(jobs, POOLS, PowerCells(), policy, settings=Settings(restart_s=5.0, slices=True))


def starts(result: Result) -> dict[str, float]:
    return {job.id: result.table.start_s[number] for number, job in enumerate(result.jobs)}


def test_who_fits_exactly_starts() -> None:
    """The listing's `<` turns it away."""
    assert starts(run([job("x", 0.0, 4, 10.0)])) == {"x": 0.0}


def test_an_end_is_compared_with_the_arrival_and_not_a_length() -> None:
    """60 s are less than the time of day 100 s, but end at 110 s; 50 s end at 100 s, which is in time."""
    early = job("out", 0.0, 2, 500.0)
    assert starts(run([early, planned(2), job("x", 50.0, 1, 60.0)]))["x"] == 150.0
    assert starts(run([early, planned(2), job("x", 50.0, 1, 50.0)]))["x"] == 50.0


def test_a_zone_is_entered_only_where_it_has_room() -> None:
    """Predicted in time, but nowhere free: it waits."""
    result = run([job("out", 0.0, 2, 500.0), planned(2), job("x", 20.0, 2, 30.0), job("y", 21.0, 2, 40.0)])
    assert starts(result)["x"] == 20.0
    assert starts(result)["y"] == 50.0


def test_the_announced_job_starts_on_its_nodes_when_it_comes() -> None:
    """Who sat there before it was announced is stopped, and goes on where there is room."""
    result = run([job("old", 0.0, 3, 500.0), planned(2)])
    assert starts(result)["big"] == 100.0
    number = [job.id for job in result.jobs].index("old")
    assert result.table.restarts[number] == 1
    assert result.summary.finished == 2


def test_order_is_priority_then_arrival() -> None:
    """Who waited and who came meanwhile are sorted together."""
    jobs = [
        job("first", 0.0, 4, 100.0),
        job("b", 1.0, 4, 10.0),
        job("a", 2.0, 4, 10.0),
        job("c", 3.0, 4, 10.0, priority=1),
    ]
    assert starts(run(jobs)) == {"first": 0.0, "c": 100.0, "b": 110.0, "a": 120.0}


def test_preemptible_jobs_go_anywhere_and_leave() -> None:
    jobs = [job("out", 0.0, 2, 120.0), planned(2), job("x", 20.0, 2, 300.0, preemptible=True)]
    for variant in ("arnold", "no-prediction", "true-durations", "ours"):
        result = run(jobs, variant)
        assert starts(result) == {"out": 0.0, "big": 100.0, "x": 20.0}
        assert result.table.restarts[[job.id for job in result.jobs].index("x")] == 1


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("arnold", {"short": 20.0, "long": 150.0, "big": 100.0}),
        ("true-durations", {"short": 20.0, "long": 150.0, "big": 100.0}),
        ("ours", {"short": 20.0, "long": 150.0, "big": 100.0}),
        ("no-prediction", {"short": 150.0, "long": 150.0, "big": 100.0}),
        ("best-effort", {"short": 20.0, "long": 30.0, "big": 330.0}),
        ("no-reservation", {"short": 20.0, "long": 30.0, "big": 330.0}),
    ],
)
def test_variants(variant: str, expected: dict[str, float]) -> None:
    """Two nodes are taken for long; a short job and a long one come for the other two, which the big one will need."""
    jobs = [job("out", 0.0, 2, 500.0), planned(2), job("short", 20.0, 1, 60.0), job("long", 30.0, 1, 300.0)]
    assert starts(run(jobs, variant)) == {"out": 0.0, **expected}


def test_ours_keeps_nodes_that_get_free_by_themselves() -> None:
    """The paper's zone takes what is free first and then by number, and stops the long job; ours keeps clear of it."""
    jobs = [job("long", 0.0, 2, 500.0), job("short", 0.0, 2, 60.0), planned(2)]
    stopped = {variant: run(jobs, variant).summary.restarts for variant in ("arnold", "ours")}
    assert stopped == {"arnold": 1, "ours": 0}
    assert starts(run(jobs, "ours"))["big"] == 100.0


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_is_cancelled_or_late_is_freed(cancelled: bool) -> None:
    """Cancelled: when that is told, at 90 s. Late: 40 s after the time that was announced; it queues when it comes."""
    big = planned(2, submit_s=90.0 if cancelled else 400.0, cancelled=cancelled)
    result = run([job("out", 0.0, 2, 500.0), big, job("x", 60.0, 2, 1000.0)], hold_s=40.0)
    assert starts(result)["x"] == (90.0 if cancelled else 140.0)
    assert result.status(2) == "unfinished" if cancelled else starts(result)["big"] == 500.0


def test_who_comes_sooner_waits_for_its_zone() -> None:
    jobs = [job("out", 0.0, 2, 500.0), planned(2, submit_s=40.0), job("x", 20.0, 2, 80.0)]
    assert starts(run(jobs))["big"] == 100.0
    assert starts(run([replace(jobs[2], iterations=100.0, duration_s=50.0), *jobs[:2]]))["big"] == 70.0
    assert starts(run(jobs[:2]))["big"] == 40.0


def test_a_node_that_fails_is_replaced() -> None:
    failures = Failures(listed=(Failure(time_s=50.0, pool="a", node=2, repair_s=1000.0),))
    policy = make_policy("arnold")
    jobs = [job("out", 0.0, 1, 70.0), planned(2)]
    result = simulate(jobs, POOLS, PowerCells(), policy, settings=Settings(failures=failures, slices=True))
    assert starts(result)["big"] == 100.0


@pytest.mark.parametrize("variant", get_args(Variant))
def test_nobody_starves(variant: str) -> None:
    """A job for three nodes, and small ones that come for ever; after its patience it gets nodes of its own."""
    small = [job(f"s{n}", 10.0 * n, 1, 45.0) for n in range(200)]
    patient = starts(run([*small, job("wide", 5.0, 4, 10.0)], variant, patience_s=1e6))["wide"]
    assert patient > 1900.0
    assert starts(run([*small, job("wide", 5.0, 4, 10.0)], variant, patience_s=100.0))["wide"] < 250.0


def test_announced_jobs_do_not_starve_others() -> None:
    """One after the other is announced for all nodes; who waits longer than its patience comes between them."""
    wide = [
        replace(job(f"w{n}", 100.0 * n, 4, 95.0), planned=Announcement(known_s=0.0, arrival_s=100.0 * n))
        for n in range(1, 30)
    ]
    result = run([job("o", 0.0, 1, 1.0), *wide, job("x", 20.0, 1, 300.0)], patience_s=500.0)
    assert starts(result)["x"] < 1000.0
    assert result.summary.finished == len(result.jobs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "theirs"}, "variant is 'theirs'"),
        ({"decides": "both"}, "decides is 'both'"),
        ({"method": "guess"}, "method is 'guess'"),
        ({"alpha": 1.5}, "alpha is 1.5"),
        ({"hold_s": -1.0}, "hold_s is -1.0"),
        ({"spread_cost": -1.0}, "spread_cost is -1.0"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_policy("arnold", **options)


class Telling:
    """A predictor that says twice the duration, and intervals up to four times."""

    def submitted(self, job: Job, now_s: float) -> float:
        del now_s
        return 2 * job.duration_s

    def finished(self, job: Job, now_s: float) -> None:
        del job, now_s

    def interval_s(self, job: Job) -> tuple[float, float]:
        return 0.0, 4 * job.duration_s


@pytest.mark.parametrize(
    ("run_s", "interval", "point"), [(20.0, 20.0, 20.0), (21.0, 150.0, 20.0), (41.0, 150.0, 150.0)]
)
def test_the_interval_decides_or_the_point(run_s: float, interval: float, point: float) -> None:
    """80 s are left: a quarter of it by the interval, half of it by the point."""
    jobs = [job("out", 0.0, 2, 500.0), planned(2), job("x", 20.0, 2, run_s)]
    for decides, expected in (("interval", interval), ("point", point)):
        policy = make_policy("arnold", decides=decides)
        told = Settings(restart_s=5.0, predictor=Telling())
        result = simulate(jobs, POOLS, PowerCells(), policy, settings=told)
        assert starts(result)["x"] == expected


class Watch:
    """Passes decisions on, and keeps what must not be."""

    name = "watch"

    def __init__(self, policy: Arnold) -> None:
        self.policy = policy
        self.made_s: dict[str, float] = {}
        self.zones: dict[str, tuple[int, ...]] = {}
        self.latecomers: list[str] = []

    def decide(self, view: View) -> Decision:
        held: set[tuple[str, int]] = set()
        for id_, zone in view.reservations.items():
            assert held.isdisjoint((zone.pool, node) for node in zone.nodes)
            held |= {(zone.pool, node) for node in zone.nodes}
            assert view.now_s < zone.until_s
            if zone.lent and zone.arrival_s <= view.now_s and self.zones[id_] == zone.nodes:
                self._look(view, id_, zone.pool, set(zone.nodes))
        decision = self.policy.decide(view)
        for id_, made in decision.reservations.items():
            if made is not None and self.zones.get(id_) != made.nodes:
                self.made_s[id_], self.zones[id_] = view.now_s, made.nodes
        return decision

    def _look(self, view: View, id_: str, pool: str, nodes: set[int]) -> None:
        for state in view.running.values():
            sits = any(node in nodes for node, _ in state.placement.get(pool, ()))
            assert state.granted_s is not None
            if sits and state.granted_s >= self.made_s[id_] and not state.job.preemptible:
                self.latecomers.append(state.job.id)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        del state


@pytest.mark.parametrize("round_s", [None, 300.0])
@settings(max_examples=examples(30, least=8), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), count=st.integers(5, 60), gap_s=st.sampled_from([60.0, 300.0, 1000.0]))
def test_with_true_durations_nobody_who_started_after_the_plan_is_there(
    round_s: float | None, seed: int, count: int, gap_s: float
) -> None:
    rng = Random(seed)
    jobs = announce(rng, draw_workload(rng, count, mean_gap_s=gap_s))
    watch = Watch(Arnold(variant="true-durations", patience_s=rng.choice((1000.0, 86_400.0))))
    networks = {name: equal_pods(pool.nodes, pods=2) for name, pool in two_pools().items()}
    told = Settings(round_s=round_s, networks=networks)
    result = simulate(jobs, two_pools(), FakeCells(), watch, settings=told)
    assert watch.latecomers == []
    assert result.summary.violations == 0
    assert set(result.unfinished.values()) <= {"it was cancelled before it came"}
