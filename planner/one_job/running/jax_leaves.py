"""The weights of a stage one by one: which layer's, how split over tp, and how packed where replicas share state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from numpy.typing import NDArray

from models_zoo.jax_layers.build import LayerFunction, global_array, layer_function, local_shape, param_spec
from models_zoo.jax_layers.parallel import DTYPES, Array
from models_zoo.parameters import Parameter
from planner.one_job.running.jax_mesh import DP, REPLICATE, SHARD, TP
from planner.one_job.running.program import Program, StageProgram, first_values, tied_tables
from profiles.records import dataclass

Key = tuple[int, str]
"""Layer and name; a table that several layers share has `TABLE`."""
Tree = dict[Key, Array]

TABLE: Key = (-1, "table")


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A weight of a stage, on tp ranks. `copies` consecutive ones of them hold the same part of it (key-value heads).

    Where `zero` is above 0 its state is packed: a rank's part flattened, filled up with zeros to a multiple of `parts`
    and split over the shard axis. A packed array is (tp, parts * part), or (1, parts * part) of a weight that all tp
    ranks hold alike.
    """

    key: Key
    parameter: Parameter
    tp: int
    copies: int
    dtype: Any
    grad_dtype: Any
    zero: int
    parts: int

    @cached_property
    def spec(self) -> PartitionSpec:
        """How the unpacked array is split."""
        return param_spec(self.parameter, self.tp)

    @cached_property
    def local(self) -> tuple[int, ...]:
        """The shape of a rank's part."""
        return local_shape(self.parameter, self.tp)

    @cached_property
    def part(self) -> int:
        """Elements of a packed rank's shard."""
        return -(-prod(self.local) // self.parts)

    @property
    def is_split(self) -> bool:
        return self.tp > 1 and self.parameter.split is not None

    @property
    def packed_spec(self) -> PartitionSpec:
        return PartitionSpec(TP if self.is_split else None, SHARD)

    @property
    def gradient_spec(self) -> PartitionSpec:
        """Of the gradients while they add up, each replica's (from ZeRO 2 on: each shard group's) own."""
        if self.zero >= 2:
            return PartitionSpec(REPLICATE, *self.packed_spec)
        return PartitionSpec(DP, *self.spec)

    @property
    def replica_alone(self) -> Leaf:
        """The same for a program of one replica among several: it takes the weight whole, and adds its own gradient."""
        return replace(self, zero=min(self.zero, 1))

    @property
    def gradient_local(self) -> tuple[int, ...]:
        """The shape of one device's part of them."""
        return (1, 1, self.part) if self.zero >= 2 else (1, *self.local)

    @property
    def weight_spec(self) -> PartitionSpec:
        """Of the weight as it is held between iterations."""
        return self.packed_spec if self.zero == 3 else self.spec

    @property
    def state_spec(self) -> PartitionSpec:
        """Of the optimizer's state, and of the summed gradient."""
        return self.packed_spec if self.zero else self.spec

    def flat(self, x: Array) -> Array:
        """A rank's part in one dimension, filled up: (parts * part,)."""
        return jnp.pad(x.reshape(-1), (0, self.parts * self.part - x.size))

    def unpacked(self, x: Array) -> Array:
        """A rank's part of the weight from its packed shard (1, part), gathered from the group."""
        whole = lax.all_gather(x[0], SHARD, tiled=True)
        return whole[: prod(self.local)].reshape(self.local)

    def own_shard(self, x: Array) -> Array:
        """(1, part), this device's, of a rank's part that is whole."""
        return lax.dynamic_slice_in_dim(self.flat(x), lax.axis_index(SHARD) * self.part, self.part)[None]

    def scattered(self, gradient: Array) -> Array:
        """(1, part): this device's shard of the sum over the group of a rank's gradient."""
        return lax.psum_scatter(self.flat(gradient.astype(self.grad_dtype)), SHARD, tiled=True)[None]

    def first_values(self, seed: int) -> NDArray[Any]:
        """Return the unpacked global array."""
        whole = first_values(self.parameter, seed=seed, layer=self.key[0], is_table=self.key == TABLE)
        return np.asarray(global_array(self.parameter, whole, tp=self.tp), self.dtype)


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """A layer's function and the keys of what it reads, by the layer's own names."""

    index: int
    function: LayerFunction
    keys: dict[str, Key]


def layer_weights(program: Program, stage: StageProgram, index: int) -> LayerWeights:
    """ValueError where `layer_function` cannot split the layer so."""
    function = layer_function(program.model.layers[index], program.shard(stage, 0))
    table = tied_tables(program.model).get(index)
    keys = {p.name: TABLE if p.name == table else (index, p.name) for p in function.parameters}
    return LayerWeights(index=index, function=function, keys=keys)


def leaves_of(program: Program, stage: StageProgram, layers: Mapping[int, LayerWeights]) -> dict[Key, Leaf]:
    """The stage's weights; those of a shared table stand there once, and are not sharded over replicas."""
    return dict(_leaves(program, stage, layers))


def _leaves(program: Program, stage: StageProgram, layers: Mapping[int, LayerWeights]) -> Iterator[tuple[Key, Leaf]]:
    for layer in layers.values():
        for parameter in layer.function.parameters:
            key = layer.keys[parameter.name]
            zero = stage.zero if key != TABLE else 0
            dtype = "fp32" if parameter.keeps_fp32 else program.dtype
            yield (
                key,
                Leaf(
                    key=key,
                    parameter=parameter,
                    tp=stage.degrees.tp,
                    copies=layer.function.shared_by.get(parameter.name, 1),
                    dtype=DTYPES[dtype],
                    grad_dtype=DTYPES[program.grad_dtype],
                    zero=zero,
                    parts=stage.shard if zero else 1,
                ),
            )


def per_replica(x: Array) -> Array:
    """`x` cast to varying over the replicas: its gradient stays each one's own."""
    kind = jax.typeof(x)
    missing = tuple(axis for axis in DP if axis not in kind.manual_axis_type.varying)
    return lax.pcast(x, missing, to="varying") if missing else x
