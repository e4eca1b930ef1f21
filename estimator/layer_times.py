"""The time of a layer's local shard: measured where a profile holds it, else from the operator model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from estimator.compute import model_layer_time, model_working_bytes
from estimator.layers.shards import shard_layer
from estimator.memory import OPTIMIZERS
from models_zoo.layers import Layer
from profiles.vocabulary import Device, Infeasible, LayerTime, LocalLayer, Shard

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
        found = lookup(layer, shard)
        if found is None or found.workers == workers:
            return found
        longer = device.slowdown(workers) / device.slowdown(found.workers)
        return replace(
            found,
            forward_s=found.forward_s * longer,
            backward_s=found.backward_s * longer,
            optimizer_s=found.optimizer_s * longer,
        )

    return look_up


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCost:
    """A local shard together with its time and what it keeps for backward under the shard's recomputation."""

    local: LocalLayer
    time: LayerTime
    saved_bytes: int
    working_bytes: int


class LayerCosts:
    """Costs of local shards on one device, each computed once. The only state is that cache."""

    def __init__(self, *, device: Device, optimizer_name: str, lookup: Lookup = nothing_measured) -> None:
        self._device = device
        self._optimizer = OPTIMIZERS[optimizer_name]
        self._lookup = lookup
        self._known: dict[tuple[Layer, Shard], ShardCost | Infeasible] = {}

    def cost(self, layer: Layer, shard: Shard) -> ShardCost | Infeasible:
        """Cost of `layer` held as `shard`; Infeasible with the reason where the degree or dtype cannot be had."""
        key = (layer, shard)
        if key not in self._known:
            self._known[key] = self._compute(layer, shard)
        return self._known[key]

    def _compute(self, layer: Layer, shard: Shard) -> ShardCost | Infeasible:
        local = shard_layer(layer, shard)
        if isinstance(local, Infeasible):
            return local
        time = self._time(layer, shard, local)
        if isinstance(time, Infeasible):
            return time
        saved = time.saved_bytes if time.saved_bytes is not None else local.saved_bytes
        # Recomputation keeps the layer's input alone.
        recomputed = shard.recompute == "full"
        return ShardCost(
            local=local,
            time=time,
            saved_bytes=local.input_bytes if recomputed else saved,
            working_bytes=model_working_bytes(layer, shard, local),
        )

    def _time(self, layer: Layer, shard: Shard, local: LocalLayer) -> LayerTime | Infeasible:
        found = self._lookup(layer, shard)
        if found is not None:
            return found
        if shard.recompute == "full":
            plain = self._time(layer, replace(shard, recompute="none"), local)
            if isinstance(plain, Infeasible):
                return plain
            return replace(
                plain,
                backward_s=plain.backward_s + plain.forward_s,
                provenance="mixed" if plain.provenance == "measured" else plain.provenance,
                peak_memory_bytes=None,
            )
        return model_layer_time(
            layer,
            shard,
            local,
            device=self._device,
            optimizer_bytes_per_parameter=self._optimizer.step_bytes(shard.dtype),
        )
