"""A model as counts: which layers are alike, and how many of each a chunk holds with how many recomputed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from estimator.pricing.recipe import Recipe
from models_zoo.layers import Embedding, Head, Layer, TransformerBlock
from models_zoo.model import Model

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
    """The kinds of a model's layers. The only state is caches."""

    kinds: tuple[LayerKind, ...]
    kind_of_layer: tuple[int, ...]
    _of_content: dict[tuple[int, int], Composition] = field(default_factory=dict, repr=False, compare=False)
    _contents: dict[object, tuple[tuple[int, ...], ...]] = field(default_factory=dict, repr=False, compare=False)
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict, repr=False, compare=False)
    _counted: list[int] = field(default_factory=list, repr=False, compare=False)

    def composition(self, first: int, end: int, recomputed: int) -> Composition:
        """Of layers [first, end), of which the first `recomputed` that can be are."""
        ((content,),) = self.contents((((first, end),),))
        return self.composition_of(content, recomputed)

    def contents(self, cut: tuple[tuple[tuple[int, int], ...], ...]) -> tuple[tuple[int, ...], ...]:
        """A number for what each stage's each chunk holds: equal numbers, equal kinds of layers in the same order."""
        found = self._contents.get(cut)
        if found is None:
            found = self._contents[cut] = tuple(tuple(self._content(*part) for part in ranges) for ranges in cut)
        return found

    def _content(self, first: int, end: int) -> int:
        return self._numbers.setdefault(self.kind_of_layer[first:end], len(self._numbers))

    def composition_of(self, content: int, recomputed: int) -> Composition:
        """Of layers that hold `content`."""
        key = (content, recomputed)
        found = self._of_content.get(key)
        if found is None:
            counts: dict[Variant, int] = {}
            left = recomputed
            for kind in list(self._numbers)[content]:
                again = left > 0 and self.kinds[kind].recomputable
                left -= again
                counts[kind, again] = counts.get((kind, again), 0) + 1
            found = self._of_content[key] = tuple(counts.items())
        return found

    @property
    def boundaries_differ(self) -> bool:
        """Whether what a layer hands on depends on the layer: not in a transformer."""
        return not any(isinstance(kind.layer, TransformerBlock | Embedding) for kind in self.kinds)

    def recomputable(self, first: int, end: int) -> int:
        """How many of layers [first, end) recomputation counts."""
        sums = self._counted
        if not sums:
            sums.append(0)
            sums.extend(accumulate(int(self.kinds[kind].recomputable) for kind in self.kind_of_layer))
        return sums[end] - sums[first]


def read_layers(model: Model, recipe: Recipe) -> ModelLayers:
    """The kinds of `model`'s layers under `recipe`: a layer that does not learn is of another kind."""
    frozen = recipe.frozen_layers
    kinds: dict[tuple[Layer, bool, bool], int] = {}
    firsts: list[LayerKind] = []
    numbers = []
    for index, layer in enumerate(model.layers):
        held = frozen is not None and frozen[0] <= index < frozen[1]
        passes = not (frozen is not None and frozen[0] == 0 and index < frozen[1])
        number = kinds.setdefault((layer, held, passes), len(kinds))
        if number == len(firsts):
            firsts.append(LayerKind(layer=layer, index=index))
        numbers.append(number)
    return ModelLayers(kinds=tuple(firsts), kind_of_layer=tuple(numbers))
