"""A timeline as a file, in the form that the file's name ends in."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

from planner.one_job.timeline.events import Timeline
from planner.one_job.timeline.perfetto import write_trace
from planner.one_job.timeline.svg import draw_timeline
from profiles.errors import InputError
from profiles.files import check_folder, write_atomically


def _compressed(timeline: Timeline) -> bytes:
    return gzip.compress(write_trace(timeline).encode("utf-8"), mtime=0)


FORMS: dict[str, Callable[[Timeline], str | bytes]] = {
    ".svg": draw_timeline,
    ".json": write_trace,
    ".json.gz": _compressed,
}


def timeline_form(path: Path) -> str:
    """The key of `FORMS` that the name of `path` ends in; InputError for another ending, or where there is no such
    folder."""
    for ending in FORMS:
        if path.name.lower().endswith(ending) and len(path.name) > len(ending):
            break
    else:
        expected = "a name that ends in .svg (a picture), .json or .json.gz (a trace for Perfetto)"
        raise InputError(where="timeline", key="--timeline", found=path, expected=expected)
    check_folder(path, where="timeline", key="--timeline")
    return ending


def save_timeline(timeline: Timeline, path: Path) -> None:
    """Write `timeline` into the file at `path`, whole or not at all; InputError as `timeline_form`."""
    write_atomically(path, FORMS[timeline_form(path)](timeline))
