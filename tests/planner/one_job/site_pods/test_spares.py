"""Spare nodes and stand-ins against brute force; rows of affinity that a job adds."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.one_job.site_pods import spares as module
from planner.one_job.site_pods.affinity import Row, job_ratios, nearest_affinity, read_database
from planner.one_job.site_pods.affinity_rows import add_rows, measure_affinity
from planner.one_job.site_pods.candidates import seating_by
from planner.one_job.site_pods.replacing import replace_host
from planner.one_job.site_pods.spares import Spares, choose_spares, used_nodes
from profiles.cluster import host_of
from profiles.errors import InputError, NothingFits
from profiles.vocabulary import Infeasible
from tests.oracles.brute_spares import least_mean_cost_s, nodes_of, swapped
from tests.planner.one_job.site_pods.pod_examples import job_of, plan, price


def _time_s(setup: Setup) -> float:
    evaluation = price(setup)
    assert isinstance(evaluation, Evaluation)
    return evaluation.iteration_time_s


def _drawn(rng: random.Random, *, named: bool = False) -> Setup:
    """A plan of four to six nodes on nine in three pods, placed at random."""
    pp, dp = rng.choice([(2, 2), (2, 3), (3, 2), (1, 4), (4, 1)])
    over = tuple(rng.choice((1.5, 2.0, 4.0, 8.0)) for _ in range(3))
    job = job_of(plan(9, tp=1, pp=pp, dp=dp, devices=1), rng.choice([(3, 3, 3), (5, 2, 2), (4, 4, 1)]), over=over)
    nodes = rng.sample(range(9), pp * dp)
    setup = job.seated(tuple(tuple((nodes[stage * dp + row],) for row in range(dp)) for stage in range(pp)))
    if named:
        (site,) = setup.cluster.sites
        network = replace(site.network, hosts=tuple(f"n{node}" for node in range(9)))
        setup = replace(setup, cluster=replace(setup.cluster, sites=(replace(site, network=network),)))
    return setup


@pytest.mark.parametrize("seed", range(12))
def test_spares_have_the_least_mean_cost(seed: int) -> None:
    rng = random.Random(seed)
    setup = _drawn(rng)
    count = rng.randint(1, 2)
    chosen = choose_spares(setup, count, price)
    assert isinstance(chosen, Spares)
    assert chosen.proved
    used, free = nodes_of(setup)
    spares = [(node.site, node.node) for node in chosen.nodes]
    assert len(set(spares)) == count
    assert set(spares) <= set(free)
    least_s = least_mean_cost_s(setup, count, _time_s)
    assert chosen.mean_s == pytest.approx(least_s, abs=1e-9 * chosen.time_s)
    before = _time_s(setup)
    costs = [min(_time_s(swapped(setup, node, spare)) for spare in spares) - before for node in used]
    assert chosen.worst_s == pytest.approx(max(costs), abs=1e-9 * before)


def test_large_jobs_price_alike_nodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = _drawn(random.Random(3))
    exact = choose_spares(setup, 2, price)
    monkeypatch.setattr(module, "MOST_PRICES", 0)
    monkeypatch.setattr(module, "MOST_SETS", 0)
    rough = choose_spares(setup, 2, price)
    assert isinstance(exact, Spares)
    assert isinstance(rough, Spares)
    assert not rough.proved
    assert rough.mean_s == pytest.approx(exact.mean_s, abs=0.02 * exact.time_s)


def test_too_few_nodes_are_left() -> None:
    setup = _drawn(random.Random(1))
    free = len(nodes_of(setup)[1])
    missed = choose_spares(setup, free + 2, price)
    assert isinstance(missed, Infeasible)
    assert f"{free + 2} spare nodes asked for, {free} free ones beside the job's: 2 too few" in missed.reason


@pytest.mark.parametrize("seed", range(8))
def test_a_stand_in_is_the_best_free_node(seed: int) -> None:
    rng = random.Random(100 + seed)
    setup = _drawn(rng, named=True)
    used, free = nodes_of(setup)
    failed = rng.choice(used)
    told = replace_host(setup, f"n{failed[1]}", price, where="test")
    times = {node: _time_s(swapped(setup, failed, node)) for node in free}
    assert told.evaluation.iteration_time_s == pytest.approx(min(times.values()), rel=1e-12)
    assert told.before_s == _time_s(setup)
    assert sum(other.nodes for other in told.stand_ins) == len(free)
    for other in told.stand_ins:
        assert other.time_s == pytest.approx(times[other.node], rel=1e-12)
    after = used_nodes(told.setup)
    assert set(after) == set(used) - {failed} | {told.stand_ins[0].node}
    moved = [slot for stage in told.setup.stages for slot in stage.slots]
    kept = [slot for stage in setup.stages for slot in stage.slots]
    assert sum(one != other for one, other in zip(moved, kept, strict=True)) == 1


def test_a_host_that_the_plan_lacks() -> None:
    setup = _drawn(random.Random(5), named=True)
    used, free = nodes_of(setup)
    with pytest.raises(InputError, match=f"one of the plan's {len(used)} hosts"):
        replace_host(setup, f"n{free[0][1]}", price, where="test")
    groups = tuple(replace(group, free=0) for group in setup.cluster.sites[0].nodes)
    site = replace(setup.cluster.sites[0], nodes=groups)
    full = replace(setup, cluster=replace(setup.cluster, sites=(site,)))
    host = host_of(setup.cluster, setup.stages[0].slots[0])
    with pytest.raises(NothingFits, match=f"no node takes the place of {host}"):
        replace_host(full, str(host), price, where="test")


def test_a_job_adds_its_row_to_a_database(tmp_path: Path) -> None:
    path = tmp_path / "affinity.csv"
    path.write_text("# ours\ndevice,r1,r2,j_dp,j_pp,source\nh800,0.9,60,0.01,0.02,old\n", encoding="utf-8")
    job = job_of(plan(8, tp=1, pp=2, dp=3, devices=1), (3, 3, 2), over=(4.0, 4.0, 8.0))
    seating = seating_by(job, "cluster-order", 0.5)
    assert not isinstance(seating, Infeasible)
    setup = job.seated(seating)
    (told,) = measure_affinity(setup, price, path)
    assert (told["device"], told["source"][:8]) == ("a100-80gb", "estimate")
    assert "layers modelled, links modelled" in told["source"]
    first = path.read_text(encoding="utf-8")
    measure_affinity(setup, price, path)
    assert path.read_text(encoding="utf-8") == first
    assert first.startswith("# ours\ndevice,")
    rows = read_database(path)
    assert [row.device for row in rows] == ["h800", "a100-80gb"]
    nearest = nearest_affinity(rows, job_ratios(job), where="here")
    assert (nearest.j_dp, nearest.j_pp) == (told["j_dp"], told["j_pp"])
    fresh = tmp_path / "new.csv"
    add_rows(fresh, [Row(device="x", r1=1.0, r2=2.0, j_dp=0.0, j_pp=0.1, source="a, b")])
    assert read_database(fresh)[0].source == "a, b"
    fresh.write_text("r1,device,r2,j_dp,j_pp,source\n", encoding="utf-8")
    with pytest.raises(InputError, match="header"):
        add_rows(fresh, [])


def test_nodes_of_other_racks_are_not_alike() -> None:
    setup = plan(8, tp=2, pp=2, dp=1)
    (site,) = setup.cluster.sites
    racks = replace(site, nodes=tuple(replace(group, island_size=4) for group in site.nodes))
    joined = replace(setup, cluster=replace(setup.cluster, sites=(racks,)))
    kinds = module.spare_problem(joined).kind_of
    assert [kinds[site.name, node][1] for node in range(8)] == [(0,), (0,), (2,), (2,), (4,), (4,), (6,), (6,)]
    assert set(module.spare_problem(setup).kind_of.values()) == {(site.name, ())}
