"""The one way in for files that a user names: regular files alone, within a limit, as UTF-8 text without NUL."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from profiles.errors import InputError
from profiles.limits import Limit

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
_BLOCK_BYTES = 2**20
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def open_regular(path: str | Path, *, expected: str = "a readable text file") -> Iterator[BinaryIO]:
    """Open a regular file to read its bytes. Raise InputError for what is none (a folder, a pipe, a device: told
    without waiting for it), and for whatever the system says against it, also while it is read."""
    where = str(path).replace("\0", "\\0")
    try:
        check_regular(path, expected=expected)
        with open_at_once(path) as file:
            yield file
    except InputError:
        raise
    except OSError as error:
        raise InputError(where=where, found=f"an error ({error.strerror or error})", expected=expected) from None


class _Ending(io.FileIO):
    """A file that says so, rather than waits, where nothing is to be read yet: some of the system's, such as the
    kernel's log, call themselves regular and have no end."""

    def readinto(self, buffer: Any) -> int:
        count: int | None = super().readinto(buffer)
        if count is None:
            raise BlockingIOError(errno.EAGAIN, "it has no end: what is read of it waits for more")
        return count


def open_at_once(path: str | Path) -> BinaryIO:
    """Open what is at `path` to read its bytes, and wait for nothing: reading raises BlockingIOError where nothing is
    to be read yet. Raise OSError as `open` does."""
    return io.BufferedReader(_Ending(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)))


def check_regular(path: str | Path, *, expected: str = "a readable text file") -> int:
    """Return the bytes in a regular file. Raise InputError if there is none at `path`, or something else."""
    where = str(path).replace("\0", "\\0")
    try:
        status = Path(path).stat()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise InputError(where=where, found=f"an error ({reason})", expected=expected) from None
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for holds, kind in _KINDS if holds(status.st_mode)), "no regular file")
        raise InputError(
            where=where, found=kind, expected=f"{expected} (a regular one: nothing else has an end to wait for)"
        )
    return status.st_size


def read_bytes(path: str | Path, *, limit: Limit) -> bytes:
    """Return the bytes of a regular file. Raise InputError if it cannot be read or is beyond `limit`, before reading it
    where its size says so."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        limit.check(size, where=str(path))
        content = file.read(size)  # never the limit itself: Python sets aside what it is asked for
        while len(content) <= limit.most and (more := file.read(_BLOCK_BYTES)):  # files of the system have more
            content += more
    if len(content) > limit.most:
        raise limit.error(where=str(path))
    return content


def decode_text(content: bytes, *, where: str) -> str:
    """Return UTF-8 text, its byte order mark left out. Raise InputError with the offset of a byte that is not UTF-8, or
    is NUL."""
    if content[:2] in _UTF_16:
        raise InputError(where=where, found="the byte order mark of UTF-16", expected="text in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"a byte that is not UTF-8 at offset {error.start}"
        raise InputError(where=where, found=problem, expected="text in UTF-8") from None
    at = content.find(b"\0")
    if at >= 0:
        raise InputError(where=where, found=f"a NUL byte at offset {at}", expected="text in UTF-8")
    return text
