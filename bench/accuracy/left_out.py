"""The error on rows that had no say: parameters fitted anew without one source, or one device, at a time.

The slopes of every row's log error in every log parameter are taken once, at the committed values. Each fit is then a
Gauss-Newton search with these slopes and the true errors after every step: a few evaluations of the rows, not hundreds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from bench.accuracy.fitting import FITTED_SOURCES, SENSITIVE, Timed, Values, initial_values, log_errors
from bench.accuracy.processes import map_forked
from bench.accuracy.runs import Run, as_timed, thin_runs, timed_runs
from profiles.training_parameters import load_training_rows

Progress = Callable[[str], None]

STEPS = 3
ROUNDS = 2
"""How often slopes are taken anew in a fit of all parameters."""
PRIOR = 0.3
"""Weight of a parameter's distance from what it is held to: 10% of it weigh as much as 3% of a row."""
SCALE = 0.03
"""Log error from which rows are taken as outliers (soft L1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """Log errors of `rows` at `values`, and how each changes with the logarithm of each of `names`."""

    rows: tuple[Timed, ...]
    values: Values
    names: tuple[str, ...]
    errors: np.ndarray
    slopes: np.ndarray

    def behind(self, name: str) -> tuple[Timed, ...]:
        """The rows whose time the parameter moves."""
        if name not in self.names:
            return ()
        moved = np.abs(self.slopes[:, self.names.index(name)]) >= SENSITIVE
        return tuple(row for row, one in zip(self.rows, moved, strict=True) if one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """What a fit without some rows found. `lost` parameters had no row left: one of a device, link or feature gave way
    to the plain value, a plain one (`kept`) could only stay as it was."""

    values: Values
    lost: tuple[str, ...]
    kept: tuple[str, ...]


def take_slopes(rows: Sequence[Timed], values: Values, progress: Progress, *, step: float = 0.01) -> Slopes:
    """Finite differences of one step of 1% for every parameter of `values` but those whose bounds leave no choice."""
    bounds = load_training_rows()
    names = tuple(name for name in values if bounds[name]["low"] < bounds[name]["high"])
    errors = log_errors(rows, values)
    columns = []
    trials = [values | {name: values[name] * (1 + step)} for name in names]
    for moved in map_forked(lambda trial: log_errors(rows, trial), trials):
        columns.append((moved - errors) / math.log(1 + step))
        progress(f"slopes: {len(columns)} of {len(names)}")
    return Slopes(rows=tuple(rows), values=dict(values), names=names, errors=errors, slopes=np.array(columns).T)


def fit_all(rows: Sequence[Timed], progress: Progress) -> Values:
    """Return the parameters fitted on all of `rows`, from their initial values, which they are held to."""
    values = initial_values()
    for _ in range(ROUNDS):
        slopes = take_slopes(rows, values, progress)
        values = _gauss_newton(rows, values, slopes.names, slopes.errors, slopes.slopes, centres=initial_values())
        progress(f"mean absolute log error {float(np.mean(np.abs(log_errors(rows, values)))):.4f}")
    return values


def refit_without(known: Slopes, left_out: Collection[str]) -> Refit:
    """Parameters fitted on the rows of `known` whose ids are not left out. ValueError if none remains."""
    keep = np.array([row.id not in left_out for row in known.rows])
    rows = tuple(row for row, one in zip(known.rows, keep, strict=True) if one)
    if not rows:
        raise ValueError("refit_without: all rows are left out, expected some to fit on")
    slopes = known.slopes[keep]
    moved = np.abs(slopes) >= SENSITIVE
    has_rows = {name: bool(moved[:, number].any()) for number, name in enumerate(known.names)}
    had_rows = (np.abs(known.slopes) >= SENSITIVE).any(axis=0)
    gone = [name for name, had in zip(known.names, had_rows, strict=True) if had and not has_rows[name]]
    lost = tuple(name for name in gone if "." in name and name.partition(".")[0] in known.values)
    start = {name: value for name, value in known.values.items() if name not in lost}
    free = tuple(name for name in known.names if has_rows[name])
    columns = [known.names.index(name) for name in free]
    errors = known.errors[keep]  # the lost parameters move none of these rows
    plain = {name: start.get(name.partition(".")[0], start[name]) for name in free}
    found = _gauss_newton(rows, start, free, errors, slopes[:, columns], centres=plain)
    return Refit(values=found, lost=lost, kept=tuple(name for name in gone if name not in lost))


def _gauss_newton(
    rows: Sequence[Timed],
    start: Values,
    names: Sequence[str],
    errors: np.ndarray,
    slopes: np.ndarray,
    *,
    centres: Values,
) -> Values:
    """`start` with `names`, held to `centres`, moved to where the robust weighted squares of the true errors are least,
    in a few steps."""
    bounds = load_training_rows()
    low = np.log([max(bounds[name]["low"], 1e-9) for name in names])
    high = np.log([bounds[name]["high"] for name in names])
    first = np.clip(np.log([start[name] for name in names]), low + 1e-6, high - 1e-6)
    centre = np.log([max(centres[name], 1e-9) for name in names])
    counts = Counter(row.source for row in rows)
    weights = np.sqrt([len(rows) / len(counts) / counts[row.source] for row in rows])

    def residuals(at: np.ndarray, found: np.ndarray) -> np.ndarray:
        return np.concatenate([weights * found, PRIOR * (at - centre)])

    def cost(at: np.ndarray, found: np.ndarray) -> float:
        squares = (residuals(at, found) / SCALE) ** 2
        return float(np.sum(2 * (np.sqrt(1 + squares) - 1)))

    def values_at(at: np.ndarray) -> Values:
        return start | {name: float(np.exp(one)) for name, one in zip(names, at, strict=True)}

    point, best = first, cost(first, errors)
    for _ in range(STEPS):

        def on_slopes(at: np.ndarray, point: np.ndarray = point, errors: np.ndarray = errors) -> np.ndarray:
            return residuals(at, errors + slopes @ (at - point))

        linear = least_squares(
            on_slopes,
            point,
            jac=lambda _: np.concatenate([weights[:, None] * slopes, PRIOR * np.eye(len(names))]),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=SCALE,
        )
        for share in (1.0, 0.5, 0.2):
            trial = point + share * (linear.x - point)
            found = log_errors(rows, values_at(trial))
            if (now := cost(trial, found)) < best * (1 - 1e-4):
                break
        else:
            break
        point, best, errors = trial, now, found
    return values_at(point)


def relative_errors(rows: Sequence[Timed], values: Mapping[str, float]) -> list[float]:
    """Signed relative errors with `values` as the parameters."""
    return [float(math.expm1(error)) for error in log_errors(rows, values)]


def fit_rows(runs: Sequence[Run]) -> tuple[Timed, ...]:
    """The rows that parameters are fitted on: measured, of the fit half of `FITTED_SOURCES`, VTS one row a cell."""
    return as_timed(thin_runs(run for run in timed_runs(runs) if run.fitted and run.result.source in FITTED_SOURCES))
