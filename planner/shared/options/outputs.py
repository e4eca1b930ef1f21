"""The files that a command writes, looked at before its work: folders that there must be, and no file written twice or
over what is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.shared.options.record import Options, entries
from profiles.cluster_file import BESIDE, files_of
from profiles.errors import InputError
from profiles.files import check_folder, resolved


def check_outputs(options: Options) -> None:
    """Raise InputError for an option that names a file which cannot be written (no such folder, no regular file), that
    another option writes too, or that another option reads."""
    written: dict[Path, str] = {}
    read: dict[Path, str] = {}
    for name, entry in entries(type(options)).items():
        value, kind = getattr(options, name), entry.option.writes
        if value is None:
            continue
        if kind == "":
            read |= dict.fromkeys(_files(value), entry.flag)
            continue
        check_folder(value, where=options.command, key=entry.flag, or_folder=kind == "folder")
        place = resolved(value)
        if place in written and not place.is_dir():
            expected = f"another file: {written[place]} writes this one"
            raise InputError(where=options.command, key=entry.flag, found=value, expected=expected)
        written[place] = entry.flag
    for place in written.keys() & read.keys():
        expected = f"another file: {read[place]} reads this one"
        raise InputError(where=options.command, key=written[place], found=place.name, expected=expected)


def _files(value: Any) -> Iterator[Path]:
    """The files that a value names: paths, and words that look like one."""
    parts = value if isinstance(value, tuple) else (value,)
    of_clusters = [path for part in parts if isinstance(part, str) and BESIDE in part for path in files_of(part)]
    for part in (*parts, *of_clusters):
        if isinstance(part, Path) or (isinstance(part, str) and part.endswith((".yaml", ".yml", ".json", ".csv"))):
            try:
                if Path(part).is_file():
                    yield resolved(part)
            except (OSError, ValueError):
                continue
