"""Brute force for `estimator.cells.stages`: every contiguous split with every composition of the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations, pairwise

from estimator.cells.stages import StageSplit, bottleneck_flops_per_device, boundary_bytes


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All tuples of `parts` positive integers that sum to `total`."""
    for marks in combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in pairwise((0, *marks, total)))


def best_partition(
    flops: Sequence[int],
    cut_bytes: Sequence[int],
    devices: int,
    stages: int,
    legal: Callable[[int, int, int], bool] = lambda first, end, n: True,  # noqa: ARG005
) -> tuple[Fraction, int] | None:
    """Smallest (bottleneck, boundary bytes) of all splits whose stages are all `legal`; None if there is none."""
    best: tuple[Fraction, int] | None = None
    for marks in combinations(range(1, len(flops)), stages - 1):
        bounds = tuple(pairwise((0, *marks, len(flops))))
        for shares in compositions(devices, stages):
            if all(legal(a, e, n) for (a, e), n in zip(bounds, shares, strict=True)):
                split = StageSplit(bounds=bounds, devices=shares)
                value = bottleneck_flops_per_device(split, flops), boundary_bytes(split, cut_bytes)
                best = value if best is None else min(best, value)
    return best


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def best_crius_partition(
    flops: Sequence[int], cut_bytes: Sequence[int], devices: int, stages: int
) -> tuple[Fraction, int]:
    """The same over the cheapest sets of cuts alone, and over powers of two where the devices are one."""
    splits = [
        StageSplit(bounds=tuple(pairwise((0, *marks, len(flops)))), devices=shares)
        for marks in combinations(range(1, len(flops)), stages - 1)
        for shares in compositions(devices, stages)
        if not is_power_of_two(devices) or all(map(is_power_of_two, shares))
    ]
    cheapest = min(boundary_bytes(split, cut_bytes) for split in splits)
    cheap = [split for split in splits if boundary_bytes(split, cut_bytes) == cheapest]
    return min(bottleneck_flops_per_device(split, flops) for split in cheap), cheapest
