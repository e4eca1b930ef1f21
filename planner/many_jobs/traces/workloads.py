"""What rows without a model train: the models of Crius, table 2, by the names of our zoo, and how one is drawn.

Crius draws sizes from a distribution that it shows as a picture alone (figure 15), so ours is stated here. For a row
of n devices, a family is drawn by its weight (equal in `TABLE_2`); in it a size, of which the i-th smallest of k has
the weight

    2 ^ -|i - (k - 1) x min(1, log2(n) / 6)|

so that one device mostly trains the smallest and 64 or more the largest; and a global batch, all alike. What does not
fit the devices gives way to the next smaller batch, then to the next smaller size with the drawn batch and those below
it, then to the next family, size and batch at the same share of its lists; at last to whatever fits, smallest first.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

from profiles.records import dataclass

LARGEST_FROM = 64
"""Devices from which on the largest size is the likeliest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """Models of one kind, smallest first, the global batches (samples) that they are trained with, smallest first,
    and how often the family is drawn relative to others."""

    name: str
    models: tuple[str, ...]
    global_batches: tuple[int, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.models or not self.global_batches:
            raise ValueError(f"family {self.name!r} needs models and global batches")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"family {self.name!r} has weight {self.weight}, which must be above 0")
        if list(self.global_batches) != sorted(self.global_batches):
            raise ValueError(f"family {self.name!r} has batches {self.global_batches}, which must ascend")


TABLE_2 = (
    ModelFamily(
        name="Wide-ResNet",
        models=("wide-resnet-0.5b", "wide-resnet-1b", "wide-resnet-2b", "wide-resnet-4b", "wide-resnet-6.8b"),
        global_batches=(256, 512, 1024),
    ),
    ModelFamily(
        name="BERT",
        models=("bert-0.76b", "bert-1.3b", "bert-2.6b", "bert-6.7b"),
        global_batches=(128, 256, 512),
    ),
    ModelFamily(
        name="GShard MoE",
        models=("moe-0.69b", "moe-1.3b", "moe-2.4b", "moe-10b", "moe-27b"),
        global_batches=(256, 512, 1024),
    ),
)
"""Crius, table 2: all its models are in the zoo, in its sizes."""


@lru_cache(maxsize=4096)
def size_shares(devices: int, sizes: int) -> tuple[float, ...]:
    """Cumulative probabilities of `sizes` sizes, smallest first, on so many devices; the last is 1."""
    wanted = (sizes - 1) * min(1.0, math.log2(devices) / math.log2(LARGEST_FROM))
    return _cumulative(tuple(2.0 ** -abs(place - wanted) for place in range(sizes)))


@lru_cache(maxsize=64)
def family_shares(families: tuple[ModelFamily, ...]) -> tuple[float, ...]:
    """Cumulative probabilities of the families; the last is 1."""
    return _cumulative(tuple(family.weight for family in families))


def pick(shares: tuple[float, ...], drawn: float) -> int:
    """Which of the cumulative `shares` a number drawn from [0, 1) falls into."""
    return min(bisect_right(shares, drawn), len(shares) - 1)


def fallbacks(families: tuple[ModelFamily, ...], drawn: tuple[int, int, int]) -> Iterator[tuple[str, int]]:
    """Model and global batch as drawn (family, size, batch), then what stands in where that does not fit, in order."""
    first, size, batch = drawn
    for step in range(len(families)):
        family = families[(first + step) % len(families)]
        sizes, batches = len(family.models), len(family.global_batches)
        largest = size if step == 0 else _same_share(size, len(families[first].models), sizes)
        biggest = batch if step == 0 else _same_share(batch, len(families[first].global_batches), batches)
        for model in reversed(family.models[: largest + 1]):
            for global_batch in reversed(family.global_batches[: biggest + 1]):
                yield model, global_batch


def all_choices(families: tuple[ModelFamily, ...]) -> Iterator[tuple[str, int]]:
    """Every model with every global batch of its family, smallest models of all families first."""
    for size in range(max(len(family.models) for family in families)):
        for family in families:
            if size < len(family.models):
                yield from ((family.models[size], global_batch) for global_batch in family.global_batches)


def _same_share(place: int, of: int, there: int) -> int:
    return min(there - 1, place * there // of)


def _cumulative(weights: tuple[float, ...]) -> tuple[float, ...]:
    total, so_far, shares = math.fsum(weights), 0.0, []
    for weight in weights:
        so_far += weight
        shares.append(so_far / total)
    return (*shares[:-1], 1.0)
