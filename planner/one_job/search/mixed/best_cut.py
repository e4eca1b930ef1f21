"""The best cut of a model's layers over unequal stages, with the best rules: exact, by labels.

A plan is made stage by stage. What is left of the past is a label: the layers used and ten figures of which the
iteration's closed form (`estimator.schedules.one_chunk`) and what follows it are made; none of them, when it grows,
makes an iteration shorter. Of two labels at the same place one that is no better in any figure is dropped, and so is
one from which no plan below the limit can come.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.amounts import Floats
from estimator.pricing.recipe import ScheduleName
from planner.one_job.search.mixed.stage_tables import StageTable
from profiles.records import dataclass

Integers = NDArray[np.int64]
SAME = 1e-13
"""Relative difference below which two figures of labels count as equal."""
AT_ONCE = 256
"""Labels that are compared with each other at once."""

UP, DOWN, SLOW_FORWARD, SLOW_BACKWARD, OPEN, UP_CLOSED, DOWN_CLOSED, CLOSED, SYNC, STEP, EARLY = range(11)
"""Figures of a label, with F and B a stage's forward and backward and the message after each, and "turns" how often the
stage does both in turn: sums of F and of B; the longest pass that follows one of its kind; the longest path through the
turns of a stage that is still on its way both up and down, that has turned at the top of its way up, or of its way
down, or of both; the latest sum of gradients, the longest step, and less the backwards so far."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FrameStage:
    """One stage of a frame: its table, how many micro-batches it keeps, which of the table's rules are allowed, and
    seconds of the messages between it and the stages below and above it, by the layer before which they are sent.
    `opens`: it is the first of stages that have one rule."""

    table: StageTable
    flying: int
    allowed: tuple[bool, ...]
    below_s: Floats
    above_s: Floats
    opens: bool

    @cached_property
    def relaxed_s(self) -> Floats:
        """Passes of a micro-batch at least, (rules, contents and one for none); infinite where they do not fit."""
        passes_s = np.where(self.table.possible(self.flying, self.allowed), self.table.relaxed_s, np.inf)
        return np.concatenate([passes_s, np.full((len(passes_s), 1), np.inf)], axis=1)

    def is_like(self, other: FrameStage) -> bool:
        """Whether it takes as long for the same layers."""
        alike = self.table is other.table and (self.flying, self.allowed) == (other.flying, other.allowed)
        return alike and self.below_s is other.below_s and self.above_s is other.above_s


@dataclass(frozen=True, kw_only=True, eq=False)
class Reach:
    """Runs of layers that can be worth a look: ends (first layers, lengths), beyond the model for none, their contents,
    and of each stage seconds that no rule under which they fit falls below, with messages."""

    ends: Integers
    contents: Integers
    least_s: tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pipe:
    """Stages that layers are still to be cut over. `fixed_s`: what an iteration takes besides passes, gradients and
    steps."""

    stages: tuple[FrameStage, ...]
    schedule: ScheduleName
    micro_batches: int
    overlapped: bool
    fixed_s: float

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return len(self.stages[0].table.contents.ids) - 1

    def reach(self, limit_s: float) -> Reach:
        """Return the runs of layers that pass m times within `limit_s`, and perhaps some more."""
        contents = self.stages[0].table.contents
        lengths = np.array([end - first for first, end in contents.ranges])
        least = [stage.table.least_s(stage.flying, stage.allowed) for stage in self.stages]
        longest = max(int(lengths[self.micro_batches * own_s <= limit_s].max(initial=1)) for own_s in least)
        ends = np.minimum(np.arange(self.layers + 1)[:, None] + np.arange(1, longest + 1), self.layers + 1)
        beyond = np.concatenate([contents.ids, np.full((self.layers + 1, 1), -1)], axis=1)
        runs = np.take_along_axis(beyond, ends, axis=1)
        priced: list[tuple[FrameStage, Floats]] = []
        every: list[Floats] = []
        for stage, own_s in zip(self.stages, least, strict=True):
            whole_s = next((whole_s for other, whole_s in priced if stage.is_like(other)), None)
            if whole_s is None:
                above_s = np.append(stage.above_s, 0.0)[ends]
                whole_s = np.append(own_s, np.inf)[runs] + stage.below_s[:, None] + above_s
                priced.append((stage, whole_s))
            every.append(whole_s)
        return Reach(ends=ends, contents=runs, least_s=tuple(every))

    def allowances(self, reach: Reach, limit_s: float) -> list[Floats]:
        """Return for each stage and first layer: the most that the stages before may take for a micro-batch together,
        if the iteration's passes are to take no more than `limit_s` (for which there is `reach`); less than 0: they
        cannot.

        A stage of c seconds that m micro-batches pass makes the iteration take at least m c beside what the stages
        before take for one (`estimator.schedules.lower_bounds`).
        """
        rooms = np.full((len(self.stages) + 1, self.layers + 2), -np.inf)
        rooms[-1, self.layers] = limit_s
        for number in reversed(range(len(self.stages))):
            least = reach.least_s[number]
            room = np.minimum(limit_s - self.micro_batches * least, rooms[number + 1].take(reach.ends) - least)
            room.max(axis=1, out=rooms[number, :-1])
        return list(rooms)

    def is_within(self, reach: Reach, limit_s: float) -> bool:
        """Whether the passes of some cut could take no more than `limit_s`."""
        return bool(self.allowances(reach, limit_s)[0][0] >= 0)

    def least_s(self, low_s: float, high_s: float, share: float) -> float:
        """Return seconds below which no cut's passes are, and no more than `share` below the least that these bounds
        tell; infinite where it is above `high_s`."""
        reach = self.reach(high_s)
        if not self.is_within(reach, high_s):
            return np.inf
        while high_s - low_s > share * low_s:
            middle = (low_s + high_s) / 2
            if self.is_within(reach, middle):
                high_s = middle
            else:
                low_s = middle
        return low_s


@dataclass(frozen=True, kw_only=True)
class BestCut:
    """The best plan of a pipe: seconds of an iteration, and of every stage the end of its layers and its rule."""

    total_s: float
    ends: tuple[int, ...]
    rules: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Labels:
    """Labels after some stages: the layers used, the rule of the last stage, figures (labels x 11), and their past."""

    used: Integers
    rule: Integers
    figures: Floats
    past: Integers
    """Labels x stages x 2: the end and the rule of each stage."""


def best_cut(pipe: Pipe, limit_s: float) -> tuple[BestCut | None, int]:
    """The best plan that takes less than `limit_s`, None where there is none; and how many stages were tried on labels.

    Exact for gpipe and 1f1b whose stages stand still for their messages.
    """
    count, passes_limit = len(pipe.stages), limit_s - pipe.fixed_s
    reach = pipe.reach(passes_limit)
    rooms = pipe.allowances(reach, passes_limit)
    figures = np.zeros((1, 11))
    figures[:, OPEN : CLOSED + 1] = -np.inf
    labels = _Labels(
        used=np.zeros(1, dtype=np.int64),
        rule=np.zeros(1, dtype=np.int64),
        figures=figures,
        past=np.zeros((1, 0, 2), dtype=np.int64),
    )
    tried = 0
    for number, stage in enumerate(pipe.stages):
        if stage.opens:
            labels = _with_rules(labels, len(stage.table.rules))
        labels, more = _extend(pipe, number, labels, reach, rooms[number + 1], passes_limit)
        tried += more
        if not len(labels.used):
            return None, tried
        last = number + 1 == count or pipe.stages[number + 1].opens
        labels = _undominated(labels, by_rule=not last, within=SAME * passes_limit)
    ended = labels.used == pipe.layers
    figures = labels.figures[ended]
    total = _passes_s(pipe, figures) + figures[:, SYNC] + figures[:, STEP] + pipe.fixed_s
    if not len(total) or total.min() >= limit_s:
        return None, tried
    best = int(np.argmin(total))
    past = labels.past[ended][best]
    return BestCut(total_s=float(total[best]), ends=tuple(past[:, 0].tolist()), rules=tuple(past[:, 1].tolist())), tried


def _passes_s(pipe: Pipe, figures: Floats) -> Floats:
    """Seconds of the passes of whole plans, or at least those of what labels stand for."""
    if pipe.schedule == "gpipe":
        slow = figures[:, SLOW_FORWARD] + figures[:, SLOW_BACKWARD]
        return np.asarray(figures[:, UP] + figures[:, DOWN] + (pipe.micro_batches - 1) * slow)
    return np.asarray(figures[:, CLOSED])


def _with_rules(labels: _Labels, rules: int) -> _Labels:
    """Each label with each rule."""
    return _Labels(
        used=np.repeat(labels.used, rules),
        rule=np.tile(np.arange(rules), len(labels.used)),
        figures=np.repeat(labels.figures, rules, axis=0),
        past=np.repeat(labels.past, rules, axis=0),
    )


def _extend(
    pipe: Pipe, number: int, labels: _Labels, reach: Reach, room_s: Floats, limit_s: float
) -> tuple[_Labels, int]:
    """Every label with every run of layers for stage `number` from which a plan below the limit can come; `room_s`: by
    layer, what the stages so far may take together."""
    stage, table = pipe.stages[number], pipe.stages[number].table
    ends, ids = reach.ends[labels.used], reach.contents[labels.used]  # (labels, lengths)
    above = np.append(stage.above_s, 0.0)
    least = stage.relaxed_s[labels.rule[:, None], ids] + stage.below_s[labels.used][:, None] + above[ends]
    before = labels.figures[:, UP] + labels.figures[:, DOWN]
    spent = labels.figures[:, SYNC] + labels.figures[:, STEP]
    needed = np.maximum(pipe.micro_batches * least, least + (limit_s - room_s)[ends])
    origin, length = np.nonzero((before + spent)[:, None] + needed <= limit_s)
    end, rule, content = ends[origin, length], labels.rule[origin], ids[origin, length]
    exact = table.exact(rule, content, overlapped=pipe.overlapped)
    figures = _next_figures(
        pipe,
        number,
        labels.figures[origin],
        forward_s=exact.forward_s[rule, content],
        backward_s=exact.backward_s[rule, content],
        below_s=stage.below_s[labels.used[origin]],
        above_s=above[end],
        reduce_s=exact.reduce_s[rule, content],
        gather_s=exact.gather_s[rule, content],
        step_s=exact.optimizer_s[rule, content],
    )
    spent = figures[:, SYNC] + figures[:, STEP]
    kept = (figures[:, UP] + figures[:, DOWN] + spent <= room_s[end]) & (_passes_s(pipe, figures) + spent <= limit_s)
    step = np.stack([end, rule], axis=1)[:, None, :]
    past = np.concatenate([labels.past[origin], step], axis=1)
    return _Labels(used=end[kept], rule=rule[kept], figures=figures[kept], past=past[kept]), len(end)


def _next_figures(
    pipe: Pipe,
    number: int,
    old: Floats,
    *,
    forward_s: Floats,
    backward_s: Floats,
    below_s: Floats,
    above_s: Floats,
    reduce_s: Floats,
    gather_s: Floats,
    step_s: Floats,
) -> Floats:
    """The figures after one stage more: T = max over stages i of E_i + turns_i (F_i + B_i) + G_i, as in
    `estimator.schedules.one_chunk`, whose paths up and down are followed as stages come."""
    stages, m = len(pipe.stages), pipe.micro_batches
    f, b = forward_s + above_s, backward_s + below_s
    new = np.empty_like(old)
    new[:, UP] = old[:, UP] + f
    new[:, DOWN] = old[:, DOWN] + b
    new[:, SLOW_FORWARD] = np.maximum(old[:, SLOW_FORWARD], f + below_s)
    new[:, SLOW_BACKWARD] = np.maximum(old[:, SLOW_BACKWARD], b + above_s)
    ahead = min(stages - 1 - number, m - 1)
    filled = new[:, UP] + ahead * new[:, SLOW_FORWARD]
    drained = new[:, DOWN] + ahead * new[:, SLOW_BACKWARD]
    turns = m - 2 - (stages - 1 - number)
    opened = old[:, OPEN] + f + b
    down_closed = old[:, DOWN_CLOSED] + b
    if turns >= 0:
        opened = np.maximum(opened, (turns + 1) * (f + b))
    else:
        # All forwards come first: on with backwards alone, down the stages to the end.
        down_closed = np.maximum(down_closed, new[:, DOWN] + (m - 1) * new[:, SLOW_BACKWARD])
    new[:, OPEN] = opened
    new[:, UP_CLOSED] = np.maximum(old[:, UP_CLOSED] + f, opened + filled)
    new[:, DOWN_CLOSED] = np.maximum(down_closed, opened + drained)
    closed = np.maximum(new[:, UP_CLOSED] + drained, new[:, DOWN_CLOSED] + filled)
    new[:, CLOSED] = np.maximum(old[:, CLOSED], closed)
    latest = np.maximum(0.0, reduce_s + old[:, EARLY]) + gather_s
    new[:, SYNC] = np.maximum(old[:, SYNC], latest)
    new[:, STEP] = np.maximum(old[:, STEP], step_s)
    new[:, EARLY] = old[:, EARLY] - backward_s
    return new


def _undominated(labels: _Labels, *, by_rule: bool, within: float) -> _Labels:
    """Labels of which no other at the same place is as good in every figure; the first of equals."""
    place = labels.used * (1 + labels.rule.max(initial=0)) + labels.rule if by_rule else labels.used
    figures = np.nan_to_num(labels.figures, neginf=0.0)
    order = np.lexsort((figures.sum(axis=1), place))
    kept: list[int] = []
    for rivals in np.split(order, np.flatnonzero(np.diff(place[order])) + 1):
        survivors = np.zeros(0, dtype=np.int64)
        for start in range(0, len(rivals), AT_ONCE):
            block = rivals[start : start + AT_ONCE]
            if len(survivors):
                block = block[~_dominated(figures[survivors], figures[block], within)]
            if len(block) > 1:
                better = _no_worse(figures[block], figures[block], within)
                block = block[~np.triu(better, 1).any(axis=0)]
            survivors = np.concatenate([survivors, block])
        kept += survivors.tolist()
    chosen = np.array(sorted(kept), dtype=np.int64)
    return _Labels(
        used=labels.used[chosen], rule=labels.rule[chosen], figures=labels.figures[chosen], past=labels.past[chosen]
    )


def _no_worse(first: Floats, other: Floats, within: float) -> NDArray[np.bool_]:
    """(one, other): whether the first is no worse in any figure."""
    return np.asarray((first[:, None, :] <= other[None, :, :] + within).all(axis=2))


def _dominated(best: Floats, others: Floats, within: float) -> NDArray[np.bool_]:
    dominated = np.zeros(len(others), dtype=np.bool_)
    for start in range(0, len(best), AT_ONCE):
        dominated |= _no_worse(best[start : start + AT_ONCE], others, within).any(axis=0)
    return dominated
