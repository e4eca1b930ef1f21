"""The zoo's layers in JAX: what torch computes with equal weights, and split over devices what they compute alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tests.jax_flags  # noqa: F401  before JAX starts
from models_zoo.jax_layers.build import (
    example_inputs,
    example_params,
    global_array,
    layer_function,
    local_shape,
)
from models_zoo.layers import Bottleneck, Classifier, FeedForward, Layer, TracedLayer, without_jax
from models_zoo.parameters import layer_parameters, local_array, whole_array
from models_zoo.torch_layers.build import build_layer
from models_zoo.torch_layers.parallel import Neutral
from models_zoo.user_code import UserFactory
from profiles.vocabulary import Shard
from tests.models_zoo.jax_ranks import CASES, differentiated, random_inputs, sum_shared
from tests.models_zoo.test_parameters import EVERY_LAYER, IMAGES
from tests.transformer_variants import BLOCKS, EMBEDDINGS, EXPERTS, GPT, HEADS, HYBRIDS, LLAMA, SEQ_LEN, shard

JAX_LAYERS = [name for name, layer in EVERY_LAYER.items() if without_jax((layer,)) is None]

WHOLE = shard(1, False)


def random_weights(layer: Layer) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return {p.name: (0.3 * rng.standard_normal(p.shape)).astype(np.float32) for p in layer_parameters(layer)}


def close(found: Any, expected: torch.Tensor, what: str) -> None:
    theirs = expected.detach().numpy()
    scale = float(np.abs(theirs).max())
    np.testing.assert_allclose(np.asarray(found), theirs, rtol=1e-4, atol=1e-5 * scale + 4e-6, err_msg=what)


@pytest.mark.parametrize("name", [name for name in JAX_LAYERS if name != "block_gpt_dropout"])
def test_equals_torch_in_outputs_and_gradients(name: str) -> None:
    """In fp32 with equal weights. Batch norm is compared in training; elsewhere that would only drop."""
    layer, weights = EVERY_LAYER[name], random_weights(EVERY_LAYER[name])
    inputs = random_inputs(layer)
    module = build_layer(layer, WHOLE, Neutral()).train(name in IMAGES and not isinstance(layer, Classifier))
    for key, p in module.named_parameters():
        p.data.copy_(torch.from_numpy(weights[key]))
    given = [torch.from_numpy(np.array(x)) for x in inputs]
    given = [x.requires_grad_() if x.is_floating_point() else x.long() for x in given]
    expected = module(*given)
    gradient = np.asarray(np.random.default_rng(2).standard_normal(tuple(expected.shape)), np.float32)
    expected.backward(torch.from_numpy(gradient))

    found, of_weights, of_inputs = differentiated(layer_function(layer, WHOLE).apply, inputs)(weights, gradient)
    close(found, expected, "output")
    for number, (mine, x) in enumerate(zip(of_inputs, [x for x in given if x.requires_grad], strict=True)):
        close(mine, x.grad, f"gradient of input {number}")
    for key, p in module.named_parameters():
        close(of_weights[key], p.grad, f"gradient of {key}")


def test_ranks_together_are_the_whole_layer() -> None:
    """Outputs, input gradients and parameter gradients of every kind of layer, padded vocabularies and shared heads
    among them. In a process with four devices; one for all cases, since starting JAX takes longer than any of them."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.models_zoo.jax_ranks"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    assert len(found) == sum(map(len, CASES.values()))
    wrong = {
        f"{case}: {what}": error
        for case, errors in found.items()
        for what, error in errors.items()
        # The gradient of a bias of keys is nothing but rounding.
        if not error < (1e-4 if "key.bias" in what else 5e-6)
    }
    assert not wrong


@pytest.mark.parametrize("name", ["gpt", "llama", "multi_query", "moe_shared", "decoder"])
def test_a_neutral_rank_has_the_shapes_of_a_real_one(name: str) -> None:
    """Its own arrays, outputs and gradients, without devices for the others."""
    for tp, sequence_parallel in ((2, False), (4, True)):
        local = shard(tp, sequence_parallel)
        function = layer_function(BLOCKS[name], local, neutral=True)
        params, inputs = example_params(function, local), example_inputs(BLOCKS[name], local)
        out, pull = jax.eval_shape(lambda p, *x, f=function: jax.vjp(f.apply, p, *x), params, *inputs)
        assert out.shape == inputs[0].shape == (3, SEQ_LEN // (tp if sequence_parallel else 1), 32)
        gradients = jax.eval_shape(lambda pull, out: pull(out), pull, out)
        for mine, theirs in zip(gradients[1:], inputs, strict=True):
            assert mine.shape == theirs.shape
        module = build_layer(BLOCKS[name], local, Neutral(tp))
        shapes = sorted(tuple(p.shape) for p in module.parameters())
        assert sorted(x.shape for x in gradients[0].values()) == sorted(x.shape for x in params.values()) == shapes


def test_a_neutral_gather_takes_its_slice_back_and_a_scatter_repeats_it() -> None:
    from models_zoo.jax_layers.parallel import region_of

    region = region_of(shard(4, True), neutral=True)
    x = jnp.arange(6.0).reshape(1, 6)
    gathered, pull = jax.vjp(lambda x: region.gather(x, 1), x)
    assert np.array_equal(gathered, np.tile(x, 4))
    assert np.array_equal(pull(jnp.arange(24.0).reshape(1, 24))[0], x)
    wide = jnp.arange(8.0).reshape(1, 8)
    scattered, pull = jax.vjp(lambda x: region.scatter(x, 1), wide)
    assert np.array_equal(scattered, [[0.0, 1.0]])
    assert np.array_equal(pull(scattered)[0], np.tile([[0.0, 1.0]], 4))


def test_dropout_needs_a_key_and_drops_a_tenth() -> None:
    layer = EMBEDDINGS["gpt"]
    function = layer_function(layer, WHOLE)
    params = {name: jnp.ones_like(x) for name, x in example_params(function, WHOLE).items()}
    (ids,) = example_inputs(layer, replace(WHOLE, micro_batch_per_rank=64))
    plain = function.apply(params, ids)
    assert (np.asarray(plain) == 2).all()
    dropped = np.asarray(function.apply(params, ids, key=jax.random.key(0)))
    assert set(np.unique(dropped).tolist()) == {0.0, float(np.float32(2) / np.float32(0.9))}
    assert float((dropped == 0).mean()) == pytest.approx(0.1, abs=0.01)
    assert not np.array_equal(dropped, function.apply(params, ids, key=jax.random.key(1)))


def draws(jaxpr: Any) -> int:
    """How often random bits are drawn in a program, at any depth."""
    inner = [value for eqn in jaxpr.eqns for value in eqn.params.values() if hasattr(value, "jaxpr")]
    own = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "random_bits"]
    return len(own) + sum(draws(closed.jaxpr) for closed in inner)


def test_a_block_drops_in_attention_and_behind_both_parts_only_where_it_says_so() -> None:
    for name, differs in (("gpt", False), ("gpt_dropout", True), ("neox", True)):
        function = layer_function(BLOCKS[name], WHOLE)
        params, inputs = example_params(function, WHOLE), example_inputs(BLOCKS[name], WHOLE)
        program = jax.jit(lambda key, f=function, p=params, x=inputs: f.apply(p, *x, key=key))
        plain, keyed = function.apply(params, *inputs), program(jax.random.key(0))
        assert np.allclose(plain, keyed, atol=1e-5) != differs, name
        drawn = draws(jax.make_jaxpr(program)(jax.random.key(0)).jaxpr)
        assert drawn == {"gpt": 0, "gpt_dropout": 3, "neox": 2}[name]


def test_sixteen_bits_stay_sixteen_bits() -> None:
    half = replace(WHOLE, dtype="bf16")
    for layer in (GPT, LLAMA, BLOCKS["moe_shared"], BLOCKS["mla"], EMBEDDINGS["bert"], IMAGES["strided"]):
        function = layer_function(layer, half)
        params = jax.eval_shape(lambda f=function: example_params(f, half))
        inputs = jax.eval_shape(lambda x=layer: example_inputs(x, half))
        assert jax.eval_shape(function.apply, params, *inputs).dtype == jnp.bfloat16
        fp32 = {p.name for p in function.parameters if p.keeps_fp32}
        assert {name for name, x in params.items() if x.dtype == jnp.float32} == fp32
    function = layer_function(HEADS["bert"], half)
    params, inputs = example_params(function, half), example_inputs(HEADS["bert"], half)
    assert jax.eval_shape(function.apply, params, *inputs).dtype == jnp.float32, "a loss is not rounded"


def test_global_arrays_are_the_ranks_parts_side_by_side() -> None:
    """Padded vocabularies and key-value heads held by several ranks make them longer than the whole weight."""
    function = layer_function(LLAMA, shard(4, False))
    key = next(p for p in function.parameters if p.name.endswith("key.weight"))
    whole = whole_array(key, seed=0, layer=0)
    together = global_array(key, whole, tp=4)
    assert whole.shape == (16, 32)
    assert together.shape == (4 * local_shape(key, 4)[0], 32) == (32, 32)
    for rank in range(4):
        assert np.array_equal(together[8 * rank : 8 * rank + 8], local_array(key, whole, tp=4, rank=rank))
    assert function.shared_by == {f"attention.body.projections.{part}.weight": 2 for part in ("key", "value")}
    summed = sum_shared(
        {key.name: together} | dict.fromkeys(set(function.shared_by) - {key.name}, together), function, tp=4
    )
    assert np.allclose(summed[key.name], 2 * together)
    vocabulary = layer_function(HEADS["gpt"], shard(4, False)).parameters[-1]
    assert global_array(vocabulary, whole_array(vocabulary, seed=0, layer=0), tp=4).shape == (52, 32)


@pytest.mark.parametrize(
    ("layer", "local", "reason"),
    [
        (GPT, Shard(tp=8, seq_len=8), "found 4 heads, expected a multiple of tp=8"),
        (LLAMA, Shard(tp=3, seq_len=8), "found 4 heads"),
        (replace(GPT, feed_forward=FeedForward(hidden=66)), Shard(tp=4, seq_len=8), "66 feed-forward columns"),
        (replace(GPT, feed_forward=replace(EXPERTS, count=6)), Shard(tp=4, seq_len=8), "found 6 experts"),
        (GPT, Shard(tp=4, seq_len=6, sequence_parallel=True), "found 6 tokens per sample"),
        (GPT, Shard(seq_len=8, dtype="fp8"), "found dtype 'fp8', expected one of fp32, bf16, fp16"),
        (HYBRIDS["delta"], Shard(seq_len=8), "found linear attention, which has no JAX function"),
        (HYBRIDS["output_gate"], Shard(seq_len=8), "found attention with an output gate"),
        (HEADS["predicting"], Shard(seq_len=8), "found multi-token prediction"),
        (replace(GPT, parallel=True, placement="post"), Shard(seq_len=8), "parallel residual with placement='post'"),
        (Bottleneck(c_in=8, width_channels=6, c_out=8, height=4, width=4), Shard(tp=4), "found 6 output channels"),
    ],
)
def test_what_cannot_be_had_says_why(layer: Layer, local: Shard, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        layer_function(layer, local)


def test_heads_that_neither_divide_nor_are_divided_are_refused() -> None:
    layer = replace(LLAMA, attention=replace(LLAMA.self_attention, heads=12, kv_heads=6))
    with pytest.raises(ValueError, match="found 6 key-value"):
        layer_function(layer, Shard(tp=4, seq_len=8))


def test_a_traced_layer_is_its_frontends() -> None:
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
        layer_function(traced, Shard())
