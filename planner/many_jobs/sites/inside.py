"""Inside a site: data parallelism and pipeline stages, which devices make a stage, and where its replicas sit.

SpiderFlow, section 4.2: choose (d, p) with d p <= r, assign devices to stages, group them into replicas and place
these, so that T = T_comp + T_dp + T_pp is least (the paper's weights alpha and beta are 1 here: all three are seconds
of the estimator). A stage's place is its pattern: how many of its d replicas sit on each unit (an NVLink island, or a
node). Then

    T = T_comp(d, p) + max over stages of sync(pattern) + 2 sum of hops + (m - 1) max over stages of its two hops

with m micro-batches and a hop's seconds by the patterns on either side. This module solves it by labels, stage by
stage; `tests.oracles.inside_milp` states the same as an integer program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial

from profiles.records import dataclass

Pattern = tuple[int, ...]
MOST_PATTERNS = 300
"""With more patterns than this the stages are placed in order, and nothing is claimed of it."""
MOST_FOLLOWERS = 20_000
"""So many labels at most are looked at for a stage: where more could be, of those before the best ones go on, and what
comes of them need not be the best of all."""
TIE = 1e-12


@dataclass(frozen=True, kw_only=True)
class InsideOption:
    """One (tp, d, p) with its costs in seconds; of the three the choice asks for p alone, `pp`. `room`: blocks of tp
    devices on each unit; units of the same number in `alike` may change places without changing any cost. `sync_s` by
    pattern, `hop_s` by the patterns of one stage and the next."""

    pp: int
    compute_s: float
    micro_batches: int
    room: Pattern
    alike: tuple[int, ...]
    patterns: tuple[Pattern, ...]
    sync_s: tuple[float, ...]
    hop_s: tuple[tuple[float, ...], ...]

    def total_s(self, stages: Sequence[int]) -> float:
        """T of the stages' patterns, by number. ValueError where they do not fit together."""
        taken = [sum(self.patterns[number][unit] for number in stages) for unit in range(len(self.room))]
        if len(stages) != self.pp or any(count > most for count, most in zip(taken, self.room, strict=True)):
            raise ValueError(f"inside: patterns {stages} for {self.pp} stages take {taken} of {self.room}")
        hops_s = [self.hop_s[a][b] for a, b in itertools.pairwise(stages)]
        sync_s = max(self.sync_s[number] for number in stages)
        return self.compute_s + sync_s + messages_s(hops_s, self.micro_batches)

    @property
    def least_s(self) -> float:
        """No patterns have a smaller T."""
        hop_s = min((min(row) for row in self.hop_s), default=0.0)
        least_sync_s = min(self.sync_s, default=math.inf)
        return self.compute_s + least_sync_s + messages_s([hop_s] * (self.pp - 1), self.micro_batches)


@dataclass(frozen=True, kw_only=True)
class InsideChoice:
    """The best option by number, and the pattern of each of its stages."""

    option: int
    stages: tuple[int, ...]
    total_s: float


def messages_s(hops_s: Sequence[float], micro_batches: int) -> float:
    """Return what messages of `hops_s` seconds between the stages of a pipeline add to an iteration: of every
    micro-batch those that one stage stands still for, of the slowest, and all others once, there and back."""
    waits_s = max(map(sum, itertools.pairwise([0.0, *hops_s, 0.0])))
    return 2 * math.fsum(hops_s) + (micro_batches - 1) * waits_s


def best_inside(options: Sequence[InsideOption], below_s: float = math.inf) -> InsideChoice | None:
    """The choice of the least T, if that is less than `below_s`; exact up to `MOST_FOLLOWERS`, the first of equals."""
    best: InsideChoice | None = None
    for number in sorted(range(len(options)), key=lambda place: options[place].least_s):
        limit_s = below_s if best is None else best.total_s
        if options[number].least_s >= limit_s * (1 - TIE):
            break
        stages = _best_stages(options[number], limit_s)
        if stages is not None:
            best = InsideChoice(option=number, stages=stages, total_s=options[number].total_s(stages))
    return best


@dataclass(frozen=True, slots=True)
class _Label:
    """Some stages placed: what is left of each unit, the last pattern, all patterns, and the figures of T."""

    room: Pattern
    stages: tuple[int, ...]
    sync_s: float
    hops_s: float
    waits_s: float
    last_s: float

    def no_worse(self, other: _Label) -> bool:
        """In every figure."""
        return (
            self.sync_s <= other.sync_s
            and self.hops_s <= other.hops_s
            and self.waits_s <= other.waits_s
            and self.last_s <= other.last_s
        )


def _best_stages(option: InsideOption, below_s: float) -> tuple[int, ...] | None:
    labels = [_Label(option.room, (), 0.0, 0.0, 0.0, 0.0)]
    for _ in range(option.pp):
        kept: dict[object, list[_Label]] = {}
        for label in _followers(option, labels, below_s):
            here = kept.setdefault(_place(option, label), [])
            if not any(other.no_worse(label) for other in here):
                here[:] = [other for other in here if not label.no_worse(other)] + [label]
        labels = [label for here in kept.values() for label in here]
        most = MOST_FOLLOWERS // len(option.patterns)
        if len(labels) > most:
            labels = sorted(labels, key=partial(_spent_s, option))[:most]
    totals = [option.total_s(label.stages) for label in labels]
    best = min(range(len(labels)), key=totals.__getitem__, default=None)
    return None if best is None or totals[best] >= below_s else labels[best].stages


def _followers(option: InsideOption, labels: Sequence[_Label], below_s: float) -> Iterator[_Label]:
    for label in labels:
        seen: set[object] = set()
        for number, pattern in enumerate(option.patterns):
            if any(need > left for need, left in zip(pattern, label.room, strict=True)):
                continue
            hop = option.hop_s[label.stages[-1]][number] if label.stages else 0.0
            longer = _Label(
                room=tuple(left - need for left, need in zip(label.room, pattern, strict=True)),
                stages=(*label.stages, number),
                sync_s=max(label.sync_s, option.sync_s[number]),
                hops_s=label.hops_s + hop,
                waits_s=max(label.waits_s, label.last_s + hop),
                last_s=hop,
            )
            spent = _spent_s(option, longer)
            key = (_place(option, longer), longer.sync_s, hop)
            if spent < below_s and key not in seen:
                seen.add(key)
                yield longer


def _spent_s(option: InsideOption, label: _Label) -> float:
    return option.compute_s + label.sync_s + 2 * label.hops_s + (option.micro_batches - 1) * label.waits_s


def _place(option: InsideOption, label: _Label) -> object:
    """What decides of the stages to come, alike units in any order."""
    last = option.patterns[label.stages[-1]]
    return tuple(sorted(zip(option.alike, label.room, last, strict=True)))


def patterns_of(room: Sequence[int], replicas: int) -> tuple[Pattern, ...]:
    """Every way to have so many replicas on units with that much room.

    >>> patterns_of((2, 1), 2)
    ((1, 1), (2, 0))
    """
    if not room:
        return ((),) if replicas == 0 else ()
    rest = sum(room[1:])
    return tuple(
        (here, *more)
        for here in range(max(0, replicas - rest), min(room[0], replicas) + 1)
        for more in patterns_of(room[1:], replicas - here)
    )
