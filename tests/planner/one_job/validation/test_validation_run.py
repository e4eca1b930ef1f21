"""From rows to the document: what is grouped how, what is skipped why, and that nothing is dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator.pricing.build import uniform_setup
from estimator.pricing.outcome import Evaluation, RankMemory, TimeBreakdown
from estimator.pricing.recipe import Recipe, Setup
from models_zoo.catalogue import load_model
from planner.one_job.validation.columns import DEGREES, RunRow
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.run import predict_row, predict_rows
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.vocabulary import Infeasible


def _setup(*, tp: int, pp: int, dp: int) -> Setup:
    recipe = Recipe(global_batch=16, seq_len=128)
    setup = uniform_setup(load_model("gpt-tiny"), load_cluster("a100-80gb:1x8"), recipe, tp=tp, pp=pp, dp=dp)
    assert isinstance(setup, Setup)
    return setup


def _row(number: int = 1, **changes: Any) -> RunRow:
    row = RunRow(id=f"X-{number:04}", where="runs.csv, line 2", gpu="A100", gpus_total=8, model_name="gpt-tiny")
    degrees = tuple((name, changes.pop(name)) for name in DEGREES if name in changes)
    return replace(row, iter_time_s=2.0, degrees=degrees, **changes)


def _prepare(row: RunRow) -> PreparedRun | Skipped:
    if row.gpu != "A100":
        return Skipped(reason=f"no device {row.gpu}")
    return PreparedRun(
        setup=_setup(**{name: row.degree(name) or 1 for name in ("tp", "pp", "dp")}),
        assumptions=("vocabulary: 50304",),
    )


def _evaluate(setup: Setup) -> Evaluation | Infeasible:
    """1 s and 60 GiB with a reserve of 10, of which optimizer 50; pipelines lack 30 GiB on their last stage."""
    stages = len(setup.stages)
    if setup.stages[0].tp == 4:
        return Infeasible(reason="3 heads do not divide by 4", lacking="divisibility")
    gib = 2**30
    part = RankMemory(
        stage=0,
        weight_bytes=4 * gib,
        gradient_bytes=2 * gib,
        optimizer_bytes=50 * gib,
        activation_bytes=2 * gib,
        temporary_bytes=gib,
        communication_bytes=gib,
        reserve_bytes=10 * gib,
    )
    memory = tuple(replace(part, stage=n, activation_bytes=(2 + 40 * (n > 0)) * gib) for n in range(stages))
    return Evaluation(
        iteration_time_s=1.0,
        breakdown=TimeBreakdown(gemm_s=1.0),
        memory=memory,
        device_memory_bytes=(80 * gib,) * stages,
        stage_compute_s=(1.0,) * stages,
        stage_communication_s=(0.0,) * stages,
        interval_90_s=(0.9, 1.1),
        memory_interval_90_bytes=(50 * gib, 70 * gib),
        compute_provenance="modelled",
        communication_provenance=None,
    )


def test_a_predicted_row_is_grouped_by_its_plan() -> None:
    found = predict_row(_row(dp=2, tp=2, pp=2), prepare=_prepare, evaluate=_evaluate)
    assert found.skipped is None
    assert (found.source, found.device, found.devices) == ("X", "a100-80gb", 8)
    assert (found.parallel, found.model_size) == ("dp+tp+pp", "<1B")
    assert (found.error, found.assumptions) == (-0.5, ("vocabulary: 50304",))
    assert (found.estimated_oom, found.oom_stage, found.oom_part) == (True, 1, "optimizer")
    assert found.bubble == pytest.approx(1 + 1 / 8)  # 16 samples in micro-batches of 2 over 2 stages
    assert found.peak_flops_per_s == pytest.approx(8 * 312e12)
    assert found.communication is None


def test_flops_are_those_of_the_model_whatever_the_plan() -> None:
    tensor, data = (predict_row(_row(**{axis: 2}), prepare=_prepare, evaluate=_evaluate) for axis in ("tp", "dp"))
    assert tensor.model_flops == data.model_flops
    # 4 blocks of 12 h^2 weights and the tied head, 6 FLOPs a token, and 12 h s for each block's attention.
    model = load_model("gpt-tiny")
    head = model.layers[-1]
    per_token = 6 * (4 * 12 * 256**2 + 256 * head.vocab) + 12 * 4 * 256 * 128  # type: ignore[union-attr]
    assert tensor.model_flops == pytest.approx(per_token * 128 * 16, rel=0.01)


def test_plans_of_one_configuration_are_told_apart_and_repeats_are_not() -> None:
    rows = [_row(1, tp=2), _row(2, dp=2), _row(3, tp=2, notes="another cluster")]
    tensor, data, again = predict_rows(rows, prepare=_prepare, evaluate=_evaluate)
    assert tensor.configuration == data.configuration == again.configuration
    assert tensor.plan == again.plan != data.plan


def test_what_cannot_be_predicted_is_a_row_with_its_reason() -> None:
    def fails(_: Setup) -> Evaluation:
        raise ZeroDivisionError("no bandwidth")

    def never_ends(setup: Setup) -> Evaluation:
        outcome = _evaluate(setup)
        assert isinstance(outcome, Evaluation)
        return replace(outcome, iteration_time_s=0.0)

    row = _row(gpu="GTX 480", params_b=2.0, zero_or_fsdp="FSDP_FULL_SHARD", dp=4)
    unknown = predict_row(row, prepare=_prepare, evaluate=_evaluate)
    assert (unknown.skipped, unknown.parallel, unknown.model_size) == ("no device GTX 480", "fsdp", "1-10B")
    assert unknown.measured_iteration_time_s == 2.0
    refused = predict_row(_row(tp=4), prepare=_prepare, evaluate=_evaluate)
    assert refused.skipped == "3 heads do not divide by 4"
    ours = predict_row(_row(), prepare=_prepare, evaluate=fails)
    assert ours.skipped == "cellplan failed on it (ZeroDivisionError: no bandwidth)"
    zero = predict_row(
        _row(),
        prepare=_prepare,
        evaluate=never_ends,
    )
    assert "estimated_iteration_time_s=0.0" in str(zero.skipped)


def test_unknown_words_of_a_row_are_its_own_reason_and_stop_no_other() -> None:
    def prepare(row: RunRow) -> PreparedRun | Skipped:
        if row.framework:
            raise InputError(where=row.where, key="framework", found=repr(row.framework), expected="a known one")
        return _prepare(row)

    wrong, right = predict_rows([_row(1, framework="megatorn"), _row(2)], prepare=prepare, evaluate=_evaluate)
    assert wrong.skipped == "framework: found 'megatorn', expected a known one"
    assert right.skipped is None


def test_ids_without_a_prefix_are_one_group() -> None:
    found = predict_row(replace(_row(), id="run7"), prepare=_prepare, evaluate=_evaluate)
    assert found.source == "own"


def test_progress_says_how_far_it_is() -> None:
    said: list[tuple[int, int]] = []
    predict_rows(
        [_row(number) for number in range(25)],
        prepare=_prepare,
        evaluate=_evaluate,
        progress=lambda done, total, left_s, what: said.append((done, total)),  # noqa: ARG005
    )
    assert said == [(0, 25), (10, 25), (20, 25)]
