"""What a schedule is timed from, `StageTimes` and `Transfers`, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from profiles.records import dataclass

Kind = Literal["forward", "backward", "weight"]
"""`weight`: the part of a backward that makes weight gradients alone, where a schedule runs it by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of one stage for ONE micro-batch, for each of its chunks of layers.

    One chunk, unless interleaved (chunk c is the c-th the stage comes by) or dualpipe (two: of p stages, stage i holds
    the layers of place i, then those of place p - 1 - i). `backward_s` is the whole backward; `weight_s` the part
    of it that makes weight gradients alone, which a zero-bubble schedule may put off.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...]

    def __post_init__(self) -> None:
        alike = len(self.forward_s) == len(self.backward_s) == len(self.weight_s) > 0
        if not alike or not all(_is_time(x) for x in (*self.forward_s, *self.weight_s, *self.backward_s)):
            raise ValueError(f"{self}; expected finite seconds >= 0 and as many of each, one per chunk")
        if any(weight > backward for weight, backward in zip(self.weight_s, self.backward_s, strict=True)):
            raise ValueError(f"{self}; expected weight_s, a part of backward_s, to be no longer than it")

    @property
    def busy_s(self) -> float:
        """Forward and backward of all chunks, for one micro-batch."""
        return math.fsum(self.forward_s) + math.fsum(self.backward_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLink:
    """A link, in one direction, that messages over several boundaries pass one after another.

    `up_s[i]` is the seconds for which a message from stage i to stage i + 1 occupies it (the last: from the last stage
    back to the first), `down_s[i]` one the other way; 0 where that goes elsewhere. Never more than the message takes.
    """

    up_s: tuple[float, ...]
    down_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.up_s) != len(self.down_s) or not all(_is_time(x) for x in (*self.up_s, *self.down_s)):
            raise ValueError(f"{self}; expected finite seconds >= 0 and as many of each, one per boundary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Messages between neighbouring stages.

    `forward_s[i]` is the seconds of an activation from stage i to stage i + 1 (the last: from the last stage back to
    the first, for interleaved); its gradient takes as long. `overlapped`: a message is this long on its way, one after
    another each way, and occupies neither stage, as Megatron's --overlap-p2p-communication hopes. Otherwise a stage
    stands still while it sends and receives, and a message waits until both ends are there (Megatron's batched isend
    and irecv). `shared`: the links that messages over several boundaries pass.
    """

    forward_s: tuple[float, ...]
    overlapped: bool = False
    shared: tuple[SharedLink, ...] = ()

    def __post_init__(self) -> None:
        if not all(_is_time(x) for x in self.forward_s):
            raise ValueError(f"{self}; expected finite seconds >= 0")
        if any(len(link.up_s) != len(self.forward_s) for link in self.shared):
            raise ValueError(f"{self}; expected shared links with seconds of as many boundaries")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTime:
    """Where an iteration's time goes, seen from the stage `bottleneck`; the three parts sum to `total_s`.

    `busy_s` is that stage's own compute for all micro-batches, `transfer_s` what the transfers add to the iteration,
    `bubble_s` the rest: the stage has nothing to do.
    """

    bottleneck: int
    busy_s: float
    transfer_s: float
    bubble_s: float

    @property
    def total_s(self) -> float:
        """The sum of the parts."""
        return self.busy_s + self.transfer_s + self.bubble_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One piece of work on a stage: of the micro-batch `micro_batch`, for the layers of `chunk`."""

    stage: int
    chunk: int
    micro_batch: int
    kind: Kind
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSchedule:
    """Every task of an iteration, by stage and start, and when the last stage is done with tasks and messages."""

    total_s: float
    tasks: tuple[Task, ...]


def check_counts(stages: Sequence[StageTimes], transfers: Transfers) -> int:
    """Chunks per stage; a ValueError where stages differ in it, or transfers are not one a stage."""
    chunks = {len(stage.forward_s) for stage in stages}
    if len(chunks) != 1 or len(transfers.forward_s) != len(stages):
        raise ValueError(
            f"{len(stages)} stages of {sorted(chunks)} chunks, {len(transfers.forward_s)} transfers;"
            " expected stages, all of as many chunks, and one transfer a stage"
        )
    return chunks.pop()


def _is_time(seconds: float) -> bool:
    return 0 <= seconds < math.inf
