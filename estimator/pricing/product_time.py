"""Device seconds of a matrix product: as measured on a grid of sizes, else tiles that compute units take in waves.

Where a device's products were measured (profiles/kernels.py) the table is asked, and the model only carries it over to
other rates. A table holds forward products with bf16 results under lasting load; the gradients of their operands are
products of turned sizes, a weight's with the extra time and traffic that the model gives it. Else the model stands:
A wave that is not full, a tile that is not full, the start and end of each tile, and traffic that arithmetic does not
hide make it slower than the peak. The tile is the best of a few, as a library's heuristic would choose. A convolution
is the product that it equals.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Literal

from profiles.efficiencies import GemmEfficiency, GroupedEfficiency, OperatorEfficiencies, load_operator_efficiencies
from profiles.hardware import load_device
from profiles.kernels import KernelGrid, kernel_grid
from profiles.vocabulary import DTYPE_BYTES, Device, DType, Operator, OperatorKind, held_bytes

Product = Literal["forward", "input_grad", "weight_grad"]
SPLITS = (1, 2, 4, 8, 16)
"""Into how many parts a library splits the inner dimension where the result has few tiles."""
ALIGNMENT_BYTES = 16
"""What a matrix unit's loads take at a time: rows that are no multiple of it need narrower ones."""


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
    groups: int | None = None,
) -> float:
    """Seconds of an (m, k) x (k, n) product. For a gradient the sizes are those of the gradient's own product.

    `result_bytes` is the traffic of one element of the result; None: one write in the width that results are held in.
    `groups`: so many of them side by side in one grouped kernel, each with a weight of its own.
    """
    return _weighted(
        groups or 1,
        m,
        n,
        k,
        device.rate(dtype),
        device.memory_bandwidth_bytes_per_s,
        dtype,
        efficiencies,
        product,
        held_bytes(dtype) if result_bytes is None else result_bytes,
        "gemm" if groups is None else "grouped_gemm",
        unaligned=_unaligned(m if product == "weight_grad" else k, n, dtype),
    )


def batched_gemm_seconds(
    groups: int, m: int, n: int, k: int, *, device: Device, dtype: DType, efficiencies: OperatorEfficiencies
) -> float:
    """Seconds of `groups` products of two activations as one kernel.

    Sizes n and k that are no multiple of 16 bytes (head sizes such as 108 in 16 bits) leave strided batched products
    without a matrix unit: they run on the plain units.
    """
    known, peak = efficiencies, device.rate(dtype)
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
    peak = device.rate(dtype)
    return _conv(shape, peak, device.memory_bandwidth_bytes_per_s, dtype, efficiencies, product)


def one_product(
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
    groups, m, n, k = product_sizes(op)
    unaligned = _unaligned(n, k, dtype)
    if product == "weight_grad":
        m, n, k = k, n, m
    elif product == "input_grad":
        n, k = k, n
    if op.kind == "batched_gemm":
        return _batched(groups, m, n, k, peak, plain_peak, bandwidth, dtype, known, product, unaligned=unaligned)
    return _weighted(
        groups, m, n, k, peak, bandwidth, dtype, known, product, result_bytes, op.kind, unaligned=unaligned
    )


def _weighted(
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
    kind: OperatorKind,
    *,
    unaligned: bool,
) -> float:
    """Products with weights, one or several side by side; the sizes are those of the product itself."""
    if kind == "grouped_gemm" and known.grouped is not None:
        seconds = _one_kernel(groups, m, n, k, peak, bandwidth, dtype, known, known.grouped, product, result_bytes)
        return max(known.kernel_floor_s, seconds / (known.gemm_of(dtype).unaligned_share if unaligned else 1.0))
    grid = measured_products(known, dtype) if kind == "gemm" else None
    if grid is None:
        seconds = _tiled(groups, m, n, k, peak, bandwidth, dtype, known, product, result_bytes, kind)
    else:
        turned = _turned(known.gemm_of(dtype), product)
        # The table's results are written once, in bf16.
        beside = m * n * (result_bytes - held_bytes(dtype)) / (bandwidth * known.bandwidth_share)
        seconds = _measured((m, n, k), peak, bandwidth, dtype, known, grid) * turned + max(0.0, beside)
    if unaligned:
        seconds /= known.gemm_of(dtype).unaligned_share
    floor = groups * known.gemm.group_floor_s if kind == "grouped_gemm" else 0.0
    return max(known.kernel_floor_s, floor, seconds)


def _turned(rates: GemmEfficiency, product: Product) -> float:
    """How much longer a gradient takes than a forward product of its sizes."""
    return 1.0 if product == "forward" else rates.turned(weight=product == "weight_grad")


def measured_products(efficiencies: OperatorEfficiencies, dtype: DType) -> KernelGrid | None:
    """Return the measured products of the device that `efficiencies` name, None where nobody measured such."""
    return kernel_grid("product", efficiencies.kernels, "bf16" if dtype == "fp16" else dtype)


@lru_cache(maxsize=65536)
def _measured(
    sizes: tuple[int, int, int],
    peak: float,
    bandwidth: float,
    dtype: DType,
    efficiencies: OperatorEfficiencies,
    grid: KernelGrid,
) -> float:
    """The table's seconds at (m, n, k); for a device of other rates each of its times as the model carries it over.

    A time carried over is less on a faster device, as the model's is; so is what lies between such times.
    """
    table, table_efficiencies = load_device(efficiencies.kernels), load_operator_efficiencies(efficiencies.kernels)
    rates = (table.rate(dtype), table.memory_bandwidth_bytes_per_s)
    if rates == (peak, bandwidth) and efficiencies == table_efficiencies:
        return grid.seconds(*sizes)

    def carried(m: float, n: float, k: float) -> float:
        node = (1, round(m), round(n), round(k))
        here = _tiled(*node, peak, bandwidth, dtype, efficiencies, "forward", held_bytes(dtype))
        return here / _tiled(*node, *rates, dtype, table_efficiencies, "forward", held_bytes(dtype))

    return grid.seconds(*sizes, carried=carried)


def _one_kernel(
    groups: int,
    m: int,
    n: int,
    k: int,
    peak: float,
    bandwidth: float,
    dtype: DType,
    known: OperatorEfficiencies,
    rates: GroupedEfficiency,
    product: Product,
    result_bytes: int,
) -> float:
    """Seconds of (m, k) x (k, n), `groups` times in one kernel that walks over the tiles of all of them.

    Neither waves nor the rows that a tile is not filled with are counted: no row of TensorRT-LLM's, SGLang's or vLLM's
    kernels tells them (`python -m bench.accuracy.grouped`), as their tiles follow the rows of a group.
    """
    turned = _turned(known.gemm_of(dtype), product)
    fill = rates.fill * 2 / DTYPE_BYTES[dtype]
    arithmetic = turned * 2 * groups * m * n * (k + fill) / (peak * rates.share_of(dtype))
    moved = groups * ((m * k + k * n) * DTYPE_BYTES[dtype] + m * n * result_bytes)
    traffic = moved / (bandwidth * rates.bandwidth_share)
    return rates.start_s + max(arithmetic, traffic) + rates.stall * min(arithmetic, traffic)


def product_sizes(op: Operator) -> tuple[int, int, int, int]:
    """(groups, m, n, k) of a product."""
    m, n, k = op.shape[-3:]
    return (1 if op.kind == "gemm" else op.shape[0]), m, n, k


def _unaligned(n: int, k: int, dtype: DType) -> bool:
    """Whether rows of a weight (k, n), as forward sees it, are no multiple of what a load takes.

    The number of rows of the activations has no say in it, in no direction (grouped weight gradients over 154 and 308
    rows, B200: as fast as over 128 and 256).
    """
    width = round(2 * DTYPE_BYTES[dtype]) / 2  # without its part of a scale
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
    unit_flops_per_s = peak / units * rates.peak_share
    operands = groups * (m * k + k * n) * DTYPE_BYTES[dtype]
    results = groups * m * n
    stream, stall = bandwidth * known.bandwidth_share, rates.stall
    if kind == "batched_gemm":
        stream, stall = stream * rates.batch_bandwidth, rates.batch_stall
    else:
        stream, stall = stream * rates.bandwidth, rates.group_stall if kind == "grouped_gemm" else stall
    turned = _turned(rates, product)
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
    return best + rates.start_s


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
