"""How long a pipeline takes at least when its layers have to fit: what cannot be kept is computed again.

Layers are taken as divisible, and stages as free to hold any share of them; memory counts weights, gradients, optimizer
state and what micro-batches in flight keep. So no plan takes less (tests: `test_bulk_pipelines`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Variant
from estimator.bulk.records import StateRule
from estimator.bulk.shards import RankShards
from estimator.bulk.stage_kind import ANY_RANGES, StageKind
from estimator.pricing.amounts import Floats
from estimator.pricing.memory import Holdings, standing_bytes
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind

NONE: RecomputeKind = "none"
HALVINGS = 10
"""The bound is within 2**-10 of what it could tell."""
ROUNDED_UP_BYTES = 16.0
"""`standing_bytes` rounds every layer's few parts up; a whole stage's are rounded once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Divisible:
    """The layers of a rank that can be recomputed, as if they could be divided. `layer_s`, by kind: a micro-batch
    through one of them at least, forward and backward; `counts`: how many there are; `holdings` of one; `once_s`:
    through all of them. Of a second's worth `kept_bytes` are kept for a micro-batch at least, and at most
    `spared_bytes` fewer where it is recomputed, at `again_s` a byte."""

    layer_s: Floats
    counts: NDArray[np.int64]
    holdings: Holdings
    once_s: float
    kept_bytes: float
    spared_bytes: float
    again_s: float


def divisible(shards: RankShards, kinds: tuple[RecomputeKind, ...]) -> Divisible | None:
    """Return the layers of `shards` under these kinds of recomputation; None where nothing can be said. What passes
    take at least is `RankShards.longer_by_one_s` of all layers, half of them recomputed."""
    layers = shards.layers
    blocks = [number for number, kind in enumerate(layers.kinds) if kind.recomputable]
    if not blocks:
        return None
    counts = np.bincount(layers.kind_of_layer, minlength=len(layers.kinds))
    halves = [max(1, int(counts[kind]) // 2) for kind in blocks]
    kept = shards.kept_bytes([(kind, False) for kind in blocks], "none")
    layer_s, saved_bytes, dearer_s = np.full(len(blocks), math.inf), [], []
    wanted: list[RecomputeKind] = [kind for kind in kinds if kind != "none"]
    for recompute in wanted or [NONE]:
        again = [(kind, True) for kind in blocks] if recompute != "none" else []
        variants: list[Variant] = [*((kind, False) for kind in blocks), *again]
        longer_s = shards.longer_by_one_s(tuple(zip(variants, halves * (2 if again else 1), strict=True)), recompute)
        layer_s = np.minimum(layer_s, longer_s[: len(blocks)])
        if again:
            saved_bytes.append(kept - shards.kept_bytes(again, recompute))
            dearer_s.append(np.maximum(longer_s[len(blocks) :] - longer_s[: len(blocks)], 0.0))
    if not (layer_s > 0).all():
        return None
    saved, dearer = np.array(saved_bytes).ravel(), np.array(dearer_s).ravel()
    worth = saved > 0
    return Divisible(
        layer_s=layer_s,
        counts=counts[blocks],
        holdings=shards.holdings_of_one(blocks),
        once_s=float(layer_s @ counts[blocks]),
        kept_bytes=float((kept / layer_s).min()),
        spared_bytes=float((saved / np.tile(layer_s, len(saved_bytes)))[worth].max()) if worth.any() else 0.0,
        again_s=float((dearer[worth] / saved[worth]).min()) if worth.any() else 0.0,
    )


def standing_bytes_a_second(layers: Divisible, kind: StageKind, rule: StateRule) -> float:
    """Return the bytes of state that a second's worth of layers holds at least on stages of that kind under a rule of
    state."""
    held = standing_bytes(kind.setup.recipe, kind.under(ANY_RANGES, rule), layers.holdings, kind.shards.features)
    state = np.asarray(held.state) - ROUNDED_UP_BYTES
    return float((np.maximum(state, 0.0) / layers.layer_s).min())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """Stages, last axis: bytes that each has for layers, and micro-batches that it keeps; before that any axes.
    `standing_bytes`, `kept_bytes`, `spared_bytes` of a second's worth of layers, `again_s` for a byte fewer kept."""

    room_bytes: Floats
    flying: Floats
    standing_bytes: Floats
    kept_bytes: float
    spared_bytes: float
    again_s: float


def least_in_memory(rooms: Rooms, once_s: float, beside: Floats) -> tuple[Floats, Floats]:
    """(seconds that all stages together spend on recomputing, seconds of the slowest stage) at least, for a micro-batch
    of `once_s` over all stages; infinite where the layers do not fit. `beside`: what a stage does for each second of
    layers besides, in seconds. Shapes are those of `rooms` without the last axis."""
    flying, room = rooms.flying, np.maximum(rooms.room_bytes, 0.0)
    load = rooms.standing_bytes + flying * rooms.kept_bytes
    tight = rooms.standing_bytes + flying * max(0.0, rooms.kept_bytes - rooms.spared_bytes)
    with np.errstate(divide="ignore", invalid="ignore"):
        free = np.where(load > 0, room / load, np.inf)
        most = np.where(tight > 0, room / tight, np.inf)
        slope = rooms.again_s * load / flying
    free = np.minimum(free, once_s)
    most = np.maximum(free, np.minimum(most, once_s))
    slope = np.broadcast_to(slope, free.shape)
    fits = most.sum(axis=-1) >= once_s * (1 - 1e-9)
    # Recomputed where it is cheapest, whatever that does to the balance.
    order = np.argsort(slope, axis=-1)
    ahead = np.take_along_axis(most - free, order, axis=-1)
    before = np.cumsum(ahead, axis=-1) - ahead
    lacking = np.maximum(once_s - free.sum(axis=-1), 0.0)[..., None]
    again_s = (np.clip(lacking - before, 0.0, ahead) * np.take_along_axis(slope, order, axis=-1)).sum(axis=-1)
    # And balanced: the least time in which the stages hold all layers.
    pace = 1.0 + np.broadcast_to(beside, fits.shape)[..., None]
    low = pace[..., 0] * once_s / free.shape[-1]
    high = (pace * most + slope * (most - free)).max(axis=-1)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        slow = middle[..., None]
        held = np.minimum(
            most, np.where(slow <= pace * free, slow / pace, free + (slow - pace * free) / (pace + slope))
        )
        enough = held.sum(axis=-1) >= once_s
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(fits, again_s, np.inf), np.where(fits, low, np.inf)
