"""Measured against estimated iteration times as a picture: log-log, a colour and a mark for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from planner.shared.pictures import COLOURS, PictureFormat, picture_bytes, picture_format
from profiles.errors import InputError
from profiles.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 0.10
MOST_GROUPS = 14
"""Of more groups the smallest share one entry: there are as many pairs of colour and mark."""

FINE_RATIOS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5)
COARSE_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
"""Where the axis of ratios is marked: within a factor of 2.5, and beyond."""

_OTHER = "other groups"
_MARKS = "osD^"


def save_plot(path: Path, rows: Sequence[Mapping[str, Any]], *, by: str = "source") -> None:
    """Draw `rows` into the file at `path`, wholly or not at all; InputError as `picture_format` and `draw_runs`."""
    write_atomically(path, draw_runs(rows, by=by, form=picture_format(path, where="validate")))


def draw_runs(rows: Sequence[Mapping[str, Any]], *, by: str = "source", form: PictureFormat = "svg") -> bytes:
    """Draw `rows` (those of `planner.one_job.validation.report.describe_validation`): the same rows, the same bytes.

    Above, estimated over measured seconds; below, their ratio, in which an error of some percent can be seen. The grey
    band is +-10%. `by` names the group. Raise InputError if no row has both times.
    """
    from matplotlib.figure import Figure

    groups = _points_by_group(rows, by)
    if not groups:
        raise InputError(
            where="validate",
            key="--plot",
            found="no row with a measured and an estimated time",
            expected="at least one",
        )
    figure = Figure(figsize=(9.6, 8.0), layout="constrained")
    times, ratios = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.7))
    seconds = [second for points in groups.values() for point in points for second in point]
    low, high = min(seconds) / 1.3, max(seconds) * 1.3
    for axes, lower, middle, upper in (
        (times, (low * (1 - BAND), high * (1 - BAND)), (low, high), (low * (1 + BAND), high * (1 + BAND))),
        (ratios, (1 - BAND, 1 - BAND), (1, 1), (1 + BAND, 1 + BAND)),
    ):
        axes.fill_between((low, high), lower, upper, color="0.85", linewidth=0, label=f"within {BAND:.0%}", zorder=0)
        axes.plot((low, high), middle, color="0.35", linewidth=0.8, zorder=1)
    for number, (name, points) in enumerate(groups.items()):
        style: dict[str, Any] = {
            "color": "0.45" if name == _OTHER else COLOURS[number % len(COLOURS)],
            "marker": "x" if name == _OTHER else _MARKS[2 * (number // len(COLOURS)) + number % 2],
        }
        _draw_group(times, ratios, f"{name} ({_summary(points)})", points, style)
    _set_axes(times, ratios, (low, high))
    figure.legend(*times.get_legend_handles_labels(), loc="outside right upper", fontsize=8, title=_title(by))
    figure.suptitle(f"Iteration time, {sum(map(len, groups.values()))} runs: estimated against measured", fontsize=11)
    return picture_bytes(figure, form)


def _points_by_group(rows: Sequence[Mapping[str, Any]], by: str) -> dict[str, list[tuple[float, float]]]:
    """(measured, estimated) seconds by group, the largest group first, the smallest ones together as the last."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        measured, estimated = row["measured_iteration_time_s"], row["estimated_iteration_time_s"]
        if measured is not None and estimated is not None:
            points.setdefault(row[by], []).append((measured, estimated))
    ordered = sorted(points.items(), key=lambda item: (-len(item[1]), item[0]))
    if len(ordered) <= MOST_GROUPS:
        return dict(ordered)
    rest = [point for _, points in ordered[MOST_GROUPS - 1 :] for point in points]
    return dict(ordered[: MOST_GROUPS - 1]) | {_OTHER: rest}


def _draw_group(
    times: Axes, ratios: Axes, label: str, points: Sequence[tuple[float, float]], style: dict[str, Any]
) -> None:
    measured = [point[0] for point in points]
    shape: dict[str, Any] = {"linestyle": "none", "markersize": 4, "alpha": 0.75, "markeredgewidth": 0.6} | style
    times.plot(measured, [point[1] for point in points], label=label, **shape)
    ratios.plot(measured, [estimated / seconds for seconds, estimated in points], **shape)


def _set_axes(times: Axes, ratios: Axes, ends: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    def plain(value: float, _: object) -> str:
        return f"{value:g}"

    times.set(xscale="log", yscale="log", xlim=ends, ylim=ends, ylabel="estimated iteration time (s)")
    ratios.set(xscale="log", yscale="log", ylabel="estimated / measured", xlabel="measured iteration time (s)")
    low, high = ratios.get_ylim()
    ratios.set_ylim(min(low, 0.75), max(high, 1.33))
    for axis in (times.xaxis, times.yaxis, ratios.xaxis):
        axis.set_major_formatter(FuncFormatter(plain))
        axis.set_minor_formatter(NullFormatter())
    marks = FINE_RATIOS if max(high, 1 / low) < FINE_RATIOS[-1] else COARSE_RATIOS
    ratios.set_yticks([mark for mark in marks if ratios.get_ylim()[0] <= mark <= ratios.get_ylim()[1]])
    ratios.yaxis.set_major_formatter(FuncFormatter(plain))
    ratios.yaxis.set_minor_formatter(NullFormatter())
    for axes in (times, ratios):
        axes.grid(visible=True, which="major", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)


def _summary(points: Sequence[tuple[float, float]]) -> str:
    error = fmean(abs(estimated / measured - 1) for measured, estimated in points)
    return f"{len(points)}: {error:.1%}"


def _title(by: str) -> str:
    return f"{by.replace('_', ' ')} (runs: mean abs. error)"
