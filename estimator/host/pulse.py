"""What a process and a fork of it tell each other at next to no cost: what user code is being asked there and until
when, and whether the fork is to stop."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

_CALL = struct.Struct("d32p")
_STOP_AT = _CALL.size


class Pulse:
    """Memory that both share. Make it before the fork."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _STOP_AT + 1)

    @contextmanager
    def calling(self, name: str, limit_s: float) -> Iterator[None]:
        """Tell the other that user code is asked for `name` and has so many seconds, until the context ends."""
        _CALL.pack_into(self._memory, 0, time.monotonic() + limit_s, name.encode())
        yield
        _CALL.pack_into(self._memory, 0, 0.0, b"")

    def call(self) -> tuple[str, float] | None:
        """Return what is being asked and until when (`time.monotonic`), None where nothing is."""
        end, name = _CALL.unpack_from(self._memory)
        return (name.decode(errors="replace"), end) if end else None

    def stop(self) -> None:
        """Ask the fork to stop when it can."""
        self._memory[_STOP_AT] = 1

    def stopped(self) -> bool:
        """Return whether it was asked to."""
        return bool(self._memory[_STOP_AT])
