"""Stages that sit alike: how their ranks hold layers, and what comes once an iteration, of all pipelines alike."""

from __future__ import annotations

from dataclasses import replace

from estimator.bulk.records import StateRule
from estimator.bulk.shards import Content, RankShards
from estimator.pricing.build import Ranges
from estimator.pricing.gradient_sync import TimeOnAxis
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.stage_cost import OnceCost, price_once
from profiles.records import dataclass

ANY_RANGES: Ranges = ((0, 1),)
"""Layers of a stage where only its degrees and its state count."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageKind:
    """Stages that sit alike: one of them, its ranks' layers, its links, and the memory of its devices.

    `setup` is that of the job with this stage alone: a stage's price does not depend on how many others there are.
    """

    setup: Setup
    stage: StageSetup
    shards: RankShards
    links: LinkTimes
    on_axis: TimeOnAxis
    memory_bytes: int

    def under(self, ranges: Ranges, state: StateRule) -> StageSetup:
        """Return the stage with `ranges` of layers under a rule of state."""
        return replace(self.stage, chunks=ranges, zero=state.zero, shard=state.shard, offload=state.offload)

    def on_axis_under(self, state: StateRule) -> TimeOnAxis:
        """Return who times collectives of the stage under a rule of state."""
        return self.shards.pricing.remember(self._on_axis, state.zero > 0, state.shard)

    def _on_axis(self, is_sharded: bool, shard: int | None) -> TimeOnAxis:
        return self.links.on_axes_of(replace(self.stage, zero=1 if is_sharded else 0, shard=shard))

    def once(self, ranges: Ranges, state: StateRule) -> OnceCost:
        """Return what comes once an iteration for the stage with `ranges` of layers."""
        contents = tuple(self.shards.content(*part) for part in ranges)
        return self.shards.pricing.remember(self._once, contents, state)

    def _once(self, contents: tuple[Content, ...], state: StateRule) -> OnceCost:
        shards = self.shards
        return price_once(
            self.setup,
            self.under(ANY_RANGES, state),
            [shards.work_of(content) for content in contents],
            [shards.profiles_of(content) for content in contents],
            shards.machine,
            self.on_axis_under(state),
            shards.pricing.parameters,
        )
