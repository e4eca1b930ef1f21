"""What bench/real_runs says of its rows, and that its plans can be made for every model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.real_runs.__main__ import (
    MODELS,
    PLANS,
    RUNS,
    Row,
    Run,
    estimate_again,
    order_of_plans,
    rows_of,
    store_of,
    write_plan,
)
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
    store = store_of(tmp_path, "torch", 0)
    _put_rates(store)
    for name in PLANS:
        path = write_plan(model, name, tmp_path, store)
        plan = load_plan(path)
        assert program_of(plan, load_file_model(model), where=name).ranks == 2


def _put_rates(store: Path) -> None:
    from estimator.host.cpu import cpu_name

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


def test_kept_runs_are_estimated_anew(tmp_path: Path) -> None:
    store = store_of(tmp_path, "torch", 0)
    _put_rates(store)
    write_plan("gpt-mini", "dp2", tmp_path, store)
    run = Run(
        framework="torch",
        model="gpt-mini",
        plan="dp2",
        round=0,
        estimated_s=1e9,
        estimated_parts={},
        iteration_times_s=[3.0, 2.0],
        measured_parts=[],
    )
    (tmp_path / RUNS).write_text(json.dumps([asdict(run), asdict(run)]))
    (row,) = rows_of(estimate_again(tmp_path))
    assert (row.measured_s, row.noise) == (2.0, 0.0)
    assert row.estimated_s < 1e6
