"""Reading and writing of whole files: text, JSON and TOML in, all or nothing out."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from profiles.errors import InputError, MachineError
from profiles.json_text import check_json_text, line_of_second
from profiles.limits import LIMITS, Limit
from profiles.opening import decode_text, read_bytes


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Put `content` into the file at `path`, wholly or not at all: write beside it, fsync, rename.

    Text is UTF-8. A file that was there keeps its permissions, a link its place. What killed processes were writing in
    this folder is removed. Raise InputError if the folder does not exist or `path` is no regular file; MachineError
    (disk full, no permission) leaves the old file as it was.
    """
    try:
        target = resolved(path)
    except OSError as error:
        raise MachineError(f"{path}: could not be written: {error.strerror or error}") from error
    mode = _mode_of_existing(target, shown=path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    beside = target.parent / f".cellplan-{_host()}-{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        _remove_leftovers(target.parent)
        try:
            with beside.open("xb") as file:
                _lock(file.fileno())
                file.write(data)
                file.flush()
                if mode is not None:
                    beside.chmod(mode)
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except OSError as error:
        raise MachineError(f"{path}: could not be written: {error.strerror or error}") from error


def _remove_leftovers(folder: Path) -> None:
    """Remove what a process of this host, by its name no more there and by its lock no more at it, was writing. In a
    folder that other machines see too, theirs stays."""
    for path in folder.iterdir():
        unfinished = _UNFINISHED.fullmatch(path.name)
        if unfinished and unfinished["host"] == _host() and not _is_alive(int(unfinished["pid"])):
            with suppress(OSError), path.open("rb") as file:
                _lock(file.fileno())
                path.unlink()


_UNFINISHED = re.compile(r"\.cellplan-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}\.tmp")


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", os.uname().nodename)[:64]


def _lock(descriptor: int) -> None:
    """Lock a file until it is closed, where the file system knows locks; BlockingIOError where another process has."""
    import fcntl  # POSIX alone has it.

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def read_text(path: str | Path, *, limit: Limit = LIMITS.text_bytes) -> str:
    """Return the UTF-8 text of a regular file, without a byte order mark. Raise InputError if it cannot be read, is
    beyond `limit`, or holds a NUL."""
    return decode_text(read_bytes(path, limit=limit), where=str(path))


def text_lines(text: str, *, where: str) -> list[str]:
    """Return the lines of a text, their ends left out. Raise InputError with the number of one beyond the limit."""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        LIMITS.line_bytes.check(len(line), where=f"{where}, line {number}")
    return lines


def csv_rows(text: str, *, where: str) -> Iterator[tuple[int, list[str]]]:
    """Give the rows of a CSV's text, each with the number of its last line and its cells without the blanks around
    them. Raise InputError with the line for more rows than nodes in a list, and for a cell that has no end."""
    import csv

    lines = text_lines(text, where=where)
    LIMITS.nodes.check(len(lines) - 1, where=where)
    reader = csv.reader(lines)
    try:
        for row in reader:
            yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        expected = "values with commas between them"
        raise InputError(where=f"{where}, line {reader.line_num}", found=str(error), expected=expected) from None


def read_json(path: str | Path, *, limit: Limit = LIMITS.text_bytes) -> Any:
    """Return the value of a JSON file. Raise InputError with line and column, also for keys given twice, NaN and
    Infinity, and for what is beyond the limits (`profiles.limits`): bytes, depth, values, digits."""
    return parse_json(read_text(path, limit=limit), where=str(path))


def parse_json(text: str, *, where: str) -> Any:
    """Return the value of a JSON text. Raise as `read_json` does, naming `where`."""

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            key = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
            line = line_of_second(text, key)
            place = where if line is None else f"{where}, line {line}"
            raise InputError(where=place, key=key, found="the key twice in one object", expected="each key once")
        return values

    def refuse_constant(name: str) -> Any:
        raise InputError(where=where, found=name, expected="a finite number")

    check_json_text(text, where=where)
    try:
        return json.loads(text, object_pairs_hook=refuse_twice, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}, column {error.colno}"
        raise InputError(where=place, found=f"no JSON ({error.msg})", expected="a JSON document") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(where=where, found=f"no usable JSON ({error})", expected="a JSON document") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raise InputError with its line where it is broken, for infinity and NaN,
    and for what is beyond the limits: bytes, depth."""
    import tomllib

    where, text = str(path), read_text(path, limit=LIMITS.toml_bytes)
    try:
        tables = tomllib.loads(text, parse_float=_finite)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        message = str(error)
        place = re.search(r" ?\(at (line \d+, column \d+|end of document)\)", message)
        what = message[: place.start()] if place else message
        stated = f"{where}, {place[1]}" if place else where
        raise InputError(where=stated, found=f"no TOML ({what})", expected="a TOML document") from None
    _check_tables(tables, where=where)
    return tables


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word} is no finite number")
    return value


def _check_tables(tables: dict[str, Any], *, where: str) -> None:
    """Raise InputError for tables within tables beyond the limit; dotted keys make them without recursion."""
    waiting: list[tuple[int, Any]] = [(1, tables)]
    while waiting:
        depth, value = waiting.pop()
        LIMITS.depth.check(depth, where=where)
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, dict | list):
                waiting.append((depth + 1, part))
            elif type(part) is int and abs(part) >= 10 ** (LIMITS.digits.most + 1):
                raise LIMITS.digits.error(where=where)


def resolved(path: str | Path) -> Path:
    """Return the absolute path without links. Raise OSError for links that lead to each other."""
    try:
        return Path(path).resolve()
    except RuntimeError:  # Python's word for them before 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def check_folder(path: Path, *, where: str, key: str, or_folder: bool = False) -> None:
    """Raise InputError, of the option `key` of `where`, unless a file can be written at `path` (`or_folder`: or it is a
    folder): its folder exists, and nothing but a file is there. Said before hours of work, not after them."""
    try:
        if not resolved(path).parent.is_dir():
            raise InputError(where=where, key=key, found=path, expected="a path in an existing folder")
        if path.exists() and not (path.is_file() or (or_folder and path.is_dir())):
            raise InputError(where=where, key=key, found=f"{path}, no regular file", expected="a path to a file")
    except InputError:
        raise
    except (OSError, ValueError):
        shown = repr(str(path))
        raise InputError(
            where=where, key=key, found=shown if len(shown) < 80 else f"{shown[:77]}...", expected="a path to a file"
        ) from None


def _mode_of_existing(target: Path, *, shown: str | Path) -> int | None:
    """Permission bits of the file to be replaced, None if there is none; InputError if it cannot be a file."""
    try:
        if not target.parent.is_dir():
            raise InputError(
                where=str(shown), found=f"no folder {target.parent}", expected="a path in an existing folder"
            )
        status = target.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(f"{shown}: could not be written: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InputError(where=str(shown), found="something that is not a regular file", expected="a path to a file")
    return stat.S_IMODE(status.st_mode)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
