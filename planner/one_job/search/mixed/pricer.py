"""The prices of segments: tables of their stages, and messages between these."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from estimator.bulk.records import Rule
from estimator.bulk.shards import RankShards, make_rank_shards
from estimator.communication.uplinks import shares_uplinks
from estimator.pricing.amounts import Floats
from estimator.pricing.gradient_sync import TimeOnAxis
from estimator.pricing.layer_times import nothing_measured
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.parts import hop_s
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_groups import GroupAxis, group_layout
from estimator.pricing.rank_kinds import on_one_device
from estimator.pricing.recipe import Overlap, Recipe, ScheduleName, Setup, StageSetup, ZeroStage
from estimator.pricing.stage_cost import stage_machine
from planner.one_job.explicit.request import canonical
from planner.one_job.search.mixed.space import Layout, MixedSpace, Segment
from planner.one_job.search.mixed.stage_tables import (
    Contents,
    RankKind,
    ShardTable,
    StageRule,
    StageTable,
    contents_of,
    holdings,
)
from planner.one_job.tools.base.shape import Shape
from profiles.cluster import DeviceSlot
from profiles.records import dataclass, replace

PASS_AXES: tuple[GroupAxis, ...] = ("tp", "ep", "etp")
"""Axes whose collectives stand in the passes."""
AXES: tuple[GroupAxis, ...] = ("tp", "dp", "ep", "etp", "expert_dp")


@dataclass(frozen=True, kw_only=True)
class SegmentPrices:
    """A segment's stages with the table of each."""

    segment: Segment
    stages: tuple[StageSetup, ...]
    tables: tuple[StageTable, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pricer:
    """Prices the segments of a space under a recipe."""

    space: MixedSpace
    recipe: Recipe
    links: LinkTimes
    contents: Contents

    @property
    def pricing(self) -> Pricing:
        """What the prices rest on."""
        return self.space.pricing

    @property
    def waits(self) -> bool:
        """Whether stages stand still for their messages, and share no uplinks above the nodes; else plans priced here
        leave messages out, or what other stages send, and their times are bounds."""
        return "p2p" not in self.recipe.overlap and not shares_uplinks(self.links.cluster)

    def overlaps(self, zero: ZeroStage) -> bool:
        """Return whether the software sums gradients beside compute under that stage of ZeRO."""
        return "dp" in self.space.first.evaluator.overlap_under(zero)

    def setup(
        self,
        stages: Sequence[StageSetup],
        ends: Sequence[int],
        rules: Sequence[StageRule],
        *,
        schedule: ScheduleName,
        micro_batch: int,
        overlapped: bool,
    ) -> Setup:
        """Return the plan of these stages, each of which holds the layers up to its end under its rule; `overlapped`:
        gradients are summed beside compute."""
        made, first = [], 0
        for stage, end, ((kind, layers), zero) in zip(stages, ends, rules, strict=True):
            made.append(replace(stage, chunks=((first, end),), recompute=kind, recompute_layers=layers, zero=zero))
            first = end
        gradients: frozenset[Overlap] = frozenset({"dp"} if overlapped else ())
        overlap = (self.recipe.overlap - {"dp"}) | gradients
        return canonical(
            Setup(
                model=self.space.model,
                cluster=self.links.cluster,
                recipe=replace(self.recipe, schedule=schedule, overlap=overlap),
                stages=tuple(made),
                micro_batch=micro_batch,
            )
        )

    @cached_property
    def work(self) -> object:
        """Stands for the model and its recipe, whatever the global batch: what ranks compute and hold depends on no
        more of a pricer."""
        return self.pricing.stands_for(self.space.model, replace(self.recipe, global_batch=1))

    @cached_property
    def no_hop(self) -> Floats:
        """No message after any layer."""
        return np.zeros(len(self.contents.ids))

    def rules(self, segment: Segment, *, many: bool) -> tuple[StageRule, ...]:
        """What stages of `segment` may recompute and shard; `many`: in a pipeline of more than one stage."""
        return self.pricing.remember(self._rules, segment.layout, segment.dp, many)

    def _rules(self, layout: Layout, dp: int, many: bool) -> tuple[StageRule, ...]:
        """Of segments of that layout and so many replicas.

        ZeRO 2 sums gradients after each micro-batch: it is looked at where nothing else is allowed.
        """
        limits = self.space.constraints
        shape = Shape(
            job=self.space.first.space.training,
            tp=layout.tp,
            pp=2 if many else 1,
            dp=dp,
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
        return self.pricing.remember(self._price, segment, many=many)

    def hop_s(self, here: StageSetup, there: StageSetup, micro_batch: int) -> Floats:
        """Seconds of a micro-batch's activation from one stage to another, by the layer before which it is sent."""

        def make() -> Floats:
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
            return np.array([0.0, *took]) if len(took) > 1 else np.full_like(self.no_hop, took[0])

        # Stages at the same places of other nodes are as near to each other.
        pattern = self._pattern((*here.slots, *there.slots))
        return self.pricing.keep((self.hop_s, pattern, _shape(here), _shape(there), micro_batch), make)

    def hops_s(self, priced: SegmentPrices) -> tuple[Floats, ...]:
        """Seconds of the messages between one stage of a segment and the next."""
        pairs = itertools.pairwise(priced.stages)
        return tuple(self.hop_s(here, there, priced.segment.micro_batch) for here, there in pairs)

    def batches(self, segment: Segment) -> int:
        """Micro-batches an iteration."""
        return self.recipe.global_batch // segment.micro_batch

    def gradient_bytes(self, table: StageTable) -> Floats:
        """Return the bytes of a rank's gradients, by content."""
        held = table.kinds[0].table.held[0]
        return np.asarray(held.dense_learning + held.experts_learning) * GRAD_WIDTH[self.recipe.grad_dtype]

    def sum_s(self, stage: StageSetup, size_bytes: float) -> float:
        """Return seconds to sum so many bytes of gradients over the replicas of `stage`."""
        return self.links.on_axes_of(stage)("all_reduce", size_bytes, "dp") if size_bytes else 0.0

    def first_table(self, segment: Segment, *, many: bool) -> StageTable | None:
        """The table of the segment's first stage; None where there is no price of the segment."""
        return self.pricing.remember(self._first_table, segment, many=many)

    def _first_table(self, segment: Segment, *, many: bool) -> StageTable | None:
        return self._table(segment, self.space.stage(segment, 0), many=many)

    def _price(self, segment: Segment, *, many: bool) -> SegmentPrices | None:
        stages = tuple(self.space.stage(segment, number) for number in range(segment.pp))
        tables = []
        for stage in stages:
            table = self._table(segment, stage, many=many)
            if table is None:
                return None
            tables.append(table)
        return SegmentPrices(segment=segment, stages=stages, tables=tuple(tables))

    def _table(self, segment: Segment, stage: StageSetup, *, many: bool) -> StageTable | None:
        rules = self.rules(segment, many=many)
        if not rules:
            return None
        pattern = (self._pattern(stage.slots), segment.groups, _shape(stage))
        place = self.pricing.keep((self._place, pattern), lambda: self._place(segment, stage))
        # Whichever devices a stage has, of whatever cluster, it is priced alike where its collectives sit alike.
        return self.pricing.keep(
            (Pricer._table, place, segment.samples, self.batches(segment), rules, many),
            lambda: self._make_table(segment, stage, rules, many=many),
        )

    def _place(self, segment: Segment, stage: StageSetup) -> object:
        """Stands for what prices have of a stage's model, degrees, devices and place: where its collectives sit, and
        how wide the links inside nodes are. Where other stages share uplinks with it, it is this cluster's alone."""
        nodes = self.links.cluster.group_of(stage.slots[0])
        groups = [self.space.groups[number] for number in segment.groups]
        return self.pricing.stands_for(
            self if shares_uplinks(self.links.cluster) else None,
            self.work,
            _shape(stage),
            tuple((group.device, group.memory_bytes) for group in groups),
            tuple(self.links.place_of(stage, axis) for axis in AXES if group_layout(stage, axis)[1] > 1),
            nodes.island_link.bandwidth_bytes_per_s,
            len({(slot.site, slot.node) for slot in stage.slots}),
        )

    def _make_table(
        self, segment: Segment, stage: StageSetup, rules: tuple[StageRule, ...], *, many: bool
    ) -> StageTable | None:
        kinds = {
            self.space.groups[number].own.device: self._kind(segment, stage, number, samples, many=many)
            for number, samples in zip(segment.groups, segment.samples, strict=True)
        }
        possible = tuple(kind for kind in kinds.values() if kind is not None)
        if len(possible) < len(kinds):
            return None
        return StageTable(contents=self.contents, kinds=possible, rules=rules, links=self.links)

    def _kind(self, segment: Segment, stage: StageSetup, number: int, samples: int, *, many: bool) -> RankKind | None:
        group = self.space.groups[number]
        setup = self._view(segment, stage, number, samples, stages=2 if many else 1)

        def make() -> ShardTable | None:
            shards = self.shards(setup, number, self.links.on_axes_of(stage))
            if shards is None:
                return None
            # What a rank holds is the same on any device and for however many samples.
            held = self.pricing.keep((holdings, self.work, segment.layout), lambda: holdings(shards, self.contents))
            return ShardTable(shards=shards, contents=self.contents, held=held)

        # In whichever search, on whichever cluster.
        axes = tuple(self.links.place_of(stage, axis) for axis in PASS_AXES if getattr(stage, axis) > 1)
        device, once = replace(group.device, memory_bytes=1), setup.micro_batches == 1
        table = self.pricing.keep((Pricer._kind, self.work, device, segment.layout, samples, once, axes), make)
        if table is None:
            return None
        return RankKind(setup=setup, stage=setup.stages[0], table=table, memory_bytes=group.memory_bytes)

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

    def shards(self, setup: Setup, number: int, on_axis: TimeOnAxis) -> RankShards | None:
        """The layers as the ranks of the only kind in `setup` hold them; None where they cannot."""
        group = self.space.groups[number]
        if group.device.peak(self.recipe.dtype) is None:
            return None
        machine = stage_machine(setup, group.device, self.pricing, on_axis)
        shards = make_rank_shards(self.pricing, self.contents.layers, setup, setup.stages[0], machine, nothing_measured)
        return None if shards.refused() is not None else shards

    def _pattern(self, slots: tuple[DeviceSlot, ...]) -> tuple[object, ...]:
        """Slots by their places relative to the first one's node, where all nodes of a site are as near to another."""
        sites = self.links.cluster.sites
        near = all(
            site.network.is_flat and all(nodes.island_size <= nodes.devices for nodes in site.nodes) for site in sites
        )
        first = slots[0].node if near else 0
        return tuple((slot.site, slot.group, slot.node - first, slot.index) for slot in slots)


def _shape(stage: StageSetup) -> tuple[object, ...]:
    names = ("tp", "cp", "dp", "ep", "etp", "sequence_parallel", "shares")
    return tuple(getattr(stage, name) for name in names)


def make_pricer(space: MixedSpace) -> Pricer:
    """Return who prices the segments of `space`; without flash attention where not all types of device have it."""
    evaluator = space.first.evaluator
    kernels = {group.own.evaluator.recipe.attention for group in space.groups}
    return Pricer(
        space=space,
        recipe=evaluator.recipe if len(kernels) == 1 else replace(evaluator.recipe, attention="math"),
        links=replace(evaluator.links, pricing=space.pricing, cluster=space.cluster),
        contents=contents_of(evaluator.layers),
    )
