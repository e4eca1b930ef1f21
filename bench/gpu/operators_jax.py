"""Operators with FLOPs as JAX runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from bench.gpu.case import Case
from bench.gpu.memory_jax import MEMORY_MAKERS
from bench.gpu.timing_jax import DTYPES, Maker, Program, backward_program, forward_program, random


def make_program(case: Case, device: jax.Device) -> Program:
    """Builds the tensors of `case` on `device`, and returns the program to time."""
    return MAKERS[case.kind](case, device)


def other_variant(case: Case) -> Case | None:
    """The formula, as XLA compiles it, where cuDNN has no kernel for an attention; it keeps the scores for backward."""
    if case.kind != "attention" or case.variant != "cudnn":
        return None
    flops = case.flops if case.direction == "forward" else case.flops * 4 // 5
    return replace(case, variant="xla", flops=flops)


def _make_gemm(case: Case, device: jax.Device) -> Program:
    m, n, k = case.shape.values()
    dtype = DTYPES[case.dtype]
    # By direction: shapes of both operands, and the dimension of each that is summed over.
    first, second, summed = {
        "forward": ((m, k), (n, k), (1, 1)),
        "dgrad": ((m, n), (n, k), (1, 0)),
        "wgrad": ((m, n), (m, k), (0, 0)),
    }[case.direction]
    if case.dtype == "fp8":
        one = jax.device_put(jnp.ones((), jnp.bfloat16), device)
        return forward_program(
            _scaled_product, lambda: (random(first, dtype, device), random(second, dtype, device), one), case, device
        )
    precision = lax.Precision.HIGHEST if case.dtype == "fp32" else lax.Precision.DEFAULT
    product = partial(lax.dot_general, dimension_numbers=(((summed[0],), (summed[1],)), ((), ())), precision=precision)
    return forward_program(product, lambda: (random(first, dtype, device), random(second, dtype, device)), case, device)


def _scaled_product(x: jax.Array, weight: jax.Array, scale: jax.Array) -> jax.Array:
    """In the form in which XLA knows an fp8 product: both operands widened and scaled, then multiplied."""
    wide = x.astype(jnp.bfloat16) * scale, weight.astype(jnp.bfloat16) * scale
    return lax.dot_general(*wide, (((1,), (1,)), ((), ())), preferred_element_type=jnp.bfloat16)


def _make_batched_gemm(case: Case, device: jax.Device) -> Program:
    groups, m, n, k = case.shape.values()
    normal = partial(random, dtype=jnp.bfloat16, device=device)
    if case.variant == "bmm":
        return forward_program(jnp.matmul, lambda: (normal((groups, m, k)), normal((groups, k, n))), case, device)
    counts = jax.device_put(jnp.full((groups,), m, jnp.int32), device)
    return forward_program(
        lax.ragged_dot, lambda: (normal((groups * m, k)), normal((groups, k, n)), counts), case, device
    )


def _make_attention(case: Case, device: jax.Device) -> Program:
    b, heads, kv_heads, s, dim, causal = case.shape.values()

    def make_inputs() -> Sequence[jax.Array]:
        return [random((b, s, count, dim), jnp.bfloat16, device) for count in (heads, kv_heads, kv_heads)]

    attend = partial(jax.nn.dot_product_attention, is_causal=bool(causal), implementation=case.variant)
    program = backward_program if case.direction == "backward" else forward_program
    return program(lambda q, k, v: attend(q, k, v), make_inputs, case, device)


def _make_convolution(case: Case, device: jax.Device) -> Program:
    batch, c_in, c_out, height, width, kernel, stride = case.shape.values()
    height, width, pad = height * stride, width * stride, kernel // 2
    if case.variant == "nhwc":
        layouts, image, weight = ("NHWC", "HWIO", "NHWC"), (batch, height, width, c_in), (kernel, kernel, c_in, c_out)
    else:
        layouts, image, weight = ("NCHW", "OIHW", "NCHW"), (batch, c_in, height, width), (c_out, c_in, kernel, kernel)
    normal = partial(random, dtype=DTYPES[case.dtype], device=device)

    def convolve(x: jax.Array, w: jax.Array) -> Any:
        return lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=layouts)

    program = backward_program if case.direction == "backward" else forward_program
    return program(convolve, lambda: (normal(image), normal(weight)), case, device)


MAKERS: dict[str, Maker] = {
    "gemm": _make_gemm,
    "batched_gemm": _make_batched_gemm,
    "attention": _make_attention,
    "conv": _make_convolution,
    **MEMORY_MAKERS,
}
