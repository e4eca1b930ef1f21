"""Closed form of one pipeline at a time, path by path: what `estimator.schedules.interleaved` does on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from estimator.schedules.orders import TIE, Shape, warm_up
from estimator.schedules.records import StageTimes, Transfers


@dataclass(slots=True, kw_only=True)
class _Ring:
    """The forwards of all stages; or the backwards, in reversed time, in which they go the same way round."""

    times_s: Sequence[tuple[float, ...]]
    hop_s: Sequence[float]
    """From each stage to the next."""
    again_s: Sequence[float]
    """What a stage stands still for between two of its own."""
    done_s: list[list[float]] = field(init=False)
    """Of each stage: its first chunks together."""
    way_s: list[float] = field(init=False)
    """Until one micro-batch reaches place c p + i: chunk c of stage i."""

    def __post_init__(self) -> None:
        self.done_s = []
        for times in self.times_s:
            sums = [0.0]
            for seconds in times:
                sums.append(sums[-1] + seconds)
            self.done_s.append(sums)
        self.way_s = [0.0]
        for chunk in range(len(self.times_s[0])):
            for times, hop in zip(self.times_s, self.hop_s, strict=True):
                self.way_s.append(self.way_s[-1] + times[chunk] + hop)

    def alone_s(self, stage: int, count: int) -> float:
        """The stage's own work in its first `count`."""
        stages, sums = len(self.times_s), self.done_s[stage]
        groups, rest = divmod(count, stages * (len(sums) - 1))
        chunk, k = divmod(rest, stages)
        done = groups * stages * sums[-1] + stages * sums[chunk]
        return done + k * self.times_s[stage][chunk] if k else done

    def after_s(self, stage: int, count: int) -> float:
        """From the start until the stage has done `count`: some stage does its own back to back, the rest is way.

        That stage is one on the way of the last one's micro-batch, in this chunk or where it first went round.
        """
        stages = len(self.times_s)
        last = count - 1
        chunk = last % (stages * (len(self.done_s[0]) - 1)) // stages
        end = self.way_s[chunk * stages + stage] + self.times_s[stage][chunk]
        longest = 0.0
        for slow in range(stages):
            rounds = {0, last // stages if last // stages <= chunk else 0}
            for r in rounds if slow <= stage else rounds - {0}:
                n, of = last - r * stages, chunk - r
                here = self.way_s[of * stages + slow] + self.times_s[slow][of]
                own = self.way_s[slow] + self.alone_s(slow, n + 1) + n * self.again_s[slow]
                longest = max(longest, own + end - here)
        return longest


def interleaved_time(shape: Shape, stages: Sequence[StageTimes], transfers: Transfers) -> tuple[float, int]:
    """Seconds of the longest path, and the stage on which it stays."""
    count, alone = shape.stages, shape.stages == 1
    hop = [0.0] if alone else list(transfers.forward_s)
    blocking = not transfers.overlapped
    again = [max(hop[i], hop[i - 1]) if blocking else 0.0 for i in range(count)]
    forward = _Ring(times_s=[stage.forward_s for stage in stages], hop_s=hop, again_s=again)
    backward = _Ring(times_s=[stage.backward_s for stage in stages], hop_s=hop, again_s=again)
    total, last = shape.micro_batches * shape.chunks, shape.chunks - 1
    longest, bottleneck = 0.0, 0
    to_first = from_last = 0.0
    for i in reversed(range(count)):
        f, b, ahead = stages[i].forward_s, stages[i].backward_s, warm_up(shape, i)
        in_turn = ahead < total
        turn_chunk = ahead % (count * shape.chunks) // count
        stand = hop[i] + hop[i - 1] if blocking else 0.0
        up = to_first if blocking else to_first + hop[i]
        down = from_last if blocking else from_last + hop[i]
        own_up, own_down = (ring.after_s(i, min(ahead + 1, total)) for ring in (forward, backward))
        if in_turn and blocking:
            up, down = up + f[turn_chunk], down + b[turn_chunk]
        elif not in_turn:
            own_up, own_down, stand = own_up + again[i], own_down + again[i], again[i]
        to_first = b[last] + stand + max(up, own_up)
        from_last = f[last] + stand + max(down, own_down)
        if ahead + 1 < total:
            between = forward.alone_s(i, total) - forward.alone_s(i, ahead + 1) - f[last]
            between += backward.alone_s(i, total) - backward.alone_s(i, ahead + 1) - b[last]
            found = to_first + between + from_last
            if blocking:
                found += (total - ahead - 3) * stand + _head_s(shape, stages, i)
        else:
            rest = (total - 1) * again[i] - (stand if blocking else 0.0)
            found = max(
                to_first + backward.alone_s(i, total) - b[last] + rest + backward.way_s[i],
                from_last + forward.alone_s(i, total) - f[last] + rest + forward.way_s[i],
            )
        if found >= longest * (1 - TIE):
            bottleneck = i
        longest = max(longest, found)
    return longest, bottleneck


def _head_s(shape: Shape, stages: Sequence[StageTimes], stage: int) -> float:
    """What the path gains by moving to the last stage whenever that works on the last chunk, and back.

    In every group of p micro-batches the last stage does p forwards and backwards of the last chunk in step; the stages
    between are passed on the way there and back, one step each.
    """
    count, groups, last = shape.stages, shape.micro_batches // shape.stages, stages[-1]
    between = range(stage + 1, count - 1)
    others = (groups - 1) * ((shape.chunks - 1) * count - 2 * len(between))
    if stage == count - 1 or others < 2 * (len(between) + 1):
        return 0.0
    own = stages[stage].busy_s / shape.chunks
    gained = (groups * count - 2) * (last.forward_s[-1] + last.backward_s[-1] - own)
    return max(0.0, gained - 2 * (groups - 1) * sum(own - stages[i].busy_s / shape.chunks for i in between))
