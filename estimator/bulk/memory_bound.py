"""How long a pipeline takes at least when its layers have to fit: what cannot be kept is computed again.

Layers are taken as divisible, and stages as free to hold any share of them; memory counts weights, gradients, optimizer
state and what micro-batches in flight keep. So no plan takes less (tests: `test_bulk_pipelines`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Variant
from estimator.bulk.records import StateRule
from estimator.bulk.shards import RankShards
from estimator.bulk.stage_kind import ANY_RANGES, StageKind
from estimator.bulk.whole_layers import Rerun, WholeLayers
from estimator.pricing.amounts import Floats
from estimator.pricing.memory import FIRM_SHARE, Holdings, standing_bytes
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind

NONE: RecomputeKind = "none"
HALVINGS = 10
"""The bound is within 2**-10 of what it could tell."""
ROUNDED_UP_BYTES = 16.0
"""`standing_bytes` rounds every layer's few parts up; a whole stage's are rounded once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Divisible:
    """The layers of ranks that can be recomputed, as if they could be divided. `layer_s`, by kind: a micro-batch
    through one of them at least, forward and backward; `counts`: how many there are; `holdings` of one; `once_s`:
    through all of them. Of a second's worth `kept_bytes` are kept for a micro-batch at least, and at most
    `spared_bytes` fewer where it is recomputed, at `again_s` a byte. `whole`: the same layers undivided, those of one
    kind alone by its place, and all of them, None."""

    layer_s: Floats
    counts: NDArray[np.int64]
    holdings: Holdings
    once_s: float
    kept_bytes: float
    spared_bytes: float
    again_s: float
    whole: tuple[tuple[int | None, WholeLayers], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Each:
    """Of one layer of each kind that can be recomputed at least: seconds of both passes and of the forward one, bytes
    kept for a micro-batch; by kind of recomputation, bytes that it then keeps fewer,
    and seconds by which it is longer."""

    layer_s: Floats
    forward_s: Floats
    kept_bytes: Floats
    saved_bytes: Mapping[RecomputeKind, Floats]
    dearer_s: Mapping[RecomputeKind, Floats]


def divisible(ranks: tuple[RankShards, ...], kinds: tuple[RecomputeKind, ...]) -> Divisible | None:
    """Return the layers of ranks that sit in any of these ways under these kinds of recomputation; None where nothing
    can be said. What passes take at least is `RankShards.longer_by_one_s`."""
    layers = ranks[0].layers
    blocks = [number for number, kind in enumerate(layers.kinds) if kind.recomputable]
    if not blocks:
        return None
    counts = np.bincount(layers.kind_of_layer, minlength=len(layers.kinds))[blocks]
    each = _each(ranks, blocks, counts, kinds)
    if not (each.layer_s > 0).all():
        return None
    spares = [kind for kind, saved in each.saved_bytes.items() if (saved > 0).any()]
    return Divisible(
        layer_s=each.layer_s,
        counts=counts,
        holdings=ranks[0].holdings_of_one(blocks),
        once_s=float(each.layer_s @ counts),
        kept_bytes=float((each.kept_bytes / each.layer_s).min()),
        spared_bytes=max((float((each.saved_bytes[kind] / each.layer_s).max()) for kind in spares), default=0.0),
        again_s=min((_least_each(each.dearer_s[kind], each.saved_bytes[kind]) for kind in spares), default=0.0),
        whole=_whole_layers(ranks[0], blocks, counts, each),
    )


def _least_each(seconds: Floats, some_bytes: Floats) -> float:
    """Seconds a byte where they are fewest, of those with bytes."""
    return float((seconds[some_bytes > 0] / some_bytes[some_bytes > 0]).min())


def _each(
    ranks: tuple[RankShards, ...], blocks: list[int], counts: NDArray[np.int64], kinds: tuple[RecomputeKind, ...]
) -> _Each:
    wanted: list[RecomputeKind] = [kind for kind in kinds if kind != NONE]
    variants = [(block, kind) for kind in (NONE, *wanted) for block in blocks]
    rows = _rows_less_one(tuple(np.maximum(1, counts // 2).tolist()), len(wanted))
    # By rank, kind of recomputation, and whether it is a layer that is kept or one that is computed again.
    longer = np.array([_longer_by_one_s(shards.passes_s(rows, variants), wanted, len(blocks)) for shards in ranks])
    forward_s, both_s = longer[:, 0], longer.sum(axis=1)
    dearer_s = np.maximum(both_s[:, :, -1] - both_s[:, :, 0], 0.0).min(axis=0)
    kept = ranks[0].kept_bytes([(block, False) for block in blocks], NONE)
    # Nothing recomputed comes first.
    nothing: dict[RecomputeKind, Floats] = {NONE: np.zeros(len(blocks))} if NONE in kinds or not wanted else {}
    again: list[Variant] = [(block, True) for block in blocks]
    saved = {kind: kept - ranks[0].kept_bytes(again, kind) for kind in wanted}
    return _Each(
        layer_s=both_s[:, :, 0].min(axis=(0, 1)),
        forward_s=np.maximum(forward_s.min(axis=(0, 1, 2)), 0.0),
        kept_bytes=kept,
        saved_bytes=nothing | saved,
        dearer_s=nothing | dict(zip(wanted, dearer_s, strict=False)),
    )


@lru_cache(maxsize=64)
def _rows_less_one(halves: tuple[int, ...], kinds: int) -> Floats:
    """Counts of layers that are kept, and of those computed again in each of so many ways: so many of either under one
    of them, and the same less one layer of each in turn."""
    blocks = len(halves)
    rows = []
    for kind in range(max(1, kinds)):
        places = [*range(blocks), *range(blocks * (kind + 1), blocks * (kind + 2))][: blocks * (1 + min(1, kinds))]
        whole = np.zeros(blocks * (1 + kinds))
        whole[places] = halves * (len(places) // blocks)
        rows += [whole, *(whole - np.eye(len(whole))[place] for place in places)]
    made = np.array(rows)
    made.setflags(write=False)
    return made


def _longer_by_one_s(passes_s: tuple[Floats, Floats], wanted: Sequence[RecomputeKind], blocks: int) -> Floats:
    """By how much passes of `_rows_less_one` are longer by one layer, (passes, kinds of recomputation, kept or computed
    again, blocks)."""
    seconds = np.array(passes_s).reshape(2, max(1, len(wanted)), -1)
    return (seconds[:, :, :1] - seconds[:, :, 1:]).reshape(2, max(1, len(wanted)), -1, blocks)


def _whole_layers(
    shards: RankShards, blocks: list[int], counts: NDArray[np.int64], each: _Each
) -> tuple[tuple[int | None, WholeLayers], ...]:
    """The most frequent layers alone, and all layers, by what each kind takes, of it forward, and keeps; with what
    memory holds loosely beside what is kept and what lives while a chunk's last such layer runs: by then the layers
    after it have given back no more than they keep."""
    features = shards.features
    loose = FIRM_SHARE if features.fragmentation >= features.activation_fragmentation else 0.0
    kept_share, lives_share = 1 + loose * features.activation_fragmentation, 1 + loose * features.fragmentation
    plain: list[Variant] = [(kind, False) for kind in blocks]
    again: list[Variant] = [(kind, True) for kind in blocks]
    beside = {
        kind: lives_share * np.minimum(shards.beside_bytes(plain, kind), shards.beside_bytes(again, kind))
        for kind in each.saved_bytes
    }

    def layers_of(places: slice) -> WholeLayers:
        return WholeLayers(
            count=int(counts[places].sum()),
            layer_s=float(each.layer_s[places].min()),
            forward_s=float(each.forward_s[places].min()),
            kept_bytes=kept_share * float(each.kept_bytes[places].min()),
            reruns=tuple(
                Rerun(
                    saved_bytes=kept_share * float(saved[places].max()),
                    again_s=_again_s(places, each.layer_s, each.dearer_s[kind]),
                    beside_bytes=float(beside[kind][places].min()),
                    counted=kind == "full",
                )
                for kind, saved in each.saved_bytes.items()
            ),
        )

    most = int(counts.argmax())
    alone = most, layers_of(slice(most, most + 1))
    return (alone, (None, layers_of(slice(None)))) if len(counts) > 1 else (alone,)


def _again_s(places: slice, layer_s: Floats, dearer_s: Floats) -> float:
    """Seconds that one more layer takes at least for being computed again, in stages of which those at `places` are
    counted: where it is another one in their stead, that one's own passes are not counted, and more than make up."""
    of_these = float(dearer_s[places].min())
    return of_these if (layer_s + dearer_s >= of_these).all() else float(dearer_s.min())


def standing_of_each(layers: Divisible, kind: StageKind, rule: StateRule) -> Floats:
    """Return the bytes of state that one layer of each kind holds at least on stages of that kind under a rule of
    state."""
    features = kind.shards.features
    held = standing_bytes(kind.setup.recipe, kind.under(ANY_RANGES, rule), layers.holdings, features)
    # Where each gradient is given up at once, one layer's are held.
    state = held.weights + held.optimizer if features.step_in_backward else held.state
    return np.maximum(np.asarray(state) - ROUNDED_UP_BYTES, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """Of many pipelines, one a place, so many stages; by stage on one more axis bytes that it has for layers, none
    where a pipeline has no such stage, and micro-batches that it keeps. `once_s` of all layers together;
    `standing_bytes`, `kept_bytes`, `spared_bytes` of a second's worth of them, `again_s` for a byte fewer kept."""

    stages: NDArray[np.int64]
    room_bytes: Floats
    flying: Floats
    once_s: Floats
    standing_bytes: Floats
    kept_bytes: Floats
    spared_bytes: Floats
    again_s: Floats


def least_in_memory(rooms: Rooms) -> tuple[Floats, Floats]:
    """Return of each pipeline (seconds that all stages together spend on recomputing, seconds of the slowest stage) at
    least, for a micro-batch through all stages; infinite where the layers do not fit."""
    flying, room = rooms.flying, np.maximum(rooms.room_bytes, 0.0)
    once, standing, kept = rooms.once_s[:, None], rooms.standing_bytes[:, None], rooms.kept_bytes[:, None]
    load = standing + flying * kept
    tight = standing + flying * np.maximum(0.0, kept - rooms.spared_bytes[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        free = np.where(load > 0, room / load, np.inf)
        most = np.where(tight > 0, room / tight, np.inf)
    slope = rooms.again_s[:, None] * load / flying
    free = np.minimum(free, once)
    most = np.maximum(free, np.minimum(most, once))
    fits = most.sum(axis=-1) >= rooms.once_s * (1 - 1e-9)
    # Recomputed where it is cheapest, whatever that does to the balance.
    order = np.argsort(slope, axis=-1)
    ahead = np.take_along_axis(most - free, order, axis=-1)
    before = np.cumsum(ahead, axis=-1) - ahead
    lacking = np.maximum(rooms.once_s - free.sum(axis=-1), 0.0)[:, None]
    again_s = (np.clip(lacking - before, 0.0, ahead) * np.take_along_axis(slope, order, axis=-1)).sum(axis=-1)
    # And balanced: the least time in which the stages hold all layers.
    low = rooms.once_s / rooms.stages
    high = (most + slope * (most - free)).max(axis=-1)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        slow = middle[:, None]
        held = np.minimum(most, np.where(slow <= free, slow, free + (slow - free) / (1.0 + slope)))
        enough = held.sum(axis=-1) >= rooms.once_s
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(fits, again_s, np.inf), np.where(fits, low, np.inf)
