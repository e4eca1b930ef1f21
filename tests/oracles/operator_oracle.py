"""Brute-force twins of the operator model's closed forms: tiles dealt out one by one, pairs of tokens counted."""

from __future__ import annotations

from heapq import heapreplace
from math import ceil


def makespan_of_tiles(tiles: int, units: int, tile_s: float) -> float:
    """Seconds until the last of `tiles` equal tiles ends, each given to the unit that is free first."""
    free_at = [0.0] * units
    for _ in range(tiles):
        heapreplace(free_at, free_at[0] + tile_s)
    return max(free_at)


def keys_of_blocks(q_len: int, kv_len: int, rows: int, *, causal: bool) -> list[int]:
    """For each block of `rows` queries the pairs that it computes, over `rows`: with a causal mask, in which the last
    query sees every key, all keys that its last query sees."""
    blocks = [min((block + 1) * rows, q_len) for block in range(ceil(q_len / rows))]
    return [min(kv_len, kv_len - q_len + last) if causal else kv_len for last in blocks]
