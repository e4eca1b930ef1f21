"""Measured layer times out of the profile store, as the estimate asks for them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from estimator.host.cpu import cpu_name
from estimator.pricing.layer_times import Lookup
from estimator.profiling.frameworks import framework_of
from estimator.profiling.setting import Framework, low_quantile
from models_zoo.layers import Layer
from profiles.measurements import Origin, Profile
from profiles.store import ProfileStore
from profiles.vocabulary import DType, LayerTime, LinkTable, Shard

LOCAL_DEVICE = "cpu"
"""The device whose name says nothing of what it is: of its measurements only this host's count."""


def find_origins(
    store: ProfileStore,
    layers: Iterable[Layer],
    *,
    device: str,
    optimizer: str,
    dtype: DType,
    seq_len: int,
    framework: Framework | None = None,
) -> tuple[Origin, ...]:
    """Return the origins of what `store` holds of `layers`, the one to estimate from first: the newest software, torch
    before JAX, then the fewest threads; those of `framework` alone, where it is given. A GPU's may be any host's, a
    CPU's must be this one's."""
    stored = store.origins(layers, device=device, optimizer=optimizer, dtype=dtype, seq_len=seq_len)
    return tuple(
        origin
        for origin in stored
        if (device != LOCAL_DEVICE or origin.hardware == cpu_name())
        and framework in (None, framework_of(origin.software))
    )


def usable_link_tables(store: ProfileStore, device: str, framework: Framework | None = None) -> tuple[LinkTable, ...]:
    """Return the link tables of `store` that hold for ranks on `device`: for workers on this host's CPU those measured
    here, with gloo or, for JAX, with XLA; for GPUs any but these, which move host memory."""
    tables = store.link_tables()
    if device == LOCAL_DEVICE:
        backend = "xla" if framework == "jax" else "gloo"
        return tuple(table for table in tables if table.hardware == cpu_name() and table.backend == backend)
    return tuple(table for table in tables if table.backend not in ("gloo", "xla"))


def lookup_in_store(
    store: ProfileStore, *, device: str, optimizer: str, origin: Origin | None = None, workers: int = 1
) -> Lookup:
    """Return a function that finds what `store` holds of a shard on `device`, eager, of `origin` alone (None: each
    shard's best by itself), so that all times of an estimate go together.

    The optimizer is part of what was measured, so only profiles taken with `optimizer` count. Those taken with so many
    `workers` busy on the machine win over those of one alone.
    """

    def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
        for busy in dict.fromkeys((workers, 1)):
            profile = store.find(layer, shard, device=device, optimizer=optimizer, origin=origin, workers=busy)
            if profile is not None:
                return to_layer_time(profile)
        return None

    return look_up


def to_layer_time(profile: Profile) -> LayerTime:
    """Return the figures of a profile: low quantiles, and how far the middle 90% of the samples reach below and above
    them."""
    measured = profile.measurement
    forward_s, backward_s = low_quantile(measured.forward_s), low_quantile(measured.backward_s)
    totals = sorted(map(sum, zip(measured.forward_s, measured.backward_s, strict=False)))
    figure_s, last = forward_s + backward_s, len(totals) - 1
    below_s = max(0.0, figure_s - totals[math.floor(0.05 * last)])
    above_s = max(0.0, totals[math.ceil(0.95 * last)] - figure_s)
    return LayerTime(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=low_quantile(measured.optimizer_s) if measured.optimizer_s else 0.0,
        provenance="measured",
        saved_bytes=measured.saved_bytes,
        peak_memory_bytes=measured.peak_memory_bytes,
        relative_low=below_s / figure_s if figure_s else 0.0,
        relative_high=above_s / figure_s if figure_s else 0.0,
        profile_id=profile.id,
        workers=profile.key.workers,
    )
