"""Device seconds of one operator: products by tiles and waves, fused attention by blocks, the rest by traffic.

A matrix product is cut into tiles that compute units take in waves; a wave that is not full, a tile that is not full,
the start and end of each tile, and traffic that arithmetic does not hide make it slower than the peak. The tile is the
best of a few, as a library's heuristic would choose. Every time here is of the device alone: the caller counts the
host's launches, this module the least time of a kernel.

Times never rise with a faster device, and never fall with a larger operator of the same alignment. Where the parameters
come from: `profiles/data/efficiencies.toml`; how well they fit: `python -m bench.accuracy.operators`.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Literal

from profiles.efficiencies import AttentionEfficiency, OperatorEfficiencies
from profiles.vocabulary import DTYPE_BYTES, Device, DType, Operator, OperatorKind, held_bytes

Pass = Literal["forward", "backward"]
Product = Literal["forward", "input_grad", "weight_grad"]
SPLITS = (1, 2, 4, 8, 16)
"""Into how many parts a library splits the inner dimension where the result has few tiles."""
ALIGNMENT_BYTES = 16
"""What a matrix unit's loads take at a time: rows that are no multiple of it need narrower ones."""
FUSED_WGRAD_BYTES = 8
"""Traffic a weight of a product that adds its result to an fp32 buffer: read and write."""


def time_operator(
    op: Operator,
    *,
    device: Device,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    pass_: Pass,
    fused_wgrad: bool = False,
    attention_kernel: str | None = None,
) -> float:
    """Device seconds of `op`'s kernels in one pass, without the host's launches.

    `fused_wgrad`: the product itself adds weight gradients to an fp32 buffer (Megatron's gradient accumulation fusion).
    `attention_kernel` names the fused kernel, None the usual one. A product with backward FLOPs of one product has the
    gradient of its weight alone. ValueError if the device has no unit for `dtype` or nothing is known of that kernel.
    """
    return _cached_time(
        op,
        _peak(device, dtype),
        device.peak("fp32"),
        device.memory_bandwidth_bytes_per_s,
        dtype,
        efficiencies,
        pass_ == "backward",
        fused_wgrad,
        attention_kernel,
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
    fused_wgrad: bool,
    attention_kernel: str | None,
) -> float:
    moved, kernels = (op.backward_bytes, op.backward_kernels) if backward else (op.forward_bytes, op.forward_kernels)
    flops = op.backward_flops if backward else op.forward_flops
    match op.kind:
        case "gather":
            return _stream(moved, bandwidth * known.gather_share, known, kernels)
        case "attention" if flops:
            kernel = known.attention_kernel(attention_kernel)
            return _attention(op.shape, peak, bandwidth, held_bytes(dtype), known, kernel, backward)
        case "gemm" | "grouped_gemm" | "batched_gemm" | "conv" if flops:
            pass
        case _:
            return _stream(moved, bandwidth, known, kernels) if moved or flops else 0.0
    if not backward:
        return _product(op, "forward", peak, plain_peak, bandwidth, dtype, known, held_bytes(dtype))
    products = max(1, round(op.backward_flops / op.forward_flops))
    result_bytes = FUSED_WGRAD_BYTES if fused_wgrad and op.kind != "batched_gemm" else held_bytes(dtype)
    seconds = _product(op, "weight_grad", peak, plain_peak, bandwidth, dtype, known, result_bytes)
    if products > 1:
        seconds += _product(op, "input_grad", peak, plain_peak, bandwidth, dtype, known, held_bytes(dtype))
    # Kernels beyond the products are those of a bias, which sum the output's gradient.
    beside = op.backward_kernels - products
    if beside > 0 and op.kind != "conv":
        groups, m, n, k = _sizes(op)
        rest = moved - products * groups * (m * k + k * n + m * n) * held_bytes(dtype)
        seconds += _stream(max(0, rest), bandwidth, known, beside)
    return seconds


def gemm_seconds(
    m: int,
    n: int,
    k: int,
    *,
    device: Device,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    product: Product = "forward",
    result_bytes: int | None = None,
) -> float:
    """Seconds of an (m, k) x (k, n) product. For a gradient the sizes are those of the gradient's own product.

    `result_bytes` is the traffic of one element of the result; None: one write in the width that results are held in.
    """
    width = held_bytes(dtype) if result_bytes is None else result_bytes
    known = efficiencies
    seconds = _tiled(
        1, m, n, k, _peak(device, dtype), device.memory_bandwidth_bytes_per_s, dtype, known, product, width
    )
    if _unaligned(m if product == "weight_grad" else k, n, dtype):
        seconds /= known.gemm_of(dtype).unaligned_share
    return max(known.kernel_floor_s, seconds)


def grouped_gemm_seconds(
    groups: int,
    m: int,
    n: int,
    k: int,
    *,
    device: Device,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    product: Product = "forward",
    result_bytes: int | None = None,
) -> float:
    """Seconds of `groups` products of one size that run side by side, each with a weight of its own."""
    width = held_bytes(dtype) if result_bytes is None else result_bytes
    known, peak = efficiencies, _peak(device, dtype)
    seconds = _tiled(
        groups, m, n, k, peak, device.memory_bandwidth_bytes_per_s, dtype, known, product, width, "grouped_gemm"
    )
    if _unaligned(m if product == "weight_grad" else k, n, dtype):
        seconds /= known.gemm_of(dtype).unaligned_share
    return max(known.kernel_floor_s, groups * known.gemm.group_floor_s, seconds)


def batched_gemm_seconds(
    groups: int, m: int, n: int, k: int, *, device: Device, dtype: DType, efficiencies: OperatorEfficiencies
) -> float:
    """Seconds of `groups` products of two activations as one kernel.

    Sizes n and k that are no multiple of 16 bytes (head sizes such as 108 in 16 bits) leave strided batched products
    without a matrix unit: they run on the plain units.
    """
    known, peak = efficiencies, _peak(device, dtype)
    return _batched(
        groups, m, n, k, peak, device.peak("fp32"), device.memory_bandwidth_bytes_per_s, dtype, known, "forward"
    )


def conv_seconds(
    shape: tuple[int, ...],
    *,
    device: Device,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    product: Product = "forward",
) -> float:
    """Seconds of a convolution or one of its gradients, as the product that it equals; `shape` as in Operator."""
    peak = _peak(device, dtype)
    return _conv(shape, peak, device.memory_bandwidth_bytes_per_s, dtype, efficiencies, product)


def attention_seconds(
    shape: tuple[int, ...],
    *,
    device: Device,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    backward: bool = False,
    kernel: str | None = None,
) -> float:
    """Seconds of fused attention; `shape` (batch, heads, kv_heads, q_len, kv_len, qk_dim, v_dim, causal)."""
    return _attention(
        shape,
        _peak(device, dtype),
        device.memory_bandwidth_bytes_per_s,
        held_bytes(dtype),
        efficiencies,
        efficiencies.attention_kernel(kernel),
        backward,
    )


def memory_seconds(moved_bytes: int, *, device: Device, efficiencies: OperatorEfficiencies, kernels: int = 1) -> float:
    """Seconds of `kernels` memory-bound kernels that move `moved_bytes` between them."""
    return _stream(moved_bytes, device.memory_bandwidth_bytes_per_s, efficiencies, kernels)


def gather_seconds(moved_bytes: int, *, device: Device, efficiencies: OperatorEfficiencies, kernels: int = 1) -> float:
    """Seconds of kernels that read or write rows picked by an index."""
    return _stream(moved_bytes, device.memory_bandwidth_bytes_per_s * efficiencies.gather_share, efficiencies, kernels)


def _peak(device: Device, dtype: DType) -> float:
    for name, rate in device.peak_flops_per_s:
        if name == dtype:
            return rate
    raise ValueError(
        f"{device.name} has no {dtype} rate, it has {', '.join(name for name, _ in device.peak_flops_per_s)}"
    )


def _sizes(op: Operator) -> tuple[int, int, int, int]:
    """(groups, m, n, k) of a product."""
    m, n, k = op.shape[-3:]
    return (1 if op.kind == "gemm" else op.shape[0]), m, n, k


def _product(
    op: Operator,
    product: Product,
    peak: float,
    plain_peak: float | None,
    bandwidth: float,
    dtype: DType,
    known: OperatorEfficiencies,
    result_bytes: int,
) -> float:
    """One of an operator's products: forward, or the gradient of one of its operands."""
    if op.kind == "conv":
        return _conv(op.shape, peak, bandwidth, dtype, known, product)
    groups, m, n, k = _sizes(op)
    unaligned = _unaligned(n, k, dtype)
    if product == "weight_grad":
        m, n, k = k, n, m
    elif product == "input_grad":
        n, k = k, n
    if op.kind == "batched_gemm":
        return _batched(groups, m, n, k, peak, plain_peak, bandwidth, dtype, known, product, unaligned=unaligned)
    seconds = _tiled(groups, m, n, k, peak, bandwidth, dtype, known, product, result_bytes, op.kind)
    if unaligned:
        seconds /= known.gemm_of(dtype).unaligned_share
    floor = groups * known.gemm.group_floor_s if op.kind == "grouped_gemm" else 0.0
    return max(known.kernel_floor_s, floor, seconds)


def _unaligned(n: int, k: int, dtype: DType) -> bool:
    """Whether rows of a weight (k, n), as forward sees it, are no multiple of what a load takes.

    The number of rows of the activations has no say in it, in no direction (grouped weight gradients over 154 and 308
    rows, B200: as fast as over 128 and 256).
    """
    width = DTYPE_BYTES[dtype]
    return bool(n * width % ALIGNMENT_BYTES or k * width % ALIGNMENT_BYTES)


@lru_cache(maxsize=65536)
def _tiled(
    groups: int,
    m: int,
    n: int,
    k: int,
    peak: float,
    bandwidth: float,
    dtype: DType,
    known: OperatorEfficiencies,
    product: Product,
    result_bytes: int,
    kind: OperatorKind = "gemm",
) -> float:
    """Seconds of (m, k) x (k, n), `groups` times side by side: the best tile, its waves, and traffic beside them."""
    rates, units = known.gemm_of(dtype), known.compute_units
    # A tile's first operands come in bytes: of a narrower type they hold more of the inner dimension.
    fill = rates.fill if dtype == "fp32" else rates.fill * 2 / DTYPE_BYTES[dtype]
    unit_flops_per_s = peak / units * rates.peak_share * (rates.fp8_share if dtype == "fp8" else 1.0)
    operands = groups * (m * k + k * n) * DTYPE_BYTES[dtype]
    results = groups * m * n
    stream, stall = bandwidth * known.bandwidth_share, rates.stall
    if kind == "grouped_gemm":
        stall = rates.group_stall
    elif kind == "batched_gemm":
        stream, stall = stream * rates.batch_bandwidth, rates.batch_stall
    turned = 1 + rates.weight_grad_loss if product == "weight_grad" else 1.0
    best = float("inf")
    for rows, columns, share in rates.tiles:
        tiles = groups * ceil(m / rows) * ceil(n / columns)
        tile_s = 2 * rows * columns / (unit_flops_per_s * share)
        for split in SPLITS:
            # A part is 256 long or, of a shorter product, padded to that.
            if split > 1 and (tiles * split > 2 * units or (split - 1) * 256 >= k):
                break
            inner = k if split == 1 else max(k / split, 256)
            waves = tiles * split / units
            waves = max(1.0, waves + rates.wave_loss * (ceil(waves) - waves))
            arithmetic = waves * tile_s * (inner + fill) * turned
            arithmetic *= 1 + rates.power_loss * arithmetic / (arithmetic + rates.power_half_s)
            # Parts of a split product meet in fp32: each writes its part, which is read once more.
            traffic = (operands + results * (result_bytes + (0 if split == 1 else 8 * split))) / stream
            short, long = (arithmetic, traffic) if arithmetic < traffic else (traffic, arithmetic)
            best = min(best, long + stall * short)
    return best


def _batched(
    groups: int,
    m: int,
    n: int,
    k: int,
    peak: float,
    plain_peak: float | None,
    bandwidth: float,
    dtype: DType,
    known: OperatorEfficiencies,
    product: Product,
    *,
    unaligned: bool | None = None,
) -> float:
    seconds = _tiled(groups, m, n, k, peak, bandwidth, dtype, known, product, held_bytes(dtype), "batched_gemm")
    if _unaligned(n, k, dtype) if unaligned is None else unaligned:
        plain = min(peak, plain_peak or peak) * known.gemm_of(dtype).plain_share
        seconds = max(seconds, 2 * groups * m * n * k / plain)
    return max(known.kernel_floor_s, seconds)


def _conv(
    shape: tuple[int, ...], peak: float, bandwidth: float, dtype: DType, known: OperatorEfficiencies, product: Product
) -> float:
    """Forward is (pixels, c_in * window) x (c_in * window, c_out); gradients turn that product as any other."""
    batch, c_in, c_out, height, width, kernel_h, kernel_w, _ = shape
    m, n, k = batch * height * width, c_out, c_in * kernel_h * kernel_w
    if product == "weight_grad":
        m, n, k = k, n, m
    elif product == "input_grad":
        n, k = k, n
    # The window is gathered from the input as the product runs, so the input is read about once, not once a window.
    arithmetic = _tiled(1, m, n, k, peak, float("inf"), dtype, known, product, held_bytes(dtype))
    pixels = batch * height * width
    moved = (pixels * (c_in + c_out) + c_in * c_out * kernel_h * kernel_w) * held_bytes(dtype)
    share = known.plain_conv_share if dtype == "fp32" else known.conv_share
    return max(known.kernel_floor_s, arithmetic / share, moved / (bandwidth * known.bandwidth_share))


def _attention(
    shape: tuple[int, ...],
    peak: float,
    bandwidth: float,
    width: int,
    known: OperatorEfficiencies,
    kernel: AttentionEfficiency,
    backward: bool,
) -> float:
    """Blocks of queries (backward: of keys) shared by the units, the longest of which ends alone.

    A block's work is its rows times the keys that it sees; with a causal mask those grow by one block from each block
    to the next, so a block sees half of them on average, and its diagonal square is computed in full (FlashAttention-2,
    sections 3.1-3.3). Backward has five products where forward has two.
    """
    batch, heads, kv_heads, q_len, kv_len, qk_dim, v_dim, causal = shape
    head_size = max(qk_dim, v_dim)
    share = _at_head_size(kernel.forward_shares, head_size) * known.attention_share
    if backward:
        share *= _at_head_size(kernel.backward_ratios, head_size)
        rows, over = kernel.backward_rows, kv_len
        products, fill = 3 * qk_dim + 2 * v_dim, kernel.backward_overhead
        tail, alone = kernel.backward_tail, kernel.backward_alone
        longest = float(q_len)
    else:
        rows, over = kernel.forward_rows, q_len
        products, fill = qk_dim + v_dim, kernel.forward_overhead
        tail, alone = kernel.forward_tail, kernel.forward_alone
        longest = float(kv_len)
    # Of the pairs of a query and a key, those that the mask leaves (the last query sees every key), and the half of the
    # diagonal squares that is computed in vain.
    seen = longest
    if causal:
        masked = min(q_len, kv_len)
        seen = min(longest, longest - masked / over * (masked - rows) / 2)
    blocks = batch * heads * ceil(over / rows)
    row_s = 2 * rows * products / (peak / known.compute_units * share)
    full = blocks * (seen + fill) / known.compute_units
    arithmetic = row_s * max(alone * (longest + fill), full + tail * (longest + fill))
    elements = heads * q_len * (qk_dim + v_dim) + kv_heads * kv_len * (qk_dim + v_dim)
    moved = batch * elements * width * (2 if backward else 1)
    return max(known.kernel_floor_s, arithmetic, moved / (bandwidth * known.bandwidth_share))


def _at_head_size(shares: tuple[float, float, float], head_size: int) -> float:
    """Straight lines between the shares at 64, 128 and 256; level outside."""
    small, middle, large = shares
    if head_size <= 128:
        return small + (middle - small) * max(0.0, (head_size - 64) / 64)
    return middle + (large - middle) * min(1.0, (head_size - 128) / 128)


def _stream(moved_bytes: float, bandwidth: float, known: OperatorEfficiencies, kernels: int) -> float:
    """Each kernel moves its part at the stream's rate, after the time that it needs to get going."""
    if kernels < 1:
        return 0.0
    each = known.kernel_ramp_s + moved_bytes / kernels / (bandwidth * known.bandwidth_share)
    return kernels * max(known.kernel_floor_s, each)
