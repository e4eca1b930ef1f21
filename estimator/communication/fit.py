"""From samples to a link table: one time per size, and the line alpha + beta * bytes that summarises them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from profiles.vocabulary import CollectiveOp, LinkTable, Provenance


def fit_alpha_beta(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Return (alpha in seconds, beta in seconds per byte, fit error) of the best line through (bytes, seconds) points.

    Minimises the sum over the points of ((alpha + beta * bytes_i - seconds_i) / seconds_i)^2 with alpha, beta >= 0:
    the errors are relative, so a small size counts as much as a large one. With x_i = 1 / seconds_i and
    y_i = bytes_i / seconds_i that is least squares of alpha * x + beta * y = 1, a convex problem in two unknowns:
    the unconstrained solution if it is non-negative, else the better of the two edges. Points of a single size cannot
    tell alpha from beta: alpha is then 0. The fit error is the mean of |line - seconds| / seconds.

    Raises:
        ValueError: no points, or a size or a time that is not positive and finite.

    >>> alpha_s, beta_s_per_byte, fit_error = fit_alpha_beta([(1000, 3e-6), (2000, 4e-6), (9000, 11e-6)])
    >>> f"{alpha_s:.1e} {beta_s_per_byte:.1e} {fit_error:.3f}"
    '2.0e-06 1.0e-09 0.000'
    """
    if not points or not all(0 < size < math.inf and 0 < seconds < math.inf for size, seconds in points):
        raise ValueError(f"fit_alpha_beta: found {list(points)[:5]}, expected points with positive bytes and seconds")
    # Both columns are scaled to unit length: bytes and their inverse seconds are ten orders of magnitude apart.
    x_scale = math.sqrt(math.fsum(seconds**-2 for _, seconds in points))
    y_scale = math.sqrt(math.fsum((size / seconds) ** 2 for size, seconds in points))
    x = [1 / seconds / x_scale for _, seconds in points]
    y = [size / seconds / y_scale for size, seconds in points]
    sum_x, sum_y = math.fsum(x), math.fsum(y)
    candidates = [(0.0, sum_y)]
    if len({size for size, _ in points}) > 1:
        cosine = math.fsum(a * b for a, b in zip(x, y, strict=True))
        determinant = 1 - cosine**2
        inner = ((sum_x - cosine * sum_y) / determinant, (sum_y - cosine * sum_x) / determinant)
        candidates = [inner] if min(inner) >= 0 else [*candidates, (sum_x, 0.0)]
    a, b = min(
        candidates, key=lambda ab: math.fsum((ab[0] * u + ab[1] * v - 1) ** 2 for u, v in zip(x, y, strict=True))
    )
    alpha, beta = a / x_scale, b / y_scale
    error = math.fsum(abs(alpha + beta * size - seconds) / seconds for size, seconds in points) / len(points)
    return alpha, beta, error


def make_table(
    *,
    link: str,
    op: CollectiveOp,
    ranks: int,
    nodes: int,
    samples: Mapping[int, Sequence[float]],
    source: str,
    provenance: Provenance = "measured",
) -> LinkTable:
    """Return the link table of `samples`: for each size in bytes, seconds of every repeat (of the slowest rank).

    A size's time is the minimum of its samples and of all larger sizes' samples. Other work on the machine only ever
    adds time, and a message takes no longer than a larger one, so a smaller reading at a larger size exposes noise.
    The points therefore never fall with size.

    Raises:
        ValueError: no samples at all or for one size, or one that is not positive.
    """
    if not all(samples.values()):
        raise ValueError(f"make_table: {link} {op}: a size without samples among {sorted(samples)}")
    points: list[tuple[int, float]] = []
    floor = math.inf
    for size in sorted(samples, reverse=True):
        floor = min(floor, *samples[size])
        points.insert(0, (size, floor))
    alpha_s, beta_s_per_byte, fit_error = fit_alpha_beta(points)
    return LinkTable(
        link=link,
        op=op,
        ranks=ranks,
        nodes=nodes,
        points=tuple(points),
        alpha_s=alpha_s,
        beta_s_per_byte=beta_s_per_byte,
        fit_error=fit_error,
        source=source,
        provenance=provenance,
    )
