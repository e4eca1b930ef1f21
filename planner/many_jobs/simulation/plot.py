"""Simulations as a picture: throughput and queue over time, and the distribution of JCTs; a colour for each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.many_jobs.simulation.result import Result
from planner.shared.pictures import COLOURS, PictureFormat, picture_bytes, picture_format
from profiles.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 4000


def save_plot(path: Path, results: Mapping[str, Result]) -> None:
    """Draw the results by name, whole or not at all."""
    write_atomically(path, draw(results, form=picture_format(path, where="simulate")))


def draw(results: Mapping[str, Result], *, form: PictureFormat = "svg") -> bytes:
    """The picture; the same results give the same bytes. They must have their series."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 9.0), layout="constrained")
    throughput, queue, jct = figure.subplots(3, 1)
    queue.sharex(throughput)
    for number, (name, result) in enumerate(results.items()):
        style: dict[str, Any] = {"label": name, "color": COLOURS[number % len(COLOURS)], "linewidth": 1.0}
        times = np.asarray(result.series["time_s"]) / 3600
        _steps(throughput, times, result.series["throughput"], style)
        _steps(queue, times, result.series["waiting"], style)
        sorted_h = np.sort(result.jct_s) / 3600
        if len(sorted_h):
            kept = np.unique(np.linspace(0, len(sorted_h) - 1, min(len(sorted_h), MOST_POINTS)).astype(int))
            jct.step(sorted_h[kept], (kept + 1) / len(sorted_h), where="post", **style)
    throughput.set(ylabel="throughput (relative rates)", title="Cluster throughput over time (modelled)")
    queue.set(xlabel="time (h)", ylabel="jobs waiting")
    jct.set(xlabel="job completion time (h)", ylabel="share of finished jobs", ylim=(0, 1.02))
    if any(len(result.jct_s) and result.jct_s.max() > 20 * np.median(result.jct_s) > 0 for result in results.values()):
        jct.set_xscale("log")
    for axes in (throughput, queue, jct):
        axes.grid(visible=True, color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
    for axes in (throughput, queue):
        axes.set_ylim(0.0, max(1.0, axes.get_ylim()[1]))
    if results:
        throughput.legend(fontsize=8)
    return picture_bytes(figure, form)


def _steps(axes: Axes, times: Any, values: Sequence[float], style: dict[str, Any]) -> None:
    """A step line; of more events than can be seen, each stretch of time shows its mean weighted by time."""
    heights = np.asarray(values, dtype=float)
    if len(times) > MOST_POINTS:
        edges = np.linspace(times[0], times[-1], MOST_POINTS + 1)
        spans = np.diff(times, append=times[-1])
        integral = np.concatenate(([0.0], np.cumsum(heights * spans)))[:-1]
        times, heights = edges[:-1], np.diff(np.interp(edges, times, integral)) / np.diff(edges)
    axes.step(times, heights, where="post", **style)
