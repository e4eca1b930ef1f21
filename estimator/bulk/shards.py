"""The layers of a model as one kind of rank holds them: passes and memory of each, and of any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import add

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Composition, ModelLayers, Variant
from estimator.bulk.passes import NAMES, finish, vector_of
from estimator.layers.split import Split, Work
from estimator.layers.work import counting_split, layer_work
from estimator.pricing.amounts import Floats
from estimator.pricing.build import Ranges
from estimator.pricing.gradient_sync import ShardedLayer, TimeOnAxis, exposed_sharding_s
from estimator.pricing.layer_times import Lookup
from estimator.pricing.measured import profiled_shard
from estimator.pricing.memory import Holdings, holdings_of, joined_holdings
from estimator.pricing.memory_features import MemoryFeatures
from estimator.pricing.memory_moment import cached_scratch, fullest_moment, layer_bytes
from estimator.pricing.pass_time import Machine, PassSum
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.sharded_layers import layer_passes_s, sharded_layer
from estimator.pricing.stage_work import ChunkWork, boundary_bytes, shared_in_chunk, split_of
from models_zoo.layers import Layer
from profiles.records import dataclass
from profiles.vocabulary import Infeasible, LayerTime, RecomputeKind, held_bytes

Integers = NDArray[np.int64]
Content = tuple[Composition, int]
"""How many layers of each variant, and how many parameters they share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedLayer:
    """What a rank computes of one variant by itself, as it adds to a pass, and what lives while it does. `shared_s`: of
    shared experts forward, in what runs again, and backward."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    shared_s: tuple[float, float, float]
    extra_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayer:
    """One variant: its work, its profile and what it adds to a pass."""

    work: Work
    layer: Layer
    split: Split
    profile: LayerTime | None
    forward: tuple[float, ...]
    backward: tuple[float, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankShards:
    """The layers of a model as the ranks of `stage` hold them, on `machine`; `pricing` keeps what has been computed.

    `setup` and `stage` say how: degrees, samples and recomputation; their layers do not matter.
    """

    pricing: Pricing
    layers: ModelLayers
    setup: Setup
    stage: StageSetup
    machine: Machine
    lookup: Lookup
    features: MemoryFeatures

    def price(self, variant: Variant, recompute: RecomputeKind) -> PricedLayer | Infeasible:
        """Return one layer of `variant`, recomputed as `recompute` where it is; Infeasible where a degree divides
        nothing."""
        kind, again = variant
        return self.pricing.remember(self._price, kind, recompute if again else "none")

    def _price(self, kind: int, recompute: RecomputeKind) -> PricedLayer | Infeasible:
        index = self.layers.kinds[kind].index
        layer = self.setup.model.layers[index]
        split = split_of(self.setup, self.stage, index, recomputed=False)
        if recompute != "none":
            split = replace(split, recompute=recompute)
        work = layer_work(layer, split)
        if isinstance(work, Infeasible):
            return work
        shard = profiled_shard(layer, split)
        profile = None if shard is None else self.lookup(layer, shard)
        machine, software = self.machine, self.setup.recipe.software
        # What a rank computes by itself does not depend on where its groups sit.
        alone = (layer, counting_split(layer, split), profile, machine.pace, machine.host, machine.kernels, software)
        computed = self.pricing.keep((RankShards._price, *alone), lambda: self._computed(work, profile))
        forward, backward = PassSum(), PassSum()
        forward.talk_forward(work, machine, computed.shared_s[0], times=1)
        backward.talk_backward(work, machine, computed.shared_s[1:], times=1, profiled=profile is not None)
        return PricedLayer(
            work=work,
            layer=layer,
            split=split,
            profile=profile,
            forward=_added(computed.forward, vector_of(forward)),
            backward=_added(computed.backward, vector_of(backward)),
            extra_bytes=computed.extra_bytes,
        )

    def _computed(self, work: Work, profile: LayerTime | None) -> ComputedLayer:
        forward, backward = PassSum(), PassSum()
        shared_s = forward.compute_forward(work, self.machine, profile, times=1)
        again_s, back_s = backward.compute_backward(work, self.machine, profile, times=1)
        return ComputedLayer(
            forward=vector_of(forward),
            backward=vector_of(backward),
            shared_s=(shared_s, again_s, back_s),
            extra_bytes=layer_bytes(work, held_bytes(self.setup.recipe.dtype), self.features),
        )

    def refused(self) -> Infeasible | None:
        """Why the layers cannot be held so, None where they can."""
        prices = (self.price((kind, False), "none") for kind in range(len(self.layers.kinds)))
        return next((price for price in prices if isinstance(price, Infeasible)), None)

    @property
    def all_measured(self) -> bool:
        """Whether somebody has profiled every layer."""
        return all(self._priced((kind, False), "none").profile for kind in range(len(self.layers.kinds)))

    def chunk_work(self, first: int, end: int) -> ChunkWork:
        """The work of layers [first, end) without recomputation."""
        return self.work_of(self.content(first, end))

    def content(self, first: int, end: int) -> Content:
        """Return what layers [first, end) are, as far as ranks hold and learn them."""
        return self.pricing.remember(self._content, first, end)

    def _content(self, first: int, end: int) -> Content:
        return self.layers.composition(first, end, 0), shared_in_chunk(self.setup, self.stage, first, end)

    def work_of(self, content: Content) -> ChunkWork:
        """Return the work of layers of that content without recomputation."""
        return self.pricing.remember(self._chunk_work, content)

    def _chunk_work(self, content: Content) -> ChunkWork:
        composition, shared = content
        priced_layers = [(self._priced(variant, "none"), count) for variant, count in composition]
        return ChunkWork(
            works=tuple((priced.work, count) for priced, count in priced_layers),
            layers=tuple((priced.layer, priced.split) for priced, _ in priced_layers),
            shared_parameters=shared,
        )

    def holdings(self, ranges: Ranges) -> tuple[Holdings, float]:
        """What a rank of a stage of these chunks holds, and the weight gradients' scratch that its software keeps."""
        return self.pricing.remember(self._holdings, tuple(self.content(first, end) for first, end in ranges))

    def _holdings(self, contents: tuple[Content, ...]) -> tuple[Holdings, float]:
        chunks = [self.work_of(content) for content in contents]
        works = [work for chunk in chunks for work, _ in chunk.works]
        return holdings_of(chunks, self.stage), float(cached_scratch(works, self.setup.recipe, self.features))

    def profiles(self, first: int, end: int) -> tuple[LayerTime | None, ...]:
        """The profile of each work of `chunk_work`."""
        return self.profiles_of(self.content(first, end))

    def profiles_of(self, content: Content) -> tuple[LayerTime | None, ...]:
        """Return the profile of each work of `work_of`."""
        return tuple(self._priced(variant, "none").profile for variant, _ in content[0])

    def chunks(self, compositions: Sequence[Composition], recompute: RecomputeKind) -> Chunks:
        """What passes through chunks of these compositions take."""
        variants = list({variant: None for composition in compositions for variant, _ in composition})
        priced = [self._priced(variant, recompute) for variant in variants]
        place = {variant: number for number, variant in enumerate(variants)}
        counts = np.zeros((len(compositions), len(variants)))
        for row, composition in enumerate(compositions):
            for variant, count in composition:
                counts[row, place[variant]] = count
        forward_s, _ = finish(counts @ _matrix([layer.forward for layer in priced]), self.machine)
        backward_s, weight_s = finish(counts @ _matrix([layer.backward for layer in priced]), self.machine)
        saved = np.array([layer.work.saved_bytes for layer in priced], dtype=np.float64)
        moments = [
            fullest_moment(
                [
                    (priced[place[variant]].work.saved_bytes, priced[place[variant]].extra_bytes, count)
                    for variant, count in composition
                ]
            )
            for composition in compositions
        ]
        return Chunks(
            forward_s=forward_s,
            backward_s=backward_s,
            weight_s=weight_s,
            saved_bytes=counts @ saved,
            extra_bytes=np.array([extra for extra, _ in moments], dtype=np.float64),
            freed_bytes=np.array([freed for _, freed in moments], dtype=np.float64),
        )

    def longer_by_one_s(self, whole: Composition, recompute: RecomputeKind) -> Floats:
        """Return by how many seconds a micro-batch through `whole`, forward and backward, is longer than without one
        layer of each of its variants in turn.

        A pass is a norm of sums over the layers, less what is hidden, the lesser of two sums: convex, and twice the
        layers take twice as long. So any layers take no less than the sum of these over them.
        """
        forward_s, backward_s = self.passes_longer_by_one_s(whole, recompute)
        return forward_s + backward_s

    def passes_longer_by_one_s(self, whole: Composition, recompute: RecomputeKind) -> tuple[Floats, Floats]:
        """Return the same of either pass, forward and backward."""
        less: list[Composition] = [
            tuple((variant, count - (variant == without)) for variant, count in whole) for without, _ in whole
        ]
        chunks = self.chunks([whole, *less], recompute)
        return chunks.forward_s[0] - chunks.forward_s[1:], chunks.backward_s[0] - chunks.backward_s[1:]

    def kept_bytes(self, variants: Sequence[Variant], recompute: RecomputeKind) -> Floats:
        """Return the bytes that one layer of each variant keeps for a micro-batch."""
        return self.chunks([((variant, 1),) for variant in variants], recompute).saved_bytes

    def beside_bytes(self, variants: Sequence[Variant], recompute: RecomputeKind) -> Floats:
        """Return the bytes that live while one layer of each variant runs, beside what is kept."""
        return np.array([self._priced(variant, recompute).extra_bytes for variant in variants], dtype=np.float64)

    def holdings_of_one(self, kinds: Sequence[int]) -> Holdings:
        """Return what a rank holds of one layer of each of these kinds."""
        firsts = [self.layers.kinds[kind].index for kind in kinds]
        return joined_holdings([self.holdings(((first, first + 1),))[0] for first in firsts])

    def most_saved_by_recomputing(self) -> float:
        """Bytes by which what a layer keeps for a micro-batch falls at most where it is recomputed in full."""
        kinds = [number for number, kind in enumerate(self.layers.kinds) if kind.recomputable]
        plain = (self._priced((kind, False), "full").work.saved_bytes for kind in kinds)
        again = (self._priced((kind, True), "full").work.saved_bytes for kind in kinds)
        return float(max((most - least for most, least in zip(plain, again, strict=True)), default=0))

    def whole_s(self, recompute: RecomputeKind) -> tuple[float, float]:
        """Seconds forward and backward of one micro-batch through all layers at once."""
        return self.pricing.remember(self._whole_s, recompute)

    def _whole_s(self, recompute: RecomputeKind) -> tuple[float, float]:
        layers = len(self.layers.kind_of_layer)
        again = 0 if recompute == "none" else layers
        whole = self.chunks([self.layers.composition(0, layers, again)], recompute)
        return float(whole.forward_s[0]), float(whole.backward_s[0])

    def sharding_s(
        self,
        compositions: Sequence[Composition],
        recompute: RecomputeKind,
        sharded_over: int,
        on_axis: TimeOnAxis,
        *,
        overlapped: bool,
    ) -> Floats:
        """What ZeRO 3 over so many ranks adds to a micro-batch through chunks of these compositions; `on_axis` times
        the collectives of a stage that is sharded so."""
        remember = self.pricing.remember
        return np.array(
            [
                remember(self._chunk_sharding_s, composition, recompute, sharded_over, on_axis, overlapped)
                for composition in compositions
            ]
        )

    def _chunk_sharding_s(
        self,
        composition: Composition,
        recompute: RecomputeKind,
        sharded_over: int,
        on_axis: TimeOnAxis,
        overlapped: bool,
    ) -> float:
        layers = [(self._sharded(variant, recompute, sharded_over, on_axis), count) for variant, count in composition]
        cost = self.machine.parameters.of("overlap_cost", "fsdp")
        return exposed_sharding_s(layers, overlap_cost=cost, overlapped=overlapped)

    def least_sharding_s(
        self,
        composition: Composition,
        sharded_over: int,
        on_axis: TimeOnAxis,
        *,
        overlapped: bool,
        recompute: RecomputeKind = "none",
    ) -> float:
        """The least that ZeRO 3 adds to a micro-batch through these layers, however they are cut into chunks."""
        cost = self.machine.parameters.of("overlap_cost", "fsdp") if overlapped else 1.0
        layers = ((self._sharded(variant, recompute, sharded_over, on_axis), count) for variant, count in composition)
        return sum(
            count * (cost * layer.moved_s + (1 - cost) * layer.waited_s + layer.copy_s) for layer, count in layers
        )

    def _sharded(
        self, variant: Variant, recompute: RecomputeKind, sharded_over: int, on_axis: TimeOnAxis
    ) -> ShardedLayer:
        kind = recompute if variant[1] else "none"
        return self.pricing.remember(self._shard_layer, variant, kind, sharded_over, on_axis)

    def _shard_layer(
        self, variant: Variant, recompute: RecomputeKind, sharded_over: int, on_axis: TimeOnAxis
    ) -> ShardedLayer:
        work = self._priced(variant, recompute).work
        passes_s = self.pricing.remember(self._layer_passes_s, variant, recompute)
        return sharded_layer(work, passes_s, self.machine, sharded_over, self.setup.recipe, on_axis)

    def _layer_passes_s(self, variant: Variant, recompute: RecomputeKind) -> tuple[float, float]:
        priced = self._priced(variant, recompute)
        return layer_passes_s(priced.work, priced.profile, self.machine)

    def boundary_bytes(self, end: int) -> int:
        """Bytes that a rank hands on after layer `end` - 1."""
        return self.pricing.remember(self._boundary_bytes, end if self.layers.boundaries_differ else 1)

    def _boundary_bytes(self, end: int) -> int:
        return boundary_bytes(self.setup, replace(self.stage, chunks=((0, end),)))

    def _priced(self, variant: Variant, recompute: RecomputeKind) -> PricedLayer:
        price = self.price(variant, recompute)
        if isinstance(price, Infeasible):
            raise ValueError(f"{price.reason}; expected layers that `refused` lets pass")
        return price


def _added(some: tuple[float, ...], more: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(add, some, more))


def _matrix(rows: list[tuple[float, ...]]) -> Floats:
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(NAMES))
