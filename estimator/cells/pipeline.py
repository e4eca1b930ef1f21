"""Time of one iteration of a pipeline in closed form, from its stages' times for one micro-batch (Crius section 5.1).

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
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """One stage and one micro-batch: T_i, forward and backward with transfers, and c_i, the transfers in it."""

    time_s: float
    transfer_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.transfer_s <= self.time_s < float("inf"):
            raise ValueError(
                f"stage figures: time_s={self.time_s}, transfer_s={self.transfer_s};"
                " expected 0 <= transfer_s <= time_s, finite"
            )

    @property
    def compute_s(self) -> float:
        return self.time_s - self.transfer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTime:
    """Where an iteration's time goes; the four parts sum to `total_s`.

    The first micro-batch passes all stages (`fill_*`); each of the others adds what the stage `bottleneck` takes:
    its compute, and what of its transfers is longer than that (`steady_*`). `bubble_s` is another view of the same
    time and not a part of the sum: the idle seconds of the stage that computes most. It is negative where the Crius
    formula promises less than that stage's compute alone.
    """

    fill_compute_s: float
    fill_transfer_s: float
    steady_compute_s: float
    steady_transfer_s: float
    bottleneck: int
    bubble_s: float

    @property
    def total_s(self) -> float:
        return self.fill_compute_s + self.fill_transfer_s + self.steady_compute_s + self.steady_transfer_s


def latency_default(stages: Sequence[StageFigures], micro_batches: int) -> PipelineTime:
    """sum T_i + (B - 1) max_i max(T_i - c_i, c_i). Of equal bottlenecks the first is named.

    >>> latency_default([StageFigures(time_s=10, transfer_s=4), StageFigures(time_s=9, transfer_s=0)], 16).total_s
    154.0
    """
    worst = max(range(len(stages)), key=lambda i: max(stages[i].compute_s, stages[i].transfer_s))
    return _pipeline_time(stages, micro_batches, worst, max(0.0, stages[worst].transfer_s - stages[worst].compute_s))


def latency_crius(stages: Sequence[StageFigures], micro_batches: int) -> PipelineTime:
    """Crius section 5.1: sum T_i + (B - 1) (T_m - c_m), m = argmax T_i; of equal T_i the one of largest T_i - c_i.

    >>> latency_crius([StageFigures(time_s=10, transfer_s=4), StageFigures(time_s=9, transfer_s=0)], 16).total_s
    109.0
    """
    slowest = max(range(len(stages)), key=lambda i: (stages[i].time_s, stages[i].compute_s))
    return _pipeline_time(stages, micro_batches, slowest, 0.0)


def _pipeline_time(
    stages: Sequence[StageFigures], micro_batches: int, bottleneck: int, exposed_transfer_s: float
) -> PipelineTime:
    if micro_batches < 1:
        raise ValueError(f"pipeline: micro_batches={micro_batches}, expected at least 1")
    fill_compute_s = sum(stage.compute_s for stage in stages)
    fill_transfer_s = sum(stage.transfer_s for stage in stages)
    steady_compute_s = (micro_batches - 1) * stages[bottleneck].compute_s
    steady_transfer_s = (micro_batches - 1) * exposed_transfer_s
    total_s = fill_compute_s + fill_transfer_s + steady_compute_s + steady_transfer_s
    return PipelineTime(
        fill_compute_s=fill_compute_s,
        fill_transfer_s=fill_transfer_s,
        steady_compute_s=steady_compute_s,
        steady_transfer_s=steady_transfer_s,
        bottleneck=bottleneck,
        bubble_s=total_s - micro_batches * max(stage.compute_s for stage in stages),
    )


LATENCY: dict[str, Callable[[Sequence[StageFigures], int], PipelineTime]] = {
    "cellplan": latency_default,
    "crius": latency_crius,
}
"""Iteration time of B micro-batches by the formula's name."""
