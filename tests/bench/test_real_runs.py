"""What bench/real_runs says of its rows, and that its plans can be made for every model."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.real_runs.__main__ import MODELS, PLANS, Row, order_of_plans, write_plan
from estimator.frontends.load import load_file_model
from planner.one_job.running.program import program_of
from planner.shared.plan_file import load_plan
from profiles.measurements import DeviceRates
from profiles.store import ProfileStore


def row(plan: str, estimated_s: float, measured_s: float, model: str = "m") -> Row:
    return Row(framework="torch", model=model, plan=plan, estimated_s=estimated_s, measured_s=measured_s, noise=0.0)


def test_accuracy_is_crius() -> None:
    assert row("dp2", 0.9, 1.0).accuracy == pytest.approx(0.9)
    assert row("dp2", 1.1, 1.0).accuracy == pytest.approx(0.9)


def test_only_plans_that_differ_by_more_than_5_percent_have_an_order() -> None:
    rows = [row("a", 1.0, 1.0), row("b", 0.9, 1.04), row("c", 0.95, 1.2), row("d", 9.0, 1.2, model="other")]
    wrong, compared = order_of_plans(rows)
    assert compared == 2
    assert [(one.plan, other.plan) for one, other in wrong] == [("a", "c")]


@pytest.mark.parametrize("model", MODELS)
def test_every_plan_can_be_run(model: str, tmp_path: Path) -> None:
    from estimator.host.cpu import cpu_name

    store = tmp_path / "store.sqlite"
    with ProfileStore(store) as opened:
        opened.put_rates(
            DeviceRates(
                device="cpu",
                hardware=cpu_name(),
                software="torch",
                threads=1,
                memory_bytes=2**34,
                memory_bandwidth_bytes_per_s=1e10,
                flops_per_s=(("fp32", 1e11),),
                flash_attention=True,
            )
        )
    for name in PLANS:
        path = write_plan(model, name, tmp_path, store)
        plan = load_plan(path)
        assert program_of(plan, load_file_model(model), where=name).ranks == 2
