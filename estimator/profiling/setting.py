"""Where and how to measure, under which key to keep it, and when to stop. Pure: no clock, no framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from models_zoo.layers import Layer
from profiles.errors import InputError
from profiles.measurements import Kind, MeasurementKey, canonical
from profiles.records import dataclass
from profiles.vocabulary import Shard

Framework = Literal["torch", "jax"]


MEASURED_OPTIMIZERS = ("adamw", "sgd")
"""Those whose step is measured with a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How often to repeat: until stable, at least `least` times and for `least_s` seconds (a short task meets a busy
    machine's quiet moments by trying longer), at most `most` times, and no longer than `limit_s` after the first pass
    (which two samples may overrun, since fewer say nothing)."""

    warm_up: int = 2
    least: int = 6
    least_s: float = 0.2
    most: int = 100
    limit_s: float = 10.0
    window: int = 4
    tolerance: float = 0.02

    def __post_init__(self) -> None:
        if not (self.warm_up >= 1 and 2 <= self.least <= self.most and self.window >= 1 and self.tolerance >= 0):
            raise ValueError(
                f"repeats: warm_up={self.warm_up}, least={self.least}, most={self.most}, window={self.window},"
                f" tolerance={self.tolerance}; expected warm_up >= 1, 2 <= least <= most, window >= 1, tolerance >= 0"
            )

    def enough(self, samples_s: Sequence[float], elapsed_s: float) -> bool:
        """Whether to stop after `samples_s`, `elapsed_s` seconds after the first pass."""
        count = len(samples_s)
        if count >= self.most or (count >= 2 and elapsed_s >= self.limit_s):
            return True
        if count < self.least or elapsed_s < self.least_s:
            return False
        return is_stable(samples_s, window=self.window, tolerance=self.tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where, with which framework and how to measure. `device` is torch's name (cpu, cuda:0); `threads` counts on a CPU
    alone."""

    framework: Framework = "torch"
    device: str = "cpu"
    threads: int = 1
    optimizer: str = "adamw"
    repeats: Repeats = Repeats()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(where="profile", key="--threads", found=self.threads, expected="a positive integer")
        if self.optimizer not in MEASURED_OPTIMIZERS:
            raise InputError(
                where="profile",
                key="--optimizer",
                found=repr(self.optimizer),
                expected=f"one of {', '.join(MEASURED_OPTIMIZERS)}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """A device as a measurement's key names it: see `MeasurementKey`."""

    device: str
    hardware: str
    software: str
    threads: int


def layer_key(layer: Layer, shard: Shard, identity: DeviceIdentity, *, optimizer: str) -> MeasurementKey:
    """Return the key of one layer's shard, profiled alone."""
    return stage_key((layer,), shard, identity, optimizer=optimizer, compiled=False, kind="layer")


def stage_key(
    layers: Sequence[Layer],
    shard: Shard,
    identity: DeviceIdentity,
    *,
    optimizer: str,
    compiled: bool,
    kind: Kind = "stage",
) -> MeasurementKey:
    """The key of contiguous layers profiled as one piece."""
    return MeasurementKey(
        kind=kind,
        layers=tuple(canonical(layer) for layer in layers),
        shard=shard,
        mode="compiled" if compiled else "eager",
        optimizer=optimizer,
        threads=identity.threads,
        device=identity.device,
        hardware=identity.hardware,
        software=identity.software,
    )


def low_quantile(samples_s: Sequence[float]) -> float:
    """Return the 10th percentile (the lower neighbour): what other work on a busy machine disturbs least.

    >>> low_quantile([3.0, 1.0, 2.0])
    1.0
    """
    return sorted(samples_s)[(len(samples_s) - 1) // 10]


def is_stable(samples_s: Sequence[float], *, window: int, tolerance: float) -> bool:
    """Whether the last `window` samples moved the low quantile by at most `tolerance` of it, and one of them came that
    close to it again: a figure that a single early sample reached has not been seen twice.

    >>> is_stable([9.0, 5.0, 5.05, 5.3, 5.2], window=3, tolerance=0.02)
    True
    >>> is_stable([9.0, 5.0, 5.3, 5.3, 5.2], window=3, tolerance=0.02)
    False
    """
    before, last = samples_s[:-window], samples_s[-window:]
    if not before:
        return False
    low = low_quantile(samples_s)
    return abs(low_quantile(before) - low) <= tolerance * low and min(last) <= (1 + tolerance) * low
