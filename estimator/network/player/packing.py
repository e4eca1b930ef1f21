"""Jobs as flat arrays, each by itself: made once, and played beside whatever others there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.network.steps import Mover, Playing, Transfer
from profiles.records import dataclass

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """A `Playing` in arrays: of its steps, of their transfers, of their movers, and of the links of these, one after
    the other; `..._count` is how many of the next each has. `compute_s` and `iteration_bytes` are of an iteration; the
    latter on each of `links`."""

    playing: Playing
    step_compute_s: Floats
    step_begins_s: Floats
    step_times: Integers
    transfer_count: Integers
    transfer_latency_s: Floats
    transfer_times: Integers
    mover_count: Integers
    mover_seconds: Floats
    mover_most: Floats
    mover_level: Integers
    mover_weight: Floats
    entry_count: Integers
    entry_link: Integers
    entry_amount: Floats
    compute_s: float
    lasts_s: float
    links: Integers
    iteration_bytes: Floats


def pack(playing: Playing) -> Packed:
    """Return a job in arrays. Raise ValueError for one whose iteration takes no time, a time or a rate below 0, a most
    that is not above 0 and finite, or the same link twice on a way."""
    steps = playing.steps
    transfers = [transfer for step in steps for transfer in step.transfers]
    movers = [mover for transfer in transfers for mover in transfer.movers]
    entries = [entry for mover in movers for entry in mover.way]
    compute_s = sum(step.compute_s * step.times for step in steps)
    lasts_s = sum(max(step.compute_s, step.begins_s + _least_s(step.transfers)) * step.times for step in steps)
    _check(playing, movers, lasts_s)
    entry_link = _whole(link for link, _ in entries)
    entry_amount = _real(amount for _, amount in entries)
    entry_count = _whole(len(mover.way) for mover in movers)
    mover_seconds = _real(mover.seconds for mover in movers)
    often = [
        transfer.times * step.times for step in steps for transfer in step.transfers for _ in transfer.movers
    ]  # of each mover in an iteration
    links, place = np.unique(entry_link, return_inverse=True)
    sent = np.repeat(mover_seconds * _real(often), entry_count) * entry_amount
    return Packed(
        playing=playing,
        step_compute_s=_real(step.compute_s for step in steps),
        step_begins_s=_real(step.begins_s for step in steps),
        step_times=_whole(step.times for step in steps),
        transfer_count=_whole(len(step.transfers) for step in steps),
        transfer_latency_s=_real(transfer.latency_s for transfer in transfers),
        transfer_times=_whole(transfer.times for transfer in transfers),
        mover_count=_whole(len(transfer.movers) for transfer in transfers),
        mover_seconds=mover_seconds,
        mover_most=_real(mover.most for mover in movers),
        mover_level=_whole(_level(playing, transfer) for transfer in transfers for _ in transfer.movers),
        mover_weight=_real(_weight(playing, mover) for mover in movers),
        entry_count=entry_count,
        entry_link=entry_link,
        entry_amount=entry_amount,
        compute_s=compute_s,
        lasts_s=lasts_s,
        links=links,
        iteration_bytes=np.bincount(place, sent, minlength=len(links)).astype(np.float64),
    )


def _level(playing: Playing, transfer: Transfer) -> int:
    return playing.level if transfer.level is None else transfer.level


def _weight(playing: Playing, mover: Mover) -> float:
    """What its pace counts where others share a link: shares are equal in bytes, so less the more a pace of 1 puts."""
    return playing.weight / max((amount for _, amount in mover.way), default=1.0)


def _least_s(transfers: Sequence[Transfer]) -> float:
    """What transfers take that nothing holds."""
    return sum(
        each.times
        * (each.latency_s + max((mover.seconds / mover.most for mover in each.movers if mover.most), default=0))
        for each in transfers
    )


def _check(playing: Playing, movers: Sequence[Mover], lasts_s: float) -> None:
    for mover in movers:
        if not (mover.seconds >= 0 and 0 < mover.most < float("inf")):
            raise ValueError(f"found a mover of {mover.seconds} s and most {mover.most}, expected both above 0, finite")
        if any(amount <= 0 for _, amount in mover.way) or len({link for link, _ in mover.way}) < len(mover.way):
            raise ValueError("found a way with an amount that is not above 0 or a link twice")
    times_s = [
        playing.starts_s,
        playing.idle_s,
        playing.period_s,
        *(s.compute_s for s in playing.steps),
        *(s.begins_s for s in playing.steps),
    ]
    if not min(times_s) >= 0 or not 0 < lasts_s < float("inf"):
        raise ValueError(f"found an iteration of {lasts_s} s, times from {min(times_s)}, expected above 0 and from 0")
    if playing.period_s == float("inf"):
        raise ValueError(f"found a period of {playing.period_s} s, expected a finite one")
    if not 0 < playing.weight < float("inf") or playing.level < 0:
        raise ValueError(f"found weight {playing.weight}, level {playing.level}, expected above 0, and from 0")


def _whole(values: Iterable[int]) -> Integers:
    return np.array(list(values), dtype=np.int64)


def _real(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)
