"""A model under a recipe on a cluster, of which pipelines are asked: what they share is priced once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from estimator.bulk.layers import ModelLayers
from estimator.bulk.memory_bound import Divisible
from estimator.bulk.pipeline import Pipeline, StageKind
from estimator.bulk.places import Placement, place_in_order, whole_groups
from estimator.bulk.records import Degrees
from estimator.bulk.shards import RankShards
from estimator.layer_times import Lookup, slowed
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.memory import features_of
from estimator.pricing.recipe import Overlap, Recipe, Setup, StageSetup, ZeroStage
from estimator.pricing.stage_cost import EfficienciesOf, stage_machine
from estimator.pricing.stage_work import stage_device
from models_zoo.model import Model
from profiles.cluster import Cluster, DeviceSlot, most_on_one_node
from profiles.training_parameters import TrainingParameters
from profiles.vocabulary import Infeasible

MOST_PIPELINES = 20_000
"""So many are kept for who asks again."""


@dataclass(frozen=True, kw_only=True)
class BulkEvaluator:
    """A model under a recipe on a cluster.

    `overlap_under`: what communication the software hides under a stage of ZeRO (as far as gradients go; the rest is
    the recipe's). `measured_alone`: only layers that `lookup` knows exist. The only state is caches: of layers as ranks
    hold them, and of links.
    """

    model: Model
    cluster: Cluster
    recipe: Recipe
    parameters: TrainingParameters
    efficiencies_of: EfficienciesOf
    lookup: Lookup
    links: LinkTimes
    layers: ModelLayers
    overlap_under: Callable[[ZeroStage], frozenset[Overlap]]
    measured_alone: bool = False
    _shards: dict[object, RankShards] = field(default_factory=dict, repr=False)
    _divided: dict[object, Divisible | None] = field(default_factory=dict, repr=False)
    _placements: dict[int, Placement] = field(default_factory=dict, repr=False)
    _alone: dict[object, float] = field(default_factory=dict, repr=False)
    _pipelines: dict[object, Pipeline | Infeasible] = field(default_factory=dict, repr=False)

    def pipeline(self, degrees: Degrees, placement: Placement) -> Pipeline | Infeasible:
        """The pipeline of `degrees` on the first places of `placement`; Infeasible where it cannot be. Asked again, it
        is the same one, with what it has priced."""
        key = (degrees, id(placement.slots))
        if key not in self._pipelines:
            if len(self._pipelines) >= MOST_PIPELINES:
                self._pipelines.clear()
            self._pipelines[key] = self._pipeline(degrees, placement)
        return self._pipelines[key]

    def _pipeline(self, degrees: Degrees, placement: Placement) -> Pipeline | Infeasible:
        size = degrees.stage_devices
        if size % (degrees.ep * degrees.etp):
            reason = f"ep {degrees.ep} * etp {degrees.etp} does not divide a stage's {size} ranks"
            return Infeasible(reason=reason, lacking="divisibility")
        classes = placement.classes(size, degrees.pp)
        layers = len(self.model.layers)
        alike = {
            number: StageSetup(
                chunks=((0, layers),),
                slots=placement.stage(number, size),
                tp=degrees.tp,
                cp=degrees.cp,
                dp=degrees.dp,
                ep=degrees.ep,
                etp=degrees.etp,
                sequence_parallel=degrees.sequence_parallel,
            )
            for number in dict.fromkeys(classes)
        }
        setup = Setup(
            model=self.model,
            cluster=self.cluster,
            recipe=self.recipe,
            stages=tuple(alike[number] for number in classes),
            micro_batch=degrees.samples * degrees.dp,
        )
        kinds = []
        for stage in alike.values():
            kind = self._kind(setup, stage)
            if isinstance(kind, Infeasible):
                return kind
            kinds.append(kind)
        numbers = {number: place for place, number in enumerate(alike)}
        return Pipeline(
            degrees=degrees,
            placement=placement,
            setup=setup,
            kinds=tuple(kinds),
            kind_of_stage=tuple(numbers[number] for number in classes),
            links=self.links,
            layers=self.layers,
            parameters=self.parameters,
            overlap_under=self.overlap_under,
            divided=self._divided,
        )

    def compute_alone_s(self, degrees: Degrees, slots: Sequence[DeviceSlot]) -> float:
        """`_compute_alone_s`, once for each kind of device."""
        key = (degrees, slots[0].site, slots[0].group)
        if key not in self._alone:
            self._alone[key] = self._compute_alone_s(degrees, slots)
        return self._alone[key]

    def _compute_alone_s(self, degrees: Degrees, slots: Sequence[DeviceSlot]) -> float:
        """Seconds of one micro-batch through all layers forward and backward, with no communication, no recomputation,
        no gradients to add to and no other worker: the least that the stages of any pipeline of such ranks take
        together. Infinite where a layer cannot be held so."""
        stage = StageSetup(
            chunks=((0, len(self.model.layers)),),
            slots=tuple(slots[: degrees.stage_devices]),
            tp=degrees.tp,
            cp=degrees.cp,
            dp=degrees.dp,
            ep=degrees.ep,
            etp=degrees.etp,
            sequence_parallel=degrees.sequence_parallel,
        )
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
        shards = RankShards(
            layers=self.layers,
            setup=setup,
            stage=stage,
            machine=stage_machine(
                setup, device, self.efficiencies_of(device.name), self.parameters, lambda _op, _size, _axis: 0.0
            ),
            lookup=self.lookup,
            features=features_of(setup.recipe),
        )
        if shards.refused() is not None or (self.measured_alone and not shards.all_measured):
            return math.inf
        found = shards.chunks([self.layers.composition(0, len(self.model.layers), 0)], "none")
        return float(found.forward_s[0] + found.backward_s[0])

    def placement(self, tp: int, slots: Sequence[DeviceSlot]) -> Placement:
        """Ranks on `slots` in turn; for `tp` above 1, on as many of each node's as make whole groups."""
        if tp not in self._placements:
            taken = slots if tp == 1 else whole_groups(slots, tp)
            self._placements[tp] = place_in_order(self.cluster, taken, self.links)
        return self._placements[tp]

    def _kind(self, setup: Setup, stage: StageSetup) -> StageKind | Infeasible:
        alone = stage_device(setup, stage)
        device, lookup = alone, self.lookup
        if alone.contention:
            workers = most_on_one_node([slot for one in setup.stages for slot in one.slots])
            device, lookup = alone.among(workers), slowed(lookup, alone, workers)
        if device.peak(setup.recipe.dtype) is None:
            have = ", ".join(name for name, _ in device.peak_flops_per_s)
            return Infeasible(
                reason=f"{device.name} has no {setup.recipe.dtype} rate (it has {have})", lacking="support"
            )
        on_axis = self.links.on_axes_of(stage)
        key = (
            device,
            setup.samples_per_rank(stage),
            setup.micro_batches == 1,
            *(getattr(stage, name) for name in ("tp", "cp", "ep", "etp", "sequence_parallel")),
            *(self.links.groups_of(stage, axis) for axis in ("tp", "cp", "ep", "etp")),
        )
        shards = self._shards.get(key)
        if shards is None:
            machine = stage_machine(setup, device, self.efficiencies_of(device.name), self.parameters, on_axis)
            shards = self._shards[key] = RankShards(
                layers=self.layers,
                setup=setup,
                stage=stage,
                machine=machine,
                lookup=lookup,
                features=features_of(setup.recipe),
            )
        refused = shards.refused()
        if refused is not None:
            return refused
        return StageKind(stage=stage, shards=shards, on_axis=on_axis, memory_bytes=alone.memory_bytes)
