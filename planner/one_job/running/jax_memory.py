"""How much memory a rank of a run with JAX takes: the allocator's peak on a GPU, growth of the resident set on a
host."""

from __future__ import annotations

from typing import Any

from estimator.host.memory import resident_peak_bytes, start_resident_peak


def held_bytes(device: Any) -> int:
    """What is held now. A host's peak starts anew, where Linux lets it."""
    return start_resident_peak() if device.platform == "cpu" else int(device.memory_stats()["bytes_in_use"])


def peak_growth_bytes(device: Any, before: int) -> int:
    """By how much the peak has passed what was held `before`; a host's counts compiled programs and what the allocator
    keeps back too."""
    if device.platform == "cpu":
        return max(0, resident_peak_bytes() - before)
    return max(0, int(device.memory_stats()["peak_bytes_in_use"]) - before)
