"""Half-widths of the 90% intervals, from the fit half of the rows: `profiles/data/uncertainty.toml`.

A class's half-width is the conformal quantile of its rows' absolute log errors, each source predicted by parameters
fitted without it and counting once, whatever number of rows it has. A generation of devices with enough rows has
classes of its own. All others share those for any device, taken from errors on each generation in turn with parameters
fitted without it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.accuracy.runs import Run, model_kind, thin_runs
from bench.accuracy.unseen import COMMUNICATION_SHARE, LAUNCH_SHARE, Unseen
from profiles.uncertainty import ANY, APART, HalfWidth, Uncertainty

SHARE = 0.9
LEAST_TIME = 0.03
"""No narrower than published repeats of one configuration lie apart (3-4%, between clusters up to 6%)."""
LEAST_MEMORY = 0.01
"""No narrower than versions of the libraries differ in what they hold (assumption)."""
LEAST_OF_DEVICE = 10
"""Rows from which on a device has a class of its own: of 9 rows the conformal quantile is the largest error."""
LEAST_OF_WORK = 15
LEAST_DEVICES = 4
"""Devices that must stand behind a class for any device, unless it is the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """How far one row is off: the absolute log error, and what it counts under. `device`: or its generation."""

    device: str
    work: str
    source: str
    error: float


def conformal_quantile(errors: Sequence[tuple[float, float]], share: float = SHARE) -> float:
    """The least error that (weighted) `share` of `errors` and of one row to come stay within.

    `errors` are (error, weight); the row to come weighs their mean and may be off by anything. Where even all of them
    are too few, the largest. With equal weights it is the ceil((n + 1) * share)-th smallest. ValueError without any.

    >>> conformal_quantile([(0.01 * number, 1.0) for number in range(1, 20)])
    0.18
    """
    if not errors:
        raise ValueError("conformal_quantile: no errors, expected some")
    total = math.fsum(weight for _, weight in errors)
    wanted = share * (total + total / len(errors))
    reached = 0.0
    for error, weight in sorted(errors):
        reached += weight
        if reached >= wanted * (1 - 1e-12):
            return error
    return max(error for error, _ in errors)


def calibrate(runs: Sequence[Run], by_source: Sequence[Unseen], by_generation: Sequence[Unseen]) -> Uncertainty:
    """Return the half-widths that the fit half of `runs` gives, of their errors with sources and generations left
    out."""
    fitted = thin_runs(run for run in runs if run.fitted)
    ids = {run.row.id for run in fitted}
    sources, generations = (
        [each for each in unseen if each.run.row.id in ids] for unseen in (by_source, by_generation)
    )
    memory = list(_memory_off(fitted))
    return Uncertainty(
        launch_share=LAUNCH_SHARE,
        communication_share=COMMUNICATION_SHARE,
        time=time_classes(sources, generations),
        memory=classes_of(memory, memory, least=LEAST_MEMORY),
    )


def calibrate_time(by_source: Sequence[Unseen], by_generation: Sequence[Unseen]) -> Uncertainty:
    """Return half-widths of time from all of these errors; those of memory stand for nothing."""
    time = time_classes(by_source, by_generation)
    nothing = HalfWidth(device=ANY, work=ANY, log_half_width=LEAST_MEMORY, rows=0, sources=())
    return Uncertainty(launch_share=LAUNCH_SHARE, communication_share=COMMUNICATION_SHARE, time=time, memory=(nothing,))


def time_classes(by_source: Sequence[Unseen], by_generation: Sequence[Unseen]) -> tuple[HalfWidth, ...]:
    """Return the classes of time: of each generation, and for any other."""
    return classes_of(list(map(_time_off, by_source)), list(map(_time_off, by_generation)), least=LEAST_TIME)


def write_uncertainty(found: Uncertainty) -> str:
    """The text of uncertainty.toml."""
    lines = [
        "# How far estimates of declared classes were from measured runs. Written by",
        "# `python -m bench.accuracy --data DIR --intervals`; what it means: profiles/uncertainty.py",
        f"launch_share = {found.launch_share}",
        f"communication_share = {found.communication_share}",
    ]
    for name, classes in (("time", found.time), ("memory", found.memory)):
        for one in classes:
            sources = ", ".join(f'"{source}"' for source in one.sources)
            lines += [
                "",
                f"[[{name}]]",
                f'device = "{one.device}"',
                f'work = "{one.work}"',
                f"log_half_width = {one.log_half_width:.4f}",
                f"rows = {one.rows}",
                f"sources = [{sources}]",
            ]
    return "\n".join(lines) + "\n"


def _time_off(unseen: Unseen) -> Off:
    return Off(device=unseen.generation, work=unseen.work, source=unseen.source, error=unseen.log_error)


def _memory_off(runs: Iterable[Run]) -> Iterable[Off]:
    """Errors of the allocator's peak; where all that a process holds was measured, our reserve is taken off it."""
    for run in runs:
        result = run.result
        measured, peak = result.measured_peak_memory_bytes, result.estimated_peak_memory_bytes
        if run.setup is None or measured is None or peak is None or result.memory_kind == "required":
            continue
        if result.memory_kind == "reserved":
            measured -= (result.estimated_held_memory_bytes or peak) - peak
        if measured > 0:
            error = abs(math.log(peak / measured))
            yield Off(device=run.device, work=model_kind(run.setup), source=result.source, error=error)


def classes_of(own: Sequence[Off], elsewhere: Sequence[Off], *, least: float) -> tuple[HalfWidth, ...]:
    """Classes of devices from `own` errors, those for any device from errors `elsewhere`; each where it has enough.

    Classes for any work leave out that of `APART`. None is narrower than `least`. ValueError without rows elsewhere.
    """
    found = []
    for device, rows in _by(own, lambda off: off.device):
        for work, members in _by(rows, lambda off: off.work):
            if len(members) >= LEAST_OF_WORK:
                found.append(_half_width(device, work, members, least))
        together = [off for off in rows if off.work not in APART]
        if len(together) >= LEAST_OF_DEVICE:
            found.append(_half_width(device, ANY, together, least))
    for work, rows in _by(elsewhere, lambda off: off.work):
        devices = {off.device for off in rows}
        if work in APART or (len(rows) >= LEAST_OF_WORK and len(devices) >= LEAST_DEVICES):
            found.append(_half_width(ANY, work, rows, least))
    together = [off for off in elsewhere if off.work not in APART]
    return (*found, _half_width(ANY, ANY, together or elsewhere, least))


def _half_width(device: str, work: str, rows: Sequence[Off], least: float) -> HalfWidth:
    counts = Counter((off.device, off.source) for off in rows)
    quantile = conformal_quantile([(off.error, 1 / counts[off.device, off.source]) for off in rows])
    return HalfWidth(
        device=device,
        work=work,
        log_half_width=max(round(quantile, 4), least),
        rows=len(rows),
        sources=tuple(sorted({off.source for off in rows})),
    )


def _by(rows: Iterable[Off], key: Callable[[Off], str]) -> list[tuple[str, list[Off]]]:
    found: defaultdict[str, list[Off]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return sorted(found.items())
