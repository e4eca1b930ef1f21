"""What an assembly of stages takes by formula, for choosing one (Crius section 5.1); its price is that of its setup.

Stage i takes T_i for a micro-batch, forward and backward; c_i of it is the transfer between stage i - 1 and it, both
ways; blocking collectives are inside T_i - c_i. B micro-batches take

    cellplan   sum_i T_i + (B - 1) max_i max(T_i - c_i, c_i)    the default: transfers are hidden behind compute, or
                                                                compute behind transfers, whichever is longer
    crius      sum_i T_i + (B - 1) (T_m - c_m),  m = argmax T_i the paper's, taken literally

The paper's lets a slower link make the iteration faster, since a longer transfer can make another stage the m-th. The
default never falls when any compute or transfer grows.

Against an event by event simulation (`tests/oracles/pipeline_oracle.py`): with equal stages and no transfers the
default is exact for GPipe and 1F1B. With unequal stages it is exact for GPipe if all have the same ratio of backward to
forward, and too short otherwise (by up to about 10% where forward differs by 30% and the ratio lies between 1 and 3);
for 1F1B it is too long (by up to about 6% there). Transfers of 10% of T in each of equal stages are as the default says
in GPipe; 1F1B, with few micro-batches under way, waits for them and takes 3-7% longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Latency = Callable[[Sequence[float], Sequence[float], int], float]


def latency_default(time_s: Sequence[float], transfer_s: Sequence[float], micro_batches: int) -> float:
    """Return sum T_i + (B - 1) max_i max(T_i - c_i, c_i) in seconds.

    >>> latency_default([10, 9], [4, 0], 16)
    154
    """
    pace_s = max(max(time - moved, moved) for time, moved in zip(time_s, transfer_s, strict=True))
    return sum(time_s) + (micro_batches - 1) * pace_s


def latency_crius(time_s: Sequence[float], transfer_s: Sequence[float], micro_batches: int) -> float:
    """Return sum T_i + (B - 1) (T_m - c_m), m = argmax T_i; of equal T_i the one of largest T_i - c_i (Crius 5.1).

    >>> latency_crius([10, 9], [4, 0], 16)
    109
    """
    _, pace_s = max((time, time - moved) for time, moved in zip(time_s, transfer_s, strict=True))
    return sum(time_s) + (micro_batches - 1) * pace_s


LATENCY: dict[str, Latency] = {"cellplan": latency_default, "crius": latency_crius}
"""Seconds of B micro-batches by the formula's name."""
