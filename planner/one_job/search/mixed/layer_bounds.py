"""What stages take and hold at least, as sums over their layers: known before any stage is priced.

A pass takes no less than the sum over its layers of what the whole model takes longer than without one
(`RankShards.longer_by_one_s`). Of collectives only those of tp count, and these as if nobody else used the links. Of
memory what a rank keeps for a micro-batch counts, and weights, gradients and optimizer state; buffers, and what lives
for one layer, do not.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from estimator.bulk.shards import RankShards
from estimator.layers.graph import table_parameters
from estimator.pricing.amounts import Floats
from estimator.pricing.memory import Holdings, features_of, standing_bytes
from estimator.pricing.rank_kinds import on_one_device
from estimator.pricing.recipe import Setup, StageSetup
from planner.one_job.search.mixed.pricer import Pricer
from planner.one_job.search.mixed.space import Segment
from planner.one_job.search.spaces.space import fewest_replicas
from profiles.records import dataclass, replace
from profiles.vocabulary import CollectiveOp


@dataclass(frozen=True, kw_only=True)
class LinearRank:
    """By rule of recomputation and kind of layer: a stage of n_k layers takes and keeps for a micro-batch at least the
    sums of n_k times these. `standing_bytes`, by kind: what it holds whatever is under way, in one copy of the state.
    """

    seconds: Floats
    saved_bytes: Floats
    holdings: Holdings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linear:
    """Asks the layers of `pricer`."""

    pricer: Pricer

    def rank(self, segment: Segment, number: int) -> LinearRank | None:
        """Return a rank of one of the segment's groups; None where it cannot hold a layer so."""
        samples = segment.samples[segment.groups.index(number)]
        key = (self._rank, number, segment.layout, samples, self.pricer.batches(segment) == 1)
        return self.pricer.pricing.keep(key, lambda: self._rank(segment, number, samples))

    def ranks(self, segment: Segment) -> list[LinearRank] | None:
        """One of each of the segment's groups; None where one cannot hold a layer so, or no rule allows it."""
        if not any(self.pricer.rules(segment, many=many) for many in (False, True)):
            return None
        ranks = [self.rank(segment, number) for number in segment.groups]
        possible = [rank for rank in ranks if rank is not None]
        return possible if len(possible) == len(ranks) else None

    def standing_bytes(self, segment: Segment, rank: LinearRank) -> Floats:
        """By kind of layer, under the stage of ZeRO that shards it most."""

        def make() -> Floats:
            recipe, features = self.pricer.recipe, features_of(self.pricer.recipe)
            stage = replace(self.pricer.space.stage(segment, 0), shares=None)
            rules = (rule for many in (False, True) for rule in self.pricer.rules(segment, many=many))
            zeros = dict.fromkeys(zero for _, zero in rules)
            held = (standing_bytes(recipe, replace(stage, zero=zero), rank.holdings, features) for zero in zeros)
            return np.asarray(np.minimum.reduce([np.asarray(each.state) for each in held]))

        # What a rank holds is the same on any device.
        return self.pricer.pricing.keep((self.standing_bytes, segment.layout, segment.dp), make)

    def room_bytes(self, number: int) -> float:
        """What a device of that group has for layers, at most."""
        features = features_of(self.pricer.recipe)
        return self.pricer.space.groups[number].memory_bytes - features.context_bytes - features.workspace_bytes

    def _rank(self, segment: Segment, number: int, samples: int) -> LinearRank | None:
        pricer, layout = self.pricer, segment.layout
        group, links = pricer.space.groups[number], pricer.links
        dp = fewest_replicas(layout.tp, layout.ep * layout.etp)
        slots = pricer.space.places(number, layout.tp)[: layout.tp * dp]
        chunks = ((0, len(pricer.contents.layers.kind_of_layer)),)
        stage = StageSetup(
            chunks=chunks,
            slots=slots,
            tp=layout.tp,
            dp=dp,
            ep=layout.ep,
            etp=layout.etp,
            sequence_parallel=layout.sequence_parallel,
        )
        nodes = links.cluster.group_of(slots[0])
        inside = layout.tp <= min(nodes.island_size, nodes.devices)
        group_of_tp = StageSetup(chunks=chunks, slots=slots[: layout.tp], tp=layout.tp)
        on_tp = links.on_axes_of(group_of_tp)

        def on_axis(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
            return on_tp(op, size_bytes, axis) if axis == "tp" and inside else 0.0

        batch = samples * dp
        whole = Setup(
            model=pricer.space.model,
            cluster=links.cluster,
            recipe=replace(pricer.recipe, global_batch=batch * pricer.batches(segment)),
            stages=(stage,),
            micro_batch=batch,
        )

        def make() -> LinearRank | None:
            alone = on_one_device(whole, stage, group.device, samples=samples, stages=1)
            shards = pricer.shards(alone, number, on_axis)
            return None if shards is None else self._tangent(shards)

        # In whichever search, on whichever cluster.
        place = links.place_of(group_of_tp, "tp") if inside and layout.tp > 1 else None
        device, once = replace(group.device, memory_bytes=1), pricer.batches(segment) == 1
        key = (Linear._rank, pricer.work, pricer.recomputed(), device, layout, samples, once, place)
        return pricer.pricing.keep(key, make)

    def _tangent(self, shards: RankShards) -> LinearRank:
        """What the whole model takes longer than without one layer, and what one layer keeps."""
        layers, model = self.pricer.contents.layers, self.pricer.space.model
        count, kinds = len(layers.kind_of_layer), len(layers.kinds)
        seconds, saved = [], []
        for kind, some in self.pricer.recomputed():
            whole = layers.composition(0, count, 0 if kind == "none" or some is not None else count)
            layer_s = np.zeros(kinds)
            layer_s[[layer for (layer, _), _ in whole]] = shards.longer_by_one_s(whole, kind)
            seconds.append(layer_s)
            plain = [(number, False) for number in range(kinds)]
            again = [(number, kind != "none" and layers.kinds[number].recomputable) for number in range(kinds)]
            kept = shards.kept_bytes([*plain, *again], kind).reshape(2, kinds)
            saved.append(kept[1] if some is None else kept.min(axis=0))
        firsts = [layers.kinds[number].index for number in range(kinds)]
        held = shards.holdings_of_one(range(kinds))
        # A head that shares the embedding's table may stand beside it.
        tied_head = len(model.layers) - 1 if table_parameters(model, 1) else None
        own_table = np.array([index != tied_head for index in firsts], float)
        return LinearRank(
            seconds=np.array(seconds),
            saved_bytes=np.array(saved),
            holdings=Holdings(**{part.name: getattr(held, part.name) * own_table for part in fields(Holdings)}),
        )
