"""Measured layer times out of the profile store, as the estimate asks for them."""

from __future__ import annotations

import math

from estimator.layer_times import Lookup
from estimator.profiling.setting import low_quantile
from models_zoo.layers import Layer
from profiles.measurements import Profile
from profiles.store import ProfileStore
from profiles.vocabulary import LayerTime, Shard


def lookup_in_store(store: ProfileStore, *, device: str, optimizer: str) -> Lookup:
    """Finds what `store` holds of a shard on `device`, eager, with any software and number of threads.

    The optimizer is part of what was measured, so only profiles taken with `optimizer` count.
    """

    def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
        found = store.find(layer, shard, device=device, optimizer=optimizer)
        return None if found is None else to_layer_time(found)

    return look_up


def to_layer_time(profile: Profile) -> LayerTime:
    """The figures of a profile: low quantiles, and how far the middle 90% of the samples spread around them."""
    measured = profile.measurement
    forward_s, backward_s = low_quantile(measured.forward_s), low_quantile(measured.backward_s)
    totals = sorted(map(sum, zip(measured.forward_s, measured.backward_s, strict=False)))
    last = len(totals) - 1
    spread_s = totals[math.ceil(0.95 * last)] - totals[math.floor(0.05 * last)]
    return LayerTime(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=low_quantile(measured.optimizer_s) if measured.optimizer_s else 0.0,
        provenance="measured",
        saved_bytes=measured.saved_bytes,
        peak_memory_bytes=measured.peak_memory_bytes,
        relative_spread=spread_s / 2 / (forward_s + backward_s) if spread_s else 0.0,
        profile_id=profile.id,
    )
