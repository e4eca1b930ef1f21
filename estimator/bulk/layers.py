"""A model as counts: which layers are alike, and how many of each a chunk holds with how many recomputed."""

from __future__ import annotations

from collections import Counter
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.recipe import Recipe
from estimator.pricing.wide_layers import narrow_layers
from models_zoo.layers import Embedding, Head, Layer, TransformerBlock
from models_zoo.model import Model
from profiles.records import dataclass

Variant = tuple[int, bool]
"""A kind of layer, and whether it is recomputed."""
Composition = tuple[tuple[Variant, int], ...]
"""How many layers of each variant, in the order in which the first of each stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Layers that cost the same: `index` is the first of them in the model."""

    layer: Layer
    index: int

    @property
    def recomputable(self) -> bool:
        """Whether recomputation counts it: an embedding or head is never run again."""
        return not isinstance(self.layer, Embedding | Head)


@dataclass(frozen=True, kw_only=True)
class ModelLayers:
    """The kinds of a model's layers, and the kind of each layer."""

    kinds: tuple[LayerKind, ...]
    kind_of_layer: tuple[int, ...]

    def composition(self, first: int, end: int, recomputed: int) -> Composition:
        """Return how many layers of each variant [first, end) has, of which the first `recomputed` that can be are."""
        return _composition(self.kind_of_layer[first:end], self._can_recompute, recomputed)

    def contents(self, cut: tuple[tuple[tuple[int, int], ...], ...]) -> tuple[tuple[int, ...], ...]:
        """Return a number for what each stage's each chunk holds: equal numbers, equal kinds of layers in the same
        order."""
        return _contents(self.kind_of_layer, cut)

    def composition_of(self, content: int, recomputed: int) -> Composition:
        """Return how many layers of each variant a chunk of that content has."""
        first, length = divmod(content, len(self.kind_of_layer) + 1)
        return self.composition(first, first + length, recomputed)

    @property
    def boundaries_differ(self) -> bool:
        """Whether what a layer hands on depends on the layer: not in a transformer."""
        return not any(isinstance(kind.layer, TransformerBlock | Embedding) for kind in self.kinds)

    def recomputable(self, first: int, end: int) -> int:
        """Return how many of layers [first, end) recomputation counts."""
        return self._counted[end] - self._counted[first]

    @cached_property
    def counts(self) -> NDArray[np.float64]:
        """How many layers there are of each kind."""
        return np.bincount(self.kind_of_layer, minlength=len(self.kinds)).astype(np.float64)

    @cached_property
    def _can_recompute(self) -> tuple[bool, ...]:
        return tuple(kind.recomputable for kind in self.kinds)

    @cached_property
    def _counted(self) -> tuple[int, ...]:
        """How many of the first layers recomputation counts."""
        return (0, *accumulate(int(self._can_recompute[kind]) for kind in self.kind_of_layer))


@lru_cache(maxsize=1 << 16)
def _contents(
    kind_of_layer: tuple[int, ...], cut: tuple[tuple[tuple[int, int], ...], ...]
) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_content(kind_of_layer, first, end) for first, end in ranges) for ranges in cut)


@lru_cache(maxsize=1 << 16)
def _content(kind_of_layer: tuple[int, ...], first: int, end: int) -> int:
    """Where such a run of layers stands first, and how long it is, in one number."""
    run = kind_of_layer[first:end]
    place = next(place for place in range(first + 1) if kind_of_layer[place : place + len(run)] == run)
    return place * (len(kind_of_layer) + 1) + len(run)


@lru_cache(maxsize=1 << 16)
def _composition(run: tuple[int, ...], can_recompute: tuple[bool, ...], recomputed: int) -> Composition:
    if not recomputed:
        return tuple(((kind, False), count) for kind, count in Counter(run).items())
    places = [place for place, kind in enumerate(run) if can_recompute[kind]][:recomputed]
    end = places[-1] + 1 if places else 0
    counts = Counter((kind, can_recompute[kind]) for kind in run[:end])
    counts.update((kind, False) for kind in run[end:])
    return tuple(counts.items())


def read_layers(model: Model, recipe: Recipe) -> ModelLayers:
    """The kinds of `model`'s layers under `recipe`: a layer that does not learn, or whose products stay in 16 bits, is
    of another kind."""
    frozen, narrow = recipe.frozen_layers, narrow_layers(model, recipe)
    kinds: dict[tuple[Layer, bool, bool, bool], int] = {}
    firsts: list[LayerKind] = []
    numbers = []
    for index, layer in enumerate(model.layers):
        held = frozen is not None and frozen[0] <= index < frozen[1]
        passes = not (frozen is not None and frozen[0] == 0 and index < frozen[1])
        number = kinds.setdefault((layer, held, passes, index in narrow), len(kinds))
        if number == len(firsts):
            firsts.append(LayerKind(layer=layer, index=index))
        numbers.append(number)
    return ModelLayers(kinds=tuple(firsts), kind_of_layer=tuple(numbers))
