"""The table of the fabric, and what came of its aims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

from bench.testbed.fabric.cases import MODES, Job, Mode
from bench.testbed.fabric.simulated import Simulated
from profiles.records import dataclass

MEAN, WORST = 0.05, 0.15
"""What is asked of the errors of jobs that the simulation calls stable."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A job of a case: seconds of an iteration, measured (the mean of `iterations`, nan where none came to its end in
    the time looked at) and simulated."""

    case: str
    mode: Mode
    job: Job
    measured_s: float
    iterations: int
    simulated: Simulated
    looked_at_s: float

    @property
    def starves(self) -> bool:
        """Whether by the simulation at most one iteration fits into the time: nothing can be compared."""
        return 2 * self.simulated.mean_s > self.looked_at_s

    @property
    def error(self) -> float:
        """Of the simulated mean."""
        return self.simulated.mean_s / self.measured_s - 1

    @property
    def counts(self) -> str:
        """How it is judged."""
        if self.starves:
            return "starves"
        return "stable" if self.simulated.stable else "unstable"

    @property
    def is_inside(self) -> bool:
        """Whether the simulated range holds what was measured."""
        least_s, most_s = self.simulated.range_s
        return least_s <= self.measured_s <= most_s

    def to_json(self) -> dict[str, Any]:
        """As a line of JSON."""
        return {
            "case": self.case,
            "mode": self.mode,
            "kind": self.job.kind,
            "hosts": self.job.hosts,
            "spines": self.job.spines,
            "level": self.job.level,
            "compute_s": self.job.compute_s,
            "begins_s": self.job.begins_s,
            "bytes": self.job.size_bytes,
            "measured_s": _finite(self.measured_s),
            "iterations": self.iterations,
            "alone_s": self.simulated.alone_s,
            "simulated_s": _finite(self.simulated.mean_s),
            "range_s": [_finite(seconds) for seconds in self.simulated.range_s],
            "judged": self.counts,
        }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def print_rows(rows: Sequence[Row]) -> None:
    """A line for each job."""
    print("\n| case | ways and levels | job | alone | measured | simulated | error | over jitters and seeds | |")
    print("| :-- | :-- | :-- | --: | --: | --: | --: | --: | :-- |")
    for row in rows:
        job, said = row.job, row.simulated
        name = f"{job.kind} {'-'.join(map(str, job.hosts))}" + (f", level {job.level}" if row.mode == "levels" else "")
        error = "" if row.starves or math.isnan(row.measured_s) else f"{row.error:+.1%}"
        least, most = (_ms(seconds) for seconds in said.range_s)
        print(
            f"| {row.case} | {row.mode} | {name} | {_ms(said.alone_s)} ms | {_ms(row.measured_s)} |"
            f" {_ms(said.mean_s)} | {error} | {least}, {most} | {row.counts} |"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}" if math.isfinite(seconds) else "none"


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what came of the aims, a line each."""
    for mode in (None, *MODES):
        own = [row for row in rows if mode in (None, row.mode)]
        what = "all" if mode is None else mode
        stable = [abs(row.error) for row in own if row.counts == "stable"]
        if stable:
            yield (
                f"{what}: error {mean(stable):.1%} in the mean (asked {MEAN:.0%}), {max(stable):.1%} at worst (asked"
                f" {WORST:.0%}) of {len(stable)} jobs that are stable; above {MEAN:.0%}: {_above(stable)}"
            )
        moving = [row for row in own if row.counts == "unstable"]
        if moving:
            inside = sum(row.is_inside for row in moving)
            errors = [abs(row.error) for row in moving]
            yield (
                f"{what}: {inside} of {len(moving)} that are unstable inside their range, error of the mean"
                f" {mean(errors):.1%}, at worst {max(errors):.1%}"
            )
        starving = [row for row in own if row.counts == "starves"]
        if starving:
            agree = sum(row.iterations <= 1 for row in starving)
            yield f"{what}: {agree} of {len(starving)} that the simulation lets starve do (one iteration at most)"


def _above(errors: Sequence[float]) -> int:
    return sum(error > MEAN for error in errors)
