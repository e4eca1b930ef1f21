"""The different stages of many cuts: alike ones are one class, and each class's chunks are priced once a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Composition, ModelLayers
from estimator.bulk.records import Rule
from estimator.bulk.stage_kind import StageKind
from estimator.pricing.amounts import Amount, Floats
from estimator.pricing.build import Ranges
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind

Integers = NDArray[np.int64]
CHUNK_FIELDS = ("forward_s", "backward_s", "weight_s", "saved_bytes", "extra_bytes", "freed_bytes")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """The different stages of a family's cuts: where each sits (a `StageKind`) and one example of its ranges; which one
    every stage of every cut is, (stages, cuts)."""

    where: tuple[int, ...]
    ranges: tuple[Ranges, ...]
    of_stage: Integers

    def spread(self, values: Floats) -> Floats:
        """Return (classes, rules, ...) as (stages, ..., cuts * rules)."""
        of_stages = values[self.of_stage]  # (stages, cuts, rules, ...)
        stages, cuts, rules = of_stages.shape[:3]
        if of_stages.ndim == 4:
            return np.ascontiguousarray(of_stages.transpose(0, 3, 1, 2)).reshape(stages, -1, cuts * rules)
        return of_stages.reshape(stages, cuts * rules)

    def each(self, values: Amount, rules: int) -> Floats:
        """Return one figure a class as (stages, cuts * rules)."""
        return np.repeat(np.broadcast_to(values, len(self.where))[self.of_stage], rules, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkTable:
    """Chunks of every class under every rule of recomputation, (classes, rules, chunks). Equal chunks are priced once:
    `grouped` has them by where they sit and what is recomputed, `index` says which one each is."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    saved_bytes: Floats
    extra_bytes: Floats
    freed_bytes: Floats
    grouped: Mapping[tuple[int, RecomputeKind], Sequence[tuple[Composition, int]]]
    index: Integers


@lru_cache(maxsize=256)
def stage_classes(layers: ModelLayers, kind_of_stage: tuple[int, ...], cuts: tuple[tuple[Ranges, ...], ...]) -> Classes:
    """Return the classes of the stages of `cuts`, stage by stage of the kinds `kind_of_stage`."""
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    ranges_of: list[Ranges] = []
    of_stage = []
    for cut in cuts:
        stages = []
        for where, ranges, contents in zip(kind_of_stage, cut, layers.contents(cut), strict=True):
            number = numbers.setdefault((where, contents), len(numbers))
            if number == len(ranges_of):
                ranges_of.append(ranges)
            stages.append(number)
        of_stage.append(stages)
    return Classes(where=tuple(where for where, _ in numbers), ranges=tuple(ranges_of), of_stage=np.array(of_stage).T)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ChunkKinds:
    """Which chunks of classes under rules of recomputation are equal, as `ChunkTable` has it."""

    grouped: Mapping[tuple[int, RecomputeKind], Sequence[tuple[Composition, int]]]
    index: Integers


def chunk_table(layers: ModelLayers, kinds: Sequence[StageKind], classes: Classes, rules: Sequence[Rule]) -> ChunkTable:
    """Return what chunks of every class take and keep under every rule; those that come first in a stage are recomputed
    first."""
    chunk_kinds = _chunk_kinds(layers, classes.where, classes.ranges, tuple(rules))
    grouped, index = chunk_kinds.grouped, chunk_kinds.index
    flat = {name: np.empty(sum(map(len, grouped.values()))) for name in CHUNK_FIELDS}
    for (place, kind_name), alike in grouped.items():
        chunks = kinds[place].shards.chunks([composition for composition, _ in alike], kind_name)
        rows = [row for _, row in alike]
        for name in CHUNK_FIELDS:
            flat[name][rows] = getattr(chunks, name)
    return ChunkTable(**{name: flat[name][index] for name in CHUNK_FIELDS}, grouped=grouped, index=index)


@lru_cache(maxsize=256)
def _chunk_kinds(
    layers: ModelLayers, where: tuple[int, ...], ranges: tuple[Ranges, ...], rules: tuple[Rule, ...]
) -> _ChunkKinds:
    contents = np.array(layers.contents(ranges), dtype=np.int64)  # (classes, chunks)
    blocks = np.array([[layers.recomputable(*part) for part in stage] for stage in ranges])
    before = np.cumsum(blocks, axis=1) - blocks
    most = len(layers.kind_of_layer)
    counts = np.array([0 if kind == "none" else most if count is None else count for kind, count in rules])
    again = np.clip(counts[None, :, None] - before[:, None, :], 0, blocks[:, None, :])
    names = list(dict.fromkeys(kind for kind, _ in rules))
    kind_of_rule = np.array([names.index(kind) for kind, _ in rules])
    # One number for each (where, kind of recomputation, content, layers recomputed).
    codes = np.array(where)[:, None, None] * len(names) + np.where(again > 0, kind_of_rule[None, :, None], 0)
    codes = (codes * (int(contents.max()) + 1) + contents[:, None, :]) * (most + 1) + again
    distinct, index = np.unique(codes, return_inverse=True)
    grouped: dict[tuple[int, RecomputeKind], list[tuple[Composition, int]]] = {}
    for row, code in enumerate(distinct.tolist()):
        code, count = divmod(code, most + 1)
        code, content = divmod(code, int(contents.max()) + 1)
        place, kind = divmod(code, len(names))
        composition = layers.composition_of(content, count)
        grouped.setdefault((place, names[kind] if count else "none"), []).append((composition, row))
    return _ChunkKinds(grouped=grouped, index=index.reshape(codes.shape))
