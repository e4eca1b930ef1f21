"""The framework-neutral list of weights against torch's modules, and the arrays made from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models_zoo.layers import Bottleneck, Classifier, ConvUnit, Embedding, Head, Layer, TracedLayer
from models_zoo.parameters import (
    INITIAL_SPREAD,
    Parameter,
    layer_parameters,
    local_array,
    split_into,
    whole_array,
    whole_name,
)
from models_zoo.torch_layers import basic
from models_zoo.torch_layers.build import build_layer
from models_zoo.torch_layers.parallel import Neutral
from models_zoo.user_code import UserFactory
from profiles.vocabulary import Shard
from tests.transformer_variants import LAYERS, LLAMA, shard

IMAGES: dict[str, Layer] = {
    "conv": ConvUnit(c_in=3, c_out=16, height=8, width=6, kernel=3),
    "conv_bias": ConvUnit(c_in=8, c_out=16, height=8, width=8, kernel=3, batch_norm=False, bias=True),
    "identity": Bottleneck(c_in=32, width_channels=8, c_out=32, height=7, width=5),
    "strided": Bottleneck(c_in=16, reduced_channels=8, width_channels=24, c_out=32, height=7, width=5, stride=2),
    "classifier": Classifier(features=(32, 8), height=7, width=7),
    "vgg_end": Classifier(features=(8 * 12, 64, 64, 8), height=3, width=4, average_pool=False),
}
EVERY_LAYER = LAYERS | IMAGES
STARTS_AT_ODDS = {"conv_bias"}
"""torch starts the bias of a bare convolution at random, we at zero."""
RECORDED = [0.028230035677552223, 0.00912974402308464, -0.027392905205488205]


@pytest.mark.parametrize("name", EVERY_LAYER)
def test_names_shapes_and_order_are_those_of_the_unsplit_module(name: str) -> None:
    layer = EVERY_LAYER[name]
    module = build_layer(layer, shard(1, False), Neutral())
    expected = [(key, tuple(p.shape)) for key, p in module.named_parameters()]
    assert [(p.name, p.shape) for p in layer_parameters(layer)] == expected


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", EVERY_LAYER)
def test_a_ranks_arrays_have_the_shapes_of_its_module(name: str, tp: int) -> None:
    layer = EVERY_LAYER[name]
    known = {p.name: p for p in layer_parameters(layer)}
    module = build_layer(layer, shard(tp, False), Neutral(tp))
    shapes = {whole_name(key): tuple(p.shape) for key, p in module.named_parameters()}
    assert shapes.keys() == known.keys()
    for key, shape in shapes.items():
        whole = whole_array(known[key], seed=0, layer=0)
        for rank in range(tp):
            assert local_array(known[key], whole, tp=tp, rank=rank).shape == shape, key


@pytest.mark.parametrize("name", EVERY_LAYER)
def test_arrays_start_as_torchs_parameters_do(name: str) -> None:
    torch.manual_seed(0)
    module = build_layer(EVERY_LAYER[name], replace(shard(1, False), dtype="bf16"), Neutral())
    started = dict(module.named_parameters())
    for parameter in layer_parameters(EVERY_LAYER[name]):
        theirs = started[parameter.name].detach()
        assert parameter.keeps_fp32 == (theirs.dtype == torch.float32), parameter.name
        ours = whole_array(parameter, seed=0, layer=0)
        if parameter.start in ("zeros", "ones"):
            if name not in STARTS_AT_ODDS:
                assert np.array_equal(ours, theirs.float().numpy()), parameter.name
        else:
            # Both uniform: the same bound, which hundreds of draws come close to.
            limit = max(float(theirs.abs().max()), float(np.abs(ours).max()))
            assert np.abs(ours).max() == pytest.approx(limit, rel=0.15), parameter.name
            assert float(theirs.abs().max()) == pytest.approx(limit, rel=0.15), parameter.name
    assert pytest.approx(INITIAL_SPREAD) == basic._INITIAL_SPREAD


def test_ranks_parts_put_together_are_the_whole() -> None:
    for layer in EVERY_LAYER.values():
        for parameter in layer_parameters(layer):
            whole = whole_array(parameter, seed=3, layer=1)
            parts = [local_array(parameter, whole, tp=4, rank=rank) for rank in range(4)]
            if parameter.split is None:
                assert all(part is whole for part in parts)
                continue
            distinct = parts[:: 4 // split_into(parameter, 4)]
            joined = np.concatenate(distinct, parameter.split)
            own = joined.take(range(parameter.shape[parameter.split]), parameter.split)
            assert np.array_equal(own, whole)
            assert np.abs(joined).sum() == pytest.approx(np.abs(whole).sum(), rel=1e-5), "padding is zero"


def test_key_value_heads_fewer_than_ranks_are_held_by_consecutive_ones() -> None:
    (key,) = (p for p in layer_parameters(LLAMA) if p.name == "attention.body.projections.key.weight")
    whole = whole_array(key, seed=0, layer=0)
    parts = [local_array(key, whole, tp=8, rank=rank) for rank in range(8)]
    for rank in range(8):
        assert np.array_equal(parts[rank], np.split(whole, 2)[rank // 4])


def test_first_values_follow_from_seed_layer_and_name_alone() -> None:
    parameter = Parameter(name="a.weight", shape=(3, 5))
    first = whole_array(parameter, seed=1, layer=2)
    assert first.dtype == np.float32
    assert np.array_equal(first, whole_array(parameter, seed=1, layer=2))
    # Recorded: another machine must draw the same.
    assert first[0, :3].tolist() == pytest.approx(RECORDED, abs=1e-9)
    for other in (
        whole_array(parameter, seed=2, layer=2),
        whole_array(parameter, seed=1, layer=3),
        whole_array(replace(parameter, name="b.weight"), seed=1, layer=2),
    ):
        assert not np.array_equal(first, other)
    many = whole_array(replace(parameter, shape=(200, 301)), seed=0, layer=0)
    assert abs(float(many.mean())) < 5e-4
    assert float(many.std()) == pytest.approx(INITIAL_SPREAD / 3**0.5, rel=0.02)


def test_what_cannot_be_split_says_why() -> None:
    parameter = Parameter(name="up.weight", shape=(6, 2), split=0)
    whole = whole_array(parameter, seed=0, layer=0)
    with pytest.raises(ValueError, match=r"up\.weight: found 6 parts to split, expected a multiple of tp=4"):
        local_array(parameter, whole, tp=4, rank=0)
    with pytest.raises(ValueError, match="expected a multiple or a divisor of tp=4"):
        local_array(replace(parameter, parts=3), whole, tp=4, rank=0)
    with pytest.raises(ValueError, match=r"found an array of shape \(2, 6\), expected \(6, 2\)"):
        local_array(parameter, whole.T, tp=2, rank=0)
    traced = TracedLayer(
        fingerprint="f",
        split_fingerprint="s",
        factory=UserFactory(reference="m:f"),
        batch=1,
        places=(),
        shards=(),
        refused=(),
    )
    with pytest.raises(ValueError, match="found a TracedLayer"):
        layer_parameters(traced)


def test_a_padded_vocabularys_last_rank_may_hold_nothing() -> None:
    """Nine rows over four ranks are 3, 3, 3, 0: the last rank's are all padding."""
    for layer in (Embedding(vocab=9, hidden=4), Head(hidden=4, vocab=9, norm=None)):
        (parameter,) = layer_parameters(layer)
        last = local_array(parameter, whole_array(parameter, seed=0, layer=0), tp=4, rank=3)
        assert last.shape == (3, 4)
        assert not last.any()


def test_shard_is_no_part_of_the_list() -> None:
    """One list serves all degrees: what tp=1 builds with any micro-batch has the same weights."""
    big = build_layer(LLAMA, Shard(micro_batch_per_rank=7, seq_len=32, dtype="fp32"), Neutral())
    assert [key for key, _ in big.named_parameters()] == [p.name for p in layer_parameters(LLAMA)]
