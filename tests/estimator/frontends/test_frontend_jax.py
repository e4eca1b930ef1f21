"""The JAX frontend against JAX itself, the torch frontend, the zoo, and counts by hand."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

from estimator.frontends import user_model
from estimator.frontends.jax_function import load_function_model
from estimator.frontends.jax_neutral import neutralise
from estimator.frontends.jax_piece import build_traced
from estimator.frontends.jax_products import products_in
from estimator.frontends.jax_ranks import among
from estimator.frontends.load import load_user_model
from estimator.frontends.user_model import framework_of, load_here
from estimator.layers.graph import build_graph, shared_weights
from estimator.layers.shards import shard_layer
from models_zoo.layers import (
    Attention,
    Embedding,
    FeedForward,
    Head,
    Layer,
    SharedWeights,
    TracedLayer,
    TransformerBlock,
)
from models_zoo.model import Model
from models_zoo.user_code import UserFactory
from profiles.errors import InputError
from profiles.measurements import canonical
from profiles.vocabulary import DType, Infeasible, LocalLayer, Shard
from tests import traced_functions as functions
from tests.processes import HANGS_S

P = jax.sharding.PartitionSpec
LAYOUTS = {"reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "stop_gradient"}


@pytest.fixture(scope="module")
def traced() -> Callable[[str], Model]:
    """Each function of `tests.traced_functions` traced once."""
    known: dict[str, Model] = {}

    def load(name: str) -> Model:
        if name not in known:
            known[name] = load_function_model(UserFactory(reference=f"tests.traced_functions:{name}"))
        return known[name]

    return load


def locals_of(model: Model, shard: Shard) -> list[LocalLayer]:
    found = [shard_layer(layer, shard) for layer in model.layers]
    assert all(isinstance(one, LocalLayer) for one in found), found
    return [one for one in found if isinstance(one, LocalLayer)]


def layers_of(model: Model) -> list[TracedLayer]:
    return [layer for layer in model.layers if isinstance(layer, TracedLayer)]


def products(jaxpr: Jaxpr) -> int:
    """FLOPs of all `dot_general`, and of convolutions without dilation, at any depth."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            total += 2 * eqn.outvars[0].aval.size * prod(eqn.invars[0].aval.shape[dim] for dim in contracted)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += times * sum(products(inner) for inner in _inner(eqn.params))
    return total


def _inner(params: Any) -> Iterator[Jaxpr]:
    for inner in jaxprs_in_params(params):
        yield getattr(inner, "jaxpr", inner)


def inputs_of(name: str, batch: int) -> tuple[Any, Any, tuple[jax.ShapeDtypeStruct, ...]]:
    function, params, inputs = getattr(functions, name)()[:3]
    return function, params, tuple(jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in inputs)


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("name", ["mlp", "gpt", "scanned_gpt", "mixed_gpt", "recurrent", "remembering"])
def test_products_add_up_to_what_jax_does(name: str, batch: int, traced: Callable[[str], Model]) -> None:
    function, params, inputs = inputs_of(name, batch)
    if name in ("scanned_gpt", "mixed_gpt"):  # the same without recomputation
        function = functions.gpt_function
        params = functions.gpt_params()
    forward = products(jax.make_jaxpr(function)(params, *inputs).jaxpr)
    total = products(jax.make_jaxpr(partial(pulled, function))(params, *inputs).jaxpr)
    found = locals_of(traced(name), Shard(micro_batch_per_rank=batch, dtype="fp32"))
    assert sum(one.forward_flops for one in found) == forward
    assert sum(one.backward_flops for one in found) == total - forward
    weights = jax.tree.leaves(params)
    assert build_graph(traced(name), shard=Shard()).parameters == sum(leaf.size for leaf in weights)


def pulled(function: Callable[..., Any], params: Any, *inputs: Any) -> Any:
    found, pull = jax.vjp(lambda weights: function(weights, *inputs), params)
    return pull(jnp.ones_like(found))


@pytest.mark.parametrize("name", ["mlp", "gpt", "conv_net"])
def test_what_is_kept_is_what_jax_keeps(name: str, traced: Callable[[str], Model]) -> None:
    """Residuals of `jax.vjp`: each value once whatever its layout, without weights and what depends on no input."""
    function, params, inputs = inputs_of(name, 3)

    def forward(params: Any, *inputs: Any) -> Any:
        found, pull = jax.vjp(lambda weights: function(weights, *inputs), params)
        return jax.tree.leaves(pull), found

    with jax.disable_jit():  # what a nested `jit` hands out, constants too, would count
        jaxpr = jax.make_jaxpr(forward)(params, *inputs).jaxpr
    weights = len(jax.tree.leaves(params))
    origin: dict[Any, Any] = {}
    depends = set(jaxpr.invars[weights:])
    for eqn in jaxpr.eqns:
        read = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
        if eqn.primitive.name in LAYOUTS and read:
            origin[eqn.outvars[0]] = origin.get(read[0], read[0])
        if depends.intersection(read):
            depends.update(eqn.outvars)
    kept = {origin.get(atom, atom) for atom in jaxpr.outvars[:-1] if not isinstance(atom, Literal)}
    expected = sum(var.aval.size * var.aval.dtype.itemsize for var in kept & depends)
    found = locals_of(traced(name), Shard(micro_batch_per_rank=3, dtype="fp32"))
    assert sum(one.saved_bytes for one in found) == expected


def test_a_chain_of_products_by_hand(traced: Callable[[str], Model]) -> None:
    model, shard = traced("mlp"), Shard(micro_batch_per_rank=5, dtype="fp32")
    assert model.layer_names == ("layer.0", "layer.1", "layer.2")
    assert model.kind == "module"
    first, second, last = locals_of(model, shard)
    assert [one.parameters for one in (first, second, last)] == [16 * 32 + 32, 32 * 32 + 32, 32 * 4 + 4]
    assert [op.shape for op in second.operators if op.kind == "gemm"] == [(5, 32, 32)]
    assert (first.forward_flops, first.backward_flops) == (2 * 5 * 16 * 32, 2 * 5 * 16 * 32)  # no input gradient
    assert (second.forward_flops, second.backward_flops) == (2 * 5 * 32 * 32, 4 * 5 * 32 * 32)
    assert (first.input_bytes, first.output_bytes, second.output_bytes) == (5 * 16 * 4, 5 * 32 * 4, 5 * 32 * 4)
    # Bias and ReLU are one kernel, which reads the product and the bias and writes its result and a mask.
    fused = second.operators[1]
    assert (fused.kind, fused.forward_bytes) == ("memory", 5 * 32 * 4 + 32 * 4 + 5 * 32 * 4 + 5 * 32)
    assert [one.saved_bytes for one in (first, second, last)] == [5 * 16 * 4 + 5 * 32, 5 * 32 * 5, 5 * 32 * 4]
    halved = locals_of(model, Shard(micro_batch_per_rank=5, dtype="bf16"))
    assert [one.forward_flops for one in halved] == [one.forward_flops for one in (first, second, last)]
    assert halved[-1].saved_bytes * 2 == last.saved_bytes


def torch_gpt() -> Any:
    """The same architecture as a torch module, with attention as plain products."""
    import torch
    from torch import nn

    hidden, head = functions.HIDDEN, functions.HIDDEN // functions.HEADS

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
            self.up, self.down = nn.Linear(hidden, functions.INNER), nn.Linear(functions.INNER, hidden)

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            q, k, v = (part(y).unflatten(-1, (-1, head)).transpose(1, 2) for part in (self.q, self.k, self.v))
            length = x.shape[1]
            causal = torch.ones(length, length, dtype=torch.bool).tril()
            weights = (q @ k.transpose(-1, -2) / head**0.5).masked_fill(~causal, -1e9).softmax(-1)
            x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(functions.VOCAB, hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(functions.BLOCKS))
            self.norm = nn.LayerNorm(hidden)
            self.head = nn.Linear(hidden, functions.VOCAB, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids: Any, targets: Any) -> Any:
            x = self.tokens(ids)
            for block in self.blocks:
                x = block(x)
            return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

    ids = torch.zeros(2, functions.TOKENS, dtype=torch.long)
    return Gpt(), (ids, ids)


def zoo_gpt() -> tuple[Layer, ...]:
    hidden, heads = functions.HIDDEN, functions.HEADS
    block = TransformerBlock(
        hidden=hidden,
        attention=Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads),
        feed_forward=FeedForward(hidden=functions.INNER, bias=True),
    )
    head = Head(hidden=hidden, vocab=functions.VOCAB, tied=True)
    return (Embedding(vocab=functions.VOCAB, hidden=hidden), *[block] * functions.BLOCKS, head)


@pytest.fixture(scope="module")
def torch_model() -> Model:
    from estimator.frontends.torch_module import load_module_model

    return load_module_model(UserFactory(reference="tests.estimator.frontends.test_frontend_jax:torch_gpt"))


@pytest.mark.parametrize("name", ["gpt", "scanned_gpt", "named_gpt"])
def test_the_same_gpt_in_torch_and_in_the_zoo(name: str, torch_model: Model, traced: Callable[[str], Model]) -> None:
    shard = Shard(micro_batch_per_rank=3, dtype="fp32", attention="math", seq_len=functions.TOKENS)
    own, in_torch = locals_of(traced(name), shard), locals_of(torch_model, shard)
    in_zoo = [shard_layer(layer, shard) for layer in zoo_gpt()]
    assert len(own) == len(in_torch) == len(in_zoo)
    for one, other, spec in zip(own, in_torch, in_zoo, strict=True):
        assert isinstance(spec, LocalLayer)
        assert one.forward_flops == other.forward_flops == spec.forward_flops
        assert one.backward_flops == other.backward_flops == spec.backward_flops
        assert one.parameters == other.parameters == spec.parameters
        assert shapes(one) == shapes(other)
    assert [one.output_bytes for one in own] == [one.output_bytes for one in in_torch]


def shapes(local: LocalLayer) -> list[tuple[str, tuple[int, ...]]]:
    return [(op.kind, op.shape) for op in local.operators if op.forward_flops]


@pytest.mark.parametrize("name", ["gpt", "scanned_gpt", "named_gpt", "mixed_gpt", "split_gpt"])
def test_equal_blocks_are_one_layer_and_tied_weights_count_once(name: str, traced: Callable[[str], Model]) -> None:
    model, blocks = traced(name), functions.BLOCKS
    assert len(model.layers) == blocks + 2
    assert len(set(model.layers)) == 3
    assert Counter(model.layers).most_common(1)[0][1] == blocks
    table = functions.VOCAB * functions.HIDDEN
    assert shared_weights(model, 1) == (SharedWeights(parameters=table, holders=(0, blocks + 1)),)
    width = 2 if name == "mixed_gpt" else 4
    cuts = [one.output_bytes for one in locals_of(model, Shard(micro_batch_per_rank=3, dtype="fp32"))[:-1]]
    assert cuts == [3 * functions.TOKENS * functions.HIDDEN * width] * (blocks + 1) or name == "mixed_gpt"


def test_scopes_name_layers_and_change_nothing_else(traced: Callable[[str], Model]) -> None:
    named = traced("named_gpt")
    assert named.layer_names == ("layer.0", *(f"block_{n}" for n in range(functions.BLOCKS)), "head")
    assert named.layers == traced("gpt").layers
    assert traced("scanned_gpt").layers == traced("gpt").layers
    assert load_function_model(UserFactory(reference="tests.traced_functions:gpt")) == traced("gpt")


def test_frameworks_have_different_fingerprints(traced: Callable[[str], Model]) -> None:
    layer = layers_of(traced("mlp"))[0]
    assert layer.framework == "jax"
    assert "framework" not in canonical(layer)
    in_torch = load_user_model(UserFactory(reference="tests.traced_modules:mlp"))
    assert {one.framework for one in layers_of(in_torch)} == {"torch"}
    assert not {one.fingerprint for one in layers_of(in_torch)} & {one.fingerprint for one in layers_of(traced("mlp"))}


def test_a_convolutional_net_by_hand(traced: Callable[[str], Model]) -> None:
    model, batch = traced("conv_net"), 3
    stem, block, *_, head = found = locals_of(model, Shard(micro_batch_per_rank=batch, dtype="fp32"))
    assert [one.parameters for one in found] == [8 * 3 * 9, *[2 * 8 * 8 * 9] * 3, 8 * 5]
    assert len(set(model.layers)) == 3
    places = 6 * 10
    assert (stem.forward_flops, stem.backward_flops) == tuple([2 * batch * places * 8 * 3 * 9] * 2)
    assert block.forward_flops == 2 * (2 * batch * places * 8 * 8 * 9)
    assert block.backward_flops == 2 * block.forward_flops
    assert shapes(stem) == [("conv", (batch, 3, 8, 6, 10, 3, 3, 2))]
    assert [one.output_bytes for one in found[:-1]] == [batch * 8 * places * 4] * 4
    assert (head.forward_flops, head.output_bytes) == (2 * batch * 8 * 5, 4)


def test_a_loop_over_time_stays_whole(traced: Callable[[str], Model]) -> None:
    batch, hidden, steps = 3, functions.HIDDEN, functions.TOKENS
    loop, _ = locals_of(traced("recurrent"), Shard(micro_batch_per_rank=batch, dtype="fp32"))
    grouped = [(op.shape, op.forward_kernels) for op in loop.operators if op.kind == "grouped_gemm"]
    assert grouped == [((steps, batch, hidden, hidden), steps), ((steps, batch, hidden, 8), steps)]
    assert loop.backward_flops == steps * 2 * batch * (2 * hidden * hidden + 8 * hidden)


def test_what_travels_along_is_in_the_cuts(traced: Callable[[str], Model]) -> None:
    model, one_map = traced("remembering"), 3 * functions.HIDDEN * 4
    found = locals_of(model, Shard(micro_batch_per_rank=3, dtype="fp32"))
    assert len(found) == 10
    assert len(set(model.layers[2:-1])) == 1
    assert [one.output_bytes for one in found[:-1]] == [one_map, *[2 * one_map] * 8]


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_blocks_by_hand(tp: int, traced: Callable[[str], Model]) -> None:
    model, batch = traced("split_gpt"), 3
    rows, hidden, inner = batch * functions.TOKENS, functions.HIDDEN, functions.INNER
    whole, split = (
        locals_of(model, Shard(tp=degree, micro_batch_per_rank=batch, dtype="fp32"))[1] for degree in (1, tp)
    )
    assert split.forward_flops * tp == whole.forward_flops
    assert split.backward_flops * tp == whole.backward_flops
    assert [shape for kind, shape in shapes(split) if kind == "gemm"] == [
        *[(rows, hidden // tp, hidden)] * 3,
        (rows, hidden, hidden // tp),
        (rows, inner // tp, hidden),
        (rows, hidden, inner // tp),
    ]
    on_all = 2 * 2 * hidden + hidden  # two norms, and the bias after the last sum
    assert split.replicated_parameters == on_all
    assert split.parameters == (4 * hidden * hidden + 2 * hidden * inner + inner) // tp + on_all
    activation = rows * hidden * 4
    assert Counter((c.op, c.phase, c.bytes, c.ranks) for c in split.collectives) == {
        ("all_reduce", "forward", activation, tp): 2,
        ("all_reduce", "backward", activation, tp): 2,
    }
    assert whole.collectives == ()
    assert len(set(model.layers)) == 3


def test_collectives_of_functions_with_rules_of_their_own(traced: Callable[[str], Model]) -> None:
    """Megatron's f and g as `custom_vjp` sum the gradients themselves: JAX must not once more."""
    batch = 3
    first, second, _ = locals_of(traced("own_rules"), Shard(tp=2, micro_batch_per_rank=batch, dtype="fp32"))
    activation = batch * functions.HIDDEN * 4
    seen = [[(c.op, c.phase, c.bytes) for c in one.collectives] for one in (first, second)]
    assert seen == [
        [("all_reduce", "forward", activation)],
        [("all_reduce", "forward", activation), ("all_reduce", "backward", activation)],
    ]


def test_sequence_parallel_collectives_by_hand(traced: Callable[[str], Model]) -> None:
    batch, hidden, tp = 3, functions.HIDDEN, 4
    model = traced("sequence")
    block = locals_of(model, Shard(tp=tp, micro_batch_per_rank=batch, dtype="bf16"))[1]
    activation = batch * functions.TOKENS * hidden * 2
    assert Counter((c.op, c.phase, c.bytes) for c in block.collectives) == {
        ("all_gather", "forward", activation): 1,
        ("reduce_scatter", "forward", activation): 1,
        ("all_gather", "backward", activation): 1,
        ("reduce_scatter", "backward", activation): 1,
        ("all_reduce", "backward", hidden * 2): 2,  # the norm's weights, of which each rank saw its own tokens
    }
    assert (block.input_bytes, block.output_bytes) == (activation // tp, activation // tp)


def test_degrees_that_cannot_be_had_say_why(traced: Callable[[str], Model]) -> None:
    def refusal(name: str, tp: int) -> Infeasible:
        found = shard_layer(traced(name).layers[0], Shard(tp=tp))
        assert isinstance(found, Infeasible)
        return found

    assert "no tensor-parallel plan" in refusal("mlp", 2).reason
    undivided = refusal("undivided", 4)
    assert undivided.lacking == "divisibility"
    assert undivided.reason == "params['w'] has 6 elements in dimension 1, which do not divide by tp = 4"
    assert isinstance(shard_layer(traced("undivided").layers[0], Shard(tp=2)), LocalLayer)
    assert "cannot reshape" in refusal("split_gpt", 8).reason  # four heads over eight ranks


def is_floating(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def flops(jaxpr: Jaxpr) -> int:
    return sum(one.flops * one.times for one in products_in(jaxpr.eqns))


@pytest.mark.parametrize("name", ["mlp", "scanned_gpt", "conv_net", "recurrent"])
def test_pieces_one_after_the_other_are_the_whole(name: str, traced: Callable[[str], Model]) -> None:
    shard = Shard(micro_batch_per_rank=3, dtype="fp32")
    layers = layers_of(traced(name))
    whole, params, inputs = build_traced(layers, shard)
    (expected,) = jax.jit(whole)(params, *inputs)
    handed: tuple[jax.Array, ...] = ()
    for layer, local in zip(layers, locals_of(traced(name), shard), strict=True):
        piece, params, given = build_traced([layer], shard)
        assert sum(x.size for x in params) == local.parameters
        # What the piece before hands on; the model's own inputs, such as classes, are in place.
        places = [place for place, x in enumerate(given) if is_floating(x)] if handed else []
        fed = list(given)
        for place, value in zip(places, handed, strict=bool(handed)):
            fed[place] = value
        handed = jax.jit(piece)(params, *fed)
    assert jnp.allclose(handed[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "tp", "dtype"),
    [("mlp", 1, "fp16"), ("scanned_gpt", 1, "bf16"), ("split_gpt", 2, "bf16"), ("sequence", 4, "fp32")],
)
def test_pieces_do_what_their_layers_say(name: str, tp: int, dtype: DType, traced: Callable[[str], Model]) -> None:
    shard = Shard(tp=tp, micro_batch_per_rank=2, dtype=dtype)
    for layer, local in list(zip(layers_of(traced(name)), locals_of(traced(name), shard), strict=True))[-2:]:
        function, params, inputs = build_traced([layer], shard)
        assert {x.dtype for x in params} == {
            jnp.dtype({"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[dtype])
        }
        assert sum(x.size for x in params) == local.parameters

        def step(params: Any, inputs: Any, function: Any = function) -> Any:
            def run(params: Any, floats: Any) -> Any:
                return function(params, *(floats.get(n, x) for n, x in enumerate(inputs)))

            floats = {n: x for n, x in enumerate(inputs) if is_floating(x)}
            outputs, pull = jax.vjp(run, params, floats)
            return pull(jax.tree.map(jnp.ones_like, outputs))

        traced_step = jax.make_jaxpr(step)(params, inputs).jaxpr
        assert flops(traced_step) == local.forward_flops + local.backward_flops
        gradients, _ = jax.jit(step)(params, inputs)
        assert [x.shape for x in gradients] == [x.shape for x in params]
        assert all(bool(jnp.isfinite(x).all()) for x in gradients)


def test_a_piece_is_refused_where_it_cannot_be_had(traced: Callable[[str], Model]) -> None:
    with pytest.raises(ValueError, match="tp = 2: no param_specs"):
        build_traced(layers_of(traced("mlp")), Shard(tp=2, dtype="fp32"))
    with pytest.raises(ValueError, match="do not divide by tp = 4"):
        build_traced(layers_of(traced("undivided")), Shard(tp=4, dtype="fp32"))
    with pytest.raises(ValueError, match="fp8"):
        build_traced(layers_of(traced("mlp")), Shard(dtype="fp8"))


def everything(x: jax.Array) -> tuple[jax.Array, ...]:
    """Each collective once, within loops and branches too."""
    gathered = jax.lax.all_gather(x, "tp", axis=1, tiled=True)
    stacked = jax.lax.all_gather(x, "tp")
    summed, _ = jax.lax.scan(lambda carry, _: (carry + jax.lax.pmean(x, "tp"), None), x, None, length=2)
    branched = jax.lax.cond(x.sum() > 0, lambda x: jax.lax.psum(x, "tp"), lambda x: x, x)
    looped = jax.lax.while_loop(lambda x: jax.lax.pmax(x, "tp").sum() < 0, lambda x: x + 1, x)
    return (
        jax.lax.psum_scatter(gathered, "tp", scatter_dimension=1, tiled=True),
        jax.lax.psum_scatter(stacked, "tp", scatter_dimension=0),
        jax.lax.all_to_all(x, "tp", split_axis=1, concat_axis=0, tiled=True),
        jax.lax.all_to_all(x.reshape(2, -1), "tp", split_axis=0, concat_axis=1),
        jax.lax.ppermute(x, "tp", [(0, 1), (1, 0)]) * jax.lax.axis_index("tp"),
        summed,
        jax.checkpoint(lambda x: jax.lax.psum(x, "tp"))(x),
        branched,
        looped,
    )


def test_neutral_collectives_have_the_shapes_of_real_ones() -> None:
    x = jax.ShapeDtypeStruct((8, 6), jnp.float32)
    closed = among(2, x, P("tp"), (), lambda x, _: jax.make_jaxpr(everything)(x), False)
    value = jnp.arange(24.0).reshape(4, 6)
    made = jax.jit(neutralise(closed))(value)
    assert [one.shape for one in made] == [var.aval.shape for var in closed.jaxpr.outvars]
    assert jnp.array_equal(made[0], value)
    assert jnp.array_equal(made[1], value)
    assert not made[4].any()  # this rank's index is 0
    assert jnp.array_equal(made[6], value)
    gradient = jax.grad(lambda x: sum(one.sum() for one in neutralise(closed)(x)[:2]))(value)
    assert jnp.array_equal(gradient, jnp.full((4, 6), 2.0))


def test_the_counter_of_a_loop_picks_weights(traced: Callable[[str], Model]) -> None:
    """Each twice, by the same index."""
    square = functions.HIDDEN**2
    assert sum(x.size for x in build_traced(layers_of(traced("counted"))[1:2], Shard(dtype="fp32"))[1]) == square
    assert [one.parameters for one in locals_of(traced("counted"), Shard(dtype="fp32"))] == [square] * 3


def test_a_random_mask_is_kept(traced: Callable[[str], Model]) -> None:
    first, second = locals_of(traced("dropped"), Shard(micro_batch_per_rank=4, dtype="fp32"))
    assert first.saved_bytes == 4 * functions.HIDDEN * (4 + 1)  # its input, and a mask of a byte an element
    assert second.saved_bytes == 4 * functions.HIDDEN * 4
    assert first.parameters == functions.HIDDEN**2  # the key is none


@pytest.mark.parametrize("name", ["closes_over", "needs_values", "plain_arrays"])
def test_factories_that_cannot_do_without_values(name: str, traced: Callable[[str], Model]) -> None:
    (local,) = locals_of(traced(name), Shard(micro_batch_per_rank=3, dtype="fp32"))
    k, n = {"closes_over": (functions.HIDDEN,) * 2, "needs_values": (17, 4), "plain_arrays": (4, 3)}[name]
    assert local.forward_flops == 2 * 3 * k * n


def test_a_factory_takes_no_memory_where_it_can() -> None:
    made: list[Any] = []

    def factory() -> Any:
        params = jax.random.normal(jax.random.key(0), (2**20, 2**20))
        made.append(type(params))
        return lambda params, x: x @ params, params, jnp.ones((2, 2**20))

    functions.huge = factory  # type: ignore[attr-defined]
    try:
        model = load_function_model(UserFactory(reference="tests.traced_functions:huge"))
    finally:
        del functions.huge  # type: ignore[attr-defined]
    assert build_graph(model, shard=Shard()).parameters == 2**40
    assert len(made) == 1


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("missing", "no missing in ", "a function that returns a tuple (function, params, inputs)"),
        ("not_callable", "not_callable, int (3)", "a function that returns"),
        ("breaks", "KeyError: 'checkpoint'", "a tuple (function, params, inputs)"),
        ("no_tuple", "found dict, ", "a tuple (function, params, inputs)"),
        ("no_function", "function: found str ('x @ w')", "a function"),
        ("no_arrays", "params: found no arrays", "a tree (dicts, lists, tuples) of arrays"),
        ("text_in_params", "found str ('layer') at params['name']", "a tree (dicts, lists, tuples) of arrays"),
        ("text_in_inputs", "inputs: found (str)", "a tuple of arrays"),
        ("no_batch", "shapes (4, 8), ()", "the batch, of one size, as their first dimension"),
        ("two_batches", "shapes (4, 8), (3, 8)", "the batch, of one size"),
        ("wrong_axis", "P('model',) for params['w'] of shape (8, 8)", "over the axis 'tp'"),
        ("wrong_specs", "param_specs: found str ('tp') for params['w']", "over the axis 'tp'"),
        ("other_specs", "param_specs: found ValueError", "a tree like params"),
        ("wrong_size", "got (9,) and (8,)", "traced and differentiated on its inputs"),
        ("fixed_batch", "cannot reshape array of shape (8, 8)", "at any batch size"),
        ("branching", "TracerBoolConversionError", "do not depend on the values of arrays"),
        ("odd_batch", "other operators in batches of 4 and 8", "the same work for every batch size"),
        ("whole_numbers", "no output of the function has a gradient", "traced and differentiated"),
        ("unrelated", "no output of the function has a gradient", "traced and differentiated"),
        ("weights_alone", "nothing that depends on params and inputs", "computes something of both"),
        ("endless", "a product in a loop whose length depends on values", "in loops of known length"),
        ("called_back", "pure_callback, a kernel whose work cannot be counted", "JAX's own operators"),
        ("unnamed_axis", "unbound axis name: tp", "param_specs as the fourth item"),
    ],
)
def test_what_is_wrong_is_named(name: str, found: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load_function_model(UserFactory(reference=f"tests.traced_functions:{name}"))
    message = str(caught.value)
    assert message.startswith(f"tests.traced_functions:{name}")
    assert found in message
    assert expected in message
    assert "\n" not in message


def test_what_a_factory_prints_stays_out_of_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    load_user_model(UserFactory(reference="tests.traced_functions:talkative"))
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "building" in printed.err


@pytest.mark.parametrize(
    ("reference", "other"), [("tests.traced_functions:mlp", "torch"), ("tests.traced_modules:mlp", "jax")]
)
def test_a_factory_loads_its_own_framework_alone(reference: str, other: str) -> None:
    code = (
        "import sys\nfrom estimator.frontends.user_model import load_here\n"
        "from models_zoo.user_code import UserFactory\n"
        f"print(len(load_here(UserFactory(reference={reference!r})).layers), {other!r} in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANGS_S)
    assert run.stdout.split() == ["3", "False"]


HIDDEN_FRAMEWORK = """
from own_helper import build

def factory():
    return build()
"""


def test_a_framework_that_the_factory_does_not_name_is_seen_in_what_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    builders = {
        "own_jax": "import numpy\ndef build():\n    return max, {'w': numpy.ones(2)}, (numpy.ones((2, 2)),)",
        "own_torch": "import torch\ndef build():\n    return torch.nn.Linear(2, 2), (torch.ones(2, 2),)",
        "own_rubbish": "def build():\n    return 'model', 3",
    }
    for name, text in builders.items():
        (tmp_path / f"{name}_helper.py").write_text(text)
        (tmp_path / f"{name}.py").write_text(HIDDEN_FRAMEWORK.replace("own_helper", f"{name}_helper"))
    assert framework_of(UserFactory(reference="own_jax:factory")) == "jax"
    assert framework_of(UserFactory(reference="own_torch:factory")) == "torch"
    with pytest.raises(InputError, match=r"found \(str, int\), expected \(torch module"):
        framework_of(UserFactory(reference="own_rubbish:factory"))


def test_a_framework_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_model, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"no jax installed, expected pip install 'cellplan\[jax\]'"):
        load_here(UserFactory(reference="tests.traced_functions:mlp"))
