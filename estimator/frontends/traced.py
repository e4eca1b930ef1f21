"""What both frontends make of a traced program: layers with their shards, put together to a model. No framework.

Each layer's part is known for two batch sizes at two widths of the model's own dtype, from which all others follow.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Literal

from estimator.frontends.factory import first_line
from estimator.frontends.sizes import NOTHING, Size
from models_zoo.layers import SharedWeights, TracedLayer, TracedShard
from models_zoo.model import Model, TracedInput
from models_zoo.user_code import UserFactory
from profiles.errors import InputError, MachineError
from profiles.measurements import canonical
from profiles.records import dataclass
from profiles.vocabulary import Collective, CollectiveOp, LocalLayer, Operator, OperatorKind, Phase

Framework = Literal["torch", "jax"]

DEGREES = (2, 4, 8)
WIDTHS = (2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """As `profiles.vocabulary.Operator`, with sizes for bytes."""

    name: str
    kind: OperatorKind
    shape: tuple[int, ...]
    forward_flops: int = 0
    backward_flops: int = 0
    forward: Size = NOTHING
    backward: Size = NOTHING
    saved: Size = NOTHING
    forward_kernels: int = 1
    backward_kernels: int = 1

    def at(self, width: int) -> Operator:
        """Return the operator where an element of the model's own dtype takes `width` bytes."""
        return Operator(
            name=self.name,
            kind=self.kind,
            shape=self.shape,
            forward_flops=self.forward_flops,
            backward_flops=self.backward_flops,
            forward_bytes=self.forward.at(width),
            backward_bytes=self.backward.at(width),
            saved_bytes=self.saved.at(width),
            forward_kernels=self.forward_kernels,
            backward_kernels=self.backward_kernels,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTrace:
    """A layer on one rank: its kernels, its collectives (op, size, phase, name), the weights that it holds (which, how
    many elements, whether every rank holds the same), and what enters and leaves it."""

    kernels: tuple[Kernel, ...]
    collectives: tuple[tuple[CollectiveOp, Size, Phase, str], ...]
    weights: tuple[tuple[Hashable, int, bool], ...]
    entering: Size
    leaving: Size

    def corners(self, ranks: int) -> tuple[LocalLayer, LocalLayer]:
        """Return its part on one of `ranks` ranks, at each of `WIDTHS` bytes to an element of the model's own dtype."""
        return self._local(ranks, WIDTHS[0]), self._local(ranks, WIDTHS[1])

    def _local(self, ranks: int, width: int) -> LocalLayer:
        return LocalLayer(
            operators=tuple(kernel.at(width) for kernel in self.kernels),
            collectives=tuple(
                Collective(op=op, bytes=size.at(width), phase=phase, ranks=ranks, name=name)
                for op, size, phase, name in self.collectives
            ),
            parameters=sum(count for _, count, _ in self.weights),
            replicated_parameters=sum(count for _, count, replicated in self.weights if ranks > 1 and replicated),
            input_bytes=self.entering.at(width),
            output_bytes=self.leaving.at(width),
        )


def keeping_layer(home: int, keepers: Iterable[int]) -> int:
    """Return the layer where a value made in layer `home` counts as kept for backward: of one that a single other layer
    keeps that layer, whose input it is; of one that several keep (a mask), or none but its own, `home`."""
    others = [number for number in keepers if number != home]
    return others[0] if len(others) == 1 else home


Work = tuple[TracedShard, tuple[object, ...]]
"""A layer's shard of one degree, and what of it tells its work from another's."""


class IndivisibleError(ValueError):
    """Weights that a degree of tensor parallelism does not divide."""


def two_batches(batch: int) -> tuple[int, int]:
    """Return the batch sizes to trace at. Some models treat a batch of one differently: both are at least two."""
    return max(2, batch), 2 * max(2, batch)


def shards_of(small: Sequence[LayerTrace], large: Sequence[LayerTrace], *, tp: int) -> list[TracedShard]:
    """Return each layer's shard, of its traces in the smaller and the larger batch."""
    return [
        TracedShard(tp=tp, corners=(*layer.corners(tp), *larger.corners(tp)), shared=first_held)
        for layer, larger, first_held in zip(small, large, _shared_weights(small), strict=True)
    ]


def _shared_weights(layers: Sequence[LayerTrace]) -> Iterator[tuple[SharedWeights, ...]]:
    """For each layer the weights that it is the first of several to hold, those of the same holders together."""
    holders: dict[tuple[Hashable, int], list[int]] = {}
    for number, layer in enumerate(layers):
        for weight, count, _ in layer.weights:
            holders.setdefault((weight, count), []).append(number)
    counts: Counter[tuple[int, ...]] = Counter()
    for (_, count), numbers in holders.items():
        counts[tuple(numbers)] += count if len(numbers) > 1 else 0
    groups = [SharedWeights(parameters=count, holders=numbers) for numbers, count in sorted((+counts).items())]
    yield from (tuple(group for group in groups if group.holders[0] == number) for number in range(len(layers)))


def other_work(reference: str, batches: Iterable[int], what: str) -> InputError:
    """Return the error of a model that does other work in another batch; `what` it is: a module, a function."""
    return InputError(
        where=reference,
        found=f"other operators in batches of {' and '.join(map(str, batches))}",
        expected=f"a {what} that does the same work for every batch size",
    )


def has_negative_work(shards: Iterable[TracedShard]) -> bool:
    """Return whether any operator does less in the larger batch than the smaller one can explain."""
    operators = [op for shard in shards for corner in shard.corners for op in corner.operators]
    return any(min(op.forward_flops, op.backward_flops, op.forward_bytes, op.backward_bytes) < 0 for op in operators)


def add_degrees(layers: Sequence[list[Work]], split: Callable[[int], Sequence[Work]]) -> tuple[tuple[int, str], ...]:
    """Add to each of `layers` its shards of every degree that `split` can make; return why others cannot be had.

    MachineError passes: it says nothing of the model.
    """
    refused: list[tuple[int, str]] = []
    for degree in DEGREES:
        try:
            more = split(degree)
        except MachineError:
            raise
        except IndivisibleError as error:
            refused.append((degree, str(error)))
        except Exception as error:
            refused.append((degree, f"tp = {degree}: {first_line(error)}"))
        else:
            for layer, shard in zip(layers, more, strict=True):
                layer.append(shard)
    return tuple(refused)


def traced_model(
    factory: UserFactory,
    *,
    batch: int,
    names: tuple[str, ...],
    places: Sequence[tuple[str, ...]],
    layers: Sequence[Sequence[Work]],
    refused: tuple[tuple[int, str], ...],
    framework: Framework,
) -> Model:
    """Return the model of `factory`, whose `layers` were first traced with `batch` samples."""
    context: tuple[object, ...] = (batch,) if framework == "torch" else (framework, batch)
    return model_of_layers(
        factory,
        names=names,
        layers=tuple(
            TracedLayer(
                fingerprint=_fingerprint(context, shards[:1]),
                split_fingerprint=_fingerprint(context, shards[1:]),
                factory=factory,
                batch=batch,
                places=places_of_layer,
                shards=tuple(shard for shard, _ in shards),
                refused=refused,
                framework=framework,
            )
            for places_of_layer, shards in zip(places, layers, strict=True)
        ),
    )


def model_of_layers(factory: UserFactory, *, names: tuple[str, ...], layers: tuple[TracedLayer, ...]) -> Model:
    """Return the model that `factory` makes, of its traced layers and their names."""
    return Model(
        name=factory.reference,
        family="module",
        layers=layers,
        layer_names=names,
        input=TracedInput(factory=factory),
        source=f"traced from {factory.reference}",
        kind="module",
    )


def _fingerprint(context: tuple[object, ...], shards: Sequence[Work]) -> str:
    """Of what the shards do. With whom they share their weights is no part of it."""
    described = (*context, tuple(work for _, work in shards))
    return hashlib.sha256(canonical(described).encode()).hexdigest()[:16]
