"""Trace files as text: plain or gzip, told apart by their first bytes; and the loop over the lines of a table."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, cast

from planner.many_jobs.traces.cells import BLANK, BadCell
from planner.many_jobs.traces.collect import Collector
from profiles.errors import InputError
from profiles.limits import LIMITS, UNPACKED_FREELY_BYTES
from profiles.opening import open_regular

GZIP = b"\x1f\x8b"
_TAR_AT, _TAR = 257, b"ustar"


@contextmanager
def open_text(path: Path, *, lines: bool = True) -> Iterator[TextIO]:
    """Open the UTF-8 text of a file, unpacked where it is gzip, whatever its name; `lines`: it is read line by line,
    none of which may be beyond the limit.

    Whatever goes wrong while it is read becomes an InputError: no such file or no regular one, a gzip file that ends
    too early, is damaged or unpacks to more than the limits allow, bytes that are not UTF-8 or are NUL.
    """
    where = str(path)
    with open_regular(path, expected="a readable trace file") as raw, _as_input_error(where):
        packed = raw.read(2) == GZIP
        raw.seek(0)
        file = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw
        start = file.read(_TAR_AT + len(_TAR))
        if start[_TAR_AT:] == _TAR:
            raise InputError(where=where, found="a tar archive", expected="the file in it (unpack it: tar -xf)")
        file.seek(0)
        bounded = _Bounded(file, where=where, packed_in=raw if packed else None, lines=lines)
        with io.TextIOWrapper(io.BufferedReader(bounded), encoding="utf-8-sig", newline="") as text:
            yield text


@contextmanager
def _as_input_error(where: str) -> Iterator[None]:
    """What goes wrong with the bytes of a file, as InputError."""
    try:
        yield
    except EOFError:
        raise InputError(where=where, found="a gzip file that ends too early", expected="a whole one") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(where=where, found=f"a damaged gzip file ({error})", expected="a whole one") from None
    except UnicodeDecodeError as error:
        problem = f"a byte that is not UTF-8 ({error.object[error.start : error.start + 1]!r})"
        raise InputError(where=where, found=problem, expected="text in UTF-8") from None


class _Bounded(io.RawIOBase):
    """The bytes of `file` as they are, as long as they are within the limits."""

    def __init__(self, file: BinaryIO, *, where: str, packed_in: BinaryIO | None, lines: bool) -> None:
        super().__init__()
        self._file, self._where, self._packed_in, self._lines = file, where, packed_in, lines
        self._total = self._line = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._file.read(len(buffer))
        nul = chunk.find(b"\0")
        if nul >= 0:
            found = f"a NUL byte at offset {self._total + nul}"
            raise InputError(where=self._where, found=found, expected="text in UTF-8")
        self._total += len(chunk)
        LIMITS.trace_bytes.check(self._total, where=self._where)
        if self._packed_in is not None and self._total > UNPACKED_FREELY_BYTES:
            LIMITS.unpacked_ratio.check(self._total // max(1, self._packed_in.tell()), where=self._where)
        if self._lines:
            end = chunk.rfind(b"\n")
            self._line = self._line + len(chunk) if end < 0 else len(chunk) - end - 1
            LIMITS.line_bytes.check(self._line, where=self._where)
        buffer[: len(chunk)] = chunk
        return len(chunk)


class Table:
    """A table of cells with a header: where each column stands, and a loop over its rows."""

    def __init__(self, text: TextIO, into: Collector, *, form: Literal["csv", "pipes", "pai"]) -> None:
        self._into = into
        if form == "pipes":
            self._reader = csv.reader(text, delimiter="|", quoting=csv.QUOTE_NONE, strict=True)
        else:
            self._reader = csv.reader(text, strict=True)
        self.header: tuple[str, ...] = ()

    def read_header(self, columns: Sequence[str], required: Sequence[str]) -> dict[str, int]:
        """The place of each known column, by its name in `known` (any case); InputError where a required one lacks or
        one is there twice."""
        try:
            names = [name.strip() for name in next(self._reader, [])]
        except csv.Error as error:
            self._into.refuse(f"a header that is no CSV ({error})", "names of columns", line=1)
        spelled = {name.lower(): name for name in columns}
        self.header = tuple(spelled.get(name.lower(), name) for name in names)
        for name in set(self.header) - {""}:
            if self.header.count(name) > 1:
                self._into.refuse(f"column {name!r} twice", "each column once", line=1)
        for name in required:
            if name not in self.header:
                shown = ", ".join(self.header) or "nothing"
                self._into.refuse(
                    f"no column {name!r} in the header ({shown})", "columns " + ", ".join(required), line=1
                )
        return {name: place for place, name in enumerate(self.header) if name in columns}

    def each_of(
        self, columns: Sequence[str], required: Sequence[str], parse: Callable[[int, list[str]], None]
    ) -> tuple[str, ...]:
        """Read the header and call `parse` with line number and the cells of `columns`, in their order, of each row: ""
        where a cell says nothing, or the column is not there. Return the names of the columns that are not known."""
        places = self.read_header(columns, required)
        width = len(self.header)
        order = [places.get(name, width) for name in columns]

        def pick(line: int, cells: list[str]) -> None:
            cells.append("")
            parse(line, ["" if cells[place] in BLANK else cells[place] for place in order])

        self.each(width, pick, wanted="as the header has")
        return tuple(name for name in self.header if name not in places)

    def each(self, width: int, parse: Callable[[int, list[str]], None], *, wanted: str) -> None:
        """Call `parse` with line number and cells of each row that is not blank; what it finds malformed, and lines
        of another width, go to the collector."""
        reader, into = self._reader, self._into
        while True:
            try:
                for cells in reader:
                    if not cells:
                        continue
                    try:
                        if len(cells) != width:
                            raise BadCell(None, f"{len(cells)} cells", f"{width} ({wanted})")
                        parse(reader.line_num, cells)
                    except BadCell as bad:
                        into.malformed(reader.line_num, bad)
                return
            except csv.Error as error:
                into.malformed(reader.line_num, BadCell(None, f"a line that is no CSV ({error})", "cells with commas"))
