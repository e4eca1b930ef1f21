"""A queue as it ran and as it was simulated, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from planner.many_jobs.jobs.records import CellBook
from planner.many_jobs.simulation.result import Result

CRIUS_THROUGHPUT, CRIUS_JCT = 0.0316, 0.0731
"""Mean errors of Crius' simulator (section 8.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A run of a queue. `throughput`: work done over time, an iteration counting as long as it takes, by the estimate,
    on the Cell that its job asked for."""

    throughput: float
    makespan_s: float
    jct_mean_s: float
    queue_mean_s: float
    restarts: int
    jct_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative, simulated against live. `jct`: of the mean JCT; `jct_each`: its amount in the mean over jobs."""

    throughput: float
    jct: float
    jct_each: float


def figures_of(result: Result, cells: CellBook) -> Figures:
    """The same figures of either kind of run. ValueError where a job did not finish."""
    late = [result.jobs[number].id for number in range(len(result.jobs)) if result.status(number) != "finished"]
    if late:
        raise ValueError(f"jobs {', '.join(late)} did not finish under {result.summary.policy}")
    work_s = 0.0
    for job in result.jobs:
        asked = cells.best(job.workload, job.pool, job.devices)
        assert asked is not None, "a queue is drawn from what fits"
        work_s += job.iterations * asked.iteration_time_s
    jct_s = tuple(float(value) for value in result.jct_s)
    return Figures(
        throughput=work_s / result.summary.makespan_s,
        makespan_s=result.summary.makespan_s,
        jct_mean_s=mean(jct_s),
        queue_mean_s=math.fsum(result.table.waited_s) / len(jct_s),
        restarts=result.summary.restarts,
        jct_s=jct_s,
    )


def errors_of(simulated: Figures, live: Figures) -> Errors:
    """How far the simulation is off."""
    each = [abs(one / other - 1) for one, other in zip(simulated.jct_s, live.jct_s, strict=True)]
    return Errors(
        throughput=simulated.throughput / live.throughput - 1,
        jct=simulated.jct_mean_s / live.jct_mean_s - 1,
        jct_each=mean(each),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy: the live run, and simulations by what their iterations take from."""

    policy: str
    live: Figures
    simulated: dict[str, Figures]

    def errors(self, source: str) -> Errors:
        """Of the simulation with those times."""
        return errors_of(self.simulated[source], self.live)


def describe(rows: Sequence[Row]) -> str:
    """The table in Markdown, and the mean errors beside the papers'."""
    lines = [
        "| policy | iterations' times | throughput live | simulated | error | mean JCT live | simulated | error"
        " | each job's JCT | makespan live | simulated | restarts live | simulated |",
        "| :-- | :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        for source, found in row.simulated.items():
            errors = row.errors(source)
            lines.append(
                f"| {row.policy} | {source} | {row.live.throughput:.3f} | {found.throughput:.3f}"
                f" | {errors.throughput:+.1%} | {row.live.jct_mean_s:.1f} s | {found.jct_mean_s:.1f} s"
                f" | {errors.jct:+.1%} | {errors.jct_each:.1%} | {row.live.makespan_s:.1f} s"
                f" | {found.makespan_s:.1f} s | {row.live.restarts} | {found.restarts} |"
            )
    lines.append("")
    for source in rows[0].simulated:
        own = [row.errors(source) for row in rows]
        throughput, jct = mean(abs(one.throughput) for one in own), mean(abs(one.jct) for one in own)
        lines.append(
            f"{source}: mean error of throughput {throughput:.2%} (asked 5%; Crius {CRIUS_THROUGHPUT:.2%}), of JCT"
            f" {jct:.2%} (asked 8%; Crius {CRIUS_JCT:.2%}), of each job's JCT {mean(one.jct_each for one in own):.2%}"
        )
    return "\n".join(lines)
