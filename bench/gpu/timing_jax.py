"""How long a compiled program takes with JAX on one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.gpu.case import Case

Function = Callable[..., Any]

LONG_S = 0.5e-3
"""A program takes about so long at least, many times what it takes the host to start it."""
MOST_CALLS, MOST_BYTES = 16, 2**29
"""In one program: operators, and bytes that all of them move (several times any cache)."""
FLOPS_PER_S, BYTES_PER_S, LEAST_S = 5e14, 3e12, 2e-6
"""A fast GPU's, to guess from how many operators make a program of `LONG_S`."""
SAMPLE_S, SAMPLED_S = 3e-3, 0.03
FEWEST, MOST = 5, 25
POOL = 2**22
"""Distinct random numbers; larger tensors repeat them."""

DTYPES: dict[str, Any] = {"fp32": jnp.float32, "tf32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}
DTYPES |= {"fp8": jnp.float8_e4m3fn}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`call` queues an operator `count` times and returns what to wait for; compiled at its first call."""

    call: Callable[[], Any]
    count: int


Maker = Callable[[Case, jax.Device], Program]


def time_program(program: Program) -> list[float]:
    """Seconds of one operator in each of a few samples. A sample queues calls enough to last `SAMPLE_S` and waits for
    the last one."""
    jax.block_until_ready(program.call())
    start = perf_counter()
    jax.block_until_ready(program.call())
    once_s = max(perf_counter() - start, 1e-6)
    calls = max(1, min(50, math.ceil(SAMPLE_S / once_s)))
    samples = max(FEWEST, min(MOST, int(SAMPLED_S / (calls * once_s))))
    return [_sample_s(program, calls) for _ in range(samples)]


def _sample_s(program: Program, calls: int) -> float:
    start = perf_counter()
    for _ in range(calls):
        found = program.call()
    jax.block_until_ready(found)
    return (perf_counter() - start) / (calls * program.count)


def calls_in_program(case: Case, device: jax.Device) -> int:
    """How often a program runs the operator: on other tensors each time, so that caches are cold."""
    if device.platform == "cpu":
        return 1
    guess_s = max(case.flops / FLOPS_PER_S, case.bytes / BYTES_PER_S, LEAST_S)
    return max(1, min(MOST_CALLS, math.ceil(LONG_S / guess_s), MOST_BYTES // max(1, case.bytes)))


def forward_program(
    function: Function, make_inputs: Callable[[], Sequence[jax.Array]], case: Case, device: jax.Device
) -> Program:
    """`function` of several sets of inputs."""
    sets = [tuple(make_inputs()) for _ in range(calls_in_program(case, device))]
    return chain(function, sets)


def backward_program(
    function: Function, make_inputs: Callable[[], Sequence[jax.Array]], case: Case, device: jax.Device
) -> Program:
    """The backward of `function` alone, with real gradients, from what its forward has kept."""
    keep = jax.jit(lambda *inputs: jax.vjp(function, *inputs)[1])
    sets = []
    for _ in range(calls_in_program(case, device)):
        inputs = tuple(make_inputs())
        output = jax.eval_shape(function, *inputs)
        sets.append((keep(*inputs), random(output.shape, output.dtype, device)))
    return chain(lambda kept, gradient: kept(gradient), sets)


def chain(function: Function, sets: Sequence[tuple[Any, ...]]) -> Program:
    """One program that calls `function` with each of `sets`, each call after the one before: XLA would fuse calls that
    do not wait for one another."""

    def all_of_them(sets: Sequence[tuple[Any, ...]]) -> list[Any]:
        found: list[Any] = []
        for inputs in sets:
            if found:
                inputs, found[-1] = jax.lax.optimization_barrier((inputs, found[-1]))
            found.append(function(*inputs))
        return found

    compiled = jax.jit(all_of_them)
    return Program(call=lambda: compiled(sets), count=len(sets))


def random(shape: Sequence[int], dtype: Any, device: jax.Device, *, spread: float = 1.0) -> jax.Array:
    """Normal numbers, made by the host: a program of JAX's own would be compiled for each shape."""
    return jax.device_put(np.resize(_pool(jnp.dtype(dtype).name, spread), tuple(shape)), device)


def indices(count: int, size: int, device: jax.Device) -> jax.Array:
    """`size` random rows of `count`."""
    return jax.device_put(np.random.default_rng(0).integers(count, size=size, dtype=np.int32), device)


@cache
def _pool(dtype: str, spread: float) -> Any:
    numbers = np.random.default_rng(0).standard_normal(POOL, dtype=np.float32)
    return (spread * numbers).astype(jnp.dtype(dtype))
