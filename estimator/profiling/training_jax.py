"""A function in training with JAX, as three compiled programs that can be timed apart: forward, backward, optimizer.

What forward keeps for backward leaves its program as arrays: between the two other micro-batches may run, as in a
pipeline. So XLA chooses within each program what to fuse, not across them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from profiles.records import dataclass
from profiles.vocabulary import Shard

Array = Any
Function = Callable[..., Any]

LEARNING_RATE = 1e-4
_BETA_1, _BETA_2, _EPSILON, _DECAY = 0.9, 0.999, 1e-8, 0.01
_MOMENTUM = 0.9


class Training:
    """`function(params, *inputs)` of trees of arrays, in training.

    Gradients are those of all floating weights and, with `input_gradients`, of all floating inputs. Output gradients
    are random and real. With full recomputation forward keeps its inputs alone and backward runs it again.
    """

    def __init__(
        self,
        function: Function,
        params: Any,
        inputs: tuple[Any, ...],
        shard: Shard,
        optimizer: str,
        *,
        input_gradients: bool = True,
    ) -> None:
        leaves, self._tree = jax.tree.flatten((params, inputs))
        first_input = len(jax.tree.leaves(params))
        self._function, self._recomputes, self._optimizer = function, shard.recompute == "full", optimizer
        floating = [number for number, leaf in enumerate(leaves) if is_float(leaf)]
        self._trained = [number for number in floating if number < first_input]
        self._given = [number for number in floating if number >= first_input and input_gradients]
        self._inputs = range(first_input, len(leaves))
        self.leaves = leaves
        self.kept: list[Array] = []
        self.outputs: list[Array] = []
        self._output_gradients: list[Array] = []
        self._kept_plan: _Kept | None = None
        weights = self._take(self._trained)
        self.gradients = [jnp.zeros_like(weight) for weight in weights]
        # 16-bit weights are trained through fp32 masters.
        self._masters = [weight.astype(jnp.float32) for weight in weights if weight.dtype.itemsize < 4]
        moments = 2 if optimizer == "adamw" else 1
        self._state = [[jnp.zeros(weight.shape, jnp.float32) for weight in weights] for _ in range(moments)]
        self._count = jnp.zeros((), jnp.int32)
        self._compile()

    @property
    def weights(self) -> list[Array]:
        return self._take(self._trained)

    @property
    def learns(self) -> bool:
        return bool(self._trained)

    def forward(self) -> None:
        self.outputs, self.kept = self._forward(self.leaves)
        jax.block_until_ready((self.outputs, self.kept))

    def backward(self) -> None:
        """Run backward from a loss, or from the gradients that the next layer would hand back; adds to the weights'
        gradients."""
        if self._backward is None:
            return
        outputs = self.outputs if self._needs_outputs else []
        done = self._backward(self.leaves, outputs, self.kept, self._output_gradients, self.gradients)
        self.gradients, _ = jax.block_until_ready(done)
        self.outputs, self.kept = [], []

    def step(self) -> None:
        """Take one optimizer step."""
        if self._step is None:
            return
        made = self._step(self.weights, self.gradients, self._masters, self._state, self._count)
        weights, self._masters, self._state, self._count = jax.block_until_ready(made)
        for number, weight in zip(self._trained, weights, strict=True):
            self.leaves[number] = weight

    def prepare(self) -> None:
        """Zero the gradients of weights (a micro-batch adds to them), outside the timing."""
        self.gradients = jax.block_until_ready(self._zero(self.gradients))

    def saved_bytes(self) -> int:
        """Return the bytes that forward keeps for backward, inputs among them, without weights and outputs: the next
        layer keeps those as its inputs."""
        if self._recomputes:
            return _bytes(self._kept_inputs())
        return self._made_bytes + _bytes(self._kept_inputs())

    def peak_bytes(self) -> int:
        """Return the bytes of weights, gradients, masters, optimizer state and inputs, and on top of them the fullest
        of the programs, with what XLA has said that it needs besides its arguments and results."""
        gradients = _bytes(self._output_gradients)
        forward = _added_bytes(self._forward)
        backward = 0
        if self._backward is not None:
            entered = _bytes(self._output_shapes) if self._needs_outputs else 0
            backward = self._made_bytes + entered + gradients + _added_bytes(self._backward)
        step = _added_bytes(self._step) if self._step is not None else 0
        resident = (self.leaves, self.gradients, self._masters, self._state)
        return _bytes(resident) + max(forward, backward, step)

    def _take(self, numbers: Sequence[int]) -> list[Array]:
        return [self.leaves[number] for number in numbers]

    def _kept_inputs(self) -> list[Array]:
        if self._recomputes:
            return self._take(self._inputs)
        assert self._kept_plan is not None
        return self._take([number for number in self._kept_plan.arguments if number in self._inputs])

    def _compile(self) -> None:
        lowered = jax.jit(self._forward_body).lower(self.leaves)
        self._forward = lowered.compile()
        outputs, kept = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), lowered.out_info)
        self._output_shapes, self._made_bytes = outputs, _bytes(kept)
        keys = jax.random.split(jax.random.key(1), max(1, len(outputs)))
        self._output_gradients = [
            jnp.ones(out.shape, out.dtype) if out.ndim == 0 else jax.random.normal(key, out.shape, out.dtype)
            for key, out in zip(keys, outputs, strict=False)
        ]
        self._needs_outputs = self._kept_plan is not None and self._kept_plan.has_outputs
        self._backward = self._step = None
        if outputs and (self._trained or self._given):
            taken = outputs if self._needs_outputs else []
            program = jax.jit(self._backward_body, donate_argnums=4)
            arguments = (self.leaves, taken, kept, self._output_gradients, self.gradients)
            self._backward = program.lower(*arguments).compile()
        if self._trained:
            program = jax.jit(self._step_body, donate_argnums=(0, 2, 3, 4))
            self._step = program.lower(self.weights, self.gradients, self._masters, self._state, self._count).compile()
        self._zero = jax.jit(lambda gradients: jax.tree.map(jnp.zeros_like, gradients), donate_argnums=0)

    def _run(self, leaves: list[Array], weights: list[Array], given: list[Array]) -> list[Array]:
        """Those of the function's outputs that backward can start from."""
        values = list(leaves)
        for number, value in zip((*self._trained, *self._given), (*weights, *given), strict=True):
            values[number] = value
        params, inputs = jax.tree.unflatten(self._tree, values)
        return [out for out in jax.tree.leaves(self._function(params, *inputs)) if is_float(out)]

    def _differentiate(self, leaves: list[Array]) -> tuple[list[Array], Any]:
        weights, given = ([leaves[number] for number in numbers] for numbers in (self._trained, self._given))
        outputs, pull = jax.vjp(lambda weights, given: self._run(leaves, weights, given), weights, given)
        return outputs, pull

    def _forward_body(self, leaves: list[Array]) -> tuple[list[Array], list[Array]]:
        if self._recomputes:
            return self._run(leaves, [leaves[n] for n in self._trained], [leaves[n] for n in self._given]), []
        outputs, pull = self._differentiate(leaves)
        kept, self._kept_plan = _keep(pull, leaves, outputs)
        return outputs, kept

    def _backward_body(
        self,
        leaves: list[Array],
        outputs: list[Array],
        kept: list[Array],
        output_gradients: list[Array],
        gradients: list[Array],
    ) -> tuple[list[Array], list[Array]]:
        if self._recomputes:
            _, pull = self._differentiate(leaves)
        else:
            assert self._kept_plan is not None
            pull = self._kept_plan.restore(leaves, outputs, kept)
        of_weights, of_inputs = pull(output_gradients)
        return [total + gradient for total, gradient in zip(gradients, of_weights, strict=True)], of_inputs

    def _step_body(
        self,
        weights: list[Array],
        gradients: list[Array],
        masters: list[Array],
        state: list[list[Array]],
        count: Array,
    ) -> tuple[list[Array], list[Array], list[list[Array]], Array]:
        count = count + 1
        rule = _adamw if self._optimizer == "adamw" else _sgd
        waiting = iter(masters)
        wide = [next(waiting) if weight.dtype.itemsize < 4 else weight for weight in weights]
        moved = [
            rule(weight, gradient.astype(jnp.float32), moments, count)
            for weight, gradient, moments in zip(wide, gradients, zip(*state, strict=True), strict=True)
        ]
        made = [new for new, _ in moved]
        masters = [new for new, weight in zip(made, weights, strict=True) if weight.dtype.itemsize < 4]
        narrow = [new.astype(weight.dtype) for new, weight in zip(made, weights, strict=True)]
        return narrow, masters, [list(moments) for moments in zip(*(after for _, after in moved), strict=True)], count


def is_float(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _adamw(weight: Array, gradient: Array, moments: Sequence[Array], count: Array) -> tuple[Array, tuple[Array, ...]]:
    """The `count`-th step (from 1) of Loshchilov and Hutter 2019, algorithm 2, in fp32, with torch's defaults."""
    first, second = moments
    first = _BETA_1 * first + (1 - _BETA_1) * gradient
    second = _BETA_2 * second + (1 - _BETA_2) * gradient * gradient
    size = jnp.sqrt(second) / jnp.sqrt(1 - _BETA_2**count) + _EPSILON
    weight = weight * (1 - LEARNING_RATE * _DECAY) - LEARNING_RATE / (1 - _BETA_1**count) * first / size
    return weight, (first, second)


def _sgd(weight: Array, gradient: Array, moments: Sequence[Array], count: Array) -> tuple[Array, tuple[Array, ...]]:
    del count
    momentum = _MOMENTUM * moments[0] + gradient
    return weight - LEARNING_RATE * momentum, (momentum,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """How a pullback is put together again: its tree, and where each of its leaves comes from: (0, n) the n-th
    argument, (1, n) the n-th output, (2, n) the n-th of what forward made for it."""

    tree: Any
    sources: tuple[tuple[int, int], ...]

    @property
    def arguments(self) -> tuple[int, ...]:
        return tuple(sorted({number for kind, number in self.sources if kind == 0}))

    @property
    def has_outputs(self) -> bool:
        return any(kind == 1 for kind, _ in self.sources)

    def restore(self, leaves: list[Array], outputs: list[Array], kept: list[Array]) -> Any:
        groups = (leaves, outputs, kept)
        return jax.tree.unflatten(self.tree, [groups[kind][number] for kind, number in self.sources])


def _keep(pull: Any, leaves: Sequence[Array], outputs: Sequence[Array]) -> tuple[list[Array], _Kept]:
    """What backward needs besides the program's own arguments and outputs, each once: XLA would copy those."""
    residuals, tree = jax.tree.flatten(pull)
    source_of = {id(x): (kind, n) for kind, group in ((1, outputs), (0, leaves)) for n, x in enumerate(group)}
    kept: list[Array] = []
    for x in residuals:
        if id(x) not in source_of:
            source_of[id(x)] = (2, len(kept))
            kept.append(x)
    return kept, _Kept(tree=tree, sources=tuple(source_of[id(x)] for x in residuals))


def _bytes(tree: Any) -> int:
    leaves = jax.tree.leaves(tree)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _added_bytes(program: Any) -> int:
    """Results that stand in no argument's place, and XLA's working space; 0 where the back-end does not say."""
    memory = program.memory_analysis()
    if memory is None:
        return 0
    return int(memory.output_size_in_bytes - memory.alias_size_in_bytes + memory.temp_size_in_bytes)
