"""What one is to be better than: every run at one constant share of the devices' peak, with or without the bubble.

    iteration_time_s = model_flops / (peak_flops_per_s * mfu) * bubble

with `model_flops` as PaLM (appendix B) counts them: no recomputation, attention in full; `peak_flops_per_s` that of all
devices; `bubble` 1, or 1 + (pp - 1) / (micro_batches * vpp) (Megatron-LM, SC21, section 2.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate

from planner.one_job.validation.results import RowResult
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Constant MFU. `fitted_rows` rows lie behind `mfu`; `fitted_on_all`: too few rows to keep half of them aside."""

    name: str
    with_bubble: bool
    mfu: float
    fitted_rows: int
    fitted_on_all: bool = False

    def time_s(self, row: RowResult) -> float | None:
        """Return the seconds of an iteration, None where the row's FLOPs or its devices' peak are not known."""
        ideal_s = ideal_time_s(row, with_bubble=self.with_bubble)
        return None if ideal_s is None else ideal_s / self.mfu

    def fitted_on(self, rows: Iterable[RowResult]) -> Baseline | None:
        """The same baseline with its constant fitted on all of `rows` instead."""
        pairs = _timed_pairs(rows, with_bubble=self.with_bubble)
        if not pairs:
            return None
        return replace(self, mfu=best_mfu(pairs), fitted_rows=len(pairs), fitted_on_all=True)


def in_fit_half(row_id: str) -> bool:
    """Return whether a row is one of the half that constants and intervals may be fitted on: by a hash of its id, so
    that the halves do not depend on which other rows a table has.

    >>> sum(in_fit_half(f"VTM-{number:04}") for number in range(1000))
    504
    """
    # The words before the id keep this split apart from any other that somebody made of the same ids by their hash.
    return sha256(f"cellplan validate: {row_id}".encode()).digest()[0] % 2 == 0


def ideal_time_s(row: RowResult, *, with_bubble: bool) -> float | None:
    """Seconds of an iteration at the devices' full peak."""
    if row.model_flops is None or row.peak_flops_per_s is None:
        return None
    return row.model_flops / row.peak_flops_per_s * (row.bubble if with_bubble else 1.0)


def fit_baselines(rows: Iterable[RowResult]) -> tuple[Baseline, ...]:
    """Return both baselines, each with the best single constant on the fit half of `rows`; empty if none can be
    fitted."""
    baselines = []
    table = tuple(rows)
    for name, with_bubble in (("constant_mfu", False), ("constant_mfu_with_bubble", True)):
        half = _timed_pairs((row for row in table if in_fit_half(row.id)), with_bubble=with_bubble)
        pairs = half or _timed_pairs(table, with_bubble=with_bubble)
        if pairs:
            baselines.append(
                Baseline(
                    name=name,
                    with_bubble=with_bubble,
                    mfu=best_mfu(pairs),
                    fitted_rows=len(pairs),
                    fitted_on_all=not half,
                )
            )
    return tuple(baselines)


def best_mfu(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the constant with the least mean absolute relative error of ideal / mfu over (ideal, measured) seconds.

    The sum of |ideal / (mfu * measured) - 1| is a weighted sum of distances of 1 / mfu to measured / ideal, with
    weights ideal / measured: least at their weighted median. Raise ValueError without pairs.
    """
    ratios = sorted(measured / ideal for ideal, measured in pairs)
    if not ratios:
        raise ValueError("best_mfu: no rows, expected at least one")
    weights = [1 / ratio for ratio in ratios]
    half = sum(weights) / 2
    return next(1 / ratio for ratio, reached in zip(ratios, accumulate(weights), strict=True) if reached >= half)


def _timed_pairs(rows: Iterable[RowResult], *, with_bubble: bool) -> list[tuple[float, float]]:
    """(ideal, measured) seconds of the rows that have both."""
    pairs = ((ideal_time_s(row, with_bubble=with_bubble), row.measured_iteration_time_s) for row in rows)
    return [(ideal, measured) for ideal, measured in pairs if ideal is not None and measured is not None]
