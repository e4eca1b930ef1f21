"""Measured times of layers' local shards, as an estimate asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from models_zoo.layers import Layer
from profiles.vocabulary import Device, LayerTime, Shard

Lookup = Callable[[Layer, Shard], LayerTime | None]
"""Finds a measured time, or None. The store stands behind it; a test can put a dict there."""


def nothing_measured(_layer: Layer, _shard: Shard) -> None:
    """The lookup of somebody who has no profile."""


def slowed(lookup: Lookup, device: Device, workers: int) -> Lookup:
    """The times of `lookup` with so many busy workers on a machine: longer by what `device` shows of their contention,
    unless they were measured with as many."""
    if not device.contention:
        return lookup

    def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
        measured = lookup(layer, shard)
        if measured is None or measured.workers == workers:
            return measured
        longer = device.slowdown(workers) / device.slowdown(measured.workers)
        return replace(
            measured,
            forward_s=measured.forward_s * longer,
            backward_s=measured.backward_s * longer,
            optimizer_s=measured.optimizer_s * longer,
        )

    return look_up
