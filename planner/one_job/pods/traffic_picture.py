"""The traffic between a plan's devices as a picture (Arnold, figure 1b)."""

from __future__ import annotations

import numpy as np

from planner.one_job.pods.traffic import Traffic
from planner.shared.pictures import PictureFormat, picture_bytes

MOST_SQUARES = 512
"""A side of the picture has a square for every rank, or for as many ranks as make so few squares."""


def draw_traffic(traffic: Traffic, form: PictureFormat = "svg") -> bytes:
    """Return a picture of the bytes an iteration from every sender (down) to every receiver (across), darker for more,
    in tens; white pairs exchange nothing. Needs matplotlib."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    each = -(-traffic.ranks // MOST_SQUARES)
    side = -(-traffic.ranks // each)
    squares = np.zeros((side, side))
    np.add.at(squares, (traffic.sender // each, traffic.receiver // each), traffic.sent_bytes)
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.add_subplot()
    shown = np.ma.masked_equal(squares, 0.0)
    scale = LogNorm(vmin=float(squares[squares > 0].min()), vmax=float(squares.max())) if squares.any() else None
    image = axes.imshow(shown, cmap="viridis_r", norm=scale, extent=(0, side * each, side * each, 0))
    figure.colorbar(image, ax=axes, label="bytes an iteration")
    axes.set(xlabel="receiver (rank)", ylabel="sender (rank)")
    axes.set_title(f"{traffic.ranks} devices: {traffic.silent_share:.2%} of the pairs exchange nothing", fontsize=10)
    return picture_bytes(figure, form)
