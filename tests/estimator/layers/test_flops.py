"""FLOPs against the formulas of the papers that define them."""

from __future__ import annotations

import pytest

from estimator.layers.flops import count_model_flops
from models_zoo.catalogue import load_model


def test_gpt3_flops_by_palm_appendix_b() -> None:
    """6 N + 12 L h s for a token, N the weights of matrix products with the vocabulary's: 72 L h^2 + 6 V h."""
    layers, h, s, vocab = 96, 12288, 2048, 50257
    flops = count_model_flops(load_model("gpt3-175b"), 2048)
    per_token = 72 * layers * h**2 + 6 * vocab * h + 12 * layers * h * s
    assert flops.model == s * per_token
    assert flops.causal == s * (per_token - 6 * layers * h * s)
    assert sum(flops.forward_by_layer) * 3 == flops.model
    assert len(flops.forward_by_layer) == layers + 2
    assert flops.forward_by_layer[0] == 0


def test_model_flops_of_the_megatron_ladder() -> None:
    """Narayanan et al. 2021, equation 3, without its recomputed forward: 72 B s l h^2 (1 + s/6h + V/12lh)."""
    s, layers, h, v = 2048, 96, 16384, 51200
    flops = count_model_flops(load_model("megatron-310.1b"), s).model
    assert flops == pytest.approx(72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h)))


def test_megatrons_formula_is_ours_with_recomputation() -> None:
    """Narayanan et al. 2021, section 5.1: 96 B s L h^2 (1 + s / 6h + V / 16Lh), their head not recomputed."""
    layers, h, s, vocab = 96, 12288, 2048, 50257
    megatron = 96 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    flops = count_model_flops(load_model("gpt3-175b"), s)
    assert flops.model + sum(flops.forward_by_layer[:-1]) == pytest.approx(megatron, rel=1e-9)


def test_causal_changes_nothing_for_an_encoder() -> None:
    flops = count_model_flops(load_model("bert-large"), 512)
    assert flops.causal == flops.model


def test_a_convolution_counts_two_flops_a_multiply_add() -> None:
    """ResNet-50: 4.09e9 multiply-adds forward for an image of 224 x 224."""
    assert count_model_flops(load_model("resnet-50"), 0).model == pytest.approx(3 * 2 * 4.09e9, rel=0.01)
