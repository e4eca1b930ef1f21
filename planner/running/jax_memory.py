"""How much memory a run with JAX takes: the allocator's peak on a GPU, growth of the resident set on a host."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")

Held = tuple[int, ...]
"""Bytes by device; of a host, its one process's resident set."""


def held_bytes(devices: Sequence[Any]) -> Held:
    """What is held now. A host's peak starts anew, where Linux lets it."""
    if devices[0].platform != "cpu":
        return tuple(int(device.memory_stats()["bytes_in_use"]) for device in devices)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return (_status_bytes("VmRSS") or _peak_bytes(),)


def peak_growth_bytes(devices: Sequence[Any], before: Held) -> list[int]:
    """By how much each device's peak has passed what was held `before`.

    Forced host devices share one process: the growth of its resident memory, which counts compiled programs and what
    the allocator keeps back too, is divided evenly.
    """
    if devices[0].platform != "cpu":
        peaks = [int(device.memory_stats()["peak_bytes_in_use"]) for device in devices]
        return [max(0, peak - held) for peak, held in zip(peaks, before, strict=True)]
    return [max(0, _peak_bytes() - before[0]) // len(devices)] * len(devices)


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(name: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    fields = next((line.split() for line in lines if line.startswith(name)), None)
    return int(fields[1]) * 1024 if fields else 0
