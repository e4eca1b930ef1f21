"""`plan`, `estimate --plan` and `run` give one number from one store; where one differs, what differs is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimator.frontends.load import load_file_model
from estimator.pricing.outcome import Evaluation
from estimator.profiling.rates_torch import identify_device
from estimator.profiling.setting import Setting, layer_key
from models_zoo.model import Model, without_dropout
from planner import api
from planner.one_job.running.changed_inputs import Profiled, changed_inputs
from planner.one_job.running.estimating import estimate_as_run
from planner.one_job.running.program import program_of
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan
from profiles.measurements import Measurement
from profiles.store import ProfileStore
from profiles.vocabulary import Shard
from tests.planner.one_job.running.run_plan_examples import GPT, LLAMA, write_config
from tests.planner.one_job.running.running_examples import put_own_rates

SETTINGS: dict[str, Any] = {
    "cluster": "local:1x2",
    "dtype": "fp32",
    "global_batch": 8,
    "seq_len": 16,
}
DEGREES: tuple[dict[str, Any], ...] = ({"dp": 2}, {"tp": 2, "sequence_parallel": False}, {"pp": 2})


def _measure(store: Path, model: Model, seconds: float) -> None:
    """Made-up times of every layer at the shards that the plans below have, of one worker alone."""
    with ProfileStore(store) as opened:
        for tp in (1, 2):
            shard = Shard(tp=tp, micro_batch_per_rank=2, seq_len=16, dtype="fp32", attention="flash")
            for number, layer in enumerate(dict.fromkeys(model.layers)):
                key = layer_key(layer, shard, identify_device(Setting()), optimizer="adamw")
                passes = (seconds * (1 + number) / tp,) * 4
                opened.put(
                    key,
                    Measurement(
                        forward_s=passes,
                        backward_s=passes,
                        optimizer_s=passes,
                        saved_bytes=0,
                        peak_memory_bytes=0,
                        parameters=1,
                    ),
                )


def _contend(store: Path, slowdown: float) -> None:
    with ProfileStore(store) as opened:
        rates = opened.rates("cpu")
        assert rates is not None
        opened.put_rates(replace(rates, contention=((2, slowdown),)))


def _as_run(path: Path, store: Path) -> tuple[Plan, Evaluation, list[str]]:
    plan = load_plan(path)
    program = program_of(plan, load_file_model(plan.model.reference), where=str(path))
    with ProfileStore(store) as opened:
        setup, evaluation = estimate_as_run(plan, program, opened, where=str(path), framework="torch")
    assert isinstance(evaluation, Evaluation)
    return plan, evaluation, changed_inputs(plan, evaluation, setup.cluster.notes)


@pytest.mark.parametrize("degrees", DEGREES, ids=lambda degrees: next(iter(degrees)))
def test_a_plan_and_its_run_are_one_number(degrees: dict[str, Any], tmp_path: Path) -> None:
    """Of a model with dropout, which `run` leaves out: so do profiles and plans of this machine's workers."""
    config, store, path = write_config(tmp_path, "gpt", GPT), put_own_rates(tmp_path / "store"), tmp_path / "plan.json"
    model = load_file_model(config)
    assert without_dropout(model) != model
    _measure(store, without_dropout(model), 0.01)
    _contend(store, 1.5)
    made = api.estimate(config, store=store, micro_batch=2, recompute="none", output=path, **SETTINGS, **degrees)
    plan, evaluation, changed = _as_run(path, store)
    assert plan.provenance.compute == "measured"
    assert evaluation.iteration_time_s == pytest.approx(plan.estimate.iteration_time_s, rel=1e-12)
    assert evaluation.iteration_time_s == pytest.approx(made["estimate"]["iteration_time_s"], rel=1e-12)
    again = api.estimate(plan=path, store=store)["estimate"]
    assert again["iteration_time_s"] == pytest.approx(evaluation.iteration_time_s, rel=1e-12)
    assert changed == []
    assert any("without dropout" in assumption for assumption in plan.assumptions)


def test_what_was_measured_since_is_said(tmp_path: Path) -> None:
    config, store, path = write_config(tmp_path, "gpt", GPT), put_own_rates(tmp_path / "store"), tmp_path / "plan.json"
    api.estimate(config, store=store, micro_batch=2, recompute="none", output=path, dp=2, **SETTINGS)
    assert _as_run(path, store)[2] == []
    _measure(store, without_dropout(load_file_model(config)), 0.5)
    _contend(store, 1.5)
    plan, evaluation, (sentence,) = _as_run(path, store)
    assert "the times of 3 layers that the file's had not" in sentence
    assert "1.50 times as slow as alone" in sentence
    assert f"{plan.estimate.iteration_time_s:.4g} s" in sentence
    assert f"{evaluation.iteration_time_s:.4g} s" in sentence
    again = api.estimate(plan=path, store=store)["estimate"]
    assert again["iteration_time_s"] == pytest.approx(evaluation.iteration_time_s, rel=1e-12)


def test_what_a_run_measured_is_a_sentence() -> None:
    assert Profiled(layers=0, workers=2, slowdown=None).sentence == ""
    assert Profiled(layers=3, workers=2, slowdown=None).sentence == "measured now and stored: times of 3 layers"
    both = Profiled(layers=3, workers=2, slowdown=1.25).sentence
    assert both.endswith("times of 3 layers and contention (2 busy workers 1.25 times as slow as one)")


def test_only_this_machines_workers_train_without_dropout(tmp_path: Path) -> None:
    config, store = write_config(tmp_path, "gpt", GPT), put_own_rates(tmp_path / "store")
    llama = write_config(tmp_path, "llama", LLAMA)
    for reference, cluster, said in ((config, "a100-80gb:1x2", False), (llama, "local:1x2", False)):
        settings = {**SETTINGS, "cluster": cluster, "dtype": "fp32"}
        made = api.estimate(reference, store=store, dp=2, micro_batch=2, output=tmp_path / "plan.json", **settings)
        assert made["plan"]["cluster"] == cluster
        assert said == any("without dropout" in one for one in load_plan(tmp_path / "plan.json").assumptions)
