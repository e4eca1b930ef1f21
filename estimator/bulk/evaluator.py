"""A model under a recipe on a cluster, of which pipelines are asked: what they share is priced once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property

from estimator.bulk.layers import ModelLayers, read_layers
from estimator.bulk.pipeline import Pipeline
from estimator.bulk.places import Placement, Places, place_in_order, whole_groups
from estimator.bulk.records import BatchedDegrees
from estimator.bulk.shards import RankShards, make_rank_shards
from estimator.bulk.stage_kind import StageKind, StageSeat, fastest_once_s
from estimator.communication.uplinks import shares_uplinks
from estimator.pricing.company import Company
from estimator.pricing.gradient_sync import TimeOnAxis
from estimator.pricing.layer_times import Lookup, slowed
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.pass_time import Machine
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_groups import GroupAxis
from estimator.pricing.recipe import Overlap, Recipe, Setup, StageSetup, ZeroStage
from estimator.pricing.stage_cost import stage_machine
from estimator.pricing.stage_work import experts_a_token, stage_device
from models_zoo.model import Model
from profiles.cluster import Cluster, DeviceSlot, most_on_one_node
from profiles.dispatchers import load_dispatcher
from profiles.records import dataclass, replace
from profiles.vocabulary import CollectiveOp, Infeasible

PASS_AXES: tuple[GroupAxis, ...] = ("tp", "cp", "ep", "etp")
"""Axes whose collectives stand in the passes."""


@dataclass(frozen=True, kw_only=True)
class BulkEvaluator:
    """A model under a recipe on a cluster, priced by `pricing`, which keeps what has been computed.

    `overlap_under`: what communication the software hides under a stage of ZeRO (as far as gradients go; the rest is
    the recipe's). `measured_alone`: only layers that somebody has measured exist.
    """

    model: Model
    cluster: Cluster
    recipe: Recipe
    pricing: Pricing
    overlap_under: Callable[[ZeroStage], frozenset[Overlap]]
    measured_alone: bool = False

    @cached_property
    def layers(self) -> ModelLayers:
        """The kinds of the model's layers."""
        return read_layers(self.model, self.recipe)

    @cached_property
    def links(self) -> LinkTimes:
        """Times the collectives of its plans."""
        experts = experts_a_token(self.model, self.recipe.software)
        return LinkTimes(
            pricing=self.pricing,
            cluster=self.cluster,
            experts_a_token=experts,
            dispatcher=load_dispatcher(self.recipe.software.dispatch),
        )

    def pipeline(self, degrees: BatchedDegrees, placement: Placement) -> Pipeline | Infeasible:
        """Return the pipeline of `degrees` on the first places of `placement`; Infeasible where it cannot be."""
        return self.pricing.remember(self._pipeline, degrees, placement)

    def _pipeline(self, degrees: BatchedDegrees, placement: Placement) -> Pipeline | Infeasible:
        kinds = self.kinds(degrees, placement)
        if isinstance(kinds, Infeasible):
            return kinds
        of_stage = placement.classes(degrees.stage_devices, degrees.pp)
        places = {number: place for place, number in enumerate(dict.fromkeys(of_stage))}
        kind_of_stage = tuple(places[number] for number in of_stage)
        return Pipeline(
            degrees=degrees,
            placement=placement,
            setup=Setup(
                model=self.model,
                cluster=self.cluster,
                recipe=self.recipe,
                stages=tuple(kinds[place].stage for place in kind_of_stage),
                micro_batch=degrees.samples * degrees.dp,
            ),
            kinds=kinds,
            kind_of_stage=kind_of_stage,
            links=self._links_beside(replace(degrees, samples=1), placement),
            layers=self.layers,
            overlap_under=self.overlap_under,
        )

    def kinds(self, degrees: BatchedDegrees, placement: Placement) -> tuple[StageKind, ...] | Infeasible:
        """Return the different stages of the pipeline of `degrees` on the first places of `placement`; Infeasible where
        one cannot be. Pipelines that differ in the number of stages alone share theirs."""
        size, experts = degrees.stage_devices, degrees.ep * degrees.etp
        if size % experts:
            reason = f"ep {degrees.ep} * etp {degrees.etp} does not divide a stage's {size} ranks"
            return Infeasible(reason=reason, lacking="divisibility")
        alone = degrees if self._shares else replace(degrees, pp=1)
        kinds = []
        for number in placement.different(size, degrees.pp):
            kind = self.pricing.remember(self._kind, alone, placement, number)
            if isinstance(kind, Infeasible):
                return kind
            kinds.append(kind)
        return tuple(kinds)

    @cached_property
    def _shares(self) -> bool:
        """Whether stages share uplinks above the nodes, so that each is priced beside all others."""
        return shares_uplinks(self.cluster)

    def _links_beside(self, degrees: BatchedDegrees, placement: Placement) -> LinkTimes:
        """Who times the collectives of a pipeline of these degrees."""
        return self.pricing.remember(self._company_links, degrees, placement) if self._shares else self.links

    def _company_links(self, degrees: BatchedDegrees, placement: Placement) -> LinkTimes:
        stages = range(degrees.pp)
        return replace(
            self.links, company=Company([placement.stage(number, degrees.stage_devices) for number in stages])
        )

    @cached_property
    def _contends(self) -> bool:
        """Whether workers on a node slow each other."""
        return any(group.device.contention for site in self.cluster.sites for group in site.nodes)

    def once_s(self, degrees: BatchedDegrees, placement: Placement) -> float:
        """Return seconds of one micro-batch through all layers forward and backward on the fastest ranks of the
        pipeline, without recomputation; infinite where there is no such pipeline."""
        kinds = self.kinds(degrees, placement)
        return math.inf if isinstance(kinds, Infeasible) else fastest_once_s(kinds)

    def sits_alike(self, slots: Sequence[DeviceSlot]) -> bool:
        """Return whether stages on `slots` in turn sit alike again and again, however many work on a node."""
        return self.placement(1, slots).period is not None and not self._contends

    def seated_once_s(self, degrees: BatchedDegrees, samples: int, slots: Sequence[DeviceSlot]) -> float:
        """Return seconds of a micro-batch of so many samples a rank through all layers forward and backward, with no
        gradients to add to, on the fastest ranks of any stages of these degrees on `slots` in turn, which sit alike
        (`sits_alike`); infinite where a layer cannot be held so."""
        placement, size = self.placement(1, slots), degrees.stage_devices
        alone = replace(degrees, pp=1, samples=1)
        every = (
            self.pricing.remember(self._seated_once_s, alone, samples, placement, number)
            for number in placement.different(size, len(placement.slots) // size)
        )
        return min(every, default=math.inf)

    def _seated_once_s(self, degrees: BatchedDegrees, samples: int, placement: Placement, number: int) -> float:
        seat = self.pricing.remember(self._seat, degrees, placement, number)
        if seat.device.peak(self.recipe.dtype) is None:
            return math.inf
        batch = samples * degrees.dp
        setup = Setup(
            model=self.model,
            cluster=self.cluster,
            recipe=replace(self.recipe, global_batch=batch),
            stages=(seat.stage,),
            micro_batch=batch,
        )
        shards = self._seated(seat, setup)
        return sum(shards.whole_s("none")) if shards.refused() is None else math.inf

    def compute_alone_s(self, degrees: BatchedDegrees, slots: Sequence[DeviceSlot]) -> float:
        """Return seconds of one micro-batch through all layers forward and backward, with no communication but that of
        tensor-parallel ranks inside an island, no recomputation, no gradients to add to and no other worker: the least
        that the stages of any pipeline of such ranks on the first of `slots` take together. Infinite where a layer
        cannot be held so."""
        return self.pricing.remember(self._compute_alone_s, degrees, Places(slots[: degrees.stage_devices]))

    def _compute_alone_s(self, degrees: BatchedDegrees, slots: Places) -> float:
        stage = self._stage(degrees, slots)
        batch = degrees.samples * degrees.dp
        setup = Setup(
            model=self.model,
            cluster=self.cluster,
            recipe=replace(self.recipe, global_batch=batch),
            stages=(stage,),
            micro_batch=batch,
        )
        device = stage_device(setup, stage)
        if device.peak(setup.recipe.dtype) is None:
            return math.inf
        on_tp = self._on_tp_alone(slots[: degrees.tp])

        def seconds() -> float:
            machine = stage_machine(setup, device, self.pricing, on_tp[0])
            shards = self._rank_shards(setup, stage, machine, self.pricing.lookup)
            if shards.refused() is not None or (self.measured_alone and not shards.all_measured):
                return math.inf
            return sum(shards.whole_s("none"))

        alone = replace(device, memory_bytes=1)
        return self.pricing.keep(
            (BulkEvaluator._compute_alone_s, self._work, self.measured_alone, alone, degrees, on_tp[1]), seconds
        )

    def _stage(self, degrees: BatchedDegrees, slots: tuple[DeviceSlot, ...]) -> StageSetup:
        """A stage of these degrees as if it held all layers."""
        return StageSetup(
            chunks=((0, len(self.model.layers)),),
            slots=slots,
            tp=degrees.tp,
            cp=degrees.cp,
            dp=degrees.dp,
            ep=degrees.ep,
            etp=degrees.etp,
            sequence_parallel=degrees.sequence_parallel,
        )

    @cached_property
    def _work(self) -> object:
        """Stands for the model and its recipe, whatever the global batch: what ranks compute and hold depends on no
        more of an evaluator."""
        return self.pricing.stands_for(self.model, replace(self.recipe, global_batch=1))

    def _on_tp_alone(self, slots: tuple[DeviceSlot, ...]) -> tuple[TimeOnAxis, Hashable]:
        """Who times collectives of one tensor-parallel group on `slots`, where these are one island's: no other group
        of as many is faster; and what that depends on. Everything else takes no time."""
        nodes = self.cluster.group_of(slots[0])
        whole_node = nodes.island_size >= nodes.devices
        islands = {(slot.site, slot.node, 0 if whole_node else slot.index // nodes.island_size) for slot in slots}
        group = StageSetup(chunks=((0, 1),), slots=slots, tp=len(slots))
        on_tp = self.links.on_axes_of(group) if len(islands) == 1 else None

        def seconds(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
            return on_tp(op, size_bytes, axis) if on_tp and axis == "tp" else 0.0

        return seconds, self.links.place_of(group, "tp") if on_tp and len(slots) > 1 else None

    def placement(self, tp: int, slots: Sequence[DeviceSlot]) -> Placement:
        """Return the placement of ranks on `slots` in turn; for `tp` above 1, on as many of each node's as make whole
        groups."""
        return self.pricing.remember(self._placement, tp, slots if isinstance(slots, Places) else Places(slots))

    def _placement(self, tp: int, slots: Places) -> Placement:
        return place_in_order(self.cluster, slots if tp == 1 else whole_groups(slots, tp))

    def _rank_shards(self, setup: Setup, stage: StageSetup, machine: Machine, lookup: Lookup) -> RankShards:
        return make_rank_shards(self.pricing, self.layers, setup, stage, machine, lookup)

    def _kind(self, degrees: BatchedDegrees, placement: Placement, number: int) -> StageKind | Infeasible:
        """Stage `number` of a pipeline of these degrees, with all other stages idle."""
        seat = self.pricing.remember(self._seat, replace(degrees, samples=1), placement, number)
        device = seat.device
        if device.peak(self.recipe.dtype) is None:
            have = ", ".join(name for name, _ in device.peak_flops_per_s)
            return Infeasible(
                reason=f"{device.name} has no {self.recipe.dtype} rate (it has {have})", lacking="support"
            )
        setup = self._alone(seat.stage, degrees)
        shards = self._seated(seat, setup)
        refused = shards.refused()
        return StageKind(setup=setup, seat=seat, shards=shards) if refused is None else refused

    def stage_alone(self, degrees: BatchedDegrees, slots: Sequence[DeviceSlot]) -> StageKind:
        """Return a stage of these degrees on all of `slots`, with all other stages idle. Some layers of the model may
        not be had so (`RankShards.price`), nor any on a device without a rate for the dtype."""
        seat = self.pricing.remember(self._seat, replace(degrees, samples=1), self.placement(1, slots), 0)
        setup = self._alone(seat.stage, degrees)
        return StageKind(setup=setup, seat=seat, shards=self._seated(seat, setup))

    def _seated(self, seat: StageSeat, setup: Setup) -> RankShards:
        """The layers as ranks of the only stage of `setup` hold them, which sits there."""

        def make() -> RankShards:
            machine = stage_machine(setup, seat.device, self.pricing, seat.on_axis)
            return self._rank_shards(setup, seat.stage, machine, slowed(self.pricing.lookup, seat.alone, seat.workers))

        # How ranks hold layers and how long these take depends on nothing else of evaluator, setup and stage.
        key = BulkEvaluator._seated, seat.passes, setup.samples_per_rank(seat.stage), setup.micro_batches == 1
        return self.pricing.keep(key, make)

    def _alone(self, stage: StageSetup, degrees: BatchedDegrees) -> Setup:
        """The job with one stage alone."""
        return Setup(
            model=self.model,
            cluster=self.cluster,
            recipe=self.recipe,
            stages=(stage,),
            micro_batch=degrees.samples * degrees.dp,
        )

    def _seat(self, degrees: BatchedDegrees, placement: Placement, number: int) -> StageSeat:
        """Where that stage sits."""
        stage = self._stage(degrees, placement.stage(number, degrees.stage_devices))
        alone = stage_device(self._alone(stage, degrees), stage)
        workers = most_on_one_node(stage.slots) if alone.contention else 1
        links = self._links_beside(degrees, placement)
        return StageSeat(
            stage=stage,
            links=links,
            on_axis=links.on_axes_of(stage),
            alone=alone,
            device=alone.among(workers),
            workers=workers,
            passes=self.pricing.stands_for(
                BulkEvaluator._seat,
                self._work,
                replace(alone, memory_bytes=1),
                workers,
                stage.sequence_parallel,
                *(links.place_of(stage, axis) for axis in PASS_AXES if getattr(stage, axis) > 1),
            ),
        )
