"""What the plans of a pipeline take at least, known before they are priced: in the order of what it costs to know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.classes import ChunkTable, Classes, Integers
from estimator.bulk.memory_bound import Divisible, Rooms, divisible, least_in_memory, standing_bytes_a_second
from estimator.bulk.pipeline import Pipeline, Room
from estimator.bulk.records import Family, Rule, StateRule
from estimator.bulk.stage_kind import ANY_RANGES, StageKind
from estimator.pricing.amounts import Amount, Floats
from estimator.pricing.build import Ranges
from estimator.pricing.gradient_sync import exposed_sync_s, hiding_of
from estimator.pricing.memory import outside_bytes
from estimator.pricing.recipe import ScheduleName
from estimator.schedules import flying_micro_batches, lower_bounds
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind

RECOMPUTE_KINDS: tuple[RecomputeKind, ...] = get_args(RecomputeKind)
PLAIN: Rule = ("none", None)
Flag = bool | NDArray[np.bool_]


def least_in_turn(once_s: Amount, stages: int | Integers, micro_batches: int | Integers, waits: Flag) -> Amount:
    """Return the least that so many stages take for micro-batches of `once_s` over all of them (`least_s`); of many
    pipelines at once where these are arrays."""
    in_turn = waits & (stages > 1)
    return once_s * np.where(in_turn, 1 / (1 - (1 - 1 / micro_batches) ** stages), micro_batches / stages)


def least_s(pipeline: Pipeline, *, waits: bool) -> float:
    """Return seconds that no plan falls below; `waits`: of one chunk a stage under gpipe or 1f1b, which no other
    schedule is held to.

    All layers of a micro-batch take t together: a pass of all at once is no longer than the passes of its parts, as
    the norm of device and host and what communication hides are sub-additive (`PassSum.finish`). Some stage of S
    takes at least t / S, m times. A stage that waits does so for those before it, forward and backward
    (`estimator.schedules.lower_bounds`): max_i (t_0 + .. + t_(i-1) + m t_i) is least where all are equal, at
    t / (1 - (1 - 1/m)^S).
    """
    passes_s = least_in_turn(_once_s(pipeline), len(pipeline.setup.stages), pipeline.micro_batches, waits)
    return float(passes_s) + pipeline.iteration_s


def _once_s(pipeline: Pipeline) -> float:
    """A micro-batch through all layers on the fastest ranks."""
    return min(sum(kind.shards.whole_s("none")) for kind in pipeline.kinds)


@lru_cache(maxsize=65536)
def most_in_turn(layers: int, stages: int, micro_batches: int) -> int:
    """Return the least that max_i (c_0 + .. + c_(i-1) + m c_i) can be where stages hold c_i whole layers of so many:
    stages that wait for those before them (`least_s`), with layers that are not divisible.

    >>> most_in_turn(4, 2, 8), most_in_turn(5, 2, 8), most_in_turn(5, 2, 1)
    (18, 24, 5)
    """

    def holds(most: int) -> bool:
        held = 0
        for _ in range(stages):
            # As many as may be: what then stands before the later stages is never fewer.
            more = (most - held) // micro_batches
            held += more
            if not more or held >= layers:
                break
        return held >= layers

    low, high = layers, micro_batches * layers + layers
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _whole_layers_s(pipeline: Pipeline, ranks: Sequence[Divisible], *, waits: bool) -> float:
    """Seconds of passes that no plan falls below, as a stage holds whole layers: those of each kind, and all of them at
    the least of any takes."""
    stages, m = len(pipeline.setup.stages), pipeline.micro_batches
    counts = ranks[0].counts
    alone = np.minimum.reduce([rank.layer_s for rank in ranks])
    some = [*zip(counts.tolist(), alone.tolist(), strict=True), (int(counts.sum()), float(alone.min()))]
    return max(float(each_s * (most_in_turn(n, stages, m) if waits else m * -(-n // stages))) for n, each_s in some)


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """What plans take at least as their layers have to fit, of each schedule under each rule of state: `least_s` in
    all, `work_s` of it passes and recomputation of all stages, on average."""

    least_s: Floats
    work_s: Floats


def least_in_memory_s(
    pipeline: Pipeline,
    schedules: Sequence[tuple[ScheduleName, int]],
    states: Sequence[StateRule],
    kinds: tuple[RecomputeKind, ...],
    *,
    spare_bytes: int = 0,
) -> InMemory:
    """Return of each schedule with so many chunks a stage under each rule of state, (schedules, states): no plan takes
    less under these kinds of recomputation, as its layers have to fit (`estimator.bulk.memory_bound`); infinite where
    they cannot."""
    stages, m = len(pipeline.setup.stages), pipeline.micro_batches
    ranks = [pipeline.pricing.remember(divisible, kind.shards, kinds) for kind in pipeline.kinds]
    known_ranks = [rank for rank in ranks if rank is not None]
    shape = len(schedules), len(states)
    if not schedules or len(known_ranks) < len(ranks):
        return InMemory(least_s=np.zeros(shape), work_s=np.zeros(shape))
    once_s = _once_s(pipeline)
    rooms = _rooms(pipeline, known_ranks, schedules, states, spare_bytes)
    again_s, slowest_s = least_in_memory(rooms, min(rank.once_s for rank in known_ranks), np.zeros(shape))
    work_s = m * (once_s + again_s) / stages
    least = np.maximum(work_s, m * slowest_s)
    waits = np.array([name in ("gpipe", "1f1b") for name, _ in schedules])
    in_turn_s = (once_s + again_s) / (1 - (1 - 1 / m) ** stages)
    least = np.where(waits[:, None], np.maximum(least, in_turn_s), least)
    whole_s = [_whole_layers_s(pipeline, known_ranks, waits=wait) for wait in waits.tolist()]
    least = np.maximum(least, np.array(whole_s)[:, None]) + pipeline.iteration_s
    return InMemory(least_s=np.asarray(least), work_s=np.asarray(work_s))


def least_with_sums_s(pipeline: Pipeline, schedule: tuple[ScheduleName, int], state: StateRule, work_s: float) -> float:
    """Return what no plan of a schedule falls below under a rule of state, with passes and recomputation of `work_s`
    (`least_in_memory_s`).

    The stage that does most of passes, sums and step together does at least the average of all stages. A sum of a
    part takes at least its share of the whole one's time: what a message takes grows by less than its size. Beside
    a micro-batch's passes, recomputation included, no more of it is hidden than those last; what is exposed before
    an earlier stage has ended counts in that stage's passes. ZeRO 3's gathers are at best hidden at their cost.
    """
    software = pipeline.setup.recipe.software
    if pipeline.pricing.link_tables or software.bucket_bytes or software.copies_pieces:
        return work_s + pipeline.iteration_s
    # Where the optimizer's state is changes no sum.
    on_device = replace(state, offload=frozenset()) if state.offload else state
    overlapped, beside = "dp" in pipeline.overlap_under(state.zero), pipeline.passes_beside(*schedule)
    remember = pipeline.pricing.remember
    sums_s = min(remember(_least_sums_s, kind, on_device, overlapped, beside) for kind in pipeline.kinds)
    return work_s + sums_s / len(pipeline.setup.stages) + pipeline.iteration_s


def _rooms(
    pipeline: Pipeline,
    ranks: Sequence[Divisible],
    schedules: Sequence[tuple[ScheduleName, int]],
    states: Sequence[StateRule],
    spare_bytes: int,
) -> Rooms:
    """What stages have for layers, (schedules, states, stages)."""
    features = pipeline.kinds[0].shards.features
    room = [
        kind.memory_bytes - outside_bytes(pipeline.setup, kind.stage, features) - features.workspace_bytes - spare_bytes
        for kind in pipeline.kinds
    ]
    remember, first = pipeline.pricing.remember, pipeline.kinds[0]
    standing = [min(remember(standing_bytes_a_second, rank, first, state) for rank in ranks) for state in states]
    stages, m = len(pipeline.setup.stages), pipeline.micro_batches
    flying = np.array([flying_micro_batches(name, stages, chunks, m).mean(axis=1) for name, chunks in schedules])
    return Rooms(
        room_bytes=np.array(room, float)[list(pipeline.kind_of_stage)],
        flying=flying[:, None, :],
        standing_bytes=np.array(standing)[None, :, None],
        kept_bytes=min(rank.kept_bytes for rank in ranks),
        spared_bytes=max(rank.spared_bytes for rank in ranks),
        again_s=min(rank.again_s for rank in ranks),
    )


def _least_sums_s(kind: StageKind, state: StateRule, overlapped: bool, beside: float) -> float:
    """The least that stages of one kind, which hold all layers together, add to their passes."""
    shards, setup = kind.shards, kind.setup
    layers = len(setup.model.layers)
    if state.zero == 3:
        return shards.pricing.remember(_least_sharding_s, kind, state, overlapped)
    cost = kind.once(((0, layers),), state)
    passes = [shards.whole_s(recompute) for recompute in RECOMPUTE_KINDS]
    hiding = hiding_of(
        setup.recipe,
        [state.zero],
        setup.micro_batches,
        overlapped=overlapped,
        beside=beside,
    )
    forward_s, backward_s = max(ahead for ahead, _ in passes), max(back for _, back in passes)
    once = cost.overlap_cost, cost.reduce_s, cost.partial_s, cost.gather_s
    return float(sum(exposed_sync_s(hiding, *once, forward_s, backward_s)))


def _least_sharding_s(kind: StageKind, state: StateRule, overlapped: bool) -> float:
    """The least that ZeRO 3 adds to all micro-batches of stages of one kind, which hold all layers together."""
    if kind.stage.dp * kind.stage.cp == 1:
        return 0.0
    return kind.setup.micro_batches * kind.shards.least_sharding_s(
        kind.shards.layers.composition(0, len(kind.setup.model.layers), 0),
        kind.under(ANY_RANGES, state).sharded_over,
        kind.on_axis_under(state),
        overlapped=overlapped,
    )


def least_by_cut_s(pipeline: Pipeline, schedule: ScheduleName, cuts: Sequence[tuple[Ranges, ...]]) -> Floats:
    """Return of each cut: no rule of recomputation or state takes less. The passes alone, with nothing recomputed and
    no messages (`lower_bounds`)."""
    classes = pipeline.classes(cuts)
    table = pipeline.table(classes, (PLAIN,))
    forward_s, backward_s = classes.spread(table.forward_s), classes.spread(table.backward_s)
    return lower_bounds(schedule, forward_s, backward_s, pipeline.micro_batches) + pipeline.iteration_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coarse:
    """Cuts of a pipeline under a few rules of recomputation, of which bounds under a rule of state are asked
    (`least_under_s`): `kinds` of recomputation may be chosen, fully in one of `steps` layers. `passes_s` are those
    without ZeRO 3, (cuts, rules); `saved_bytes` at most by recomputing a layer, (stages,); the first stage's passes of
    each cut are at least `forward_s` and at most `backward_s`."""

    pipeline: Pipeline
    family: Family
    kinds: frozenset[RecomputeKind]
    steps: tuple[int, ...]
    classes: Classes
    table: ChunkTable
    room: Room
    passes_s: Floats
    saved_bytes: Floats
    forward_s: Floats
    backward_s: Floats


def coarsely(pipeline: Pipeline, family: Family) -> Coarse:
    """Return what the bounds of a family's cuts under any rule of state have in common."""
    classes = pipeline.classes(family.cuts)
    most = max(sum(pipeline.layers.recomputable(*part) for part in ranges) for ranges in classes.ranges)
    kinds = frozenset(kind for kind, _ in family.recompute)
    steps, rules = _coarse_rules(most, selective="selective" in kinds)
    coarse = replace(family, recompute=rules)
    table = pipeline.table(classes, rules)
    passes_s = pipeline.passes_s(coarse, classes, table, table.backward_s)
    saved = np.array([pipeline.kinds[kind].shards.most_saved_by_recomputing() for kind in pipeline.kind_of_stage])
    first = classes.of_stage[0]
    return Coarse(
        pipeline=pipeline,
        family=coarse,
        kinds=kinds,
        steps=tuple(steps),
        classes=classes,
        table=table,
        room=pipeline.room(coarse, classes, table),
        passes_s=passes_s.reshape(len(family.cuts), len(rules)),
        saved_bytes=pipeline.flying(family).max(axis=1) * np.maximum(saved, 1.0),
        forward_s=table.forward_s[first].sum(axis=2).min(axis=1),
        backward_s=table.backward_s[first].sum(axis=2).max(axis=1),
    )


def least_under_s(coarse: Coarse, state: StateRule, *, spare_bytes: int = 0) -> Floats:
    """Return of each cut under a rule of state: no plan takes less under a rule of recomputation of the family's kinds,
    in however many layers; infinite where none fits.

    To the passes comes what the first stage waits for after its last one: it has no stage before it to wait for.
    Recomputing more hides more of that, so as much is taken as hidden as the longest backward pass could; what ZeRO
    3 adds to a pass falls by no more than recomputation adds. A layer recomputed saves at most what it keeps, for
    all micro-batches in flight: what memory lacks tells how many have to be, and fewer take no longer.
    """
    pipeline, family, table = coarse.pipeline, coarse.family, coarse.table
    shape = coarse.passes_s.shape
    lacking, peaks = pipeline.lacking_bytes(state, coarse.classes, coarse.room)
    fits = (lacking + spare_bytes <= 0).reshape(shape)
    without = peaks.reshape(len(pipeline.setup.stages), *shape)[:, :, 0] + spare_bytes
    needed = np.ceil(np.maximum(1.0, without / coarse.saved_bytes[:, None]).max(axis=0))
    enough = np.column_stack(
        [
            (fits[:, place] if kind != "full" else _is_enough(needed, count or 0, coarse.steps))
            if kind in coarse.kinds
            else np.zeros(shape[0], dtype=np.bool_)
            for place, (kind, count) in enumerate(family.recompute)
        ]
    )
    if not enough.any():
        return np.full(shape[0], np.inf)
    passes_s = coarse.passes_s
    if state.zero == 3 and pipeline.has_replicas:
        backward_s = table.backward_s + pipeline.sharding_s(state, table)
        passes_s = pipeline.passes_s(family, coarse.classes, table, backward_s).reshape(shape)
    beside = pipeline.passes_beside(family.schedule, len(family.cuts[0][0]))
    after_s = _least_after_s(pipeline, state, coarse.classes, coarse.forward_s, coarse.backward_s, beside)
    return np.asarray(np.where(enough, passes_s, np.inf).min(axis=1) + after_s)


def least_by_state_s(pipeline: Pipeline, family: Family, *, spare_bytes: int = 0) -> Floats:
    """Return of each cut under each rule of state what `least_under_s` does, (cuts, states)."""
    coarse = coarsely(pipeline, family)
    return np.column_stack([least_under_s(coarse, state, spare_bytes=spare_bytes) for state in family.states])


def _coarse_rules(most: int, *, selective: bool) -> tuple[list[int], tuple[Rule, ...]]:
    """A few counts of layers up to `most`, and rules that recompute so many."""
    steps = sorted({1, *(max(1, most * part // 4) for part in (1, 2, 3)), most}) if most else [0]
    some: list[Rule] = [("selective", None)] if selective else []
    return steps, (PLAIN, *some, *(("full", count) for count in steps))


def _is_enough(needed: Floats, count: int, steps: Sequence[int]) -> NDArray[np.bool_]:
    """Whether `count` is, of the counts that are no more than have to be, the most; the last one stands for more."""
    later = steps[steps.index(count) + 1 :]
    return np.asarray((needed >= count) & (needed < (later[0] if later else steps[-1] + 1)))


def _least_after_s(
    pipeline: Pipeline, state: StateRule, classes: Classes, forward_s: Floats, backward_s: Floats, beside: float
) -> Floats:
    """Of each cut: what the first stage at least waits for after its last backward pass, the step included; sums and
    gatherings run `beside` so many passes."""
    first = classes.of_stage[0].tolist()
    # On the host the step may take no time at all: what is sent is the same.
    on_device = replace(state, offload=frozenset())
    costs = {place: pipeline.kinds[classes.where[place]].once(classes.ranges[place], on_device) for place in set(first)}
    overlap_cost, reduce_s, partial_s, gather_s, step_s = (
        np.array([getattr(costs[place], name) for place in first])
        for name in ("overlap_cost", "reduce_s", "partial_s", "gather_s", "optimizer_s")
    )
    once = overlap_cost, reduce_s, partial_s, gather_s
    exposed_s = sum(pipeline.exposed_sync_s(state, *once, forward_s, backward_s, beside=beside))
    return np.asarray(exposed_s + (0.0 if state.offload else step_s) + pipeline.iteration_s)
