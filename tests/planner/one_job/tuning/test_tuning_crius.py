"""Cell-guided tuning: the halves, and the best plan in them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.tuning.groups import in_halves
from estimator.cells.cell import CellEstimate, CellRules
from estimator.cells.stage_places import places_of
from estimator.cells.stage_pricing import Favour, StagePricing
from planner import api
from planner.one_job.tuning.crius import favoured_half, stage_plans, tune_cell
from tests.cell_examples import MODELS, cell_of, make_hardware, make_job
from tests.oracles.cell_oracle import seconds_of_setup
from tests.oracles.tuning_oracle import best_in_halves, is_in_half

FAVOURS: tuple[Favour, ...] = ("dp", "tp")


@given(st.integers(1, 600))
def test_the_halves_cover_a_stage_and_share_the_boundary(devices: int) -> None:
    plans = stage_plans(devices)
    assert all(dp * tp == devices for dp, tp in plans)
    dp_half, tp_half = (set(favoured_half(devices, favour)) for favour in FAVOURS)
    assert dp_half | tp_half == set(plans)
    boundary = dp_half & tp_half
    assert len(boundary) == (1 if math.isqrt(devices) ** 2 == devices else 2)
    assert max(dp for dp, _ in plans) in {dp for dp, _ in dp_half}
    assert max(tp for _, tp in plans) in {tp for _, tp in tp_half}


@given(st.integers(1, 300))
def test_the_halves_are_those_of_the_definition(devices: int) -> None:
    for favour in FAVOURS:
        expected = {plan for plan in stage_plans(devices) if is_in_half(*plan, favour)}
        assert set(favoured_half(devices, favour)) == expected


def test_a_prime_number_of_devices_has_nothing_to_prune() -> None:
    assert favoured_half(7, "dp") == favoured_half(7, "tp") == ((7, 1), (1, 7))


def test_every_stage_must_be_on_its_side() -> None:
    assert in_halves([(4, 4), (1, 16)], ["dp", "tp"])
    assert not in_halves([(4, 4), (16, 1)], ["dp", "tp"])


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("cluster", ["a100-80gb:2x4", "a100-80gb:1x6", "a10:2x2"])
def test_the_tuned_plan_is_the_best_of_the_halves(model, stages: int, cluster: str) -> None:  # type: ignore[no-untyped-def]
    job, hardware = make_job(model, global_batch=96), make_hardware(cluster)
    cell = cell_of(job, stages, hardware=hardware)
    if not isinstance(cell, CellEstimate):
        pytest.skip("no such Cell")
    rules, pricing = CellRules(), StagePricing(job, hardware)
    tuned = tune_cell(pricing, cell, rules)
    setup = cell.setup
    places = places_of(
        [stage.chunks[0] for stage in setup.stages], [one.slots for one in setup.stages], setup.micro_batch
    )
    least_s, count = best_in_halves(pricing, cell, places, rules)
    by_formula_s = seconds_of_setup(pricing, tuned.cell.setup, rules.formula)
    assert by_formula_s == pytest.approx(least_s, rel=1e-12)
    assert tuned.priced == count <= tuned.plans <= tuned.all_plans
    assert tuned.cell.assembly == cell.assembly
    assert by_formula_s <= seconds_of_setup(pricing, setup, rules.formula) * (1 + 1e-12)
    assert in_halves([(stage.dp, stage.tp) for stage in tuned.cell.setup.stages], cell.assembly)


def test_plan_by_name_is_no_slower_than_its_cell(tmp_path: Path) -> None:
    store = tmp_path / "none.sqlite"
    cells, tuned = (
        api.plan("gpt2-1.3b", cluster="a40:2x4", store=store, global_batch=64, search=name).plan
        for name in ("cells", "crius")
    )
    assert tuned.estimate.iteration_time_s <= cells.estimate.iteration_time_s * (1 + 1e-12)
    assert len(tuned.stages) == len(cells.stages)
    assert any("Crius, section 5.2" in line for line in tuned.assumptions)
    assert tuned.provenance.search_space_size > cells.provenance.search_space_size
