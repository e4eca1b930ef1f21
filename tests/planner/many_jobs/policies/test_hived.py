"""HiveD: own cells first, then what is lent; and that who owns cells gets them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Decision, Grant, Job, Policy, View
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.policies.hived import HiveD, near_seats
from planner.many_jobs.scheduling.buddy_cells import cell_tree
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Settings
from profiles.errors import InputError
from tests.planner.many_jobs.scheduling.test_virtual_clusters import network
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.scheduling_examples import FakeCells, make_job, make_pool
from tests.seeds import examples

POOL = make_pool("a100", nodes=4, devices_per_node=8)
LEAVES = network(("leaf", (0, 1, 0, 1)))
"""Nodes 0 and 2 are under one leaf, 1 and 3 under another."""
HALVES = {"x": {"leaf": 1}, "y": {"node": 2}}


def job(id_: str, submit_s: float, devices: int, span_s: float, tenant: str = "x", priority: int = 0) -> Job:
    """A job that takes `span_s` seconds on what it asks for."""
    made = make_job(id_, submit_s=submit_s, devices=devices, virtual_cluster=tenant, priority=priority)
    best = FakeCells({"a100": POOL}).best(made.workload, "a100", devices)
    assert best is not None
    return make_job(
        id_,
        submit_s=submit_s,
        devices=devices,
        virtual_cluster=tenant,
        priority=priority,
        iterations=span_s / best.iteration_time_s,
        duration_s=span_s,
    )


def run(jobs: list[Job], policy: Policy, **more: object) -> Result:
    told = Settings(networks={"a100": LEAVES}, restart_s=0.0, slices=True, **more)  # type: ignore[arg-type]
    result = simulate(jobs, [POOL], FakeCells({"a100": POOL}), policy, settings=told)
    assert result.summary.violations == 0
    return result


def sat(result: Result) -> dict[str, list[tuple[float, dict[int, int]]]]:
    """Of each job since when it sat on which nodes."""
    found: dict[str, dict[float, dict[int, int]]] = {}
    for number, _, node, mask, from_s, _, _ in result.slices:
        found.setdefault(result.jobs[number].id, {}).setdefault(from_s, {})[node] = mask.bit_count()
    return {id_: sorted(stints.items()) for id_, stints in found.items()}


def test_own_cells_come_back_from_who_borrowed_them() -> None:
    """y borrows x's leaf, in whole; as x comes, y's job moves to what is left, or waits."""
    jobs = [job("a", 0.0, 32, 100.0, "y"), job("b", 50.0, 16, 100.0, "x")]
    result = run(jobs, HiveD(cells=HALVES))
    assert sat(result)["b"] == [(50.0, {0: 8, 2: 8})] or sat(result)["b"] == [(50.0, {1: 8, 3: 8})]
    assert result.table.end_s.tolist() == pytest.approx([200.0, 150.0])
    moved = run(
        [job("a", 0.0, 8, 100.0, "z"), *(job(f"b{n}", 50.0, 8, 100.0, "y") for n in range(2))], HiveD(cells=HALVES)
    )
    assert moved.table.restarts.tolist() == [0, 0, 0]


def test_nobody_is_sent_away_where_a_free_cell_does() -> None:
    """The leaf with the borrower is the one that is not taken."""
    jobs = [job("a", 0.0, 8, 100.0, "z"), job("b", 1.0, 16, 100.0, "x")]
    result = run(jobs, HiveD(cells=HALVES))
    assert sat(result)["a"] == [(0.0, {0: 8})]
    assert sat(result)["b"] == [(1.0, {1: 8, 3: 8})]


def test_who_was_sent_away_moves_where_there_is_room() -> None:
    jobs = [job("a", 0.0, 8, 100.0, "z"), job("p", 1.0, 16, 100.0, "y"), job("b", 2.0, 16, 100.0, "x")]
    result = run(jobs, HiveD(cells={"x": {"leaf": 1}, "y": {"leaf": 1}}))
    assert result.table.restarts.tolist() == [1, 0, 0]
    assert len(sat(result)["a"]) == 2
    assert result.table.start_s.tolist() == [0.0, 1.0, 2.0]


def test_nothing_is_lent_where_nothing_is_to_be() -> None:
    jobs = [job("a", 0.0, 24, 100.0, "x"), job("b", 0.0, 16, 100.0, "y")]
    result = run(jobs, HiveD(cells=HALVES, opportunistic=False))
    assert result.unfinished == {"a": "policy hived leaves it waiting for ever"}
    assert result.table.end_s[1] == pytest.approx(100.0)


def test_a_job_takes_the_smallest_cell_that_holds_it() -> None:
    """Two small jobs share a node, so that the leaf of the other stays whole."""
    jobs = [job("a", 0.0, 4, 100.0, "y"), job("b", 0.0, 4, 100.0, "y"), job("c", 0.0, 8, 100.0, "y")]
    nodes = {id_: set(stints[0][1]) for id_, stints in sat(run(jobs, HiveD(cells=HALVES))).items()}
    assert nodes["a"] == nodes["b"]
    assert nodes["a"] | nodes["c"] in ({0, 2}, {1, 3})


def test_a_job_sits_below_one_switch_where_there_is_room() -> None:
    """Half a node is free under each leaf, and then a node under one of them; two nodes' worth is not scattered."""
    jobs = [job("a", 0.0, 4, 900.0), job("b", 0.0, 16, 10.0), job("c", 0.0, 8, 900.0), job("d", 20.0, 12, 100.0)]
    seats = sat(run(jobs, HiveD(cells={"x": {"leaf": 2}})))
    assert set(seats["b"][0][1]) in ({0, 2}, {1, 3})
    assert set(seats["d"][0][1]) == set(seats["b"][0][1])
    assert set(seats["a"][0][1]) | set(seats["c"][0][1]) in ({0, 2}, {1, 3})


def test_shares_follow_demand() -> None:
    """Alone x has all; when y comes the pool is split by what both submitted, and what x holds beyond is only lent."""
    jobs = [job("a", 0.0, 32, 300.0, "x"), job("b", 100.0, 16, 600.0, "y")]
    result = run(jobs, HiveD())
    assert result.table.start_s.tolist() == [0.0, 100.0]
    assert result.table.restarts.tolist() == [1, 0]


def test_users_may_be_the_tenants() -> None:
    owned = {"ada": {"node": 4}}
    mine = make_job("a", devices=32, user="ada", virtual_cluster="x", iterations=1.0)
    assert run([mine], HiveD(cells=owned, tenant="user", opportunistic=False)).summary.finished == 1
    assert run([mine], HiveD(cells=owned, opportunistic=False)).summary.finished == 0


def test_near_seats() -> None:
    """The lowest switch that has enough, of these the one with least; scattered only where nothing else is left."""
    tree = cell_tree(LEAVES, 4, 8)
    assert near_seats(tree, [8, 4, 8, 8], 4) == ((1, 4),)
    assert near_seats(tree, [8, 4, 8, 8], 12) == ((3, 8), (1, 4))[::-1]
    assert dict(near_seats(tree, [3, 4, 3, 4], 14)) == {0: 3, 1: 4, 2: 3, 3: 4}


@pytest.mark.parametrize(
    "options", [{"tenant": "group"}, {"requota_s": 0.0}, {"cells": {"x": {"node": -1}}}, {"cells": "no-such-file.yaml"}]
)
def test_options_that_cannot_be(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        make_policy("hived", **options)


def test_cells_that_the_pool_has_not(tmp_path: Path) -> None:
    path = tmp_path / "cells.yaml"
    for text, found in (("x: {leaf: 3}", "cells of a100 that it has not"), ("x: {pod: 1}", "found pod")):
        path.write_text(text)
        with pytest.raises(InputError, match=found):
            run([job("a", 0.0, 8, 10.0)], make_policy("hived", cells=str(path)))


class Guarantees:
    """Checks after each decision that nobody who waits could have been started on what is his tenant's own."""

    def __init__(self, owned: dict[str, int], inner: HiveD) -> None:
        self.owned, self.inner, self.name = owned, inner, inner.name
        self.own: dict[str, str] = {}
        self.checked = 0

    def decide(self, view: View) -> Decision:
        decision = self.inner.decide(view)
        held = self.inner._clusters["a100"].held
        used: Counter[str] = Counter()
        for id_, (tenant, cells) in held.items():
            state = view.running.get(id_) or view.waiting[id_]
            assert tenant == state.job.virtual_cluster
            assert sum(self.inner._trees["a100"].sizes[level] for level, _ in cells) == state.job.devices
            assert decision.grants.get(id_, Grant(parts=())) is not None
            used[tenant] += state.job.devices
        for tenant, owns in self.owned.items():
            assert used[tenant] <= owns
        for id_, state in view.waiting.items():
            if id_ not in held:
                tenant = state.job.virtual_cluster
                assert state.job.devices > self.owned.get(tenant, 0) - used[tenant]
                self.checked += 1
        return decision

    def state(self) -> object:
        return self.inner.state()

    def restore(self, state: object) -> None:
        self.inner.restore(state)


@settings(max_examples=examples(40, least=10), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), count=st.integers(5, 40), lends=st.booleans())
def test_who_owns_cells_never_waits_for_them(seed: int, count: int, lends: bool) -> None:
    """Jobs drawn on both tenants: one waits only where what its tenant owns is in its own jobs' use."""
    rng = Random(seed)
    drawn = [job for job in draw_workload(rng, count, mean_gap_s=60.0) if job.pool == "a100"]
    if not drawn:
        return
    policy = Guarantees(
        {"x": 16, "y": 12}, HiveD(cells={"x": {"leaf": 1}, "y": {"node": 1, "4": 1}}, opportunistic=lends)
    )
    result = run(drawn, policy, until_s=200_000.0)
    assert result.summary.restarts == 0 or lends
    own = {"x": 16, "y": 12}
    for id_ in result.unfinished:
        asked = next(job for job in drawn if job.id == id_)
        assert not lends
        assert asked.devices > own[asked.virtual_cluster]
