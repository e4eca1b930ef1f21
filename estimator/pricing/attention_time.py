"""Device seconds of fused attention: blocks of queries or keys that compute units share."""

from __future__ import annotations

from math import ceil

from profiles.efficiencies import AttentionEfficiency, OperatorEfficiencies
from profiles.vocabulary import Device, DType, held_bytes


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
    return fused_attention(
        shape,
        device.rate(dtype),
        device.memory_bandwidth_bytes_per_s,
        held_bytes(dtype),
        efficiencies,
        efficiencies.attention_kernel(kernel),
        backward,
    )


def fused_attention(
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
