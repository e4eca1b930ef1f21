"""What the plans of a pipeline take at least, known before they are priced: in the order of what it costs to know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.classes import ChunkTable, Classes
from estimator.bulk.least_sums import AT_ONCE
from estimator.bulk.pipeline import Pipeline, Room
from estimator.bulk.records import Family, Rule, StateRule
from estimator.pricing.amounts import Floats
from estimator.pricing.build import Ranges
from estimator.pricing.gradient_sync import exposed_sync_s
from estimator.pricing.recipe import ScheduleName
from estimator.schedules.closed_form import lower_bounds
from profiles.records import dataclass, replace
from profiles.vocabulary import RecomputeKind

PLAIN: Rule = ("none", None)


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


def least_under_s(coarse: Coarse, states: Sequence[StateRule], *, spare_bytes: int = 0) -> Floats:
    """Return of each cut under each rule of state, (cuts, states): no plan takes less under a rule of recomputation of
    the family's kinds, in however many layers; infinite where none fits.

    To the passes comes what the first stage waits for after its last one: it has no stage before it to wait for.
    Recomputing more hides more of that, so as much is taken as hidden as the longest backward pass could; what ZeRO
    3 adds to a pass falls by no more than recomputation adds. A layer recomputed saves at most what it keeps, for
    all micro-batches in flight: what memory lacks tells how many have to be, and fewer take no longer.
    """
    enough = _which_fit(coarse, states, spare_bytes)
    least = np.full((len(states), len(coarse.passes_s)), np.inf)
    fitting = np.flatnonzero(enough.any(axis=(1, 2)))
    if len(fitting):
        some = [states[number] for number in fitting.tolist()]
        passes_s = np.array([_passes_under_s(coarse, state) for state in some])
        least[fitting] = np.where(enough[fitting], passes_s, np.inf).min(axis=2) + _least_after_s(coarse, some)
    return least.T


def _which_fit(coarse: Coarse, states: Sequence[StateRule], spare_bytes: int) -> NDArray[np.bool_]:
    """Which rules of recomputation may be enough for a cut to fit, (states, cuts, rules)."""
    pipeline, (cuts, rules) = coarse.pipeline, coarse.passes_s.shape
    lacking, peaks = pipeline.lacking_bytes(states, coarse.classes, coarse.room)
    enough = (lacking + spare_bytes <= 0).reshape(len(states), cuts, rules)
    without = peaks.reshape(len(states), -1, cuts, rules)[..., 0] + spare_bytes
    needed = np.ceil(np.maximum(1.0, without / coarse.saved_bytes[:, None]).max(axis=1))
    for place, (kind, count) in enumerate(coarse.family.recompute):
        if kind not in coarse.kinds:
            enough[..., place] = False
        elif kind == "full":
            enough[..., place] = _is_enough(needed, count or 0, coarse.steps)
    return enough


def _passes_under_s(coarse: Coarse, state: StateRule) -> Floats:
    """Seconds of the passes under a rule of state, (cuts, rules)."""
    pipeline, table = coarse.pipeline, coarse.table
    if state.zero != 3 or not pipeline.has_replicas:
        return coarse.passes_s
    backward_s = table.backward_s + pipeline.sharding_s(state, table)
    return pipeline.passes_s(coarse.family, coarse.classes, table, backward_s).reshape(coarse.passes_s.shape)


def least_by_state_s(pipeline: Pipeline, family: Family, *, spare_bytes: int = 0) -> Floats:
    """Return of each cut under each rule of state what `least_under_s` does, (cuts, states)."""
    return least_under_s(coarsely(pipeline, family), family.states, spare_bytes=spare_bytes)


def _coarse_rules(most: int, *, selective: bool) -> tuple[list[int], tuple[Rule, ...]]:
    """A few counts of layers up to `most`, and rules that recompute so many."""
    steps = sorted({1, *(max(1, most * part // 4) for part in (1, 2, 3)), most}) if most else [0]
    some: list[Rule] = [("selective", None)] if selective else []
    return steps, (PLAIN, *some, *(("full", count) for count in steps))


def _is_enough(needed: Floats, count: int, steps: Sequence[int]) -> NDArray[np.bool_]:
    """Whether `count` is, of the counts that are no more than have to be, the most; the last one stands for more."""
    later = steps[steps.index(count) + 1 :]
    return np.asarray((needed >= count) & (needed < (later[0] if later else steps[-1] + 1)))


def _least_after_s(coarse: Coarse, states: Sequence[StateRule]) -> Floats:
    """Of each cut under each rule of state, (states, cuts): what the first stage at least waits for after its last
    backward pass, the step included."""
    pipeline, classes = coarse.pipeline, coarse.classes
    places, of_cut = np.unique(classes.of_stage[0], return_inverse=True)
    figures = []
    for state in states:
        # On the host the step may take no time at all: what is sent is the same.
        on_device = replace(state, offload=frozenset()) if state.offload else state
        for place in places.tolist():
            cost = pipeline.kinds[classes.where[place]].once(classes.ranges[place], on_device)
            step_s = 0.0 if state.offload else cost.optimizer_s
            figures.append((cost.overlap_cost, cost.reduce_s, cost.partial_s, cost.gather_s, step_s))
    of_places = np.array(figures).reshape(len(states), len(places), -1)
    overlap_cost, reduce_s, partial_s, gather_s, step_s = of_places[:, of_cut].transpose(2, 0, 1)
    beside = pipeline.passes_beside(coarse.family.schedule, len(coarse.family.cuts[0][0]))
    hiding = [pipeline.hiding_under(state, beside=beside) for state in states]
    sums = np.array([float(each.sums) if each else 0.0 for each in hiding])[:, None]
    gathers = np.array([each.gathers if each else 0.0 for each in hiding])[:, None]
    exposed_s = sum(
        exposed_sync_s(
            AT_ONCE,
            overlap_cost,
            reduce_s,
            partial_s,
            gather_s,
            gathers * coarse.forward_s,
            sums * coarse.backward_s,
        )
    )
    return np.asarray(exposed_s + step_s + pipeline.iteration_s)
