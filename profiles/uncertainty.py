"""Reader of `data/uncertainty.toml`: how far estimates of declared classes were from runs that were measured."""

from __future__ import annotations

from functools import cache
from typing import Any

from profiles.efficiencies import load_operator_efficiencies
from profiles.records import dataclass
from profiles.tables import DATA, parse_tables, read_tables

ANY = "*"
APART = frozenset({"convolution", "experts"})
"""Work that no class for any work stands for while there is one of its own: what limits it is known less well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfWidth:
    """Half the width of a class's 90% interval on the logarithm: an estimate x stands for x / e^w to x * e^w.

    `device` is the architecture of a generation of devices, or one device's name, or `*` for one that no run stands
    behind; `work` what limits the run (`estimator.pricing.interval`), or `*` where there are too few runs to tell.
    `rows` runs of `sources` lie behind it.
    """

    device: str
    work: str
    log_half_width: float
    rows: int
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 < self.log_half_width < float("inf"):
            raise ValueError(
                f"uncertainty of {self.device}, {self.work}: log_half_width={self.log_half_width},"
                " expected a finite number above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """Half-widths of time and of memory by class.

    A run is launch-bound where launching takes more than `launch_share` of it, and communication-bound where exposed
    communication and the bubble take more than `communication_share`.
    """

    launch_share: float
    communication_share: float
    time: tuple[HalfWidth, ...]
    memory: tuple[HalfWidth, ...]

    def __post_init__(self) -> None:
        for name, classes in (("time", self.time), ("memory", self.memory)):
            if (ANY, ANY) not in {(width.device, width.work) for width in classes}:
                raise ValueError(f"uncertainty of {name}: no entry for any device and any work, expected one")

    def time_half_width(self, device: str, work: str) -> HalfWidth:
        """Return the class of such a run: of its device or generation and work, of its device or generation, of the
        work anywhere, or of anything."""
        return _nearest(self.time, device, work)

    def memory_half_width(self, device: str, kind: str) -> HalfWidth:
        """Return the class of such a model (`dense` or `experts`) in the same order."""
        return _nearest(self.memory, device, kind)


def generation_of(device: str) -> str:
    """Return the architecture of a device, by which those of one generation share what is known of them.

    >>> generation_of("h200"), generation_of("h100-pcie")
    ('hopper', 'hopper')
    """
    return load_operator_efficiencies(device).architecture


def _nearest(classes: tuple[HalfWidth, ...], device: str, work: str) -> HalfWidth:
    by_key = {(width.device, width.work): width for width in classes}
    names = (device, generation_of(device))
    keys = [(name, work) for name in names]
    keys += [(name, ANY) for name in names if work not in APART]
    keys += [(ANY, work), (ANY, ANY)]
    return next(by_key[key] for key in keys if key in by_key)


def parse_uncertainty(text: str) -> Uncertainty:
    """The records of such a file's text."""
    return _uncertainty(parse_tables(text))


def _uncertainty(data: dict[str, Any]) -> Uncertainty:
    return Uncertainty(
        launch_share=data["launch_share"],
        communication_share=data["communication_share"],
        time=tuple(_half_width(row) for row in data["time"]),
        memory=tuple(_half_width(row) for row in data["memory"]),
    )


@cache
def load_uncertainty() -> Uncertainty:
    """Return the committed half-widths."""
    return _uncertainty(read_tables(DATA / "uncertainty.toml"))


def _half_width(row: dict[str, Any]) -> HalfWidth:
    return HalfWidth(**row | {"sources": tuple(row["sources"])})
