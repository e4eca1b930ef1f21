"""How far the estimates of many rows are off: by group and in all, in time, memory, out-of-memory and order."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from planner.one_job.validation.baselines import Baseline, best_mfu, in_fit_half
from planner.one_job.validation.ranking import Ranking, rank_plans
from planner.one_job.validation.results import GROUPS, Key, RowResult, relative_error
from planner.shared.options.running import RowGrouping
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Relative errors of `rows` rows. `bias` is the mean of the signed ones, the others are of absolute ones;
    `worst` is signed and belongs to `worst_id`."""

    rows: int
    mean_absolute: float
    median_absolute: float
    p90_absolute: float
    bias: float
    worst: float
    worst_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OomCounts:
    """Out of memory, told and true: `told` of `ran_out` rows that did, `false_alarms` among `ran` rows that did not."""

    ran_out: int
    told: int
    ran: int
    false_alarms: int
    missed_ids: tuple[str, ...]
    false_alarm_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Measured figures inside their 90% interval: `covered` of `rows`; `held_out_*` of the half of the rows that
    nothing may be fitted on (`planner.one_job.validation.baselines.in_fit_half`). `mean_width` is relative to the
    estimate."""

    rows: int
    covered: int
    held_out_rows: int
    held_out_covered: int
    mean_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """Runs done several times: `rows` rows of `sets` runs. `spread_*` is the slowest over the fastest, minus 1.

    `floor` is the least mean absolute relative error on these rows of any method that gives one time to one run.
    """

    sets: int
    rows: int
    spread_mean: float
    spread_worst: float
    spread_worst_ids: tuple[str, ...]
    floor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineErrors:
    """A baseline on the rows of a group that it and we can predict, beside our own error on these very rows.

    `own_constant` is the same baseline with its constant fitted on this group's rows alone: the best a constant can do.
    """

    name: str
    errors: ErrorSummary
    ours: ErrorSummary
    own_constant: ErrorSummary
    ranking: Ranking | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """All figures of one group of rows; None where no row of it says anything of the kind.

    `rows` = `predicted` + `skipped`; `timed` of the predicted ones have a measured iteration time.
    """

    rows: int
    predicted: int
    skipped: int
    timed: int
    time: ErrorSummary | None
    memory: ErrorSummary | None
    oom: OomCounts
    ranking: Ranking | None
    noise: NoiseFloor | None
    time_coverage: Coverage | None
    memory_coverage: Coverage | None
    baselines: tuple[BaselineErrors, ...]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie, interpolated linearly between the sorted ones (Hyndman and Fan,
    American Statistician 50, 1996, type 7). Raise ValueError without values or for a share outside 0 to 1.

    >>> quantile([1.0, 2.0, 3.0, 5.0], 0.5)
    2.5
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"quantile: {len(values)} values, share {share}; expected values and a share from 0 to 1")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarize_errors(errors: Sequence[tuple[str, float]]) -> ErrorSummary | None:
    """Return the summary of (id, signed relative error) pairs; None without any.

    Of equally bad ones the first is the worst.
    """
    if not errors:
        return None
    signed = [error for _, error in errors]
    absolute = [abs(error) for error in signed]
    worst_id, worst = max(errors, key=lambda pair: abs(pair[1]))
    return ErrorSummary(
        rows=len(errors),
        mean_absolute=fmean(absolute),
        median_absolute=median(absolute),
        p90_absolute=quantile(absolute, 0.9),
        bias=fmean(signed),
        worst=worst,
        worst_id=worst_id,
    )


def count_oom(rows: Iterable[RowResult]) -> OomCounts:
    """Count out-of-memory calls of the predicted rows that say how they ended: out of memory, or with a measured
    time."""
    ran_out, ran = [], []
    for row in rows:
        if row.estimated_oom is None:
            continue
        if row.measured_oom:
            ran_out.append(row)
        elif row.measured_iteration_time_s is not None:
            ran.append(row)
    return OomCounts(
        ran_out=len(ran_out),
        told=sum(bool(row.estimated_oom) for row in ran_out),
        ran=len(ran),
        false_alarms=sum(bool(row.estimated_oom) for row in ran),
        missed_ids=tuple(row.id for row in ran_out if not row.estimated_oom),
        false_alarm_ids=tuple(row.id for row in ran if row.estimated_oom),
    )


def measure_coverage(figures: Iterable[tuple[str, float | None, tuple[float, float] | None]]) -> Coverage | None:
    """Return the coverage of (id, measured, [low, high]); what lacks either is left out, None if nothing is left."""
    figured = [(row, measured, ends) for row, measured, ends in figures if measured is not None and ends is not None]
    if not figured:
        return None
    inside = {row: low <= measured <= high for row, measured, (low, high) in figured}
    held_out = [row for row in inside if not in_fit_half(row)]
    return Coverage(
        rows=len(figured),
        covered=sum(inside.values()),
        held_out_rows=len(held_out),
        held_out_covered=sum(inside[row] for row in held_out),
        mean_width=fmean(2 * (high - low) / (high + low) for _, _, (low, high) in figured),
    )


def measure_noise(rows: Iterable[RowResult]) -> NoiseFloor | None:
    """Return how far measured times of one run (equal configuration, plan and stated) lie apart; None without
    repeats."""
    runs: dict[tuple[Key, Key, Key], list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        if row.measured_iteration_time_s is not None:
            runs[row.configuration, row.plan, row.stated].append((row.measured_iteration_time_s, row.id))
    repeated = [run for run in runs.values() if len(run) > 1]
    if not repeated:
        return None
    spreads = [(max(run)[0] / min(run)[0] - 1, tuple(row for _, row in run)) for run in repeated]
    best = [1 / best_mfu((1.0, seconds) for seconds, _ in run) for run in repeated]
    off = [abs(guess / s - 1) for guess, run in zip(best, repeated, strict=True) for s, _ in run]
    worst, worst_ids = max(spreads)
    return NoiseFloor(
        sets=len(repeated),
        rows=len(off),
        spread_mean=fmean(spread for spread, _ in spreads),
        spread_worst=worst,
        spread_worst_ids=worst_ids,
        floor=fmean(off),
    )


def summarize_group(rows: Sequence[RowResult], baselines: Sequence[Baseline] = ()) -> GroupStatistics:
    """Return all statistics of `rows`, with each of `baselines` beside them."""
    errors = [(row.id, row.error) for row in rows]
    memory = [(row.id, row.memory_error) for row in rows]
    timed = _known(errors)
    compared = [compare_baseline(rows, baseline) for baseline in baselines]
    return GroupStatistics(
        rows=len(rows),
        predicted=sum(row.predicted for row in rows),
        skipped=sum(not row.predicted for row in rows),
        timed=len(timed),
        time=summarize_errors(timed),
        memory=summarize_errors(_known(memory)),
        oom=count_oom(rows),
        ranking=rank_plans(rows, lambda row: row.estimated_iteration_time_s),
        noise=measure_noise(rows),
        time_coverage=measure_coverage((row.id, row.measured_iteration_time_s, row.interval_90_s) for row in rows),
        memory_coverage=measure_coverage(
            (row.id, row.measured_peak_memory_bytes, row.comparable_memory_interval_bytes) for row in rows
        ),
        baselines=tuple(each for each in compared if each is not None),
    )


def compare_baseline(rows: Sequence[RowResult], baseline: Baseline) -> BaselineErrors | None:
    """`baseline` on those of `rows` that it and we predict and that have a measured time; None if there are none."""
    both = [row for row in rows if row.error is not None and baseline.time_s(row) is not None]
    refitted = baseline.fitted_on(both) if both else None
    errors, ours, own_errors = (
        summarize_errors(_known([(row.id, relative_error(time(row), row.measured_iteration_time_s)) for row in both]))
        for time in (baseline.time_s, _our_time_s, refitted.time_s if refitted else baseline.time_s)
    )
    if errors is None or ours is None or own_errors is None:
        return None
    return BaselineErrors(
        name=baseline.name,
        errors=errors,
        ours=ours,
        own_constant=own_errors,
        ranking=rank_plans(both, baseline.time_s),
    )


def group_rows(rows: Iterable[RowResult], by: RowGrouping) -> dict[str, list[RowResult]]:
    """Return rows by what they are counted under, most rows first, then by name."""
    if by not in GROUPS:
        raise ValueError(f"group_rows: found {by!r}, expected one of {', '.join(GROUPS)}")
    key: Callable[[RowResult], str] = {
        "source": lambda row: row.source,
        "device": lambda row: row.device,
        "generation": lambda row: row.generation,
        "parallel": lambda row: row.parallel,
        "model_size": lambda row: row.model_size,
    }[by]
    groups: dict[str, list[RowResult]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def _our_time_s(row: RowResult) -> float | None:
    return row.estimated_iteration_time_s


def _known(errors: Iterable[tuple[str, float | None]]) -> list[tuple[str, float]]:
    return [(row, error) for row, error in errors if error is not None]
