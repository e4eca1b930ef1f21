"""The options of `network measure`."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar

from planner.shared.options.record import Option, Options
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class NetworkMeasureOptions(Options):
    """What a job sends, read off counters."""

    command: ClassVar[str] = "network measure"

    counters: Annotated[
        Path, Option("CSV: time_s, columns ending in _bytes_total, _bytes or _bytes_per_s, and in _active", "COUNTERS")
    ] = field(kw_only=False)
