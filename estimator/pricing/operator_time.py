"""Device seconds of one operator: products by tiles and waves, fused attention by blocks, the rest by traffic.

Every time here is of the device alone: the caller counts the host's launches, this module the least time of a kernel.

Times never rise with a faster device, and never fall with a larger operator of the same alignment. Where the parameters
come from: `profiles/data/efficiencies.toml`; how well they fit: `python -m bench.accuracy.operators`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from estimator.pricing.attention_time import fused_attention
from estimator.pricing.product_time import one_product, product_sizes
from profiles.efficiencies import OperatorEfficiencies
from profiles.vocabulary import DTYPE_BYTES, NARROW_DTYPES, Device, DType, Operator, held_bytes

Pass = Literal["forward", "backward"]
CAST_COPIES = 2
"""How often a cast writes its tensor in training: along its rows and, for the weight's gradient, along its columns."""


def time_operator(
    op: Operator,
    *,
    device: Device,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    pass_: Pass,
    accumulator_bytes: int = 0,
    attention_kernel: str | None = None,
    scales_first: bool = False,
) -> float:
    """Device seconds of `op`'s kernels in one pass, without the host's launches.

    `accumulator_bytes`: those of an element of the buffer to which the product itself adds weight gradients (Megatron's
    gradient accumulation fusion), 0 where it writes them.
    `attention_kernel` names the fused kernel, None the usual one. `scales_first`: the one scale of a tensor in fp8 is
    found in the very tensor, which is read once more for it, before the cast. A product with backward FLOPs of one
    product has the gradient of its weight alone. ValueError if the device has no unit for `dtype` or nothing is known
    of that kernel.
    """
    return _cached_time(
        op,
        device.rate(dtype),
        device.peak("fp32"),
        device.memory_bandwidth_bytes_per_s,
        dtype,
        efficiencies,
        pass_ == "backward",
        accumulator_bytes,
        attention_kernel,
        scales_first and dtype == "fp8",
    )


@lru_cache(maxsize=65536)
def _cached_time(
    op: Operator,
    peak: float,
    plain_peak: float | None,
    bandwidth: float,
    dtype: DType,
    known: OperatorEfficiencies,
    backward: bool,
    accumulator_bytes: int,
    attention_kernel: str | None,
    scales_first: bool,
) -> float:
    moved, kernels = (op.backward_bytes, op.backward_kernels) if backward else (op.forward_bytes, op.forward_kernels)
    flops = op.backward_flops if backward else op.forward_flops
    match op.kind:
        case "gather":
            return _stream(moved, bandwidth * known.gather_share, known, kernels)
        case "attention" if flops:
            kernel = known.attention_kernel(attention_kernel)
            return fused_attention(op.shape, peak, bandwidth, held_bytes(dtype), known, kernel, backward)
        case "gemm" | "grouped_gemm" | "batched_gemm" | "conv" if flops:
            pass
        case _:
            return _stream(moved, bandwidth, known, kernels) if moved or flops else 0.0
    cast_s = _cast_beside(op, bandwidth, dtype, known, backward=backward, scales_first=scales_first)
    if not backward:
        return cast_s + one_product(op, "forward", peak, plain_peak, bandwidth, dtype, known, held_bytes(dtype))
    return cast_s + _gradients(op, peak, plain_peak, bandwidth, dtype, known, accumulator_bytes)


def _gradients(
    op: Operator,
    peak: float,
    plain_peak: float | None,
    bandwidth: float,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    accumulator_bytes: int,
) -> float:
    """A product for each gradient, the forward product anew where backward has three, and the sums of a bias."""
    products = max(1, round(op.backward_flops / op.forward_flops)) if op.forward_flops else 1
    accumulates = accumulator_bytes and op.kind != "batched_gemm"
    # What is added to is read and written.
    result_bytes = 2 * accumulator_bytes if accumulates else held_bytes(dtype)
    seconds = one_product(op, "weight_grad", peak, plain_peak, bandwidth, dtype, efficiencies, result_bytes)
    if products > 1:
        seconds += one_product(op, "input_grad", peak, plain_peak, bandwidth, dtype, efficiencies, held_bytes(dtype))
    if products > 2:
        seconds += one_product(op, "forward", peak, plain_peak, bandwidth, dtype, efficiencies, held_bytes(dtype))
    # Kernels beyond the products are those of a bias, which sum the output's gradient.
    beside = op.backward_kernels - products
    if beside > 0 and op.kind != "conv":
        groups, m, n, k = product_sizes(op)
        rest = op.backward_bytes - products * groups * (m * k + k * n + m * n) * held_bytes(dtype)
        seconds += _stream(max(0, rest), bandwidth, efficiencies, beside)
    return seconds


def _cast_beside(
    op: Operator,
    bandwidth: float,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    *,
    backward: bool,
    scales_first: bool,
) -> float:
    """The kernel that casts the activation of a product with a weight, backward its output's gradient, and the one
    that finds its scale `scales_first`; the weight itself is cast once an iteration."""
    comes_narrow = op.narrow_gradient if backward else op.narrow_input
    if dtype not in NARROW_DTYPES or op.kind not in ("gemm", "grouped_gemm") or comes_narrow:
        return 0.0
    groups, m, n, k = product_sizes(op)
    # Of a frozen weight no product needs the copy along columns.
    copies = CAST_COPIES if op.backward_flops > op.forward_flops else 1
    elements = groups * m * (n if backward else k)
    scaled_s = _stream(elements * held_bytes(dtype), bandwidth, efficiencies, 1) if scales_first else 0.0
    return scaled_s + _stream(elements * _cast_bytes(dtype, copies), bandwidth, efficiencies, 1)


def _cast_bytes(dtype: DType, copies: int) -> float:
    """Traffic of an element that is read as held and written so many times in `dtype`."""
    return held_bytes(dtype) + copies * DTYPE_BYTES[dtype]


def memory_seconds(moved_bytes: int, *, device: Device, efficiencies: OperatorEfficiencies, kernels: int = 1) -> float:
    """Seconds of `kernels` memory-bound kernels that move `moved_bytes` between them."""
    return _stream(moved_bytes, device.memory_bandwidth_bytes_per_s, efficiencies, kernels)


def cast_seconds(
    elements: int, *, device: Device, dtype: DType, efficiencies: OperatorEfficiencies, copies: int = CAST_COPIES
) -> float:
    """Return the seconds of the kernel that casts `elements` held in bf16 to a narrow `dtype`, `copies` times written
    (training needs a tensor along its rows and along its columns)."""
    return _stream(elements * _cast_bytes(dtype, copies), device.memory_bandwidth_bytes_per_s, efficiencies, 1)


def gather_seconds(moved_bytes: int, *, device: Device, efficiencies: OperatorEfficiencies, kernels: int = 1) -> float:
    """Seconds of kernels that read or write rows picked by an index."""
    return _stream(moved_bytes, device.memory_bandwidth_bytes_per_s * efficiencies.gather_share, efficiencies, kernels)


def _stream(moved_bytes: float, bandwidth: float, known: OperatorEfficiencies, kernels: int) -> float:
    """Each kernel moves its part at the stream's rate, after the time that it needs to get going."""
    if kernels < 1:
        return 0.0
    each = known.kernel_ramp_s + moved_bytes / kernels / (bandwidth * known.bandwidth_share)
    return kernels * max(known.kernel_floor_s, each)
