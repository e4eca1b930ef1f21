"""Weights, gradients and the optimizer of a stage, and how its replicas keep them alike: ZeRO 0 to 3.

ZeRO (Rajbhandari et al. 2020, section 5) over the shard axis: 0 gradients are summed, 1 each device updates its shard
of the weights and gathers the others', 2 it also keeps its shard of the gradients alone, 3 weights too. Groups of
shards that hold the same sum theirs (HSDP). An iteration ends with `reduce`, `step` and `gather`, a compiled program
each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from models_zoo.jax_layers.parallel import Array
from planner.one_job.running.jax_leaves import Key, Leaf, Tree
from planner.one_job.running.jax_mesh import DP, EVERYWHERE, REPLICATE, SHARD, TP, StageDevices, axes_of, from_whole

BETA_1, BETA_2, EPSILON, DECAY = 0.9, 0.999, 1e-8, 0.01
"""AdamW's, as torch's defaults."""
JOINED_BYTES = 2**20
"""Gradients of fewer are summed over the replicas together."""

MOMENTUM = 0.9

State = dict[str, Array]
"""Of one weight: what the optimizer remembers, and `master` where the weight itself is not fp32."""


def adamw(weight: Array, gradient: Array, state: State, learning_rate: Array, count: Array) -> tuple[Array, State]:
    """The `count`-th step (from 1), all in fp32 (Loshchilov and Hutter 2019, algorithm 2)."""
    weight = weight * (1 - learning_rate * DECAY)
    first = BETA_1 * state["first"] + (1 - BETA_1) * gradient
    second = BETA_2 * state["second"] + (1 - BETA_2) * gradient * gradient
    size = jnp.sqrt(second) / jnp.sqrt(1 - BETA_2**count) + EPSILON
    return weight - learning_rate / (1 - BETA_1**count) * first / size, {"first": first, "second": second}


def sgd(weight: Array, gradient: Array, state: State, learning_rate: Array, count: Array) -> tuple[Array, State]:
    """With momentum, not dampened."""
    del count
    first = MOMENTUM * state["first"] + gradient
    return weight - learning_rate * first, {"first": first}


Rule = Callable[[Array, Array, State, Array, Array], tuple[Array, State]]
OPTIMIZERS: Mapping[str, tuple[Rule, tuple[str, ...]]] = {
    "adamw": (adamw, ("first", "second")),
    "sgd": (sgd, ("first",)),
}


class StageWeights:
    """What a stage holds. `weights` are as their leaves' `weight_spec` says."""

    def __init__(
        self, leaves: Mapping[Key, Leaf], devices: StageDevices, *, optimizer: str, learning_rate: float, seed: int
    ) -> None:
        self.leaves, self.devices, self.learning_rate = leaves, devices, learning_rate
        self.rule, self.memories = OPTIMIZERS[optimizer]
        self.count = 0
        self._compile()
        self.weights, self.state = self._begin(seed)

    def _compile(self) -> None:
        leaves = self.leaves
        states = {key: dict.fromkeys((*self.memories, *_master(leaf)), leaf.state_spec) for key, leaf in leaves.items()}
        state_specs = {key: leaf.state_spec for key, leaf in leaves.items()}
        whole = {key: leaf.spec for key, leaf in leaves.items()}
        gradients = {key: leaf.gradient_spec for key, leaf in leaves.items()}
        self._shard = self._program(self._shard_body, (whole,), state_specs)
        self._remember = self._program(self._remember_body, (state_specs,), states)
        self._reduce = self._program(self._reduce_body, (gradients,), state_specs)
        read, replaced = ({key: leaves[key].weight_spec for key in keys} for keys in (self._read(), self._replaced()))
        takes = (read, replaced, state_specs, states, EVERYWHERE, EVERYWHERE)
        self._step = self._program(self._step_body, takes, (state_specs, states), 1, 3)
        self._gather = gather_program(leaves, self._gathered(), self.devices)

    def _program(self, body: Callable[..., Any], takes: Any, gives: Any, *given_up: int) -> Callable[..., Any]:
        mapped = jax.shard_map(body, mesh=self.devices.mesh, in_specs=takes, out_specs=gives)
        return jax.jit(mapped, donate_argnums=given_up)  # type: ignore[no-any-return]

    def _gathered(self) -> list[Key]:
        """Weights that are whole between iterations and whose shards the optimizer works on."""
        return [key for key, leaf in self.leaves.items() if leaf.zero in (1, 2)]

    def _read(self) -> list[Key]:
        """Of those the ones that a step starts from, there being no fp32 copy."""
        return [key for key in self._gathered() if not _master(self.leaves[key])]

    def _replaced(self) -> list[Key]:
        """Weights whose memory a step's result takes over."""
        return [key for key, leaf in self.leaves.items() if leaf.zero in (0, 3)]

    def _begin(self, seed: int) -> tuple[Tree, dict[Key, State]]:
        """First weights and an optimizer that remembers nothing, a weight at a time."""
        weights = {
            key: from_whole(leaf.first_values(seed), self.devices.sharding(leaf.spec))
            for key, leaf in self.leaves.items()
        }
        shards = self._shard(weights)
        states = self._remember(shards)
        return {key: shards[key] if leaf.zero == 3 else weights[key] for key, leaf in self.leaves.items()}, states

    def reduce(self, gradients: Tree) -> Tree:
        """Gradients, as their leaves' `gradient_spec` says, summed over the replicas and sharded as the state is."""
        reduced: Tree = self._reduce(gradients)
        return reduced

    def step(self, gradients: Tree) -> Tree:
        """The optimizer's step; returns each device's own weights, which `gather` then hands to all."""
        self.count += 1
        return self._stepped(gradients, self.learning_rate)

    def rehearse(self, nothing: Tree) -> None:
        """All of an iteration's end, which changes nothing: gradients of zero, and a step of no length."""
        self.count += 1
        self.gather(self._stepped(self.reduce(nothing), 0.0))
        self.count -= 1

    def _stepped(self, gradients: Tree, learning_rate: float) -> Tree:
        read, replaced = ({key: self.weights[key] for key in keys} for keys in (self._read(), self._replaced()))
        stepped: Tree
        stepped, self.state = self._step(
            read, replaced, gradients, self.state, np.float32(learning_rate), np.float32(self.count)
        )
        return stepped

    def gather(self, shards: Tree) -> None:
        """The weights of the next iteration."""
        self.weights = shards
        gathered = self._gathered()
        if gathered:
            self.weights = shards | self._gather({key: shards[key] for key in gathered})

    def _shard_body(self, weights: Tree) -> Tree:
        return {key: leaf.own_shard(weights[key]) if leaf.zero else weights[key] for key, leaf in self.leaves.items()}

    def _remember_body(self, shards: Tree) -> dict[Key, State]:
        states = {}
        for key, leaf in self.leaves.items():
            wide = shards[key].astype(jnp.float32)
            states[key] = {name: jnp.zeros_like(wide) for name in self.memories} | dict.fromkeys(_master(leaf), wide)
        return states

    def _reduce_body(self, gradients: Tree) -> Tree:
        plain = {key: gradients[key][0] for key, leaf in self.leaves.items() if leaf.zero == 0}
        totals = _sums_over_replicas(plain, self.leaves) if plain else {}
        for key, leaf in self.leaves.items():
            if leaf.zero >= 2:
                totals[key] = lax.psum(gradients[key][0], REPLICATE)
            elif leaf.zero == 1:
                totals[key] = lax.psum(leaf.scattered(gradients[key][0]), REPLICATE)
        return {
            key: _sum_of_copies(leaf, totals[key]) if leaf.copies > 1 else totals[key]
            for key, leaf in self.leaves.items()
        }

    def _step_body(
        self,
        read: Tree,
        replaced: Tree,
        gradients: Tree,
        states: dict[Key, State],
        learning_rate: Array,
        count: Array,
    ) -> tuple[Tree, dict[Key, State]]:
        stepped, after = {}, {}
        for key, leaf in self.leaves.items():
            state = states[key]
            if "master" in state:
                weight = state["master"]
            else:
                weight = leaf.own_shard(read[key]) if key in read else replaced[key]
            made, after[key] = self.rule(weight, gradients[key].astype(jnp.float32), state, learning_rate, count)
            after[key] |= dict.fromkeys(_master(leaf), made)
            stepped[key] = made.astype(leaf.dtype)
        return stepped, after


def _sums_over_replicas(gradients: Tree, leaves: Mapping[Key, Leaf]) -> Tree:
    """Each gradient summed over all replicas: small ones of a kind joined to one sum, since one of a few KiB takes as
    long as one of half a MiB."""
    joined: dict[tuple[Any, bool], list[Key]] = {}
    totals = {}
    for key, gradient in gradients.items():
        if gradient.size * gradient.dtype.itemsize < JOINED_BYTES:
            joined.setdefault((gradient.dtype, leaves[key].is_split), []).append(key)
        else:
            totals[key] = lax.psum(gradient, DP)
    for keys in joined.values():
        flat = lax.psum(jnp.concatenate([gradients[key].reshape(-1) for key in keys]), DP)
        ends = np.cumsum([gradients[key].size for key in keys])
        for key, part in zip(keys, jnp.split(flat, ends[:-1].tolist()), strict=True):
            totals[key] = part.reshape(gradients[key].shape)
    return totals


def gather_program(leaves: Mapping[Key, Leaf], keys: Iterable[Key], devices: StageDevices) -> Callable[[Tree], Tree]:
    """From packed shards of the weights `keys` to the weights as every replica has them."""
    chosen = {key: leaves[key] for key in keys}

    def body(shards: Tree) -> Tree:
        weights = {}
        for key, leaf in chosen.items():
            whole = lax.all_gather(shards[key][0], SHARD, tiled=True, to="invarying")
            weights[key] = whole[: prod(leaf.local)].reshape(leaf.local)
        return weights

    packed, whole = ({key: getattr(leaf, name) for key, leaf in chosen.items()} for name in ("packed_spec", "spec"))
    program: Callable[[Tree], Tree] = jax.jit(
        jax.shard_map(body, mesh=devices.mesh, in_specs=(packed,), out_specs=whole)
    )
    return program


def zeros_program(leaves: Mapping[Key, Leaf], mesh: Mesh) -> Callable[[], Tree]:
    """Gradients to be added to, on the devices of a stage or of one of its lanes."""

    def body() -> Tree:
        gradients = {}
        for key, leaf in leaves.items():
            zeros = jnp.zeros(leaf.gradient_local, leaf.grad_dtype)
            gradients[key] = lax.pcast(zeros, axes_of(leaf.gradient_spec), to="varying")
        return gradients

    specs = {key: leaf.gradient_spec for key, leaf in leaves.items()}
    program: Callable[[], Tree] = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(), out_specs=specs))
    return program


def _master(leaf: Leaf) -> tuple[str, ...]:
    return () if leaf.dtype == jnp.float32 else ("master",)


def _sum_of_copies(leaf: Leaf, x: Array) -> Array:
    """The sum over the consecutive ranks that hold the same part of a weight: each has a part of its gradient."""
    first = lax.axis_index(TP) // leaf.copies * leaf.copies
    return lax.dynamic_slice_in_dim(lax.all_gather(x, TP), first, leaf.copies).sum(0)
