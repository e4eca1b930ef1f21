"""Whether a plan fits, and how sure that is: the 90% interval of memory held against what the device can hand out."""

from __future__ import annotations

import math
from typing import Literal

from estimator.pricing.outcome import Evaluation
from profiles.records import dataclass

MemoryVerdict = Literal["safe", "tight", "unlikely"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictShares:
    """The least share of the 90% interval of a rank's peak (on the logarithm, on which it is even) that lies below the
    usable memory where a plan is called `safe`, and where `tight`; below that it is `unlikely` to fit."""

    safe: float = 1.0
    tight: float = 0.5


VERDICT_SHARES = VerdictShares()
"""All of the interval is below: at most one run in twenty needs more. Half of it: the estimate itself still fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """How sure it is that the rank with least room fits.

    `usable_bytes` of its device's `device_bytes` can be handed out: the rest is context, libraries and blocks that the
    allocator cannot give back. `headroom_bytes` are left of them by the estimated peak (below 0: lacking).
    `interval_share` of the peak's 90% interval lies below `usable_bytes`.
    """

    device_bytes: int
    usable_bytes: int
    headroom_bytes: int
    interval_share: float
    verdict: MemoryVerdict


def memory_fit(evaluation: Evaluation) -> MemoryFit:
    """Return how sure it is that the plan of `evaluation` fits, by its rank with least room; what a margin keeps free
    counts as room."""
    half_width = memory_half_width(evaluation)
    margins = evaluation.device_margin_bytes or (0,) * len(evaluation.memory)
    fits = []
    for rank, left_bytes, margin in zip(evaluation.memory, evaluation.device_memory_bytes, margins, strict=True):
        firm = rank.reserve_bytes if rank.firm_reserve_bytes is None else rank.firm_reserve_bytes
        device_bytes = left_bytes + margin
        usable = max(0, device_bytes - firm)
        share = interval_share(rank.peak_bytes, usable, half_width)
        fits.append(
            MemoryFit(
                device_bytes=device_bytes,
                usable_bytes=usable,
                headroom_bytes=usable - rank.peak_bytes,
                interval_share=share,
                verdict=verdict_of(share),
            )
        )
    return min(fits, key=lambda fit: (fit.interval_share, fit.headroom_bytes))


def interval_share(peak_bytes: float, usable_bytes: float, log_half_width: float) -> float:
    """Return the share of peak / e^w to peak * e^w, on the logarithm, that lies below the usable bytes.

    >>> interval_share(60.0, 60.0, 0.2), interval_share(60.0, 90.0, 0.2), interval_share(60.0, 40.0, 0.2)
    (0.5, 1.0, 0.0)
    """
    if usable_bytes <= 0 or peak_bytes <= 0:
        return 1.0 if peak_bytes <= usable_bytes else 0.0
    above = math.log(usable_bytes / peak_bytes)
    if log_half_width <= 0:
        return float(above >= 0)
    return min(1.0, max(0.0, 0.5 + above / (2 * log_half_width)))


def verdict_of(share: float) -> MemoryVerdict:
    """Return what a share of the interval below the usable memory is called."""
    if share >= VERDICT_SHARES.safe:
        return "safe"
    return "tight" if share >= VERDICT_SHARES.tight else "unlikely"


def memory_half_width(evaluation: Evaluation) -> float:
    """Return half the width of the memory's 90% interval on the logarithm."""
    low, high = evaluation.memory_interval_90_bytes
    return math.log(high / low) / 2 if low > 0 else 0.0


def safe_memory_bytes(memory_bytes: int, context_bytes: int, log_half_width: float) -> int:
    """Return how much a plan may need of a device of so many bytes, of which its context takes `context_bytes`, to be
    `safe` whatever else it keeps in reserve.

    A peak p with a reserve R (what cannot be given back of it, at least the context o) is safe where p e^w + R <= M.
    Where p + R <= o + (M - o) / e^w it is: then p e^w + R <= M - (e^w - 1) (R - o).
    """
    left_bytes = max(0, memory_bytes - context_bytes)
    return min(memory_bytes, math.floor(context_bytes + left_bytes / math.exp(log_half_width)) - 1)
