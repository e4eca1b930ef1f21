"""Operators in numbers: FLOPs as torch's counter counts them, memory traffic, and what is kept for backward.

Every function here makes one `Operator` from local sizes. `width` is bytes per element of the compute dtype.
Formulas: a matrix product of (m, k) by (k, n) has 2mnk FLOPs; backward has one such product for each operand that
needs a gradient.
"""

from __future__ import annotations

from profiles.vocabulary import Operator


def gemm(
    name: str,
    *,
    m: int,
    n: int,
    k: int,
    width: int,
    bias: bool = False,
    input_grad: bool = True,
    saves_input: bool = True,
) -> Operator:
    """(m, k) activations times a (k, n) weight. `saves_input` is False where another operator keeps that tensor."""
    products = 2 if input_grad else 1
    traffic = (m * k + k * n + m * n) * width
    return Operator(
        name=name,
        kind="gemm",
        shape=(m, n, k),
        forward_flops=2 * m * n * k,
        backward_flops=products * 2 * m * n * k,
        forward_bytes=traffic + (n * width if bias else 0),
        backward_bytes=products * traffic + (m * n * width if bias else 0),
        saved_bytes=m * k * width if saves_input else 0,
        backward_kernels=products + int(bias),
    )


def grouped_gemm(
    name: str, *, groups: int, m: int, n: int, k: int, width: int, bias: bool = False, saves_input: bool = True
) -> Operator:
    """`groups` experts, each (m, k) activations times its own (k, n) weight."""
    traffic = groups * (m * k + k * n + m * n) * width
    flops = 2 * groups * m * n * k
    return Operator(
        name=name,
        kind="grouped_gemm",
        shape=(groups, m, n, k),
        forward_flops=flops,
        backward_flops=2 * flops,
        forward_bytes=traffic + (groups * (n + m * n) * width if bias else 0),
        backward_bytes=2 * traffic + (groups * m * n * width if bias else 0),
        saved_bytes=groups * m * k * width if saves_input else 0,
        backward_kernels=2 + int(bias),
    )


def batched_gemm(name: str, *, groups: int, m: int, n: int, k: int, width: int, saved_bytes: int) -> Operator:
    """Product of two activations in `groups` independent problems (attention without a fused kernel)."""
    traffic = groups * (m * k + k * n + m * n) * width
    flops = 2 * groups * m * n * k
    return Operator(
        name=name,
        kind="batched_gemm",
        shape=(groups, m, n, k),
        forward_flops=flops,
        backward_flops=2 * flops,
        forward_bytes=traffic,
        backward_bytes=2 * traffic,
        saved_bytes=saved_bytes,
        backward_kernels=2,
    )


def flash_attention(
    name: str,
    *,
    batch: int,
    heads: int,
    kv_heads: int,
    q_len: int,
    kv_len: int,
    qk_dim: int,
    v_dim: int,
    causal: bool,
    width: int,
    saved_bytes: int,
    steps: int = 1,
) -> Operator:
    """Fused attention. Counted in full even when causal, as torch does; backward computes the scores again.

    Forward 2 products (QK^T, PV); backward 5 (scores again, dV, dP, dQ, dK). In so many `steps`, keys after keys, each
    but the first brings its result and its gradients to those before it, with two kernels each.
    """
    square = 2 * batch * heads * q_len * kv_len
    q, k, v, out = heads * q_len * qk_dim, kv_heads * kv_len * qk_dim, kv_heads * kv_len * v_dim, heads * q_len * v_dim
    return Operator(
        name=name,
        kind="attention",
        shape=(batch, heads, kv_heads, q_len, kv_len, qk_dim, v_dim, int(causal)),
        forward_flops=square * (qk_dim + v_dim),
        backward_flops=square * (3 * qk_dim + 2 * v_dim),
        forward_bytes=batch * (q + k + v + out) * width,
        backward_bytes=batch * (2 * (q + k + v) + 2 * out) * width,
        saved_bytes=saved_bytes,
        forward_kernels=3 * steps - 2,
        backward_kernels=5 * steps - 2,
    )


def convolution(
    name: str,
    *,
    batch: int,
    c_in: int,
    c_out: int,
    out_h: int,
    out_w: int,
    kernel: int,
    stride: int,
    width: int,
    input_elements: int,
    input_grad: bool = True,
    saves_input: bool = True,
) -> Operator:
    """Square convolution without groups; FLOPs 2 * batch * out_h * out_w * c_out * c_in * kernel^2 per product.

    `input_elements` is the input's size per sample (c_in * h * w).
    """
    products = 2 if input_grad else 1
    flops = 2 * batch * out_h * out_w * c_out * c_in * kernel * kernel
    weight = c_out * c_in * kernel * kernel
    traffic = (batch * (input_elements + c_out * out_h * out_w) + weight) * width
    return Operator(
        name=name,
        kind="conv",
        shape=(batch, c_in, c_out, out_h, out_w, kernel, kernel, stride),
        forward_flops=flops,
        backward_flops=products * flops,
        forward_bytes=traffic,
        backward_bytes=products * traffic,
        saved_bytes=batch * input_elements * width if saves_input else 0,
        backward_kernels=products,
    )


def elementwise(
    name: str,
    *,
    elements: int,
    width: int,
    forward_passes: float,
    backward_passes: float,
    extra_bytes: int = 0,
    saved_bytes: int = 0,
    forward_kernels: int = 1,
    backward_kernels: int = 1,
) -> Operator:
    """A memory-bound operator; a pass is one read or one write of `elements` elements, `extra_bytes` (a mask) go
    each way besides."""
    return Operator(
        name=name,
        kind="memory",
        shape=(elements,),
        forward_bytes=round(forward_passes * elements * width) + extra_bytes,
        backward_bytes=round(backward_passes * elements * width) + extra_bytes,
        saved_bytes=saved_bytes,
        forward_kernels=forward_kernels,
        backward_kernels=backward_kernels,
    )


def lookup(name: str, *, rows: int, row_elements: int, width: int) -> Operator:
    """Gather of `rows` table rows forward, scatter-add of their gradients backward; keeps the int64 indices."""
    moved = rows * row_elements * width
    return Operator(
        name=name,
        kind="gather",
        shape=(rows, row_elements),
        forward_bytes=2 * moved + 8 * rows,
        backward_bytes=3 * moved + 8 * rows,
        saved_bytes=8 * rows,
    )
