"""What compute takes longer or shorter, from one iteration to the next: drawn by a job's name, not by its place."""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DRAWS = 1024
"""Of a job; then they come again."""


@lru_cache(maxsize=4096)
def factors(name: str, seed: int, share: float) -> NDArray[np.float64]:
    """Return what a job's compute times are multiplied by in one iteration after the other, (`DRAWS`,): even draws from
    1 - `share` to 1 + `share`, by SplitMix64 (Steele, Lea and Flood 2014) of its name and `seed`."""
    key = np.uint64(zlib.crc32(name.encode("utf-8", "surrogatepass")) << 32 | (seed & 0xFFFFFFFF))
    with np.errstate(over="ignore"):
        mixed = (np.arange(1, DRAWS + 1, dtype=np.uint64) + _mix(np.array([key]))) * np.uint64(0x9E3779B97F4A7C15)
        drawn = (_mix(mixed) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return 1.0 + share * (2.0 * drawn - 1.0)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
