"""The whole training: whole iterations, what failures cost, price and energy."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.build import uniform_setup
from estimator.pricing.recipe import Recipe, Setup
from estimator.pricing.training import Training, checkpoint_interval_s, estimate_training, slowdown
from models_zoo.catalogue import load_model
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Infeasible
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate


def _setup(cluster: Cluster | None = None) -> Setup:
    setup = uniform_setup(
        load_model("gpt-tiny"), cluster or load_cluster("a100-80gb:1x8"), Recipe(global_batch=16, seq_len=128), dp=8
    )
    assert isinstance(setup, Setup)
    return setup


def _train(tokens: float, *, setup: Setup | None = None, rate: float = 0, save: float = 0, back: float = 0) -> Training:
    setup = setup or _setup()
    found = estimate_training(
        fake_evaluate(setup),
        setup,
        train_tokens=tokens,
        failures_per_device_day=rate,
        checkpoint_s=save,
        restart_s=back,
    )
    assert isinstance(found, Training)
    return found


def test_without_failures_nothing_is_lost() -> None:
    found = _train(100 * 16 * 128 + 1, save=60, back=600)
    assert (found.iterations, found.compute_s, found.seconds) == (101, 202.0, 202.0)
    assert (found.goodput, found.checkpoint_interval_s, found.failures) == (1.0, None, 0.0)
    assert found.device_hours == pytest.approx(202 * 8 / 3600)
    assert found.days == 202 / 86400


def test_price_and_power_come_from_the_cluster_or_say_why_not() -> None:
    plain = _train(1e6)
    assert plain.price is None
    assert "no price_per_device_hour for a100-80gb" in str(plain.price_reason)
    assert plain.energy_joules == pytest.approx(8 * 400 * plain.seconds)
    cluster = load_cluster("a100-80gb:1x8")
    (site,) = cluster.sites
    (group,) = site.nodes
    priced = replace(group, price_per_device_hour=2.5, power_w=500)
    found = _train(1e6, setup=_setup(replace(cluster, sites=(replace(site, nodes=(priced,)),))))
    assert found.price == pytest.approx(2.5 * found.device_hours)
    assert found.energy_kwh == pytest.approx(0.5 * found.device_hours)
    unknown = replace(group, device=replace(group.device, power_w=None))
    dark = _train(1e6, setup=_setup(replace(cluster, sites=(replace(site, nodes=(unknown,)),))))
    assert dark.energy_joules is dark.energy_kwh is None
    assert "states the power of a100-80gb" in str(dark.energy_reason)


def test_a_training_that_never_ends_is_infeasible_and_misuse_is_told() -> None:
    setup = _setup()
    never = estimate_training(
        fake_evaluate(setup), setup, train_tokens=1e9, failures_per_device_day=1e4, checkpoint_s=60, restart_s=6000
    )
    assert isinstance(never, Infeasible)
    assert "the training never ends" in never.reason
    with pytest.raises(ValueError, match="expected one, above 0"):
        _train(0)
    with pytest.raises(ValueError, match="expected none below 0"):
        _train(1e6, rate=-1)


RATES = st.floats(1e-9, 1e-4)
SECONDS = st.floats(0, 3000)


@given(RATES, st.floats(1, 100), SECONDS, SECONDS)
def test_more_failures_and_longer_stops_are_never_faster(rate: float, more: float, save: float, back: float) -> None:
    usual = slowdown(rate, save, back)
    assert usual is not None
    assert usual >= 1
    for worse in (
        slowdown(rate * more, save, back),
        slowdown(rate, save * more, back),
        slowdown(rate, save, back * more),
    ):
        assert worse is None or worse >= usual * (1 - 1e-12)


@given(RATES, st.floats(1, 600))
def test_young_s_interval_is_near_the_best_where_failures_are_rare(rate: float, save: float) -> None:
    """Within 1% of the best interval of a scan of the exact formula, as long as a checkpoint is short beside M."""
    if rate * save > 0.005:
        return
    young = checkpoint_interval_s(rate, save)

    def cost(interval_s: float) -> float:
        return math.expm1((interval_s + save) * rate) / (rate * interval_s)

    best = min(cost(young * 2 ** (step / 20)) for step in range(-60, 61))
    assert slowdown(rate, save, 0) == pytest.approx(cost(young))
    assert cost(young) <= 1.01 * best


def test_the_formula_is_what_random_failures_give() -> None:
    """Daly's equation against a simulation of work, checkpoints, failures and restarts."""
    rng = random.Random(5)
    rate, save, back = 1 / 5000, 100.0, 300.0
    interval = checkpoint_interval_s(rate, save)
    segments, clock = 20_000, 0.0
    for _ in range(segments):
        while (failed := rng.expovariate(rate)) < interval + save:
            clock += failed
            # A restart may fail as well, and begins again.
            while (again := rng.expovariate(rate)) < back:
                clock += again
            clock += back
        clock += interval + save
    measured = clock / (segments * interval)
    assert slowdown(rate, save, back) == pytest.approx(measured, rel=0.02)
