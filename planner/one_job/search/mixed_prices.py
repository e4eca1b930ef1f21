"""What the stages of a segment take and hold, for every run of layers and every rule, each priced once in a search.

The same rules as `estimator.pricing.evaluate`, by the layers of `estimator.bulk`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.layers import Composition, ModelLayers
from estimator.bulk.passes import Floats
from estimator.bulk.records import Rule
from estimator.bulk.shards import Chunks, RankShards
from estimator.pricing.gradient_sync import ShardedLayer, TimeOnAxis
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.memory import FIRM_SHARE, Holdings, outside_bytes, standing_bytes
from estimator.pricing.recipe import Setup, StageSetup, ZeroStage
from estimator.pricing.stage_cost import OnceCost, price_once
from profiles.training_parameters import TrainingParameters

StageRule = tuple[Rule, ZeroStage]
"""What a segment's stages recompute, and their stage of ZeRO."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All runs of a model's layers, equal ones as one: `ids` (first, end) is its number, -1 where it is empty. The only
    state is a cache."""

    layers: ModelLayers
    ids: NDArray[np.int64]
    ranges: tuple[tuple[int, int], ...]
    _compositions: dict[int, list[Composition]] = field(default_factory=dict, repr=False)

    def compositions(self, rule: Rule) -> list[Composition]:
        """Of each content, as many layers recomputed as `rule` says."""
        kind, count = rule
        again = 0 if kind == "none" else len(self.layers.kind_of_layer) if count is None else count
        if again not in self._compositions:
            self._compositions[again] = [self.layers.composition(first, end, again) for first, end in self.ranges]
        return self._compositions[again]


def contents_of(layers: ModelLayers) -> Contents:
    """All runs of the layers."""
    count = len(layers.kind_of_layer)
    ids = np.full((count + 1, count + 1), -1, dtype=np.int64)
    known: dict[tuple[int, ...], int] = {}
    ranges: list[tuple[int, int]] = []
    for first in range(count):
        for end in range(first + 1, count + 1):
            number = known.setdefault(layers.kind_of_layer[first:end], len(known))
            if number == len(ranges):
                ranges.append((first, end))
            ids[first, end] = number
    return Contents(layers=layers, ids=ids, ranges=tuple(ranges))


@dataclass(frozen=True, kw_only=True)
class ShardTable:
    """All contents on one kind of rank: passes and memory, whatever the replicas. The only state is caches."""

    shards: RankShards
    contents: Contents
    held: tuple[Holdings, Floats]
    """What a rank holds of each content, and the scratch that its software keeps."""
    _chunks: dict[Rule, Chunks] = field(default_factory=dict, repr=False)

    def chunks(self, rule: Rule) -> Chunks:
        """Passes through each content, and what a micro-batch keeps."""
        if rule not in self._chunks:
            self._chunks[rule] = self.shards.chunks(self.contents.compositions(rule), rule[0])
        return self._chunks[rule]


def holdings(shards: RankShards, contents: Contents) -> tuple[Holdings, Floats]:
    """What a rank holds of each content, and the scratch that its software keeps: the same however many samples."""
    found = [shards.holdings((own,)) for own in contents.ranges]
    names = [part.name for part in fields(Holdings)]
    whole = Holdings(**{name: np.array([getattr(one, name) for one, _ in found], float) for name in names})
    return whole, np.array([cached for _, cached in found])


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Seconds of every (rule, content), not a number where nobody asked yet. Gradients and weights as far as they are
    exposed."""

    forward_s: Floats
    backward_s: Floats
    reduce_s: Floats
    gather_s: Floats
    optimizer_s: Floats


@dataclass(frozen=True, kw_only=True)
class StageTable:
    """A stage that sits at one kind of place: all contents under all rules. The only state is caches."""

    contents: Contents
    kinds: tuple[RankKind, ...]
    rules: tuple[StageRule, ...]
    links: LinkTimes
    parameters: TrainingParameters
    _exact: dict[bool, Exact] = field(default_factory=dict, repr=False)
    _passes: dict[Rule, tuple[Floats, Floats]] = field(default_factory=dict, repr=False)
    _fits: dict[int, NDArray[np.bool_]] = field(default_factory=dict, repr=False)
    _standing: dict[tuple[int, ZeroStage], tuple[Floats, Floats]] = field(default_factory=dict, repr=False)
    _relaxed: list[Floats] = field(default_factory=list, repr=False)
    _sharded: dict[object, dict[object, ShardedLayer]] = field(default_factory=dict, repr=False)
    _axes: dict[bool, TimeOnAxis] = field(default_factory=dict, repr=False)

    def relaxed_s(self) -> Floats:
        """Forward and backward of a micro-batch, (rules, contents), without what ZeRO 3 adds."""
        if not self._relaxed:
            passes = [self._passes_under(rule) for rule, _ in self.rules]
            self._relaxed.append(np.array([(forward + backward).max(axis=0) for forward, backward in passes]))
        return self._relaxed[0]

    def exact(self, rules: NDArray[np.int64], contents: NDArray[np.int64], *, overlapped: bool) -> Exact:
        """The table, right where it is asked for."""
        found = self._exact.get(overlapped)
        shape = len(self.rules), len(self.contents.ranges)
        if found is None:
            found = Exact(**{part.name: np.full(shape, np.nan) for part in fields(Exact)})
            self._exact[overlapped] = found
        missing = np.isnan(found.forward_s[rules, contents])
        if missing.any():
            codes = np.unique(rules[missing] * shape[1] + contents[missing])
            for rule in np.unique(codes // shape[1]).tolist():
                own = codes[codes // shape[1] == rule] % shape[1]
                self._fill(found, rule, own, overlapped=overlapped)
        return found

    def fits(self, flying: int) -> NDArray[np.bool_]:
        """Which contents fit under which rules, (rules, contents), with so many micro-batches under way."""
        found = self._fits.get(flying)
        if found is None:
            lacking = [self._lacking_bytes(number, flying) for number in range(len(self.kinds))]
            found = self._fits[flying] = np.maximum.reduce(lacking) <= 0
        return found

    def _passes_under(self, rule: Rule) -> tuple[Floats, Floats]:
        """Forward and backward of each content, (kinds of ranks, contents)."""
        if rule not in self._passes:
            both = [kind.table.chunks(rule) for kind in self.kinds]
            forward, backward = np.array([one.forward_s for one in both]), np.array([one.backward_s for one in both])
            self._passes[rule] = forward, backward
        return self._passes[rule]

    def _fill(self, found: Exact, row: int, contents: NDArray[np.int64], *, overlapped: bool) -> None:
        rule, zero = self.rules[row]
        forward, backward = (part[:, contents] for part in self._passes_under(rule))
        if zero == 3 and self.kinds[0].stage.dp > 1:
            compositions = [self.contents.compositions(rule)[number] for number in contents]
            backward = backward + np.array(
                [
                    kind.shards.sharding_s(
                        compositions,
                        rule[0],
                        replace(kind.stage, zero=zero),
                        self._on_axis(zero),
                        self._sharded.setdefault(number, {}),  # type: ignore[arg-type]
                        overlapped=overlapped,
                    )
                    for number, kind in enumerate(self.kinds)
                ]
            )
        slowest = np.argmax(forward + backward, axis=0)
        places = np.arange(len(contents))
        found.forward_s[row, contents] = ahead_s = forward[slowest, places]
        found.backward_s[row, contents] = back_s = backward[slowest, places]
        once = [self._once(int(number), zero) for number in contents]
        reduce_s, gather_s = (np.array([getattr(one, name) for one in once]) for name in ("reduce_s", "gather_s"))
        setup = self.kinds[0].setup
        if overlapped:
            hidden = 1 - self.parameters.of("overlap_cost", "dp")
            sums = setup.micro_batches if zero == 2 else 1
            reduce_s = reduce_s - np.minimum(reduce_s, sums * back_s) * hidden
            if not setup.recipe.software.broadcast_weights:
                gather_s = gather_s - np.minimum(gather_s, ahead_s) * hidden
        found.reduce_s[row, contents] = reduce_s
        found.gather_s[row, contents] = gather_s
        found.optimizer_s[row, contents] = [one.optimizer_s for one in once]

    def _once(self, content: int, zero: ZeroStage) -> OnceCost:
        first, end = self.contents.ranges[content]
        found = [
            price_once(
                kind.setup,
                replace(kind.stage, zero=zero),
                [kind.shards.chunk_work(first, end)],
                [kind.shards.profiles(first, end)],
                kind.shards.machine,
                self._on_axis(zero),
                self.parameters,
            )
            for kind in self.kinds
        ]
        if len(found) == 1:
            return found[0]
        return OnceCost(**{part.name: max(getattr(one, part.name) for one in found) for part in fields(OnceCost)})

    def _on_axis(self, zero: ZeroStage) -> TimeOnAxis:
        if (zero > 0) not in self._axes:
            self._axes[zero > 0] = self.links.on_axes_of(replace(self.kinds[0].stage, zero=zero))
        return self._axes[zero > 0]

    def _lacking_bytes(self, number: int, flying: int) -> Floats:
        """What a rank of that kind needs beyond what its device has (`estimator.pricing.memory.rank_memory`)."""
        kind = self.kinds[number]
        known, setup = kind.shards.features, kind.setup
        chunks = [kind.table.chunks(rule) for rule, _ in self.rules]
        standing, step = (
            np.array(part) for part in zip(*(self._standing_bytes(number, zero) for _, zero in self.rules), strict=True)
        )
        saved, extra, freed = (
            np.array([getattr(one, name) for one in chunks]) for name in ("saved_bytes", "extra_bytes", "freed_bytes")
        )
        activation = np.rint(flying * saved) - freed
        temporary = kind.table.held[1] + extra + known.workspace_bytes
        peak = standing + activation + temporary
        outside = outside_bytes(setup, kind.stage, known)
        loose = known.fragmentation * temporary + known.activation_fragmentation * activation
        firm = np.maximum(FIRM_SHARE * loose, step - temporary - activation)
        room = kind.memory_bytes - peak - outside
        needed = peak + outside + np.rint(np.maximum(firm, np.minimum(loose + step, room)))
        return np.asarray(needed - kind.memory_bytes)

    def _standing_bytes(self, number: int, zero: ZeroStage) -> tuple[Floats, Floats]:
        """Bytes that stand whatever is under way, and those that a step copies, by content."""
        key = (number, zero)
        if key not in self._standing:
            kind = self.kinds[number]
            held, _ = kind.table.held
            found = standing_bytes(kind.setup.recipe, replace(kind.stage, zero=zero), held, kind.shards.features)
            stands = found.weights + found.gradients + found.optimizer + found.communication
            self._standing[key] = (
                stands + np.zeros(len(self.contents.ranges)),
                found.step + np.zeros(len(self.contents.ranges)),
            )
        return self._standing[key]
