"""Money and energy of a plan: sums over its devices, and nothing made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.training import Training, estimate_training
from estimator.pricing.upkeep import POWER_SHARE, power_w, price_per_hour
from planner.one_job.explicit.recording import record_plan
from planner.one_job.search.spaces.objectives import (
    amount,
    cost,
    energy_joules,
    plan_amount,
    slots_of_plan,
)
from planner.shared.options.search import Objective
from planner.shared.plan import Plan
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.vocabulary import Infeasible
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate, setup_of

PRICED = """
schema: cellplan.cluster/1
sites:
  - name: north
    nodes:
      - {count: 2, device: a100-80gb, devices: 8, price_per_device_hour: 1.5, power_w: 350}
      - {count: 1, device: h100, devices: 8, price_per_device_hour: 3}
      - {count: 1, device: t4, devices: 4}
"""


@pytest.fixture
def priced(tmp_path: Path) -> Cluster:
    path = tmp_path / "priced.yaml"
    path.write_text(PRICED, encoding="utf-8")
    return load_cluster(str(path))


def _plan(cluster: str = "a100-80gb:1x8") -> Plan:
    setup = setup_of("gpt-tiny", cluster, tp=2, pp=2, dp=2, global_batch=16)
    return record_plan(setup, fake_evaluate(setup), reference="gpt-tiny", assumptions=())


def test_the_cluster_file_s_price_and_power_are_summed_over_the_devices(priced: Cluster) -> None:
    two_types = priced.slots[12:20]
    assert price_per_hour(priced, two_types) == pytest.approx(4 * 1.5 + 4 * 3)
    assert power_w(priced, two_types) == pytest.approx((4 * 350 + 4 * 700) * POWER_SHARE)
    assert cost(priced, two_types, 1800.0) == pytest.approx(9.0)
    assert energy_joules(priced, two_types, 10.0) == pytest.approx(42_000 * POWER_SHARE)
    assert cost(priced, two_types, 0.0) == 0.0
    assert amount("time", priced, two_types, 7.0) == 7.0
    assert amount("cost", priced, two_types, 1800.0) == cost(priced, two_types, 1800.0)
    assert amount("energy", priced, two_types, 10.0) == energy_joules(priced, two_types, 10.0)


def test_a_price_that_nobody_states_is_not_made_up(priced: Cluster) -> None:
    with_t4 = priced.slots[20:]
    missing = cost(priced, with_t4, 60.0)
    assert isinstance(missing, Infeasible)
    assert "no price_per_device_hour for t4" in missing.reason
    assert priced.text in missing.reason
    assert energy_joules(priced, with_t4, 60.0) == pytest.approx((4 * 700 + 4 * 70) * 60 * POWER_SHARE)


def test_power_that_neither_file_nor_datasheet_states_is_infeasible() -> None:
    tpus = load_cluster("tpu-v5p:1x4")
    dark = power_w(tpus, tpus.slots)
    assert isinstance(dark, Infeasible)
    assert dark.reason == "neither tpu-v5p:1x4 nor a datasheet states the power of tpu-v5p"
    assert isinstance(amount("energy", tpus, tpus.slots, 1.0), Infeasible)
    assert amount("time", tpus, tpus.slots, 1.0) == 1.0


def test_free_of_charge_is_a_price() -> None:
    cluster = load_cluster("h100:1x8")
    (site,) = cluster.sites
    given = replace(cluster, sites=(replace(site, nodes=(replace(site.nodes[0], price_per_device_hour=0.0),)),))
    assert cost(given, given.slots, 3600.0) == 0.0


def test_a_plan_s_iteration_and_training_on_its_cluster() -> None:
    plan, cluster = _plan(), load_cluster("a100-80gb:1x8")
    (site,) = cluster.sites
    sold = replace(cluster, sites=(replace(site, nodes=(replace(site.nodes[0], price_per_device_hour=2.0),)),))
    assert plan_amount("time", plan, cluster) == 2.0
    assert plan_amount("cost", plan, sold) == pytest.approx(8 * 2.0 * 2.0 / 3600)
    assert plan_amount("energy", plan, cluster) == pytest.approx(8 * 400 * 2.0 * POWER_SHARE)
    assert isinstance(plan_amount("cost", plan, cluster), Infeasible)


def test_a_training_takes_as_much_as_its_iterations() -> None:
    setup = setup_of("gpt-tiny", "a100-80gb:1x8", dp=8, global_batch=16)
    (site,) = setup.cluster.sites
    sold = replace(site.nodes[0], price_per_device_hour=2.5, power_w=500.0)
    setup = replace(setup, cluster=replace(setup.cluster, sites=(replace(site, nodes=(sold,)),)))
    evaluation = fake_evaluate(setup)
    plan = record_plan(setup, evaluation, reference="gpt-tiny", assumptions=())
    whole = estimate_training(evaluation, setup, train_tokens=1e7)
    assert isinstance(whole, Training)
    amounts = {"time": whole.seconds, "cost": whole.price, "energy": whole.energy_joules}
    for objective, figure in amounts.items():
        each = plan_amount(cast("Objective", objective), plan, setup.cluster)
        assert not isinstance(each, Infeasible)
        assert figure == pytest.approx(whole.iterations * each)


def test_a_plan_of_another_cluster_is_refused() -> None:
    with pytest.raises(InputError, match=r"devices\[0\]: found a100-80gb 0 of node 0 in site, which h100:1x8 has not"):
        slots_of_plan(_plan(), load_cluster("h100:1x8"))
    with pytest.raises(InputError, match=r"devices\[4\]"):
        slots_of_plan(_plan(), load_cluster("a100-80gb:1x4"))


@given(st.floats(0, 1e7), st.floats(0, 1e7), st.integers(1, 16))
def test_amounts_add_up_and_grow_with_time_and_devices(first_s: float, second_s: float, devices: int) -> None:
    cluster = load_cluster("h100:2x8")
    slots = cluster.slots[:devices]
    parts = [energy_joules(cluster, slots, seconds) for seconds in (first_s, second_s)]
    assert all(isinstance(part, float) for part in parts)
    whole = energy_joules(cluster, slots, first_s + second_s)
    assert whole == pytest.approx(sum(part for part in parts if isinstance(part, float)))
    fewer = energy_joules(cluster, slots[:-1], first_s)
    assert isinstance(fewer, float)
    assert isinstance(parts[0], float)
    assert fewer <= parts[0]
