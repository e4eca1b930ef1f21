"""How much memory a run with JAX takes: the allocator's peak on a GPU, growth of the resident set on a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from estimator.host.memory import resident_peak_bytes, start_resident_peak

Held = tuple[int, ...]
"""Bytes by device; of a host, its one process's resident set."""


def held_bytes(devices: Sequence[Any]) -> Held:
    """What is held now. A host's peak starts anew, where Linux lets it."""
    if devices[0].platform != "cpu":
        return tuple(int(device.memory_stats()["bytes_in_use"]) for device in devices)
    return (start_resident_peak(),)


def peak_growth_bytes(devices: Sequence[Any], before: Held) -> list[int]:
    """By how much each device's peak has passed what was held `before`.

    Forced host devices share one process: the growth of its resident memory, which counts compiled programs and what
    the allocator keeps back too, is divided evenly.
    """
    if devices[0].platform != "cpu":
        peaks = [int(device.memory_stats()["peak_bytes_in_use"]) for device in devices]
        return [max(0, peak - held) for peak, held in zip(peaks, before, strict=True)]
    return [max(0, resident_peak_bytes() - before[0]) // len(devices)] * len(devices)
