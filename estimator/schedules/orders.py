"""What each stage does in which order, and which messages it exchanges when: the definition of every schedule.

gpipe        all forwards, then all backwards (Huang et al., GPipe, 2019, section 2.3)
1f1b         p - 1 - i forwards, then one forward one backward in turn (Narayanan et al., PipeDream-2BW, 2021,
             section 3.2: PipeDream-flush)
interleaved  several chunks a stage; groups of p micro-batches pass a chunk, then the next (Narayanan et al.,
             Efficient Large-Scale Language Model Training, 2021, section 2.2; warm-up as in Megatron-LM)
zb-h1        1f1b whose stage i puts off the weight gradients of i micro-batches (Qi et al., Zero Bubble Pipeline
             Parallelism, 2023, section 2.1; the order of the authors' change to Megatron-LM)
dualpipe     half of the micro-batches enter at either end (DeepSeek-V3 technical report, 2024, section 3.2.1; the
             eight steps of the authors' library)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Literal

from estimator.schedules.records import Kind
from profiles.records import dataclass
from profiles.vocabulary import ScheduleName

Action = tuple[Kind, int, int]
"""Kind, chunk, micro-batch."""

TIE = 1e-9
"""Paths whose lengths differ by less than this share of them are equally long."""

Exchange = Literal["apart", "batched", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Actions done one after the other whose results leave together at the end.

    How results leave where transfers are not overlapped: `apart`, sent at once, the next input is waited for when it
    is needed; `batched`, in one group with the inputs of the steps up to the next exchange; `held`, with a later step.
    """

    actions: tuple[Action, ...]
    exchange: Exchange = "apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Schedule, stages p, chunks per stage v and micro-batches m; a ValueError says what a schedule asks of them.

    Made by `shape_of`, so that interleaved always has several chunks.
    """

    schedule: ScheduleName
    stages: int
    chunks: int
    micro_batches: int

    def __post_init__(self) -> None:
        problem = schedule_problem(self.schedule, self.stages, self.chunks, self.micro_batches)
        if problem:
            raise ValueError(f"{self}: {problem}")


def shape_of(schedule: ScheduleName, stages: int, chunks: int, micro_batches: int) -> Shape:
    """The shape; interleaved with one chunk a stage is 1f1b, as Megatron-LM runs it."""
    name = "1f1b" if schedule == "interleaved" and chunks == 1 else schedule
    return Shape(schedule=name, stages=stages, chunks=chunks, micro_batches=micro_batches)


def schedule_problem(schedule: ScheduleName, stages: int, chunks: int, micro_batches: int) -> str | None:
    """What `schedule` lacks to be run with these counts, or None.

    Interleaved wants micro-batches in whole groups of as many as there are stages (Megatron-LM refuses others);
    dualpipe an even number of stages and of micro-batches, two for each stage at least.
    """
    if min(stages, chunks, micro_batches) < 1:
        return "expected at least one stage, chunk and micro-batch"
    if schedule == "interleaved" and chunks > 1:
        return None if micro_batches % stages == 0 else f"micro-batches must be a multiple of the {stages} stages"
    if schedule == "dualpipe":
        if chunks != 2 or stages % 2:
            return "dualpipe needs two chunks a stage and an even number of stages"
        if micro_batches % 2 or micro_batches < 2 * stages:
            return f"dualpipe needs an even number of micro-batches, at least {2 * stages}"
        return None
    return None if chunks == 1 else f"{schedule} has one chunk a stage"


def warm_up(shape: Shape, stage: int) -> int:
    """Forwards that a stage does before the first one that a backward follows at once (not of dualpipe)."""
    last = shape.stages - 1 - stage
    if shape.schedule == "gpipe":
        return shape.micro_batches - 1
    if shape.schedule == "interleaved":
        return min(2 * last + (shape.chunks - 1) * shape.stages, shape.micro_batches * shape.chunks)
    return min(last, shape.micro_batches)


def follower(shape: Shape, stage: int, chunk: int) -> tuple[int, int] | None:
    """Stage and chunk that a micro-batch's forward goes to next; None after the last layers."""
    if shape.schedule == "dualpipe" and chunk == 1:
        return (stage - 1, 1) if stage else None
    if stage + 1 < shape.stages:
        return stage + 1, chunk
    return (0, chunk + 1) if shape.schedule == "interleaved" and chunk + 1 < shape.chunks else None


def leader(shape: Shape, stage: int, chunk: int) -> tuple[int, int] | None:
    """Stage and chunk that a micro-batch's forward comes from; None before the first layers."""
    if shape.schedule == "dualpipe" and chunk == 1:
        return (stage + 1, 1) if stage + 1 < shape.stages else None
    if stage:
        return stage - 1, chunk
    return (shape.stages - 1, chunk - 1) if chunk and shape.schedule == "interleaved" else None


def order_of(shape: Shape, stage: int) -> tuple[Step, ...]:
    """The steps of one stage, first to last."""
    if not 0 <= stage < shape.stages:
        raise ValueError(f"stage {stage}; expected 0 to {shape.stages - 1}")
    if shape.schedule == "interleaved":
        return tuple(_interleaved(shape, stage))
    if shape.schedule == "dualpipe":
        return tuple(_dualpipe(shape, stage))
    return tuple(_one_chunk(shape, stage))


def _one_chunk(shape: Shape, stage: int) -> Iterator[Step]:
    """gpipe, 1f1b and zb-h1: they differ in the warm-up, and in the weight gradients of zb-h1."""
    count, ahead = shape.micro_batches, warm_up(shape, stage)
    forwards = [("forward", k) for k in range(min(ahead, count))]
    rest: list[tuple[Kind, int]] = []
    for k in range(count):
        if ahead + k < count:
            rest.append(("forward", ahead + k))
        rest.append(("backward", k))
    tasks: list[tuple[Kind, int]] = [*[("forward", k) for _, k in forwards], *rest]
    split, put_off = shape.schedule == "zb-h1", 0
    for place, (kind, k) in enumerate(tasks):
        turns = place + 1 < len(tasks) and tasks[place + 1][0] != kind
        yield Step(actions=((kind, 0, k),), exchange="batched" if turns and shape.schedule != "gpipe" else "apart")
        if split and kind == "backward" and k >= stage:
            yield Step(actions=(("weight", 0, put_off),), exchange="held")
            put_off += 1
    if split:
        for k in range(put_off, count):
            yield Step(actions=(("weight", 0, k),), exchange="held")


def _interleaved(shape: Shape, stage: int) -> Iterator[Step]:
    total = shape.micro_batches * shape.chunks
    ahead = warm_up(shape, stage)
    turns = [turn(shape, n) for n in range(total)]
    for n in range(ahead):
        yield Step(actions=(("forward", *turns[n]),), exchange="batched")
    for n in range(total):
        if ahead + n < total:
            yield Step(actions=(("forward", *turns[ahead + n]),), exchange="held")
        chunk, k = turns[n]
        yield Step(actions=(("backward", shape.chunks - 1 - chunk, k),), exchange="batched")


def turn(shape: Shape, n: int) -> tuple[int, int]:
    """Chunk and micro-batch of a stage's n-th forward, interleaved; backwards take the chunks the other way round."""
    group, place = divmod(n, shape.stages * shape.chunks)
    chunk, k = divmod(place, shape.stages)
    return chunk, group * shape.stages + k


class _Dual:
    """Names the micro-batches of either direction in the order in which one stage comes to them.

    `near` 0 is the direction that enters at the stage's own end of the pipeline, as the library's phases; direction d
    uses chunk d, and its micro-batches are numbered from d m / 2.
    """

    def __init__(self, shape: Shape, stage: int) -> None:
        self.flip = stage >= shape.stages // 2
        self.half = shape.micro_batches // 2
        self.done: dict[tuple[Kind, int], int] = {}
        self.put_off: deque[Action] = deque()

    def take(self, kind: Kind, near: int) -> Action:
        chunk = near ^ self.flip
        k = self.done.get((kind, chunk), 0)
        self.done[kind, chunk] = k + 1
        return kind, chunk, chunk * self.half + k

    def forward(self, near: int) -> Step:
        return Step(actions=(self.take("forward", near),))

    def backward(self, near: int) -> Step:
        return Step(actions=(self.take("backward", near), self.take("weight", near)))

    def both(self, forward: int, backward: int) -> Step:
        return Step(actions=(*self.forward(forward).actions, *self.backward(backward).actions))

    def split(self, near: int) -> Step:
        self.put_off.append(self.take("weight", near))
        return Step(actions=(self.take("backward", near),))

    def weight(self) -> Step:
        return Step(actions=(self.put_off.popleft(),), exchange="held")


def _dualpipe(shape: Shape, stage: int) -> Iterator[Step]:
    """The library's eight steps; its fourth is the steady state, in which a forward and a backward share the stage."""
    place, half, dual = min(stage, shape.stages - 1 - stage), shape.stages // 2, _Dual(shape, stage)
    rest = half - place - 1
    for _ in range(2 * rest):
        yield dual.forward(0)
    for _ in range(place + 1):
        yield dual.forward(0)
        yield dual.forward(1)
    for _ in range(rest):
        yield dual.split(1)
        yield dual.weight()
        yield dual.forward(1)
    for n in range(shape.micro_batches // 2 - shape.stages + place + 1):
        if n == 0 and rest == 0:
            yield dual.forward(0)
            yield dual.backward(1)
        else:
            yield dual.both(0, 1)
        yield dual.both(1, 0)
    for _ in range(rest):
        yield dual.backward(1)
        yield dual.both(1, 0)
    for n in range(2 * (place + 1)):
        # The second half puts its weight gradients off.
        yield (dual.backward if n < place + 1 else dual.split)(1 - n % 2)
    for _ in range(rest):
        yield dual.weight()
        yield dual.split(0)
    while dual.put_off:
        yield dual.weight()
