"""Prices of devices: the Lagrangian dual of giving every job at most one Cell within the pools' devices.

    D(price) = sum over pools of price_p x devices_p
             + sum over jobs of max(0, max over Cells of value - price_p x devices)

For any prices of 0 or more D bounds the value of every allocation from above; its least value is that of the linear
relaxation (multiple-choice knapsack, one constraint a pool).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.many_jobs.scheduling.cells.board import Floats, Integers

SCALINGS = 5


def dual_value(value: Floats, devices: Integers, pool_of: Integers, sizes: Sequence[int], prices: Floats) -> float:
    """Return D(prices): no allocation of pools of `sizes` devices has a greater value. `value[j, c]` is -inf where job
    j has no Cell c, which takes `devices[j, c]` of pool `pool_of[c]`."""
    reduced = value - devices * prices[pool_of]
    return float(prices @ np.asarray(sizes, dtype=np.float64) + np.maximum(reduced.max(axis=1, initial=0.0), 0.0).sum())


def lower_prices(
    value: Floats,
    devices: Integers,
    pool_of: Integers,
    sizes: Sequence[int],
    start: Floats,
    *,
    sweeps: int = 2,
    halvings: int = 10,
) -> Floats:
    """Return prices of a device of each pool with a low D: pool after pool, the price at which the jobs that prefer the
    pool want what it has, found by halving (D is convex in each price, its slope is devices minus demand). `start` is
    where it begins: the closer, the better."""
    prices = np.array(start, dtype=np.float64)
    if not len(value):
        return np.zeros_like(prices)
    columns = [np.flatnonzero(pool_of == pool) for pool in range(len(sizes))]
    own_values = [value[:, column] for column in columns]
    own_devices = [devices[:, column] for column in columns]
    floats = [counts.astype(np.float64) for counts in own_devices]
    best = np.stack(
        [
            (worth - count * price).max(axis=1, initial=-np.inf)
            for worth, count, price in zip(own_values, floats, prices, strict=True)
        ],
        axis=1,
    )
    place = np.arange(len(value))
    with np.errstate(divide="ignore", invalid="ignore"):
        densest = [
            float(np.where(counts > 0, worth / counts, 0.0).max(initial=0.0))
            for worth, counts in zip(own_values, floats, strict=True)
        ]
    for sweep in range(sweeps):
        for pool, size in enumerate(sizes):
            others = np.delete(best, pool, axis=1).max(axis=1, initial=0.0)
            low, high = _bracket(prices[pool], densest[pool], wide=sweep == 0)
            for _ in range(halvings):
                price = (low + high) / 2
                reduced = own_values[pool] - floats[pool] * price
                choice = reduced.argmax(axis=1)
                wanted = own_devices[pool][place, choice][reduced[place, choice] > others].sum()
                low, high = (price, high) if wanted > size else (low, price)
            prices[pool] = high if high > densest[pool] * 2.0**-halvings else 0.0
            best[:, pool] = (own_values[pool] - floats[pool] * prices[pool]).max(axis=1, initial=-np.inf)
        prices = prices * _scale(value, devices, pool_of, sizes, prices)
        best = np.stack(
            [
                (worth - count * price).max(axis=1)
                for worth, count, price in zip(own_values, floats, prices, strict=True)
            ],
            axis=1,
        )
    return prices


def _scale(value: Floats, devices: Integers, pool_of: Integers, sizes: Sequence[int], prices: Floats) -> float:
    """The factor of all prices with a low D: one price after the other may stop where only all together can go on."""
    paid = devices * prices[pool_of]
    all_paid = float(prices @ np.asarray(sizes, dtype=np.float64))
    place = np.arange(len(value))
    low, high = 0.5, 1.5
    best, least = 1.0, np.inf
    for factor in (1.0, *[None] * SCALINGS):
        tried = (low + high) / 2 if factor is None else factor
        reduced = value - tried * paid
        choice = reduced.argmax(axis=1)
        surplus = reduced[place, choice]
        bound = tried * all_paid + float(np.maximum(surplus, 0.0).sum())
        if bound < least:
            best, least = tried, bound
        wanted = float(paid[place, choice][surplus > 0].sum())
        low, high = (tried, high) if wanted > all_paid else (low, tried)
    return best


def _bracket(price: float, densest: float, *, wide: bool) -> tuple[float, float]:
    if wide or price <= 0:
        return 0.0, densest
    return price * 0.7, min(densest, price * 1.4)
