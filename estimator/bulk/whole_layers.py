"""How long pipelines take at least as their stages hold whole layers, and as many as fit: of many pipelines at once.

One rule of recomputation holds for all stages of a plan: what the fullest stage has to compute again, the slowest one
does too. Layers of one kind are looked at alone, as if nothing else were held; or all of them, each as the least of
any kind (tests: `test_bulk_pipelines`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.amounts import Amount, Floats
from profiles.records import dataclass

Integers = NDArray[np.int64]
LOOKED_AT = 3
"""So many numbers of layers that the fullest stage may hold are told apart; more are taken to fit."""
GENEROUS = 1 + 1e-9
"""Rounding never takes a layer away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A kind of recomputation of a layer: bytes that it keeps fewer for a micro-batch at most, seconds that it takes
    longer at least; `beside_bytes` live at least beside what is kept. `counted`: of as many layers of a stage as is
    chosen, else of all."""

    saved_bytes: Amount
    again_s: Amount
    beside_bytes: Amount
    counted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeLayers:
    """So many layers, each of which takes at least `layer_s` of a micro-batch, of it `forward_s` forward, and keeps at
    least `kept_bytes` of it; `reruns` are open. Figures are of one pipeline, or of one a place (`join_layers`)."""

    count: int
    layer_s: Amount
    forward_s: Amount
    kept_bytes: Amount
    reruns: tuple[Rerun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStages:
    """Of many pipelines, one a place: how many stages and micro-batches they have, and whether stages wait for those
    before them (`estimator.bulk.open_ways`). By stage on one more axis: `room_bytes` for layers, none where a pipeline
    has no such stage; micro-batches `flying` at least for each layer that is kept, but for `uneven` of a layer all in
    all; `most_flying` for one that is computed again. `standing_bytes` of a layer, and `sums_s`, what comes once an
    iteration of it."""

    stages: Integers
    micro_batches: Integers
    waits: NDArray[np.bool_]
    room_bytes: Floats
    flying: Floats
    uneven: Floats
    most_flying: Floats
    standing_bytes: Floats
    sums_s: Floats


def join_layers(each: Sequence[WholeLayers], places: Integers) -> WholeLayers:
    """Return the layers of many pipelines, of each those at its place in `each`; all have as many and the same
    reruns."""

    def joined(amounts: list[Amount]) -> Floats:
        return np.array(amounts)[places]

    reruns = tuple(
        Rerun(
            saved_bytes=joined([rerun.saved_bytes for rerun in alike]),
            again_s=joined([rerun.again_s for rerun in alike]),
            beside_bytes=joined([rerun.beside_bytes for rerun in alike]),
            counted=alike[0].counted,
        )
        for alike in zip(*(layers.reruns for layers in each), strict=True)
    )
    return WholeLayers(
        count=each[0].count,
        layer_s=joined([layers.layer_s for layers in each]),
        forward_s=joined([layers.forward_s for layers in each]),
        kept_bytes=joined([layers.kept_bytes for layers in each]),
        reruns=reruns,
    )


def least_with_whole_layers_s(layers: WholeLayers, held: HeldStages) -> Floats:
    """Return of each pipeline: no plan whose stages hold these layers takes less; infinite where they do not fit.

    Let the fullest of S stages hold n of N layers, r of which are computed again. At least N - S (n - 1) stages hold as
    many, so that where stages wait all of these but the last stand before the last.
    """
    least = np.full(held.stages.shape, np.inf)
    for rerun in layers.reruns:
        bound = _counted_s(layers, rerun, held) if rerun.counted else _all_again_s(layers, rerun, held)
        least = np.minimum(least, bound)
    return least


def _all_again_s(layers: WholeLayers, rerun: Rerun, held: HeldStages) -> Floats:
    """With all layers computed again, or none of them where that saves nothing."""
    kept = _by_stage(np.maximum(0.0, layers.kept_bytes - rerun.saved_bytes))
    load = _by_stage(held.standing_bytes) + held.flying * kept
    most = _most_layers(_room_bytes(layers, rerun, held), load, layers.count)
    fewest = -(-layers.count // held.stages)
    each_s = held.micro_batches * (layers.layer_s + rerun.again_s)
    least = _beyond(most, layers.count, (fewest + LOOKED_AT) * each_s)
    for more in reversed(range(LOOKED_AT)):
        number = fewest + more
        fits = _enough(most, number, layers.count)
        least = np.where(fits, np.minimum(_slowest_s(layers, held, number, number * each_s), least), least)
    return least


def _counted_s(layers: WholeLayers, rerun: Rerun, held: HeldStages) -> Floats:
    """With some layers of each stage computed again, as few as can be for each number of layers of the fullest."""
    standing, kept = _by_stage(held.standing_bytes), _by_stage(layers.kept_bytes)
    saved = np.minimum(_by_stage(rerun.saved_bytes), kept)
    room, load = _room_bytes(layers, rerun, held), standing + held.flying * kept
    # Of stages that compute all of them again, and of those that hold more.
    all_again = _most_layers(room, standing + held.flying * (kept - saved), layers.count)
    spared = held.most_flying * saved

    def most(again: Integers) -> Floats:
        count = _by_stage(again)
        more = _most_layers(room + spared * count, load, layers.count)
        return np.where(all_again < count, all_again, np.maximum(more, np.minimum(all_again, count)))

    fewest = -(-layers.count // held.stages)
    each_s, again_s = held.micro_batches * layers.layer_s, held.micro_batches * rerun.again_s
    least = _beyond(all_again, layers.count, (fewest + LOOKED_AT) * each_s + again_s)
    for more in reversed(range(LOOKED_AT)):
        number = fewest + more
        fits = _enough(all_again, number, layers.count)
        low, high = np.ones_like(number), number
        for _ in range(int(number.max()).bit_length()):
            middle = (low + high) // 2
            enough = _enough(most(middle), number, layers.count)
            low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
        took = _slowest_s(layers, held, number, number * each_s + high * again_s)
        least = np.where(fits, np.minimum(took, least), least)
    return least


def _by_stage(amounts: Amount | Integers) -> Floats:
    return np.asarray(amounts)[..., None]


def _room_bytes(layers: WholeLayers, rerun: Rerun, held: HeldStages) -> Floats:
    """What stages have for layers."""
    return np.asarray(held.room_bytes - _by_stage(rerun.beside_bytes) + held.uneven * _by_stage(layers.kept_bytes))


def _most_layers(room_bytes: Floats, load_bytes: Floats, count: int) -> Floats:
    """How many layers a stage holds at most."""
    with np.errstate(divide="ignore", invalid="ignore"):
        number = np.where(load_bytes > 0, np.maximum(room_bytes, 0.0) / load_bytes * GENEROUS, np.inf)
    return np.minimum(np.floor(number), count)


def _enough(most: Floats, number: Integers, count: int) -> NDArray[np.bool_]:
    """Whether stages that hold `most` layers each, but no more than `number`, hold all together."""
    return np.asarray(np.minimum(most, number[..., None]).sum(axis=-1) >= count)


def _beyond(most: Floats, count: int, least_s: Floats) -> Floats:
    """What holds of stages with more layers than are looked at; infinite where no number fits."""
    return np.where(most.sum(axis=-1) >= count, least_s, np.inf)


def _slowest_s(layers: WholeLayers, held: HeldStages, number: Integers, stage_s: Floats) -> Floats:
    """Seconds until the last of the fullest stages has ended, which hold `number` of layers: its passes `stage_s`, and
    the first micro-batch before it forward and backward, or forward and then its sums."""
    before = np.where(held.waits, np.maximum(0, layers.count - held.stages * (number - 1) - 1) * number, 0)
    once_s = np.maximum(before * layers.layer_s, before * layers.forward_s + number * held.sums_s)
    return np.asarray(stage_s + once_s)
