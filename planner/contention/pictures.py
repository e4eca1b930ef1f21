"""Jobs that meet over time: as a trace that Perfetto opens, and links by the intensity of who sends over them."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from estimator.network.player.play import Happening
from estimator.network.player.score import COMPUTE_BEGINS, COMPUTE_ENDS, TRANSFER_BEGINS, TRANSFER_ENDS
from planner.contention.contending import Contention
from planner.one_job.running.traces import metadata_event, slice_event, trace_text
from planner.shared.pictures import PictureFormat, picture_bytes
from profiles.errors import InputError
from profiles.files import check_folder, write_atomically
from profiles.records import dataclass

ENDINGS = (".json", ".json.gz")
PAIRS = {COMPUTE_ENDS: COMPUTE_BEGINS, TRANSFER_ENDS: TRANSFER_BEGINS}
MOST_LINKS = 30
"""Rows of the picture."""
ITERATIONS = 12
"""Of the job whose iterations last longest: so long is drawn."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A job at one thing: `what` is COMPUTE_BEGINS or TRANSFER_BEGINS."""

    job: int
    what: int
    at: int
    begin_s: float
    end_s: float


def stretches(happened: tuple[Happening, ...]) -> Iterator[Stretch]:
    """Give what jobs do from when to when, as it ends."""
    begun: dict[tuple[int, int], Happening] = {}
    for row in happened:
        if row.what in (COMPUTE_BEGINS, TRANSFER_BEGINS):
            begun[row.job, row.what] = row
        elif row.what in PAIRS and (row.job, PAIRS[row.what]) in begun:
            first = begun.pop((row.job, PAIRS[row.what]))
            yield Stretch(job=row.job, what=first.what, at=first.at, begin_s=first.time_s, end_s=row.time_s)


def check_timeline(path: Path) -> None:
    """Raise InputError unless the name ends as a trace does and its folder is there."""
    if not path.name.lower().endswith(ENDINGS):
        raise InputError(where="contention", key="--timeline", found=path, expected="a name in .json or .json.gz")
    check_folder(path, where="contention", key="--timeline")


def save_timeline(path: Path, contention: Contention) -> None:
    """Write the trace, whole or not at all: a process for each job, a row of its compute and one of its transfers."""
    text = trace_text(_events(contention))
    write_atomically(path, gzip.compress(text.encode(), mtime=0) if path.name.lower().endswith(".gz") else text)


def _events(contention: Contention) -> Iterator[dict[str, Any]]:
    for number, job in enumerate(contention.jobs):
        yield metadata_event("process_name", number, 0, job.job.id)
        yield metadata_event("thread_name", number, 0, "compute")
        yield metadata_event("thread_name", number, 1, "communication")
    for each in stretches(contention.happened):
        if each.what == COMPUTE_BEGINS:
            yield slice_event(f"step {each.at}", "compute", (each.job, 0), (each.begin_s, each.end_s), {})
        else:
            yield slice_event(f"transfer {each.at}", "communication", (each.job, 1), (each.begin_s, each.end_s), {})


def draw_links(contention: Contention, form: PictureFormat = "svg") -> bytes:
    """Return a picture of the links that jobs share, the fullest first, over time: a bar while a job sends over one,
    darker the more it computes for each second of communication (Crux, figure 24). Needs matplotlib."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    links = contention.links[:MOST_LINKS]
    intensity = _intensities(contention)
    colours, most = colormaps["viridis_r"], max([*intensity, 1e-300])
    longest_s = max((job.alone_s for job in contention.jobs), default=1.0) * ITERATIONS
    figure = Figure(figsize=(8, max(3.2, 1.6 + 0.28 * len(links))), layout="constrained")
    axes = figure.add_subplot()
    sends = [each for each in stretches(contention.happened) if each.what == TRANSFER_BEGINS]
    for row, link in enumerate(links):
        lanes = {job: place for place, job in enumerate(link.jobs)}
        for each in sends:
            if each.job in lanes and each.begin_s < longest_s:
                height = 0.9 / len(lanes)
                span = [(each.begin_s, min(each.end_s, longest_s) - each.begin_s)]
                colour = colours(intensity[each.job] / most)
                axes.broken_barh(span, (row - 0.45 + lanes[each.job] * height, height), color=colour)
    names = [contention.fabric.links.name(link.link) for link in links]
    axes.set_yticks(range(len(links)), names, fontsize=6)
    axes.set(xlabel="s", xlim=(0, longest_s), ylim=(max(len(links), 1) - 0.5, -0.5))
    axes.set_title("links that jobs share, while each job sends (modelled)", fontsize=9)
    unit = "FLOP" if all(job.job.flops for job in contention.jobs) else "GPU-seconds"
    figure.colorbar(
        ScalarMappable(Normalize(0.0, most), colours),
        ax=axes,
        label=f"GPU intensity:\n{unit} a second of communication",
    )
    return picture_bytes(figure, form)


def _intensities(contention: Contention) -> list[float]:
    """Of each job its intensity; where work is not said of all, with GPU-seconds of compute for work."""
    if all(job.job.flops for job in contention.jobs):
        return [job.intensity or 0.0 for job in contention.jobs]
    rates = contention.fabric.links.bytes_per_s
    longest_s = [
        float((job.iteration_bytes / rates[job.links]).max()) if len(job.links) else 0.0 for job in contention.packed
    ]
    return [
        len(found.job.seats) * found.compute_s / longest if longest else 0.0
        for found, longest in zip(contention.jobs, longest_s, strict=True)
    ]
