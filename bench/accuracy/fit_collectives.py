"""Fits the parameters of links to the fit half of the published rows; needs scipy. What it finds is written by hand
into profiles/data/links.toml, with the rows that it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.accuracy.comm_rows import Published, modelled_s
from profiles.hardware import load_link
from profiles.vocabulary import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Which parameters of `link` are free, with their bounds, and the kinds of rows that they rest on."""

    link: str
    kinds: tuple[str, ...]
    free: tuple[tuple[str, float, float], ...]


_LATENCIES = (("startup_s", 2e-6, 4e-5), ("latency_s", 5e-7, 2e-5), ("quick_latency_s", 2e-7, 6e-6))
_RATES = (("efficiency", 0.4, 1.0), ("quick_efficiency", 0.02, 0.95))
_CURVE = (*_LATENCIES, *_RATES, ("exchange_efficiency", 0.3, 1.0), ("ramp_exponent", 0.4, 1.0))
_FEW_RANKS = (("share_2", 0.4, 1.0), ("share_3", 0.5, 1.0))

FITS: tuple[Fit, ...] = (
    Fit(
        link="nvswitch3",
        kinds=(
            "A100, nccl-tests in a node",
            "NVLink 3 switch, vTrain",
            "NVLink 3 switch, other sources",
            "NVLink 3 switch, Galvatron (device not stated)",
        ),
        free=(*_CURVE, *_FEW_RANKS, ("share_5", 0.5, 1.0)),
    ),
    Fit(
        link="nvlink2",
        kinds=("NVLink 2 cube mesh, vTrain",),
        free=(
            ("startup_s", 5e-6, 4e-5),
            ("latency_s", 2e-6, 2e-5),
            ("quick_latency_s", 3e-7, 6e-6),
            ("efficiency", 0.5, 1.0),
            ("quick_efficiency", 0.05, 0.95),
            *((f"share_{ranks}", 0.1, 1.0) for ranks in (2, 3, 4, 5, 6, 7)),
        ),
    ),
    Fit(
        link="nvswitch4",
        kinds=(
            "H100, nccl-tests in a node",
            "H200, nccl-tests in a node",
            "NVLink 4 switch, torch",
            "NVLink 4 switch (device not stated)",
        ),
        free=(*_CURVE, *_FEW_RANKS, ("in_network_efficiency", 0.3, 1.0)),
    ),
    Fit(
        link="nvswitch5",
        kinds=(
            "B200, nccl-tests in a node",
            "B300, nccl-tests in a node",
            "GB200, nccl-tests in a node",
            "NVLink 5 switch, torch",
        ),
        free=(*_CURVE, *_FEW_RANKS, ("in_network_efficiency", 0.3, 1.0)),
    ),
    Fit(
        link="nvswitch5-nvl72",
        kinds=("GB200, nccl-tests in a node", "NVLink 5 switch, rack of 72"),
        free=(("startup_s", 5e-6, 4e-5), ("in_network_efficiency", 0.3, 1.0)),
    ),
    Fit(link="efa400", kinds=("8 x EFA 400 a node, torch",), free=(("latency_s", 3e-6, 2e-4),)),
)


def fit_links(rows: Sequence[Published]) -> dict[str, dict[str, float]]:
    """Values by link and parameter that make the logarithm of modelled over measured small on the fit half."""
    from scipy.optimize import least_squares

    found: dict[str, dict[str, float]] = {}
    for fit in FITS:
        mine = [row for row in rows if row.fit_half and row.family.kind in fit.kinds]
        base = _adjusted(load_link(fit.link), found.get(fit.link, {}))
        names = [name for name, _, _ in fit.free]
        lows = [math.log(low) for _, low, _ in fit.free]
        highs = [math.log(high) for _, _, high in fit.free]

        def errors(
            logs: Sequence[float], base: Link = base, names: list[str] = names, mine: list[Published] = mine
        ) -> list[float]:
            values = dict(zip(names, map(math.exp, logs), strict=True))
            trial = _adjusted(base, values)
            errors = log_errors(mine, dict.fromkeys({base.name, *(row.family.machine.island for row in mine)}, trial))
            return [error * _weight(row) for error, row in zip(errors, mine, strict=True)]

        starts = [
            [low + share * (high - low) for low, high in zip(lows, highs, strict=True)] for share in (0.3, 0.5, 0.8)
        ]
        best = min(
            (least_squares(errors, start, bounds=(lows, highs), loss="soft_l1", f_scale=0.1) for start in starts),
            key=lambda result: float(result.cost),
        )
        found.setdefault(fit.link, {}).update(zip(names, map(math.exp, best.x), strict=True))
    return found


def _weight(row: Published) -> float:
    """A training's collectives are of megabytes and more: these count double."""
    return 2.0 if row.size_bytes >= 2**22 else 1.0


def fitted_links(values: Mapping[str, Mapping[str, float]]) -> Callable[[str], Link]:
    """The catalogue's links with `values` in place of their own."""
    return lambda name: _adjusted(load_link(name), values.get(name, {}))


def log_errors(rows: Sequence[Published], links: Mapping[str, Link]) -> list[float]:
    """log(modelled / measured) of each row, with `links` instead of the catalogue's of these names."""

    def look_up(name: str) -> Link:
        return links.get(name) or load_link(name)

    return [math.log(modelled_s(row, look_up) / row.measured_s) for row in rows]


def _adjusted(link: Link, values: Mapping[str, float]) -> Link:
    shares = dict(link.share_by_ranks)
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith("share_"):
            shares[int(name.removeprefix("share_"))] = value
        else:
            plain[name] = value
    return replace(link, **plain, share_by_ranks=tuple(sorted(shares.items())))
