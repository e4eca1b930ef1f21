"""A chunk of layers on a lane of devices: forward and backward as two compiled programs.

Each device differentiates its own layers inside `jax.shard_map`, one by one. So the gradient of a micro-batch stays
the replica's own until the iteration's end (ZeRO 2 and 3: is scattered at once), and fully sharded weights are gathered
for one layer at a time, in forward and again in backward. What forward keeps for backward leaves its program as arrays
with the lane's devices as first dimension; weights are never among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from models_zoo.jax_layers.parallel import Array
from planner.one_job.running.jax_leaves import Key, LayerWeights, Leaf, Tree, per_replica
from planner.one_job.running.jax_mesh import DP, EVERYWHERE, PER_DEVICE, PER_REPLICA, TP, Lane
from planner.one_job.running.program import Program, Role, StageProgram, apply_role, recomputed_layers, role_of
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind

State = tuple[Array, ...]
"""What passes through (see `apply_role`); after the last layer the loss of each replica."""
Batch = Mapping[str, Array]

KEPT_SPECS = (EVERYWHERE, PER_REPLICA, PER_DEVICE)
"""What forward keeps is sorted by where it differs: backward has to know, to sum gradients where it does not."""

SCORE_DIMS = 5
"""Of a layer's values those of attention's core alone have so many dimensions: (batch, kv head, group, query, key)."""


@dataclass(frozen=True, kw_only=True)
class ChunkLayer:
    """A layer in its place. `width` arrays pass on from it."""

    weights: LayerWeights
    role: Role
    width: int
    recompute: RecomputeKind

    def run(self, params: dict[str, Array], state: State, batch: Batch) -> State:
        """The layer on one device."""
        apply = partial(self.weights.function.apply, params)
        made = apply_role(self.role, apply, state, batch, self.width)
        return (made[0][None],) if self.role == "loss" else made

    @property
    def batch_names(self) -> tuple[str, ...]:
        """What the layer takes of the data."""
        return {"start": ("inputs",), "decoder_start": ("decoder_inputs",), "loss": ("targets",)}.get(self.role, ())


def chunk_layers(
    program: Program, stage: StageProgram, chunk: int, weights: Mapping[int, LayerWeights]
) -> tuple[ChunkLayer, ...]:
    """The layers of one of the stage's chunks."""
    recomputed = recomputed_layers(program, stage)
    return tuple(
        ChunkLayer(
            weights=weights[number],
            role=role_of(program, number),
            width=program.width_after(number),
            recompute=stage.recompute if number in recomputed else "none",
        )
        for number in range(*stage.chunks[chunk])
    )


@dataclass(frozen=True, kw_only=True)
class ChunkPrograms:
    """`forward(weights, state, batch)` to (state, kept); `backward(weights, state, batch, kept, cotangents, gradients)`
    to (gradients, cotangents of the state), with `gradients` taken over. Both take the state that entered."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


def chunk_programs(
    layers: Sequence[ChunkLayer],
    leaves: Mapping[Key, Leaf],
    lane: Lane,
    *,
    activation_spec: PartitionSpec,
    entering: int,
    loss_weight: float | None,
) -> ChunkPrograms:
    """Programs over `lane`; `entering` arrays come from the chunk before. `loss_weight`: what a replica's loss counts
    in the global batch's; None where the chunk is not the last."""
    body = _Body(layers, leaves, entering > 0, loss_weight)
    held = {key: leaves[key].weight_spec for key in chunk_keys(layers)}
    added = {key: leaves[key].gradient_spec for key in chunk_keys(layers)}
    state = (activation_spec,) * entering
    left = (PER_REPLICA,) if loss_weight is not None else (activation_spec,) * layers[-1].width
    batch = {name: PER_REPLICA for layer in layers for name in layer.batch_names}
    forward = jax.shard_map(
        body.forward,
        mesh=lane.mesh,
        in_specs=(held, state, batch),
        out_specs=(left, KEPT_SPECS),
    )
    backward = jax.shard_map(
        body.backward,
        mesh=lane.mesh,
        in_specs=(held, state, batch, KEPT_SPECS, () if loss_weight is not None else left, added),
        out_specs=(added, state),
    )
    return ChunkPrograms(forward=jax.jit(forward), backward=jax.jit(backward, donate_argnums=5))


def chunk_keys(layers: Sequence[ChunkLayer]) -> tuple[Key, ...]:
    """The weights that a chunk reads, each once."""
    return tuple(dict.fromkeys(key for layer in layers for key in layer.weights.keys.values()))


class _Body:
    """Both programs of a chunk as one device runs them."""

    def __init__(
        self, layers: Sequence[ChunkLayer], leaves: Mapping[Key, Leaf], receives: bool, loss_weight: float | None
    ) -> None:
        self.layers, self.leaves, self.receives, self.loss_weight = layers, leaves, receives, loss_weight
        # Of what forward keeps, known once it is traced: its form, which of the different values stands in each place
        # of that, and where among KEPT_SPECS each value belongs.
        self.form: Any = None
        self.places: list[int] = []
        self.kinds: list[int] = []

    def forward(self, weights: Tree, state: State, batch: Batch) -> tuple[State, Any]:
        kept = []
        for number, layer in enumerate(self.layers):
            received = number == 0 and self.receives
            if layer.recompute == "full":
                kept.append(() if received else state)
                state = layer.run(self._params(layer, weights), state, batch)
            else:
                state, pulled = self._differentiate(layer, weights, state, batch)
                kept.append(_without_weights(pulled, received))
        return state, self._sorted(kept)

    def backward(
        self, weights: Tree, state: State, batch: Batch, kept: Any, cotangents: State, gradients: Tree
    ) -> tuple[Tree, State]:
        if self.loss_weight is not None:
            cotangents = (lax.pcast(jnp.full((1,), self.loss_weight, jnp.float32), DP, to="varying"),)
        gradients = dict(gradients)
        kept = self._unsorted(kept)
        for number, layer in reversed(list(enumerate(self.layers))):
            received = state if number == 0 and self.receives else None
            if layer.recompute == "full":
                entered = kept[number] if received is None else received
                _, pulled = self._differentiate(layer, weights, entered, batch)
            else:
                pulled = _with_weights(kept[number], self._params(layer, weights), received)
            layer_gradients, cotangents = pulled(cotangents)
            for name, key in layer.weights.keys.items():
                gradients[key] = self._added(key, gradients[key], layer_gradients[name])
        return gradients, cotangents

    def _sorted(self, kept: Any) -> tuple[list[Array], ...]:
        values, self.form = jax.tree.flatten(kept)
        different = list({id(value): value for value in values}.values())
        numbers = {id(value): number for number, value in enumerate(different)}
        self.places = [numbers[id(value)] for value in values]
        self.kinds = [_kind(value) for value in different]
        return tuple(
            [value[None] for value, its in zip(different, self.kinds, strict=True) if its == kind]
            for kind in range(len(KEPT_SPECS))
        )

    def _unsorted(self, kept: tuple[list[Array], ...]) -> Any:
        waiting = [iter(values) for values in kept]
        different = [next(waiting[kind])[0] for kind in self.kinds]
        return jax.tree.unflatten(self.form, [different[place] for place in self.places])

    def _differentiate(self, layer: ChunkLayer, weights: Tree, state: State, batch: Batch) -> tuple[State, Any]:
        def run(params: dict[str, Array], entered: State) -> State:
            return layer.run(params, entered, batch)

        chosen = jax.checkpoint(run, policy=_keeps) if layer.recompute == "selective" else run
        made: tuple[State, Any] = jax.vjp(chosen, self._params(layer, weights), state)
        return made

    def _params(self, layer: ChunkLayer, weights: Tree) -> dict[str, Array]:
        """What the layer reads, whole but for tp."""
        params = {}
        for name, key in layer.weights.keys.items():
            leaf = self.leaves[key]
            params[name] = per_replica(leaf.unpacked(weights[key]) if leaf.zero == 3 else weights[key])
        return params

    def _added(self, key: Key, total: Array, gradient: Array) -> Array:
        leaf = self.leaves[key]
        shard = leaf.scattered(gradient)[None] if leaf.zero >= 2 else gradient[None]
        return total + shard.astype(total.dtype)


def _kind(value: Array) -> int:
    """Of KEPT_SPECS the one by which `value` is split."""
    varying = jax.typeof(value).manual_axis_type.varying
    return 2 if TP in varying else int(bool(varying))


def _keeps(primitive: Any, *inputs: Any, **parameters: Any) -> bool:
    """Selective recomputation keeps all but attention's core (Korthikanti et al. 2022, section 5): what is computed
    from scores or laid out for them. A fused kernel keeps no scores, and is not run again."""
    del parameters
    if primitive.name in ("broadcast_in_dim", "reshape"):
        return False  # Costs nothing to make again from what is kept.
    return all(getattr(aval, "ndim", 0) < SCORE_DIMS for aval in inputs)


def _without_weights(pulled: Any, state_is_known: bool) -> Any:
    """What `jax.vjp` returned, but for the arguments that backward is handed again: its `args_res` are those of the
    arguments, one by one, that it would keep."""
    pulled.args_res[0] = ()
    if state_is_known:
        pulled.args_res[1] = ()
    return pulled


def _with_weights(kept: Any, params: dict[str, Array], state: State | None) -> Any:
    kept.args_res[0] = tuple(jax.tree.leaves(params))
    if state is not None:
        kept.args_res[1] = state
    return kept
