"""What every run of a model's layers holds and keeps on a rank, all runs at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from estimator.layers.graph import shared_weights
from estimator.layers.split import Work
from estimator.pricing.memory import Holdings, features_of
from estimator.pricing.memory_moment import layer_bytes
from estimator.pricing.recipe import Recipe
from models_zoo.model import Model
from profiles.records import dataclass
from profiles.vocabulary import held_bytes

Amounts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerRuns:
    """What ranks hold of all runs of layers, (first, last), and keep of them for a micro-batch; at the fullest moment
    of their backward passes what lives for one layer beside what those after it have given back. `there`: the layers
    that can be held so."""

    held: Holdings
    saved: Amounts
    extra: Amounts
    freed: Amounts
    there: npt.NDArray[np.bool_]


def list_runs(works: Sequence[Work | None], kinds: Sequence[int], model: Model, recipe: Recipe, tp: int) -> LayerRuns:
    """Return the runs of layers whose works are `works` (None: cannot be had), the same for equal `kinds`."""
    features, count = features_of(recipe), len(works)
    layers = _layers_of(works, kinds)
    shared = _repeated(model, tp, count)
    parameters, experts = layers.of("parameters"), layers.of("expert_parameters")
    learning, learning_experts = layers.of("trainable_parameters"), layers.of("trainable_expert_parameters")
    plain, frozen = layers.in_blocks(frozen=False), layers.in_blocks(frozen=True)
    held = Holdings(
        dense=_sums(parameters) - shared,
        dense_learning=_sums(learning) - shared,
        experts=_sums(experts),
        experts_learning=_sums(learning_experts),
        matrices_learning=_sums(parameters * plain),
        matrices_frozen=_sums(parameters * frozen - learning * frozen),
        narrow_experts=_sums(learning_experts * plain),
        largest_layer=_greatest(parameters + experts),
        largest_learning=_greatest(learning + learning_experts),
        largest_matrix=_greatest(layers.of("largest_matrix")),
        ends=_sums(parameters * layers.each([bool(work and work.is_end) for work in layers.kinds])),
    )
    saved, width = layers.of("saved_bytes"), held_bytes(recipe.dtype)
    extra = layers.each([layer_bytes(work, width, features) if work else 0 for work in layers.kinds])
    # While a layer's backward runs, those after it have freed what they kept: the moment at which most lives.
    before = np.cumsum(saved)
    alive = np.broadcast_to(extra + before, (count, count))
    fullest = np.maximum.accumulate(np.where(alive >= _greatest(extra + before), np.arange(count), 0), axis=1)
    is_more = alive[0][fullest] > before[None, :]
    return LayerRuns(
        held=held,
        saved=_sums(saved),
        extra=np.where(is_more, extra[fullest], 0),
        freed=np.where(is_more, before[None, :] - before[fullest], 0),
        there=np.array([work is not None for work in works]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Layers:
    """The works of a model's kinds of layers (None: cannot be had), and which kind each layer is of."""

    kinds: tuple[Work | None, ...]
    kind_of: npt.NDArray[np.int64]

    def of(self, name: str) -> Amounts:
        """One figure of each layer; 0 of those that cannot be had."""
        return self.each([getattr(work, name) if work else 0 for work in self.kinds])

    def each(self, figures: Sequence[float]) -> Amounts:
        """One figure of each layer, from one of each kind."""
        of_layers: Amounts = np.array(figures, dtype=np.float64)[self.kind_of]
        return of_layers

    def in_blocks(self, *, frozen: bool) -> Amounts:
        """1 of each layer that is in a block whose weights are frozen, or are not and have narrow products where others
        have; 0 of the others."""
        return self.each(
            [
                work is not None and not work.is_end and work.frozen == frozen and not (work.wide and not frozen)
                for work in self.kinds
            ]
        )


def _layers_of(works: Sequence[Work | None], kinds: Sequence[int]) -> _Layers:
    of_kind = dict(zip(kinds, works, strict=True))
    places = {kind: number for number, kind in enumerate(of_kind)}
    return _Layers(kinds=tuple(of_kind.values()), kind_of=np.array([places[kind] for kind in kinds], dtype=np.int64))


def _repeated(model: Model, tp: int, layers: int) -> Amounts | float:
    """Parameters that every run of layers counts more than once."""
    repeated: Amounts | float = 0.0
    for group in shared_weights(model, tp):
        holders = np.bincount(group.holders, minlength=layers)
        repeated = repeated + group.parameters * np.maximum(0, _sums(holders.astype(np.float64)) - 1)
    return repeated


def _sums(values: Amounts) -> Amounts:
    """Of every run of layers (first, last); nothing sensible where the last comes before the first."""
    before = np.concatenate([[0], np.cumsum(values)])
    sums: Amounts = before[None, 1:] - before[:-1, None]
    return sums


def _greatest(values: Amounts) -> Amounts:
    """The greatest of every run of layers (first, last)."""
    after = np.where(np.tri(len(values), dtype=np.bool_).T, values[None, :], 0)
    greatest: Amounts = np.maximum.accumulate(after, axis=1)
    return greatest
