"""A decision held against the view that it was made on: whoever wrote the policy, or the file that it was read from."""

from __future__ import annotations

from math import isfinite

from planner.contention.policies.records import Decision, View
from profiles.errors import InputError


def check_decision(decision: object, view: View, *, where: str) -> Decision:
    """Return `decision` if it is one on `view`. Raise InputError that names the job for another number of jobs or
    connections, a path or a level that there is not, and for an offset or a period that is no time."""
    if not isinstance(decision, Decision):
        raise InputError(where=where, key="decide", found=type(decision).__name__, expected="a Decision")
    _check_counts(decision, view, where)
    for number, job in enumerate(view.jobs):
        _check_paths(decision, view, number, where)
        for axis, level in (("", decision.levels[number]), *_of(decision.axis_levels, number)):
            if level is not None:
                _check_level(level, view, f"levels of job {job.id}" + (f", axis {axis}" if axis else ""), where)
        for axis, _ in _of(decision.axis_levels, number):
            if axis not in job.axes:
                expected = (
                    f"one of {', '.join(sorted(set(job.axes))) or 'none: it has one level for all that it sends'}"
                )
                raise InputError(where=where, key=f"axis_levels of job {job.id}", found=axis, expected=expected)
        _check_times(decision, view, number, where)
    return decision


def _check_counts(decision: Decision, view: View, where: str) -> None:
    jobs = len(view.jobs)
    for name, optional in (
        ("paths", False),
        ("levels", False),
        ("offsets_s", False),
        ("axis_levels", True),
        ("periods_s", True),
    ):
        count = len(getattr(decision, name))
        if count != jobs and not (optional and count == 0):
            raise InputError(where=where, key=name, found=f"{count} of them", expected=f"one for each of {jobs} jobs")
    if len(set(decision.order)) < len(decision.order) or any(not 0 <= job < jobs for job in decision.order):
        raise InputError(where=where, key="order", found=list(decision.order), expected=f"numbers of {jobs} jobs, once")


def _check_paths(decision: Decision, view: View, number: int, where: str) -> None:
    job, choices = view.jobs[number], decision.paths[number]
    key = f"paths of job {job.id}"
    if len(choices) != len(job.paths):
        expected = f"one for each of its {len(job.paths)} connections"
        raise InputError(where=where, key=key, found=f"{len(choices)} of them", expected=expected)
    for connection, (choice, options) in enumerate(zip(choices, job.paths, strict=True)):
        if choice is not None and not (_whole(choice) and 0 <= choice < len(options)):
            expected = f"None or 0 to {len(options) - 1}: the paths of connection {connection}"
            raise InputError(where=where, key=key, found=repr(choice), expected=expected)


def _check_level(level: object, view: View, key: str, where: str) -> None:
    most = float("inf") if view.levels is None else view.levels
    if not (isinstance(level, int) and _whole(level) and 0 <= level < most):
        expected = "a whole number of at least 0" if view.levels is None else f"0 to {view.levels - 1}, or None"
        raise InputError(where=where, key=key, found=repr(level), expected=expected)


def _check_times(decision: Decision, view: View, number: int, where: str) -> None:
    job = view.jobs[number]
    offset_s = decision.offsets_s[number]
    if not (isinstance(offset_s, int | float) and isfinite(offset_s) and offset_s >= 0):
        expected = "seconds of at least 0"
        raise InputError(where=where, key=f"offsets_s of job {job.id}", found=repr(offset_s), expected=expected)
    period_s = decision.periods_s[number] if decision.periods_s else None
    if period_s is not None and not (isinstance(period_s, int | float) and isfinite(period_s) and period_s > 0):
        expected = "seconds above 0, or None"
        raise InputError(where=where, key=f"periods_s of job {job.id}", found=repr(period_s), expected=expected)
    if (offset_s > 0 or period_s is not None) and not isfinite(job.alone_s):
        found = f"an offset of {offset_s:g} s for a job that gets nowhere"
        raise InputError(where=where, key=f"offsets_s of job {job.id}", found=found, expected="a job with a period")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _of(axis_levels: tuple[tuple[tuple[str, int], ...], ...], number: int) -> tuple[tuple[str, int], ...]:
    return axis_levels[number] if axis_levels else ()
