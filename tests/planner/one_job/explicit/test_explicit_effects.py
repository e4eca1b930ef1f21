"""What moves the answer most: each effect beside the estimate that its option gives."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from planner import api
from planner.one_job.explicit.effects import LEAST_TOLD, MOST_TOLD, Effect, assumption_effects
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.explicit.request import ExplicitRequest, read_explicit
from planner.shared.options.estimate import EstimateOptions
from profiles.limits import LIMITS
from profiles.vocabulary import Infeasible

PLAN: dict[str, Any] = {"tp": 2, "pp": 2, "zero": 1, "recompute": "none", "micro_batch": 1, "sequence_parallel": True}


def _request(**options: Any) -> ExplicitRequest:
    stated = {"model": "llama3-8b", "cluster": "h100:1x8", **PLAN, **options}
    return read_explicit(EstimateOptions(**stated), store=None)


def _evaluated(**options: Any) -> Evaluation:
    request = read_explicit(
        EstimateOptions(**{"model": "llama3-8b", "cluster": "h100:1x8", **PLAN, **options}), store=None
    )
    evaluation = evaluate(request.setups[0])
    assert isinstance(evaluation, Evaluation)
    return evaluation


def _effects(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str | None, Effect]:
    """All effects by their options, however small they are."""
    monkeypatch.setattr("planner.one_job.explicit.effects.LEAST_TOLD", 0.0)
    monkeypatch.setattr("planner.one_job.explicit.effects.MOST_TOLD", 99)
    request = read_explicit(
        EstimateOptions(**{"model": "llama3-8b", "cluster": "h100:1x8", **PLAN, **options}), store=None
    )
    evaluation = evaluate(request.setups[0])
    assert isinstance(evaluation, Evaluation)
    effects = assumption_effects(request.setups[0], evaluation, _said(request.assumptions), evaluate)
    return {effect.flag: effect for effect in effects}


def _said(assumptions: tuple[str, ...]) -> tuple[str, ...]:
    return (*assumptions, "8192 tokens (--seq-len)", "gradients (--grad-dtype)", "a micro-batch (--micro-batch)")


def test_an_effect_is_what_its_option_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    effects, usual = _effects(monkeypatch), _evaluated()
    for flag, options, per_work in (
        ("--grad-dtype", {"grad_dtype": "bf16"}, 1.0),
        ("--seq-len", {"seq_len": 4096}, 2.0),
        ("--overlap", {"overlap": ()}, 1.0),
        ("--micro-batch", {"micro_batch": 2}, 1.0),
        ("--global-batch", {"global_batch": int(effects["--global-batch"].alternative)}, None),
    ):
        other = _evaluated(**options)
        work = 512 / int(effects[flag].alternative) if per_work is None else per_work
        expected = other.iteration_time_s / usual.iteration_time_s * work
        assert effects[flag].time_ratio == pytest.approx(expected, rel=1e-12), flag
        assert effects[flag].memory_change_bytes == other.peak_memory_bytes - usual.peak_memory_bytes
        assert effects[flag].fits == (other.out_of_memory is None)
    assert effects["--software"].alternative in ("megatron-core", "torchtitan", "deepspeed")
    assert effects[None].time_ratio > 1


def test_experts_and_nodes_have_effects_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"model": "moe-2.4b", "cluster": "a100-80gb:2x8", "tp": 1, "pp": 1, "ep": 8, "sequence_parallel": None}
    request_said = _effects(monkeypatch, **options)
    assert request_said[None].assumed.endswith("a node")
    assert request_said[None].time_ratio > 1


def test_few_are_told_and_none_that_hardly_matters() -> None:
    estimated = estimate_explicit(read_explicit(EstimateOptions("llama3-8b", cluster="h100:4x8", tp=8), store=None))
    effects = estimated.effects
    assert 0 < len(effects) <= MOST_TOLD
    device_bytes = 84932978278
    weights = [max(abs(each.time_ratio - 1), abs(each.memory_change_bytes) / device_bytes) for each in effects]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] >= LEAST_TOLD


def test_what_somebody_said_is_no_assumption() -> None:
    stated: dict[str, Any] = {"software": "megatron-core", "overlap": ("tp",), "global_batch": 64, "micro_batch": 1}
    value = api.estimate(EstimateOptions("llama3-8b", cluster="h100:1x8", tp=2, zero=0, **stated))
    flags = {effect["flag"] for effect in value["estimate"]["assumption_effects"]}
    assert not flags & {"--software", "--overlap", "--global-batch", "--micro-batch"}


def test_a_setup_that_cannot_be_is_left_out() -> None:
    request = _request()
    evaluation = evaluate(request.setups[0])
    assert isinstance(evaluation, Evaluation)
    refused = Infeasible(reason="not here", lacking="support")
    assert assumption_effects(request.setups[0], evaluation, request.assumptions, lambda _: refused) == ()


@pytest.mark.parametrize("batch", [LIMITS.samples.most, LIMITS.samples.most // 2 + 1])
def test_no_effect_of_a_batch_that_nobody_may_ask_for(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    effects = _effects(monkeypatch, global_batch=batch, tp=8, pp=1)
    alternative = effects["--global-batch"].alternative if "--global-batch" in effects else str(batch)
    assert int(alternative) <= LIMITS.samples.most
