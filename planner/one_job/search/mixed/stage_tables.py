"""What the stages of a segment take and hold, for every run of layers and every rule, each priced once in a search.

The same rules as `estimator.pricing.evaluate`, by the layers of `estimator.bulk`.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Composition, ModelLayers
from estimator.bulk.records import Rule
from estimator.bulk.shards import Chunks, RankShards
from estimator.pricing.amounts import Floats
from estimator.pricing.gradient_sync import TimeOnAxis, exposed_sync_s, hiding_of
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.memory import Holdings, joined_holdings, outside_bytes, reserve_bytes, standing_bytes
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup, StageSetup, ZeroStage
from estimator.pricing.stage_cost import OnceCost, longest_once, price_once
from profiles.records import dataclass, replace

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
StageRule = tuple[Rule, ZeroStage]
"""What a segment's stages recompute, and their stage of ZeRO."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All runs of a model's layers, equal ones as one: `ids` (first, end) is its number, -1 where it is empty."""

    layers: ModelLayers
    ids: NDArray[np.int64]
    ranges: tuple[tuple[int, int], ...]

    def composition(self, number: int, rule: Rule) -> Composition:
        """Return how many layers of each variant the content has, as many recomputed as `rule` says."""
        kind, count = rule
        again = 0 if kind == "none" else len(self.layers.kind_of_layer) if count is None else count
        return self.layers.composition(*self.ranges[number], again)


def contents_of(layers: ModelLayers) -> Contents:
    """All runs of the layers."""
    count = len(layers.kind_of_layer)
    ids = np.full((count + 1, count + 1), -1, dtype=np.int64)
    numbers: dict[tuple[int, ...], int] = {}
    ranges: list[tuple[int, int]] = []
    for first in range(count):
        for end in range(first + 1, count + 1):
            number = numbers.setdefault(layers.kind_of_layer[first:end], len(numbers))
            if number == len(ranges):
                ranges.append((first, end))
            ids[first, end] = number
    return Contents(layers=layers, ids=ids, ranges=tuple(ranges))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardTable:
    """All contents on one kind of rank: passes and memory, whatever the replicas."""

    shards: RankShards
    contents: Contents
    held: tuple[Holdings, Floats]
    """What a rank holds of each content, and the scratch that its software keeps."""

    def chunks(self, rule: Rule) -> Chunks:
        """Return what passes through each content take, and what a micro-batch keeps."""
        return self.shards.pricing.remember(self._chunks, rule)

    def _chunks(self, rule: Rule) -> Chunks:
        every = range(len(self.contents.ranges))
        return self.shards.chunks([self.contents.composition(number, rule) for number in every], rule[0])


def holdings(shards: RankShards, contents: Contents) -> tuple[Holdings, Floats]:
    """What a rank holds of each content, and the scratch that its software keeps: the same however many samples."""
    held = [shards.holdings((ranges,)) for ranges in contents.ranges]
    return joined_holdings([each for each, _ in held]), np.array([cached for _, cached in held])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankKind:
    """The ranks of a stage that have one type of device, as if all ranks were like them."""

    setup: Setup
    stage: StageSetup
    table: ShardTable
    memory_bytes: int

    @property
    def shards(self) -> RankShards:
        """The layers as they hold them."""
        return self.table.shards


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Held:
    """Bytes of a rank, (rules, contents): what a micro-batch under way keeps, what has been given back by the fullest
    moment and what lives for a moment then, what stands and what the optimizer's step copies; and what is outside of
    the allocator."""

    saved: Floats
    freed: Floats
    temporary: Floats
    standing: Floats
    step: Floats
    outside: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exact:
    """Seconds of every (rule, content), not a number where nobody asked yet. Gradients and weights as far as they are
    exposed."""

    forward_s: Floats
    backward_s: Floats
    reduce_s: Floats
    gather_s: Floats
    optimizer_s: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class StageTable:
    """A stage that sits at one kind of place: all contents under all rules."""

    contents: Contents
    kinds: tuple[RankKind, ...]
    rules: tuple[StageRule, ...]
    links: LinkTimes

    @property
    def pricing(self) -> Pricing:
        """What the prices rest on."""
        return self.links.pricing

    @cached_property
    def relaxed_s(self) -> Floats:
        """Forward and backward of a micro-batch, (rules, contents), without what ZeRO 3 adds."""
        # Whatever shards the state, and wherever else ranks do the same.
        kinds = tuple(kind.table for kind in self.kinds)
        return self.pricing.keep((StageTable, kinds, self.rules), self._relaxed_s)

    @cached_property
    def least_relaxed_s(self) -> Floats:
        """The same of each content under the rule that takes least."""
        return np.asarray(self.relaxed_s.min(axis=0))

    def _relaxed_s(self) -> Floats:
        passes = {rule: self._passes_s(rule) for rule, _ in self.rules}
        slowest = {rule: (forward + backward).max(axis=0) for rule, (forward, backward) in passes.items()}
        return np.array([slowest[rule] for rule, _ in self.rules])

    def exact(self, rules: Integers, contents: Integers, *, overlapped: bool) -> Exact:
        """Return the seconds of all rules and contents, filled in at least for these pairs."""
        seconds = self.pricing.remember(self._nothing_yet, overlapped)
        missing = np.isnan(seconds.forward_s[rules, contents])
        if missing.any():
            codes = np.array(sorted(set((rules[missing] * len(self.contents.ranges) + contents[missing]).tolist())))
            rows, wanted = np.divmod(codes, len(self.contents.ranges))
            for row in sorted(set(rows.tolist())):
                self._fill(seconds, row, wanted[rows == row], overlapped=overlapped)
        return seconds

    def _nothing_yet(self, overlapped: bool) -> Exact:  # noqa: ARG002
        """Where the seconds of a mode are kept."""
        shape = len(self.rules), len(self.contents.ranges)
        return Exact(**{part.name: np.full(shape, np.nan) for part in fields(Exact)})

    def fits(self, flying: int) -> Flags:
        """Return which contents fit under which rules, (rules, contents), with so many micro-batches under way."""
        return self.pricing.remember(self._fits, flying)

    def possible(self, flying: int, allowed: tuple[bool, ...]) -> Flags:
        """Return which contents fit under those of the rules that are allowed."""
        return self.pricing.remember(self._possible, flying, allowed)

    def least_s(self, flying: int, allowed: tuple[bool, ...]) -> Floats:
        """Return of each content the seconds of a micro-batch that no rule falls below that is possible."""
        return self.pricing.remember(self._least_s, flying, allowed)

    def _possible(self, flying: int, allowed: tuple[bool, ...]) -> Flags:
        return np.asarray(self.fits(flying) & np.array(allowed)[:, None])

    def _least_s(self, flying: int, allowed: tuple[bool, ...]) -> Floats:
        return np.asarray(np.where(self.possible(flying, allowed), self.relaxed_s, np.inf).min(axis=0))

    def _fits(self, flying: int) -> Flags:
        return np.asarray(np.maximum.reduce([self._lacking_bytes(kind, flying) for kind in self.kinds]) <= 0)

    def _passes_s(self, rule: Rule) -> tuple[Floats, Floats]:
        """Forward and backward of each content, (kinds of ranks, contents)."""
        chunks = [kind.table.chunks(rule) for kind in self.kinds]
        return np.array([each.forward_s for each in chunks]), np.array([each.backward_s for each in chunks])

    def _fill(self, seconds: Exact, row: int, contents: Integers, *, overlapped: bool) -> None:
        rule, zero = self.rules[row]
        forward, backward = (part[:, contents] for part in self._passes_s(rule))
        if zero == 3 and self.kinds[0].stage.dp > 1:
            compositions = [self.contents.composition(number, rule) for number in contents.tolist()]
            sharded_over = replace(self.kinds[0].stage, zero=zero).sharded_over
            backward = backward + np.array(
                [
                    kind.shards.sharding_s(
                        compositions, rule[0], sharded_over, self._on_axis(zero), overlapped=overlapped
                    )
                    for kind in self.kinds
                ]
            )
        slowest, places = np.argmax(forward + backward, axis=0), np.arange(len(contents))
        forward_s, backward_s = forward[slowest, places], backward[slowest, places]
        once = [self.pricing.remember(self._once, number, zero) for number in contents.tolist()]
        setup = self.kinds[0].setup
        reduce_s, gather_s = exposed_sync_s(
            hiding_of(setup.recipe, [zero], setup.micro_batches, overlapped=overlapped),
            np.array([cost.overlap_cost for cost in once]),
            np.array([cost.reduce_s for cost in once]),
            np.array([cost.partial_s for cost in once]),
            np.array([cost.gather_s for cost in once]),
            forward_s,
            backward_s,
        )
        seconds.forward_s[row, contents] = forward_s
        seconds.backward_s[row, contents] = backward_s
        seconds.reduce_s[row, contents] = reduce_s
        seconds.gather_s[row, contents] = gather_s
        seconds.optimizer_s[row, contents] = [cost.optimizer_s for cost in once]

    def _once(self, content: int, zero: ZeroStage) -> OnceCost:
        first, end = self.contents.ranges[content]
        return longest_once(
            [
                price_once(
                    kind.setup,
                    replace(kind.stage, zero=zero),
                    [kind.shards.chunk_work(first, end)],
                    [kind.shards.profiles(first, end)],
                    kind.shards.machine,
                    self._on_axis(zero),
                    self.pricing.parameters,
                )
                for kind in self.kinds
            ]
        )

    def _on_axis(self, zero: ZeroStage) -> TimeOnAxis:
        return self.pricing.remember(self._on_sharded_axis, zero > 0)

    def _on_sharded_axis(self, sharded: bool) -> TimeOnAxis:
        return self.links.on_axes_of(replace(self.kinds[0].stage, zero=1 if sharded else 0))

    def _lacking_bytes(self, kind: RankKind, flying: int) -> Floats:
        """What a rank of that kind needs beyond what its device has (`estimator.pricing.memory.rank_memory`)."""
        held = self.pricing.remember(self._held, kind)
        activation = np.rint(flying * held.saved) - held.freed
        reserve = reserve_bytes(
            activation,
            held.temporary,
            held.standing,
            held.step,
            held.outside,
            kind.memory_bytes,
            kind.shards.features,
        )
        return np.asarray(held.standing + activation + held.temporary + reserve - kind.memory_bytes)

    def _held(self, kind: RankKind) -> _Held:
        """What its ranks hold, but what is outside the same for all stages of these degrees."""
        stage = kind.stage
        degrees = (stage.tp, stage.cp, stage.dp, stage.ep, stage.etp, stage.shard, stage.offload)
        inside = self.pricing.keep((StageTable._held, kind.table, self.rules, degrees), lambda: self._held_inside(kind))
        return replace(inside, outside=outside_bytes(kind.setup, stage, kind.shards.features))

    def _held_inside(self, kind: RankKind) -> _Held:
        features, recipe = kind.shards.features, kind.setup.recipe
        passes = {rule: kind.table.chunks(rule) for rule, _ in self.rules}
        saved, extra, freed = (
            np.array([getattr(passes[rule], name) for rule, _ in self.rules])
            for name in ("saved_bytes", "extra_bytes", "freed_bytes")
        )
        holdings, cached = kind.table.held
        stands = {
            zero: standing_bytes(recipe, replace(kind.stage, zero=zero), holdings, features)
            for zero in dict.fromkeys(zero for _, zero in self.rules)
        }
        standing, step = (
            np.array([np.broadcast_to(parts[zero], cached.shape) for _, zero in self.rules])
            for parts in (
                {zero: each.handed_out for zero, each in stands.items()},
                {zero: each.step for zero, each in stands.items()},
            )
        )
        return _Held(
            saved=saved,
            freed=freed,
            temporary=cached + extra + features.workspace_bytes,
            standing=standing,
            step=step,
            outside=0,
        )
