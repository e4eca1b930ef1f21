"""Gavel's linear programs: which part of its time each job spends on each type of device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.records import dataclass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes:
    """Equal jobs together: `number[k]` jobs of `devices[k]` each that do `rate[k, p]` iterations a second on pool p
    (0: not there), on pools of `capacity[p]` devices. By symmetry equal jobs get equal shares in every optimum that
    matters here, so that the classes lose nothing."""

    rate: Floats
    devices: Ints
    number: Ints
    capacity: Ints


def throughput_shares(classes: Classes, weight: Floats) -> Floats:
    """Return the time fractions X[k, p] of one job of each class that maximise the sum over jobs of weight x rate x X
    (Gavel, OSDI 2020, section 4.2, "maximum total throughput")."""
    worth = classes.rate * weight[:, None]
    solved = _solve(classes, -worth.ravel())
    return _shares(classes, solved.x)


def fair_shares(classes: Classes, scale: Floats, *, levels: int | None = None) -> Floats:
    """Return the time fractions that make the smallest of scale[k] x sum_p rate[k, p] X[k, p] as large as it can be,
    then the next smallest, and so on: max-min fairness by water filling (Gavel section 4.3).

    Each level is one program: maximise the level of all jobs that are not fixed yet. Those whose constraint has a
    dual price hold it down in every optimum, and are fixed there (Gavel finds them by a mixed-integer program; the
    prices are exact too and cheaper, if some are found only one level later).

    Args:
        scale: of each class, for instance 1 / (what a job would get from an equal split).
        levels: after so many programs the classes left get what maximises their sum; None: to the end.
    """
    count, pools = classes.rate.shape
    able = classes.rate.max(axis=1, initial=0.0) > 0
    fixed = np.full(count, np.nan)
    fixed[~able] = 0.0
    per_job = classes.rate * (scale / classes.number)[:, None]
    time_shares, level = np.zeros(count * pools), 0
    while np.isnan(fixed).any():
        active = np.isnan(fixed)
        solved = _solve_level(classes, per_job, fixed)
        time_shares, lowest = solved.x[:-1], solved.x[-1]
        level += 1
        prices = -solved.ineqlin.marginals[-count:]
        held = active & (prices > 1e-9 * max(1.0, prices.max()))
        fixed[held if held.any() else active] = lowest
        if levels is not None and level >= levels and np.isnan(fixed).any():
            floor = np.where(np.isnan(fixed), lowest, fixed)
            worth = np.where(np.isnan(fixed)[:, None], per_job * classes.number[:, None], 0.0)
            time_shares = _solve(classes, -worth.ravel(), per_job=per_job, floor=floor).x
            break
    return _shares(classes, time_shares)


def makespan_shares(classes: Classes, remaining: Floats) -> Floats:
    """Return the time fractions with which the last job ends soonest: the smallest of rate / remaining iterations is
    maximised (Gavel section 4.2, "minimise makespan")."""
    fixed = np.where(classes.rate.max(axis=1, initial=0.0) > 0, np.nan, 0.0)
    per_job = classes.rate * (1.0 / np.maximum(remaining, 1e-9) / classes.number)[:, None]
    if not np.isnan(fixed).any():
        return np.zeros_like(classes.rate)
    return _shares(classes, _solve_level(classes, per_job, fixed).x[:-1])


def _shares(classes: Classes, class_shares: Floats) -> Floats:
    shares: Floats = np.clip(class_shares.reshape(classes.rate.shape) / classes.number[:, None], 0.0, 1.0)
    return np.where(shares > 1e-7, shares, 0.0)


def _solve_level(classes: Classes, per_job: Floats, fixed: Floats) -> Any:
    """Maximise t, where classes that are not fixed (nan) get at least t, and the others what they are fixed at."""
    from scipy.sparse import csr_array, hstack, vstack

    matrix, limit = _limits(classes)
    count = len(fixed)
    free = np.isnan(fixed)
    unit = np.nanmax(np.append(per_job[free].max(axis=1, initial=0.0), 0.0)) or 1.0
    rows = hstack([-_spread(per_job / unit), csr_array(free.astype(float)[:, None])])
    above = hstack([matrix, csr_array((matrix.shape[0], 1))])
    limits = np.concatenate([limit, np.where(free, 0.0, -fixed / unit * (1 - 1e-9))])
    objective = np.zeros(per_job.size + 1)
    objective[-1] = -1.0
    solved = _linprog(objective, vstack([above, rows]).tocsr(), limits)
    solved.x[-1] *= unit
    assert len(solved.ineqlin.marginals) >= count
    return solved


def _solve(classes: Classes, objective: Floats, *, per_job: Floats | None = None, floor: Floats | None = None) -> Any:
    matrix, limit = _limits(classes)
    if per_job is not None and floor is not None:
        from scipy.sparse import vstack

        matrix = vstack([matrix, -_spread(per_job)]).tocsr()
        limit = np.concatenate([limit, -floor * (1 - 1e-9)])
    return _linprog(objective, matrix, limit)


def _limits(classes: Classes) -> tuple[Any, Floats]:
    """Each class has its number of jobs' time, each pool its devices."""
    from scipy.sparse import coo_array

    count, pools = classes.rate.shape
    column = np.arange(count * pools)
    job, pool = column // pools, column % pools
    usable = (classes.rate.ravel() > 0).astype(float)
    matrix = coo_array(
        (
            np.concatenate([np.ones(column.size), classes.devices[job] * usable]),
            (np.concatenate([job, count + pool]), np.concatenate([column, column])),
        ),
        shape=(count + pools, column.size),
    ).tocsr()
    return matrix, np.concatenate([classes.number, classes.capacity]).astype(float)


def _spread(per_job: Floats) -> Any:
    """The matrix whose row k has the pools of class k."""
    from scipy.sparse import coo_array

    count, pools = per_job.shape
    column = np.arange(count * pools)
    return coo_array((per_job.ravel(), (column // pools, column)), shape=(count, count * pools)).tocsr()


def _linprog(objective: Floats, matrix: Any, limits: Floats) -> Any:
    from scipy.optimize import linprog

    solved = linprog(objective, A_ub=matrix, b_ub=limits, bounds=(0, None), method="highs")
    if solved.x is None:
        raise RuntimeError(f"Gavel's program was not solved: {solved.message}")
    return solved
