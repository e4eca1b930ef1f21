"""Fits the product model's parameters of an architecture on measured products, bursts and lasting load together.

Of 16 bits all parameters are fitted, and each device's share of its peak; of a narrow type all but the clock's, as too
few rows of them are under lasting load. One set of parameters stands for all devices of an architecture but for the
share of the peak. Robust least squares (soft L1) on the logarithm of modelled over measured seconds, over shapes of the
fit half with no size below 256.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from bench.accuracy.kernel_rows import ProductRow
from estimator.pricing.product_time import gemm_seconds
from profiles.efficiencies import GemmEfficiency, OperatorEfficiencies, load_operator_efficiencies
from profiles.hardware import load_device
from profiles.vocabulary import DType

SCALE = 0.05
"""Log error from which rows are taken as outliers."""
SHAPE = ("fill", "stall", "start_s", "bandwidth", "wave_loss")
CLOCK = ("burst_gain", "burst_half_s")
TILES = {"128x128": (128 * 128,), "128x64": (128 * 64,), "64x64": (64 * 64,)}
"""Shares of tiles by their area; 256 x 64 is as 128 x 128."""
BOUNDS = {
    "peak_share": (0.2, 1.0),
    "fill": (1.0, 600.0),
    "stall": (0.01, 1.0),
    "start_s": (3e-7, 8e-6),
    "bandwidth": (0.6, 1.0),
    "wave_loss": (0.01, 1.0),
    "burst_gain": (0.02, 0.5),
    "burst_half_s": (2e-4, 3e-2),
    **dict.fromkeys(TILES, (0.5, 1.0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductFit:
    """Parameters by name, each device's share of its peak, and the mean of |log error| on the rows fitted to."""

    dtype: DType
    values: Mapping[str, float]
    shares: Mapping[str, float]
    error: float


def modelled_seconds(row: ProductRow, efficiencies: OperatorEfficiencies) -> float:
    """Return the model's time of a row's product, in a burst where it was one."""
    if row.burst:
        efficiencies = in_bursts(efficiencies)
    device = load_device(row.device)
    return gemm_seconds(row.m, row.n, row.k, device=device, dtype=row.dtype, efficiencies=efficiencies)


def in_bursts(efficiencies: OperatorEfficiencies) -> OperatorEfficiencies:
    """Return `efficiencies` with the clocks of bursts."""
    narrow = tuple((dtype, rates.in_bursts()) for dtype, rates in efficiencies.narrow_gemm)
    return replace(efficiencies, gemm=efficiencies.gemm.in_bursts(), narrow_gemm=narrow)


def without_tables(efficiencies: OperatorEfficiencies) -> OperatorEfficiencies:
    """Return `efficiencies` as the model alone."""
    return replace(efficiencies, kernels="")


def fit_products(rows: Sequence[ProductRow], dtype: DType, *, evaluations: int = 30) -> ProductFit:
    """Return the parameters of `dtype` fitted on `rows`, all of one architecture, from those that stand."""
    chosen = [
        row for row in rows if row.dtype == dtype and row.usable and not row.held and min(row.m, row.n, row.k) >= 256
    ]
    devices = sorted({row.device for row in chosen})
    stands = {name: without_tables(load_operator_efficiencies(name)) for name in devices}
    names = [*SHAPE, *TILES, *(CLOCK if dtype == "bf16" else ())]
    first = stands[devices[0]].gemm_of(dtype)
    begin = [_value(first, name) for name in names] + [stands[name].gemm_of(dtype).peak_share for name in devices]
    ranges = [BOUNDS[name] for name in names] + [BOUNDS["peak_share"]] * len(devices)
    low, high = np.log([each[0] for each in ranges]), np.log([each[1] for each in ranges])
    start = np.clip(np.log(np.maximum(begin, 1e-12)), low + 1e-6, high - 1e-6)

    def residuals(point: np.ndarray) -> np.ndarray:
        values = dict(zip(names, np.exp(point), strict=False))
        shares = dict(zip(devices, np.exp(point[len(names) :]), strict=True))
        trial = {name: _with(stands[name], dtype, values, shares[name]) for name in devices}
        bursts = {name: in_bursts(efficiencies) for name, efficiencies in trial.items()}
        return np.array(
            [math.log(modelled_at(row, (bursts if row.burst else trial)[row.device]) / row.seconds) for row in chosen]
        )

    solved = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=SCALE, max_nfev=evaluations, diff_step=2e-3
    )
    return ProductFit(
        dtype=dtype,
        values=dict(zip(names, np.exp(solved.x).tolist(), strict=False)),
        shares=dict(zip(devices, np.exp(solved.x[len(names) :]).tolist(), strict=True)),
        error=float(np.mean(np.abs(residuals(solved.x)))),
    )


def modelled_at(row: ProductRow, efficiencies: OperatorEfficiencies) -> float:
    """Return the time of a row's product from the efficiencies just as they are."""
    device = load_device(row.device)
    return gemm_seconds(row.m, row.n, row.k, device=device, dtype=row.dtype, efficiencies=efficiencies)


def _value(rates: GemmEfficiency, name: str) -> float:
    if name in TILES:
        return next(share for m, n, share in rates.tiles if m * n in TILES[name])
    return float(getattr(rates, name))


def _with(
    efficiencies: OperatorEfficiencies, dtype: DType, values: Mapping[str, float], peak_share: float
) -> OperatorEfficiencies:
    rates = efficiencies.gemm_of(dtype)
    areas = {128 * 128: "128x128", 128 * 64: "128x64", 64 * 64: "64x64"}
    tiles = tuple((m, n, float(values[areas[m * n]]) if m * n in areas else old) for m, n, old in rates.tiles)
    plain: dict[str, Any] = {name: float(value) for name, value in values.items() if name not in TILES}
    changed = replace(rates, tiles=tiles, peak_share=float(peak_share), **plain)
    if dtype == "bf16":
        return replace(efficiencies, gemm=changed)
    return replace(efficiencies, narrow_gemm=((dtype, changed),))
