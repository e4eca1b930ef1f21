"""How long pipelines take at least as their stages hold whole layers, and as many as fit: of many pipelines at once.

One rule of recomputation holds for all stages of a plan: what the fullest stage has to compute again, the slowest one
does too. Layers of one kind are looked at alone, as if nothing else were held; or all of them, each as the least of
any kind (tests: `test_bulk_pipelines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.amounts import Amount, Floats
from profiles.records import dataclass, replace

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


Record = TypeVar("Record", WholeLayers, HeldStages)


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
    for number in range(len(layers.reruns)):
        least = _least_under_s(layers, number, held, least)
    return least


def _least_under_s(layers: WholeLayers, rerun_number: int, held: HeldStages, least: Floats) -> Floats:
    """What is less under one kind of recomputation than `least`: for one number of layers of the fullest stage after
    another, as long as that can be."""
    rerun, count = layers.reruns[rerun_number], layers.count
    each_s = np.asarray(held.micro_batches * layers.layer_s)
    again_s = np.asarray(held.micro_batches * rerun.again_s)
    number = -(-count // held.stages)
    rows = np.flatnonzero(_at_least_s(rerun, number, each_s, again_s) < least)
    if not len(rows):
        return least
    least, all_again = least.copy(), np.zeros_like(held.flying)
    all_again[rows] = _most_again(only(layers, rows), rerun_number, only(held, rows))
    rows = rows[all_again[rows].sum(axis=-1) >= count]
    for _ in range(LOOKED_AT):
        if not len(rows):
            return least
        most, fullest = all_again[rows], number[rows]
        fits = _enough(most, fullest, count)
        fitting = rows[fits]
        if len(fitting):
            some, these, most, fullest = only(layers, fitting), only(held, fitting), most[fits], fullest[fits]
            again = _fewest_again(some, rerun_number, these, fullest, most) if rerun.counted else fullest
            took = _slowest_s(some, these, fullest, np.asarray(again * some.reruns[rerun_number].again_s))
            least[fitting] = np.minimum(took, least[fitting])
        number = number + 1
        rows = rows[_at_least_s(rerun, number[rows], each_s[rows], again_s[rows]) < least[rows]]
    least[rows] = np.minimum(least[rows], _at_least_s(rerun, number, each_s, again_s)[rows])
    return least


def _at_least_s(rerun: Rerun, number: Integers, each_s: Floats, again_s: Floats) -> Floats:
    """What a stage of so many layers takes at least, one of them computed again, or all."""
    return np.asarray(number * each_s + (1 if rerun.counted else number) * again_s)


def only(record: Record, rows: Integers) -> Record:
    """Return the pipelines at these places of `record`, ascending."""
    if len(rows) == len(record.layer_s if isinstance(record, WholeLayers) else record.stages):  # type: ignore[arg-type]
        return record
    if isinstance(record, WholeLayers):
        reruns = tuple(
            replace(
                rerun,
                **{name: getattr(rerun, name)[rows] for name in ("saved_bytes", "again_s", "beside_bytes")},
            )
            for rerun in record.reruns
        )
        return replace(
            record,
            reruns=reruns,
            **{name: getattr(record, name)[rows] for name in ("layer_s", "forward_s", "kept_bytes")},
        )
    return replace(record, **{part.name: getattr(record, part.name)[rows] for part in fields(record)})


def _most_again(layers: WholeLayers, rerun_number: int, held: HeldStages) -> Floats:
    """How many layers each stage holds at most that computes all of them again."""
    rerun = layers.reruns[rerun_number]
    kept = _by_stage(np.maximum(0.0, layers.kept_bytes - rerun.saved_bytes))
    load = _by_stage(held.standing_bytes) + held.flying * kept
    return _most_layers(_room_bytes(layers, rerun, held), load, layers.count)


def _fewest_again(
    layers: WholeLayers, rerun_number: int, held: HeldStages, number: Integers, all_again: Floats
) -> Integers:
    """How many layers of each stage are computed again at least, where none holds more than `number` of them, and
    `all_again` fit where all are."""
    rerun = layers.reruns[rerun_number]
    standing, kept = _by_stage(held.standing_bytes), _by_stage(layers.kept_bytes)
    room, load = _room_bytes(layers, rerun, held), standing + held.flying * kept
    spared = held.most_flying * np.minimum(_by_stage(rerun.saved_bytes), kept)

    def enough(again: Integers) -> NDArray[np.bool_]:
        counted = _by_stage(again)
        more = np.maximum(_most_layers(room + spared * counted, load, layers.count), np.minimum(all_again, counted))
        return _enough(np.where(all_again < counted, all_again, more), number, layers.count)

    low, high = np.ones_like(number), number
    for _ in range(int(number.max()).bit_length()):
        middle = (low + high) // 2
        held_so = enough(middle)
        low, high = np.where(held_so, low, np.minimum(middle + 1, high)), np.where(held_so, middle, high)
    return high


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


def _slowest_s(layers: WholeLayers, held: HeldStages, number: Integers, again_s: Floats) -> Floats:
    """Seconds until the last of the fullest stages has ended, which hold `number` of layers and take `again_s` of a
    micro-batch to compute some again: its passes, and before it the first micro-batch forward and backward through the
    others, or forward and then its sums."""
    others = np.where(held.waits, np.maximum(0, layers.count - held.stages * (number - 1) - 1), 0)
    stage_s = number * layers.layer_s + again_s
    before_s = np.maximum(others * stage_s, others * number * layers.forward_s + number * held.sums_s)
    return np.asarray(held.micro_batches * stage_s + before_s)
