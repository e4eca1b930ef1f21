"""The prices of segments: tables of their stages, and messages between these."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from estimator.bulk.passes import Floats
from estimator.bulk.records import Rule
from estimator.bulk.shards import RankShards
from estimator.layer_times import nothing_measured
from estimator.pricing.evaluate import hop_s
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.memory import Holdings, features_of
from estimator.pricing.rank_groups import GroupAxis
from estimator.pricing.rank_kinds import on_one_device
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from estimator.pricing.stage_cost import stage_machine
from planner.one_job.search.mixed_prices import Contents, RankKind, ShardTable, StageRule, StageTable, holdings
from planner.one_job.search.mixed_space import Layout, MixedSpace, Segment
from planner.one_job.tools.shape import Shape
from profiles.cluster import DeviceSlot
from profiles.vocabulary import CollectiveOp

AXES: tuple[GroupAxis, ...] = ("tp", "dp", "ep", "etp", "expert_dp")


@dataclass(frozen=True, kw_only=True)
class SegmentPrices:
    """A segment's stages with the table of each, and seconds of the messages between one and the next, by the layer
    before which they are sent."""

    segment: Segment
    stages: tuple[StageSetup, ...]
    tables: tuple[StageTable, ...]
    hops_s: tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True)
class Pricer:
    """Prices the segments of a space under a recipe. The only state is caches."""

    space: MixedSpace
    recipe: Recipe
    links: LinkTimes
    contents: Contents
    _shards: dict[object, ShardTable | None] = field(default_factory=dict, repr=False)
    _segments: dict[tuple[Segment, bool], SegmentPrices | None] = field(default_factory=dict, repr=False)
    _tables: dict[object, StageTable | None] = field(default_factory=dict, repr=False)
    _held: dict[Layout, tuple[Holdings, Floats]] = field(default_factory=dict, repr=False)
    _places: dict[object, object] = field(default_factory=dict, repr=False)
    _hops: dict[object, Floats] = field(default_factory=dict, repr=False)
    _nothing: list[Floats] = field(default_factory=list, repr=False)

    @property
    def no_hop(self) -> Floats:
        """No message after any layer."""
        if not self._nothing:
            self._nothing.append(np.zeros(len(self.contents.ids)))
        return self._nothing[0]

    def rules(self, segment: Segment, *, many: bool) -> tuple[StageRule, ...]:
        """What stages of `segment` may recompute and shard; `many`: in a pipeline of more than one stage.

        ZeRO 2 sums gradients after each micro-batch: it is looked at where nothing else is allowed.
        """
        limits, layout = self.space.constraints, segment.layout
        shape = Shape(
            job=self.space.first.space.training,
            tp=layout.tp,
            pp=2 if many else 1,
            dp=segment.dp,
            ep=layout.ep,
            etp=layout.etp,
            sequence_parallel=layout.sequence_parallel,
        )
        if limits.training_tool is not None and not limits.training_tool.allows_degrees(shape):
            return ()
        zeros = limits.open_zero(shape)
        zeros = tuple(zero for zero in zeros if zero != 2) or zeros
        return tuple((rule, zero) for rule in self.recomputed() for zero in zeros)

    def recomputed(self) -> tuple[Rule, ...]:
        """What may be recomputed."""
        limits = self.space.constraints
        return tuple((kind, limits.recompute_layers if kind == "full" else None) for kind in limits.open_recompute)

    def price(self, segment: Segment, *, many: bool) -> SegmentPrices | None:
        """The segment in a pipeline; None where a layer cannot be held so, or no rule allows it."""
        key = (segment, many)
        if key not in self._segments:
            self._segments[key] = self._price(segment, many=many)
        return self._segments[key]

    def hop_s(self, here: StageSetup, there: StageSetup, micro_batch: int) -> Floats:
        """Seconds of a micro-batch's activation from one stage to another, by the layer before which it is sent."""
        key = (self._pattern((*here.slots, *there.slots)), _shape(here), _shape(there), micro_batch)
        if key not in self._hops:
            setup = Setup(
                model=self.space.model,
                cluster=self.links.cluster,
                recipe=self.recipe,
                stages=(here, there),
                micro_batch=micro_batch,
            )
            layers = self.contents.layers
            ends = range(1, len(layers.kind_of_layer) + 1) if layers.boundaries_differ else (1,)
            took = [hop_s(setup, replace(here, chunks=((0, end),)), there, self.links) for end in ends]
            self._hops[key] = np.array([0.0, *took]) if len(took) > 1 else np.full_like(self.no_hop, took[0])
        return self._hops[key]

    def batches(self, segment: Segment) -> int:
        """Micro-batches an iteration."""
        return self.recipe.global_batch // segment.micro_batch

    def _price(self, segment: Segment, *, many: bool) -> SegmentPrices | None:
        if not self.rules(segment, many=many):
            return None
        stages = tuple(self.space.stage(segment, number) for number in range(segment.pp))
        tables = []
        for stage in stages:
            table = self._table(segment, stage, many=many)
            if table is None:
                return None
            tables.append(table)
        hops = [self.hop_s(here, there, segment.micro_batch) for here, there in itertools.pairwise(stages)]
        return SegmentPrices(segment=segment, stages=stages, tables=tuple(tables), hops_s=tuple(hops))

    def _table(self, segment: Segment, stage: StageSetup, *, many: bool) -> StageTable | None:
        pattern = (self._pattern(stage.slots), _shape(stage), segment.micro_batch)
        if pattern not in self._places:
            nodes = self.links.cluster.group_of(stage.slots[0])
            groups = tuple(self.links.groups_of(stage, axis) for axis in AXES)
            self._places[pattern] = (groups, nodes.island_link.bandwidth_bytes_per_s)
        key = (segment.groups, segment.samples, _shape(stage), segment.micro_batch, self._places[pattern], many)
        if key not in self._tables:
            kinds = {
                self.space.groups[number].own.device: self._kind(segment, stage, number, samples, many=many)
                for number, samples in zip(segment.groups, segment.samples, strict=True)
            }
            known = [kind for kind in kinds.values() if kind is not None]
            self._tables[key] = None
            if len(known) == len(kinds):
                self._tables[key] = StageTable(
                    contents=self.contents,
                    kinds=tuple(known),
                    rules=self.rules(segment, many=many),
                    links=self.links,
                    parameters=self.links.parameters,
                )
        return self._tables[key]

    def _kind(self, segment: Segment, stage: StageSetup, number: int, samples: int, *, many: bool) -> RankKind | None:
        group = self.space.groups[number]
        setup = self._view(segment, stage, number, samples, stages=2 if many else 1)
        axes = tuple(self.links.groups_of(stage, axis) for axis in ("tp", "ep", "etp"))
        key = (group.own.device, segment.layout, samples, setup.micro_batches == 1, axes)
        if key not in self._shards:
            on_axis = self.links.on_axes_of(stage)
            shards = self.shards(setup, number, on_axis)
            self._shards[key] = None
            if shards is not None:
                if segment.layout not in self._held:
                    self._held[segment.layout] = holdings(shards, self.contents)
                held = self._held[segment.layout]
                self._shards[key] = ShardTable(shards=shards, contents=self.contents, held=held)
        table = self._shards[key]
        if table is None:
            return None
        return RankKind(setup=setup, stage=setup.stages[0], table=table, memory_bytes=group.device.memory_bytes)

    def _view(self, segment: Segment, stage: StageSetup, number: int, samples: int, *, stages: int) -> Setup:
        """The pipeline as ranks of that group see it."""
        whole = Setup(
            model=self.space.model,
            cluster=self.links.cluster,
            recipe=self.recipe,
            stages=(stage,),
            micro_batch=segment.micro_batch,
        )
        return on_one_device(whole, stage, self.space.groups[number].device, samples=samples, stages=stages)

    def shards(
        self, setup: Setup, number: int, on_axis: Callable[[CollectiveOp, float, str], float]
    ) -> RankShards | None:
        """The layers as the ranks of the only kind in `setup` hold them; None where they cannot."""
        group, evaluator = self.space.groups[number], self.space.groups[number].own.evaluator
        if group.device.peak(self.recipe.dtype) is None:
            return None
        efficiencies = evaluator.efficiencies_of(group.device.name)
        shards = RankShards(
            layers=self.contents.layers,
            setup=setup,
            stage=setup.stages[0],
            machine=stage_machine(setup, group.device, efficiencies, self.links.parameters, on_axis),
            lookup=nothing_measured,
            features=features_of(setup.recipe),
        )
        return None if shards.refused() is not None else shards

    def _pattern(self, slots: tuple[DeviceSlot, ...]) -> tuple[object, ...]:
        """Slots by their places relative to the first one's node, where all nodes of a site are as near to another."""
        sites = self.links.cluster.sites
        near = all(site.pods == 1 and all(one.island_size <= one.devices for one in site.nodes) for site in sites)
        first = slots[0].node if near else 0
        return tuple((slot.site, slot.group, slot.node - first, slot.index) for slot in slots)


def _shape(stage: StageSetup) -> tuple[object, ...]:
    names = ("tp", "cp", "dp", "ep", "etp", "sequence_parallel", "shares")
    return tuple(getattr(stage, name) for name in names)


def layout_key(segment: Segment) -> tuple[Layout, int, tuple[int, ...] | None]:
    """What segments of a pipeline have in common where a tool can run only stages that are alike."""
    return segment.layout, segment.dp, segment.shares
