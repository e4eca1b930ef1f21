"""Processes that descend from others or carry a mark, in whatever session they are by now (Linux's /proc), and their
end. Imports next to nothing: small processes that watch over others import it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ENDING_S = 4.0
"""So long is tried to end what starts others as fast as they are killed."""

_PROC = Path("/proc")
_BETWEEN_TRIES_S = 0.005


def descendants_of(ancestor: int) -> list[int]:
    """Return the processes that descend from `ancestor` and have not ended, parents first; none where the system has no
    /proc."""
    children: dict[int, list[int]] = {}
    for pid, state, parent in _processes():
        if state not in "ZX":
            children.setdefault(parent, []).append(pid)
    descendants, unseen = [], [ancestor]
    while unseen:
        next_generation = children.get(unseen.pop(0), [])
        descendants += next_generation
        unseen += next_generation
    return descendants


def carriers_of(mark: str) -> list[int]:
    """Return the processes but this one that were started with `mark` in their environment and have not ended; none
    where the system has no /proc."""
    wanted, this_process = mark.encode(), os.getpid()
    return [
        pid
        for pid, state, _ in _processes()
        if state not in "ZX" and pid != this_process and wanted in _read(_PROC / str(pid) / "environ")
    ]


def end_all(remaining: Callable[[], Iterable[int]]) -> None:
    """Kill the processes that `remaining` returns, with the groups that they lead, until it returns none or `ENDING_S`
    are over."""
    end = time.monotonic() + ENDING_S
    while (pids := list(remaining())) and time.monotonic() < end:
        for pid in pids:
            with contextlib.suppress(OSError):
                if os.getpgid(pid) == pid:  # At once, so that none of them starts another meanwhile.
                    os.killpg(pid, signal.SIGKILL)
                else:  # A group that others lead has members that are none of ours.
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_BETWEEN_TRIES_S)


def _processes() -> Iterator[tuple[int, str, int]]:
    """Each process's number, its state as a letter, and its parent's number."""
    try:
        folders = list(_PROC.iterdir())
    except OSError:
        return
    for folder in folders:
        if folder.name.isdigit():
            fields = _read(folder / "stat").rpartition(b")")[2].split()
            if len(fields) > 1:
                yield int(folder.name), fields[0].decode(), int(fields[1])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
