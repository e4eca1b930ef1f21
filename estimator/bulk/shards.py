"""The layers of a model as one kind of rank holds them: passes and memory of each, and of any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Composition, ModelLayers, Variant
from estimator.bulk.passes import NAMES, Floats, finish, vector_of
from estimator.layer_times import Lookup
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.build import Ranges
from estimator.pricing.gradient_sync import ShardedLayer, TimeOnAxis, exposed_sharding_s
from estimator.pricing.measured import profiled_shard
from estimator.pricing.memory import Holdings, block_shapes, holdings_of, layer_bytes
from estimator.pricing.memory_features import MemoryFeatures
from estimator.pricing.pass_time import Machine, PassSum
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.stage_cost import sharded_layer
from estimator.pricing.stage_work import ChunkWork, boundary_bytes, shared_in_chunk, split_of
from models_zoo.layers import Layer
from profiles.vocabulary import Infeasible, LayerTime, RecomputeKind, held_bytes

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayer:
    """One variant: its work, its profile and what it adds to a pass."""

    work: Work
    layer: Layer
    split: Split
    profile: LayerTime | None
    forward: list[float]
    backward: list[float]
    extra_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Of n compositions: seconds of the passes, bytes kept for a micro-batch, and at the fullest moment of a backward
    pass what lives for one layer beside what the layers after it have given back."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    saved_bytes: Floats
    extra_bytes: Floats
    freed_bytes: Floats


@dataclass(frozen=True, kw_only=True)
class RankShards:
    """The layers of a model as the ranks of `stage` hold them, on `machine`. The only state is caches.

    `setup` and `stage` say how: degrees, samples and recomputation; their layers do not matter.
    """

    layers: ModelLayers
    setup: Setup
    stage: StageSetup
    machine: Machine
    lookup: Lookup
    features: MemoryFeatures
    _known: dict[tuple[Variant, RecomputeKind], PricedLayer | Infeasible] = field(default_factory=dict, repr=False)
    _whole: dict[RecomputeKind, tuple[float, float]] = field(default_factory=dict, repr=False)
    _profiles: dict[Composition, tuple[LayerTime | None, ...]] = field(default_factory=dict, repr=False)
    _works: dict[Composition, ChunkWork] = field(default_factory=dict, repr=False)
    _held: dict[object, tuple[Holdings, float]] = field(default_factory=dict, repr=False)
    _boundaries: dict[int, int] = field(default_factory=dict, repr=False)

    def price(self, variant: Variant, recompute: RecomputeKind) -> PricedLayer | Infeasible:
        """One layer of `variant`, recomputed as `recompute` where it is; Infeasible where a degree divides nothing."""
        kind, again = variant
        key: tuple[Variant, RecomputeKind] = (variant, recompute if again else "none")
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._price(self.layers.kinds[kind].index, key[1])
        return found

    def _price(self, index: int, recompute: RecomputeKind) -> PricedLayer | Infeasible:
        layer = self.setup.model.layers[index]
        split = split_of(self.setup, self.stage, index, recomputed=False)
        if recompute != "none":
            split = replace(split, recompute=recompute)
        work = layer_work(layer, split)
        if isinstance(work, Infeasible):
            return work
        shard = profiled_shard(layer, split)
        profile = None if shard is None else self.lookup(layer, shard)
        forward, backward = PassSum(), PassSum()
        forward.add_forward(work, self.machine, profile, times=1)
        backward.add_backward(work, self.machine, profile, times=1)
        return PricedLayer(
            work=work,
            layer=layer,
            split=split,
            profile=profile,
            forward=vector_of(forward),
            backward=vector_of(backward),
            extra_bytes=layer_bytes(work, held_bytes(self.setup.recipe.dtype), self.features),
        )

    def refused(self) -> Infeasible | None:
        """Why the layers cannot be held so, None where they can."""
        found = (self.price((kind, False), "none") for kind in range(len(self.layers.kinds)))
        return next((one for one in found if isinstance(one, Infeasible)), None)

    @property
    def all_measured(self) -> bool:
        """Whether somebody has profiled every layer."""
        return all(self._priced((kind, False), "none").profile for kind in range(len(self.layers.kinds)))

    def chunk_work(self, first: int, end: int) -> ChunkWork:
        """The work of layers [first, end) without recomputation."""
        composition = self.layers.composition(first, end, 0)
        if composition in self._works:
            return self._works[composition]
        found = [(self._priced(variant, "none"), count) for variant, count in composition]
        setup, stage = self.setup, self.stage
        made = self._works[composition] = ChunkWork(
            works=tuple((priced.work, count) for priced, count in found),
            layers=tuple((priced.layer, priced.split) for priced, _ in found),
            shared_parameters=shared_in_chunk(
                setup.model, first, end, stage.tp * setup.recipe.vocabulary_multiple, stage.tp
            ),
        )
        return made

    def holdings(self, ranges: Ranges) -> tuple[Holdings, float]:
        """What a rank of a stage of these chunks holds, and the weight gradients' scratch that its software keeps."""
        key = self.layers.contents((ranges,))
        found = self._held.get(key)
        if found is None:
            chunks = [self.chunk_work(first, end) for first, end in ranges]
            cached = 0
            if self.features.weight_gradient_scratch == "cached":
                works = [work for chunk in chunks for work, _ in chunk.works]
                cached = sum(n * k for n, k in block_shapes(works)) * held_bytes(self.setup.recipe.dtype)
            found = self._held[key] = holdings_of(chunks, self.stage), float(cached)
        return found

    def profiles(self, first: int, end: int) -> tuple[LayerTime | None, ...]:
        """The profile of each work of `chunk_work`."""
        composition = self.layers.composition(first, end, 0)
        if composition not in self._profiles:
            self._profiles[composition] = tuple(self._priced(variant, "none").profile for variant, _ in composition)
        return self._profiles[composition]

    def chunks(self, compositions: Sequence[Composition], recompute: RecomputeKind) -> Chunks:
        """What passes through chunks of these compositions take."""
        variants = list({variant: None for composition in compositions for variant, _ in composition})
        priced = [self._priced(variant, recompute) for variant in variants]
        place = {variant: number for number, variant in enumerate(variants)}
        counts = np.zeros((len(compositions), len(variants)))
        for row, composition in enumerate(compositions):
            for variant, count in composition:
                counts[row, place[variant]] = count
        forward_s, _ = finish(counts @ _matrix([one.forward for one in priced]), self.machine)
        backward_s, weight_s = finish(counts @ _matrix([one.backward for one in priced]), self.machine)
        saved = np.array([one.work.saved_bytes for one in priced], dtype=np.float64)
        extra = [one.extra_bytes for one in priced]
        moments = [_fullest(composition, place, saved, extra) for composition in compositions]
        return Chunks(
            forward_s=forward_s,
            backward_s=backward_s,
            weight_s=weight_s,
            saved_bytes=counts @ saved,
            extra_bytes=np.array([moment[0] for moment in moments]),
            freed_bytes=np.array([moment[1] for moment in moments]),
        )

    def most_saved_by_recomputing(self) -> float:
        """Bytes by which what a layer keeps for a micro-batch falls at most where it is recomputed in full."""
        known = [kind for kind, one in enumerate(self.layers.kinds) if one.recomputable]
        plain = (self._priced((kind, False), "full").work.saved_bytes for kind in known)
        again = (self._priced((kind, True), "full").work.saved_bytes for kind in known)
        return float(max((one - other for one, other in zip(plain, again, strict=True)), default=0))

    def whole_s(self, recompute: RecomputeKind) -> tuple[float, float]:
        """Seconds forward and backward of one micro-batch through all layers at once."""
        if recompute not in self._whole:
            layers = len(self.layers.kind_of_layer)
            again = 0 if recompute == "none" else layers
            found = self.chunks([self.layers.composition(0, layers, again)], recompute)
            self._whole[recompute] = float(found.forward_s[0]), float(found.backward_s[0])
        return self._whole[recompute]

    def sharding_s(
        self,
        compositions: Sequence[Composition],
        recompute: RecomputeKind,
        stage: StageSetup,
        on_axis: TimeOnAxis,
        known: dict[tuple[Variant, RecomputeKind], ShardedLayer],
        *,
        overlapped: bool,
    ) -> Floats:
        """What ZeRO 3 adds to a micro-batch through chunks of these compositions, sharded as `stage` is. `known` keeps
        the layers of that sharding."""
        found = []
        cost = self.machine.parameters.of("overlap_cost", "fsdp")
        for composition in compositions:
            layers = []
            for variant, count in composition:
                key: tuple[Variant, RecomputeKind] = (variant, recompute if variant[1] else "none")
                if key not in known:
                    priced = self._priced(variant, recompute)
                    known[key] = sharded_layer(priced.work, priced.profile, self.machine, stage, self.setup, on_axis)
                layers.append((known[key], count))
            found.append(exposed_sharding_s(layers, overlap_cost=cost, overlapped=overlapped))
        return np.array(found)

    def least_sharding_s(
        self,
        composition: Composition,
        stage: StageSetup,
        on_axis: TimeOnAxis,
        known: dict[tuple[Variant, RecomputeKind], ShardedLayer],
        *,
        overlapped: bool,
    ) -> float:
        """The least that ZeRO 3 adds to a micro-batch through these layers, however they are cut into chunks."""
        cost = self.machine.parameters.of("overlap_cost", "fsdp") if overlapped else 1.0
        total = 0.0
        for variant, count in composition:
            if (variant, "none") not in known:
                priced = self._priced(variant, "none")
                known[variant, "none"] = sharded_layer(
                    priced.work, priced.profile, self.machine, stage, self.setup, on_axis
                )
            one = known[variant, "none"]
            waited = max(0.0, one.gather_s - one.forward_s) + max(0.0, one.gather_s + one.scatter_s - one.backward_s)
            moved = 2 * one.gather_s + one.scatter_s
            total += count * (cost * moved + (1 - cost) * waited + one.copy_s)
        return total

    def boundary_bytes(self, end: int) -> int:
        """Bytes that a rank hands on after layer `end` - 1."""
        key = end if self.layers.boundaries_differ else 0
        if key not in self._boundaries:
            self._boundaries[key] = boundary_bytes(self.setup, replace(self.stage, chunks=((0, end),)))
        return self._boundaries[key]

    def _priced(self, variant: Variant, recompute: RecomputeKind) -> PricedLayer:
        found = self.price(variant, recompute)
        if isinstance(found, Infeasible):
            raise ValueError(f"{found.reason}; expected layers that `refused` lets pass")
        return found


def _matrix(rows: list[list[float]]) -> Floats:
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(NAMES))


def _fullest(
    composition: Composition, place: dict[Variant, int], saved: Floats, extra: Sequence[int]
) -> tuple[float, float]:
    """(extra, freed) bytes of the layer at whose backward most lives; zeros where nothing lives beside what is kept."""
    best, freed = (0.0, 0.0), 0.0
    for variant, count in reversed(composition):
        number = place[variant]
        if extra[number] - freed > best[0] - best[1]:
            best = (float(extra[number]), freed)
        freed += float(saved[number]) * count
    return best
