"""Simulations as a picture: throughput and queue over time, and the distribution of JCTs; a colour for each policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from planner.many_jobs.simulation.result import Result
from profiles.errors import InputError
from profiles.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 4000
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d")


def check_plot(path: Path) -> Literal["svg", "png"]:
    """The format that the name ends in; InputError for another, or where there is no folder or no matplotlib."""
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ("svg", "png"):
        raise InputError(where="simulate", key="--plot", found=path, expected="a file name that ends in .svg or .png")
    if not path.resolve().parent.is_dir():
        raise InputError(where="simulate", key="--plot", found=path, expected="a path in an existing folder")
    if find_spec("matplotlib") is None:
        expected = "it to be there: pip install 'cellplan[plot]'"
        raise InputError(where="simulate", key="--plot", found="no matplotlib in this Python", expected=expected)
    return "svg" if ending == "svg" else "png"


def save_plot(path: Path, results: Mapping[str, Result]) -> None:
    """Draw the results by name, whole or not at all."""
    write_atomically(path, draw(results, form=check_plot(path)))


def draw(results: Mapping[str, Result], *, form: Literal["svg", "png"] = "svg") -> bytes:
    """The picture; the same results give the same bytes. They must have their series."""
    import matplotlib as mpl
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
    content = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "cellplan", "svg.fonttype": "none"}):
        figure.savefig(content, format=form, dpi=150, metadata={"Date": None} if form == "svg" else {"Software": None})
    return content.getvalue()


def _steps(axes: Axes, times: Any, values: Sequence[float], style: dict[str, Any]) -> None:
    """A step line; of more events than can be seen, each stretch of time shows its mean weighted by time."""
    heights = np.asarray(values, dtype=float)
    if len(times) > MOST_POINTS:
        edges = np.linspace(times[0], times[-1], MOST_POINTS + 1)
        spans = np.diff(times, append=times[-1])
        integral = np.concatenate(([0.0], np.cumsum(heights * spans)))[:-1]
        times, heights = edges[:-1], np.diff(np.interp(edges, times, integral)) / np.diff(edges)
    axes.step(times, heights, where="post", **style)
