"""90% intervals of time and memory: how far estimates of the same declared class were from published runs.

The half-widths are conformal quantiles of the absolute log error (Vovk, Gammerman, Shafer, "Algorithmic Learning in a
Random World", 2005; Lei et al., "Distribution-Free Predictive Inference for Regression", 2018, section 2.2) over half
of the rows; how many of the other half they cover stands in `bench/accuracy/RESULTS.md`.
"""

from __future__ import annotations

import math
from typing import Literal

from estimator.pricing.outcome import TimeBreakdown
from profiles.uncertainty import Uncertainty, load_uncertainty

WorkKind = Literal["launch", "convolution", "experts", "communication", "compute"]
ModelKind = Literal["dense", "experts"]


def work_kind(
    breakdown: TimeBreakdown, kind: ModelKind = "dense", *, launch_share: float, communication_share: float
) -> WorkKind:
    """What a run of a model of `kind` is limited by: the host's launches, convolutions, mixtures of experts, whose time
    depends on how tokens fall, communication and bubble, or none of these.

    Convolutions are told apart because few runs stand behind them on any device: more than half of the compute.
    ValueError for an iteration of no time.
    """
    total_s = breakdown.total_s
    if total_s <= 0:
        raise ValueError(f"work_kind: an iteration of {total_s} s, expected more than 0")
    compute_s = breakdown.gemm_s + breakdown.attention_s + breakdown.convolution_s + breakdown.memory_bound_s
    moved_s = breakdown.tp_s + breakdown.cp_s + breakdown.ep_s + breakdown.dp_s + breakdown.pp_s + breakdown.bubble_s
    if breakdown.convolution_s > compute_s / 2:
        return "convolution"
    if breakdown.launch_s > launch_share * total_s:
        return "launch"
    if kind == "experts":
        return "experts"
    return "communication" if moved_s > communication_share * total_s else "compute"


def time_interval(
    total_s: float,
    breakdown: TimeBreakdown,
    device: str,
    kind: ModelKind = "dense",
    *,
    uncertainty: Uncertainty | None = None,
) -> tuple[float, float]:
    """[low, high] seconds that hold nine of ten measured times of iterations estimated at `total_s` on `device`, of a
    model of `kind`.

    With devices of several kinds `device` is the limiting stage's. `uncertainty` None: the committed one.
    """
    known = uncertainty or load_uncertainty()
    work = work_kind(breakdown, kind, launch_share=known.launch_share, communication_share=known.communication_share)
    factor = math.exp(known.time_half_width(device, work).log_half_width)
    return total_s / factor, total_s * factor


def widened(interval_s: tuple[float, float], ratio: float) -> tuple[float, float]:
    """Return the interval that holds `interval_s` and the same of a time `ratio` times as long.

    >>> widened((9.0, 11.0), 2.0)
    (9.0, 22.0)
    """
    low, high = interval_s
    return low * min(1.0, ratio), high * max(1.0, ratio)


def memory_interval(
    peak_bytes: int, device: str, kind: ModelKind = "dense", *, uncertainty: Uncertainty | None = None
) -> tuple[int, int]:
    """[low, high] bytes that hold nine of ten measured peaks of ranks estimated at `peak_bytes`.

    Peaks are of allocated bytes, without the reserve. `kind` experts: a model with mixtures of experts, whose fullest
    rank depends on how tokens fall.
    """
    known = uncertainty or load_uncertainty()
    factor = math.exp(known.memory_half_width(device, kind).log_half_width)
    return math.floor(peak_bytes / factor), math.ceil(peak_bytes * factor)
