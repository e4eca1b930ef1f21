"""Stages that sit alike: how their ranks hold layers, and what comes once an iteration, of all pipelines alike."""

from __future__ import annotations

from collections.abc import Iterable

from estimator.bulk.records import StateRule
from estimator.bulk.shards import Content, RankShards
from estimator.pricing.build import Ranges
from estimator.pricing.gradient_sync import TimeOnAxis
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.stage_cost import OnceCost, price_once
from profiles.records import dataclass, replace
from profiles.vocabulary import Device, LayerTime

ANY_RANGES: Ranges = ((0, 1),)
"""Layers of a stage where only its degrees and its state count."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageSeat:
    """Where stages of some degrees sit that sit alike, whatever a micro-batch of theirs is: one of them as if it held
    all layers, who times its collectives, its device alone and `device` as it is among the stage's workers on a node,
    and what stands for all that decides how long its ranks' passes take, but their samples (`Pricing.stands_for`)."""

    stage: StageSetup
    links: LinkTimes
    on_axis: TimeOnAxis
    alone: Device
    device: Device
    workers: int
    passes: object

    def under(self, ranges: Ranges, state: StateRule) -> StageSetup:
        """Return the stage with `ranges` of layers under a rule of state."""
        if ranges is ANY_RANGES:
            return self.links.pricing.remember(self._under, ranges, state)
        return self._under(ranges, state)

    def _under(self, ranges: Ranges, state: StateRule) -> StageSetup:
        return replace(self.stage, chunks=ranges, zero=state.zero, shard=state.shard, offload=state.offload)

    def on_axis_under(self, state: StateRule) -> TimeOnAxis:
        """Return who times collectives of the stage under a rule of state."""
        return self.links.pricing.remember(self._on_axis, state.zero > 0, state.shard)

    def _on_axis(self, is_sharded: bool, shard: int | None) -> TimeOnAxis:
        return self.links.on_axes_of(replace(self.stage, zero=1 if is_sharded else 0, shard=shard))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageKind:
    """Stages that sit alike: where, and their ranks' layers.

    `setup` is that of the job with this stage alone: a stage's price does not depend on how many others there are.
    """

    setup: Setup
    seat: StageSeat
    shards: RankShards

    @property
    def stage(self) -> StageSetup:
        """One of the stages, as if it held all layers."""
        return self.seat.stage

    @property
    def links(self) -> LinkTimes:
        """Who times messages between stages."""
        return self.seat.links

    @property
    def on_axis(self) -> TimeOnAxis:
        """Who times the stage's collectives."""
        return self.seat.on_axis

    @property
    def memory_bytes(self) -> int:
        """The memory of its devices."""
        return self.seat.alone.memory_bytes

    def under(self, ranges: Ranges, state: StateRule) -> StageSetup:
        """Return the stage with `ranges` of layers under a rule of state."""
        return self.seat.under(ranges, state)

    def on_axis_under(self, state: StateRule) -> TimeOnAxis:
        """Return who times collectives of the stage under a rule of state."""
        return self.seat.on_axis_under(state)

    def once(self, ranges: Ranges, state: StateRule) -> OnceCost:
        """Return what comes once an iteration for the stage with `ranges` of layers."""
        contents = tuple(self.shards.content(*part) for part in ranges)
        profiles = tuple(self.shards.profiles_of(content) for content in contents)
        # What a rank holds does not depend on its micro-batch, nor does what ZeRO 2 alone sums after each.
        micro_batches = self.setup.micro_batches if state.zero == 2 else None
        return self.shards.pricing.keep(
            (StageKind.once, self.seat, contents, profiles, state, micro_batches),
            lambda: self._once(contents, profiles, state),
        )

    def _once(
        self,
        contents: tuple[Content, ...],
        profiles: tuple[tuple[LayerTime | None, ...], ...],
        state: StateRule,
    ) -> OnceCost:
        shards = self.shards
        return price_once(
            self.setup,
            self.under(ANY_RANGES, state),
            [shards.work_of(content) for content in contents],
            profiles,
            shards.machine,
            self.on_axis_under(state),
            shards.pricing.parameters,
        )


def fastest_once_s(kinds: Iterable[StageKind]) -> float:
    """Return seconds of one micro-batch through all layers forward and backward on the fastest ranks of these stages,
    nothing recomputed."""
    return min(sum(kind.shards.whole_s("none")) for kind in kinds)
