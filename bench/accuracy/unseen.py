"""Sources as a user's own run is: predicted by parameters, and given intervals, on which no row of them had a say.

The first table that a reader sees. A source that parameters were fitted on is predicted by those fitted without it; its
intervals come from the errors of the other sources, each predicted likewise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from bench.accuracy.left_out import Slopes, refit_without, relative_errors
from bench.accuracy.markdown import percent, table
from bench.accuracy.processes import map_forked
from bench.accuracy.runs import Run, as_timed, model_kind, timed_runs
from estimator.pricing.interval import WorkKind, work_kind
from planner.one_job.validation.report import describe_row
from profiles.uncertainty import Uncertainty, generation_of

Progress = Callable[[str], None]
Calibrate = Callable[[Sequence["Unseen"], Sequence["Unseen"]], Uncertainty]
"""Half-widths from errors of sources left out, and from those of generations left out."""

LAUNCH_SHARE = 0.15
COMMUNICATION_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A run and its signed relative error under parameters that its source, or its generation of devices, had no say
    in; `lost` are those that nothing else tells of."""

    run: Run
    error: float
    fitted: bool
    lost: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The source of the run."""
        return self.run.result.source

    @property
    def generation(self) -> str:
        """The architecture of the run's device."""
        return generation_of(self.run.device)

    @property
    def work(self) -> WorkKind:
        """What limits the run."""
        outcome, setup = self.run.outcome, self.run.setup
        if outcome is None or setup is None:
            raise ValueError(f"{self.run.row.id} has no estimate, expected one")
        shares = {"launch_share": LAUNCH_SHARE, "communication_share": COMMUNICATION_SHARE}
        return work_kind(outcome.breakdown, model_kind(setup), **shares)

    @property
    def log_error(self) -> float:
        """Logarithm of estimated over measured time, absolute."""
        return abs(math.log1p(self.error))

    @property
    def plan(self) -> str:
        """The kind of plan: with experts, sharded weights, model parallel, data parallel or one device."""
        if self.run.setup is not None and model_kind(self.run.setup) == "experts":
            return "experts"
        parallel = self.run.result.parallel
        if "tp" in parallel or "pp" in parallel or "cp" in parallel:
            return "model parallel"
        return "sharded weights" if "fsdp" in parallel else "data parallel" if "dp" in parallel else "one device"


def leave_out(runs: Iterable[Run], known: Slopes, by: Callable[[Run], str], progress: Progress) -> tuple[Unseen, ...]:
    """Return the timed `runs`, each predicted by parameters fitted without the rows that share `by` with it."""
    groups: defaultdict[str, list[Run]] = defaultdict(list)
    for run in timed_runs(runs):
        groups[by(run)].append(run)
    ids = {row.id for row in known.rows}

    def predict(members: Sequence[Run]) -> list[Unseen]:
        fitted = ids & {run.row.id for run in members}
        if not fitted or len(fitted) == len(ids):
            return [Unseen(run=run, error=run.error or 0.0, fitted=bool(fitted)) for run in members]
        refit = refit_without(known, fitted)
        errors, lost = relative_errors(as_timed(members), refit.values), (*refit.lost, *refit.kept)
        return [
            Unseen(run=run, error=error, fitted=True, lost=lost) for run, error in zip(members, errors, strict=True)
        ]

    unseen: list[Unseen] = []
    for name, predicted in zip(groups, map_forked(predict, list(groups.values())), strict=True):
        progress(f"left out: {name}")
        unseen += predicted
    return tuple(unseen)


def describe_unseen(each: Unseen) -> dict[str, Any]:
    """Return the row for plots, with the time that its source had no say in."""
    measured_s = each.run.result.measured_iteration_time_s
    if measured_s is None:
        raise ValueError(f"{each.run.row.id} has no measured time, expected one")
    return describe_row(replace(each.run.result, estimated_iteration_time_s=measured_s * (1 + each.error)))


def covered_by_others(
    by_source: Sequence[Unseen], by_generation: Sequence[Unseen], calibrate: Calibrate
) -> dict[str, tuple[bool, float]]:
    """Return for each run, by id, whether the interval that the other sources give it holds what was measured, and the
    half-width of its logarithm."""
    held: dict[str, tuple[bool, float]] = {}
    for source in dict.fromkeys(each.source for each in by_source):
        others = [each for each in by_source if each.source != source]
        elsewhere = [each for each in by_generation if each.source != source]
        if not others:
            continue
        widths = calibrate(others, elsewhere or others)
        for each in by_source:
            if each.source == source:
                width = widths.time_half_width(each.run.device, each.work).log_half_width
                held[each.run.row.id] = each.log_error <= width, width
    return held


def write_unseen(by_source: Sequence[Unseen], held: dict[str, tuple[bool, float]]) -> str:
    """Return the tables: by source and generation, and by generation and kind of plan."""
    header = ("rows", "mean", "median", "bias", "worst", "covered", "mean width")
    first = [
        ((source, generation, _fitted_error(rows), ", ".join(rows[0].lost)), rows)
        for (source, generation), rows in _grouped(by_source, lambda each: (each.source, each.generation))
    ]
    second = [
        ((generation, plan, str(len({each.source for each in rows}))), rows)
        for (generation, plan), rows in _grouped(by_source, lambda each: (each.generation, each.plan))
    ]
    return "\n\n".join(
        (
            "Each source predicted by parameters fitted without any of its rows, inside 90% intervals calibrated on the"
            " other sources alone. `fitted`: the mean error with the parameters of the package, where the source had a"
            " say in them; `lost`: parameters that no other source tells of, which give way to the plain ones, or stay"
            " where they have none. What rests on tables of kernels and collectives is not fitted anew.",
            table(
                ("source", "devices", *header, "fitted", "lost"),
                [(*names[:2], *_figures(rows, held), *names[2:]) for names, rows in first],
            ),
            table(("devices", "plan", "sources", *header), [(*names, *_figures(rows, held)) for names, rows in second]),
        )
    )


def _grouped(
    rows: Sequence[Unseen], key: Callable[[Unseen], tuple[str, str]]
) -> list[tuple[tuple[str, str], list[Unseen]]]:
    groups: defaultdict[tuple[str, str], list[Unseen]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return sorted(groups.items())


def _fitted_error(rows: Sequence[Unseen]) -> str:
    """The mean error where the source had a say; nothing where it had none."""
    return percent(fmean(abs(row.run.error or 0.0) for row in rows)) if rows[0].fitted else ""


def _figures(rows: Sequence[Unseen], held: dict[str, tuple[bool, float]]) -> tuple[str, ...]:
    errors = [row.error for row in rows]
    inside = [held[row.run.row.id] for row in rows if row.run.row.id in held]
    worst = max(rows, key=lambda row: abs(row.error))
    return (
        str(len(rows)),
        percent(fmean(map(abs, errors))),
        percent(median(map(abs, errors))),
        percent(fmean(errors), signed=True),
        f"{percent(worst.error, signed=True)} ({worst.run.row.id})",
        percent(fmean(inside_it for inside_it, _ in inside) if inside else None),
        percent(fmean(math.expm1(width) for _, width in inside) if inside else None),
    )
