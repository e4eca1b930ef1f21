"""The layers of a model as one kind of rank holds them: passes and memory of each, and of any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Composition, ModelLayers, Variant
from estimator.bulk.passes import NAMES, finish, finish_one
from estimator.bulk.priced_layer import LayerPricer, PricedLayer
from estimator.pricing.amounts import Floats
from estimator.pricing.build import Ranges
from estimator.pricing.gradient_sync import ShardedLayer, TimeOnAxis, exposed_sharding_s
from estimator.pricing.layer_times import Lookup
from estimator.pricing.memory import Holdings, features_of, holdings_of, joined_holdings
from estimator.pricing.memory_features import MemoryFeatures
from estimator.pricing.memory_moment import cached_scratch, fullest_moment
from estimator.pricing.pass_time import Machine
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.sharded_layers import sharded_layer
from estimator.pricing.stage_work import ChunkWork, boundary_bytes, shared_in_chunk, split_of
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible, LayerTime, RecomputeKind

Integers = NDArray[np.int64]
RECOMPUTE_KINDS: tuple[RecomputeKind, ...] = get_args(RecomputeKind)
Content = tuple[Composition, int]
"""How many layers of each variant, and how many parameters they share."""


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
    """The layers of a model as the ranks of `stage` hold them, priced by `pricer`; `pricing` keeps what was computed.

    `setup` and `stage` say how: degrees, samples and recomputation; their layers do not matter.
    """

    pricing: Pricing
    layers: ModelLayers
    setup: Setup
    stage: StageSetup
    pricer: LayerPricer

    @property
    def machine(self) -> Machine:
        """What passes run on."""
        return self.pricer.machine

    @property
    def features(self) -> MemoryFeatures:
        """How the software holds memory."""
        return self.pricer.features

    def price(self, variant: Variant, recompute: RecomputeKind) -> PricedLayer | Infeasible:
        """Return one layer of `variant`, recomputed as `recompute` where it is; Infeasible where a degree divides
        nothing."""
        kind, again = variant
        return self.pricing.remember(self._price, kind, recompute if again else "none")

    def _price(self, kind: int, recompute: RecomputeKind) -> PricedLayer | Infeasible:
        if recompute != "none":
            plain = self.price((kind, False), "none")
            return plain if isinstance(plain, Infeasible) else self.pricer.price_again(plain, recompute)
        index = self.layers.kinds[kind].index
        return self.pricer.price(
            self.setup.model.layers[index], split_of(self.setup, self.stage, index, recomputed=False)
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
        return self.pricing.remember(self._profiles, content)

    def _profiles(self, content: Content) -> tuple[LayerTime | None, ...]:
        return tuple(self._priced(variant, "none").profile for variant, _ in content[0])

    def chunks(self, compositions: Sequence[Composition], recompute: RecomputeKind) -> Chunks:
        """What passes through chunks of these compositions take."""
        priced: dict[Composition, tuple[float, ...]] = self.pricing.keep((RankShards.chunks, self, recompute), dict)
        missing = [composition for composition in compositions if composition not in priced]
        if missing:
            priced.update(zip(missing, zip(*self._chunks(missing, recompute), strict=True), strict=True))
        columns = np.array([priced[composition] for composition in compositions]).T
        forward_s, backward_s, weight_s, saved_bytes, extra_bytes, freed_bytes = columns
        return Chunks(
            forward_s=forward_s,
            backward_s=backward_s,
            weight_s=weight_s,
            saved_bytes=saved_bytes,
            extra_bytes=extra_bytes,
            freed_bytes=freed_bytes,
        )

    def _chunks(self, compositions: Sequence[Composition], recompute: RecomputeKind) -> tuple[list[float], ...]:
        """By figure in the order of `Chunks`, of each composition."""
        variants = list({variant: None for composition in compositions for variant, _ in composition})
        priced = {variant: self._priced(variant, recompute) for variant in variants}
        place = {variant: number for number, variant in enumerate(variants)}
        counts = np.zeros((len(compositions), len(variants)))
        for row, composition in enumerate(compositions):
            for variant, count in composition:
                counts[row, place[variant]] = count
        passes_s = self._passes_s(counts, list(priced.values()))
        saved = np.array([layer.work.saved_bytes for layer in priced.values()], dtype=np.float64)
        alone = {variant: (layer.work.saved_bytes, layer.extra_bytes) for variant, layer in priced.items()}
        moments = [
            fullest_moment([(*alone[variant], count) for variant, count in composition]) for composition in compositions
        ]
        extra, freed = ([float(figure) for figure in figures] for figures in zip(*moments, strict=True))
        return *(seconds.tolist() for seconds in passes_s), (counts @ saved).tolist(), extra, freed

    def passes_s(self, counts: Floats, variants: Sequence[tuple[int, RecomputeKind]]) -> tuple[Floats, Floats]:
        """Return seconds forward and backward of a micro-batch through layers, of each row of `counts` (n, variants) of
        variants: a kind of layers each, and how it is recomputed."""
        priced = [self._priced((kind, recompute != "none"), recompute) for kind, recompute in variants]
        forward_s, backward_s, _ = self._passes_s(counts, priced)
        return forward_s, backward_s

    def _passes_s(self, counts: Floats, priced: Sequence[PricedLayer]) -> tuple[Floats, Floats, Floats]:
        """Seconds forward, backward, and of the weights' gradients alone."""
        each = np.array([[*layer.forward, *layer.backward] for layer in priced], dtype=np.float64)
        # Both passes of a row are two rows of one array.
        passes_s, weight_s = finish((counts @ each).reshape(-1, len(NAMES)), self.machine)
        return passes_s[0::2], passes_s[1::2], weight_s[1::2]

    def longer_by_one_s(self, whole: Composition, recompute: RecomputeKind) -> Floats:
        """Return by how many seconds a micro-batch through `whole`, forward and backward, is longer than without one
        layer of each of its variants in turn.

        A pass is a norm of sums over the layers, less what is hidden, the lesser of two sums: convex, and twice the
        layers take twice as long. So any layers take no less than the sum of these over them.
        """
        counts = np.array([count for _, count in whole], dtype=np.float64)
        forward_s, backward_s = self.passes_s(
            np.vstack([counts, counts - np.eye(len(counts))]),
            [(kind, recompute if again else "none") for (kind, again), _ in whole],
        )
        return np.asarray((forward_s[0] - forward_s[1:]) + (backward_s[0] - backward_s[1:]))

    def kept_bytes(self, variants: Sequence[Variant], recompute: RecomputeKind) -> Floats:
        """Return the bytes that one layer of each variant keeps for a micro-batch."""
        return np.array([self._priced(variant, recompute).work.saved_bytes for variant in variants], dtype=np.float64)

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

    def _whole_s(self, *kinds: RecomputeKind) -> tuple[float, float]:
        """The longest under any of these kinds of recomputation."""
        layers = self.layers.kinds
        variants: list[tuple[int, RecomputeKind]] = [
            (kind, recompute if each.recomputable else "none")
            for recompute in kinds
            for kind, each in enumerate(layers)
        ]
        counts = np.asarray(np.kron(np.eye(len(kinds)), self.layers.counts), dtype=np.float64)
        forward_s, backward_s = self.passes_s(counts, variants)
        return float(forward_s.max()), float(backward_s.max())

    def longest_s(self) -> tuple[float, float]:
        """Seconds forward and backward of one micro-batch through all layers at once, whatever is computed again."""
        return self.pricing.remember(self._whole_s, *RECOMPUTE_KINDS)

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
        """One micro-batch forward and backward through one layer by itself (`layer_passes_s`)."""
        priced = self._priced(variant, recompute)
        return finish_one(priced.forward, self.machine), finish_one(priced.backward, self.machine)

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


def make_rank_shards(
    pricing: Pricing, layers: ModelLayers, setup: Setup, stage: StageSetup, machine: Machine, lookup: Lookup
) -> RankShards:
    """Return the layers as the ranks of `stage` hold them on `machine`, where `lookup` finds what was measured."""
    recipe = setup.recipe
    pricer = LayerPricer(
        pricing=pricing,
        machine=machine,
        lookup=lookup,
        features=features_of(recipe),
        dtype=recipe.dtype,
        alone=pricing.stands_for(machine.pace, machine.host, machine.kernels, recipe.software),
    )
    return RankShards(pricing=pricing, layers=layers, setup=setup, stage=stage, pricer=pricer)
