"""Rates against the formulas of the papers that define them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.performance import ModelFlops, Performance, count_model_flops, rate_iteration
from models_zoo.catalogue import load_model
from profiles.hardware import load_device
from profiles.vocabulary import Device
from tests.cell_examples import make_job

A100 = load_device("a100-80gb")


def test_gpt3_flops_by_palm_appendix_b() -> None:
    """6 N + 12 L h s for a token, N the weights of matrix products with the vocabulary's: 72 L h^2 + 6 V h."""
    layers, h, s, vocab = 96, 12288, 2048, 50257
    flops = count_model_flops(make_job(load_model("gpt3-175b")))
    per_token = 72 * layers * h**2 + 6 * vocab * h + 12 * layers * h * s
    assert flops.model == s * per_token
    assert flops.causal == s * (per_token - 6 * layers * h * s)
    assert sum(flops.forward_by_layer) * 3 == flops.model
    assert len(flops.forward_by_layer) == layers + 2
    assert flops.forward_by_layer[0] == 0


def test_megatrons_formula_is_ours_with_recomputation() -> None:
    """Narayanan et al. 2021, section 5.1: 96 B s L h^2 (1 + s / 6h + V / 16Lh), their head not recomputed."""
    model = load_model("gpt3-175b")
    job = make_job(model, global_batch=1536)
    layers, h, s, vocab, batch = 96, 12288, 2048, 50257, 1536
    megatron = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    flops = count_model_flops(job)
    rates = rate_iteration(
        job,
        iteration_time_s=23.0,
        devices=1024,
        device=A100,
        flops=flops,
        recomputed_flops=sum(flops.forward_by_layer[:-1]),
    )
    assert rates.hardware_tflops_per_device == pytest.approx(megatron / (23.0 * 1024) / 1e12, rel=1e-9)
    assert rates.mfu == pytest.approx(rates.tflops_per_device / 312)
    assert rates.tokens_per_s_per_device == pytest.approx(batch * s / 23.0 / 1024)
    assert rates.samples_per_s == pytest.approx(batch / 23.0)


def test_causal_changes_nothing_for_an_encoder() -> None:
    flops = count_model_flops(make_job(load_model("bert-large")))
    assert flops.causal == flops.model


def test_the_kernel_changes_nothing() -> None:
    model = load_model("gpt2-350m")
    assert count_model_flops(make_job(model, attention="math")) == count_model_flops(make_job(model, attention="flash"))


def test_a_model_without_tokens_has_no_token_rate() -> None:
    """ResNet-50: 4.09e9 multiply-adds forward for an image of 224 x 224."""
    job = make_job(load_model("resnet-50"), seq_len=0, global_batch=256)
    flops = count_model_flops(job)
    assert flops.model == pytest.approx(3 * 2 * 4.09e9, rel=0.01)
    rates = rate_iteration(job, iteration_time_s=0.1, devices=2, device=A100, flops=flops, recomputed_flops=0)
    assert rates.tokens_per_s_per_device is None
    assert rates.samples_per_s == pytest.approx(2560)
    assert rates.hardware_tflops_per_device == rates.tflops_per_device


def test_no_peak_no_mfu() -> None:
    _check_without_mfu(load_device("v100-32gb"))


def test_a_measured_peak_gives_no_mfu() -> None:
    assert A100.peak("bf16")
    _check_without_mfu(replace(A100, peak_basis="measured"))


def _check_without_mfu(device: Device) -> None:
    job = make_job(load_model("gpt2-350m"), global_batch=8)
    rates = rate_iteration(
        job,
        iteration_time_s=2.0,
        devices=4,
        device=device,
        flops=ModelFlops(model=6 * 10**12, causal=5 * 10**12, forward_by_layer=(2 * 10**12,)),
        recomputed_flops=10**12,
    )
    assert rates == Performance(
        samples_per_s=4.0,
        tokens_per_s_per_device=1024.0,
        tflops_per_device=6.0,
        causal_tflops_per_device=5.0,
        hardware_tflops_per_device=7.0,
        mfu=None,
    )
