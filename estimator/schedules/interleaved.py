"""Closed form of interleaved 1f1b: as of 1f1b in `one_chunk`, on a ring of v chunks a stage.

Stage i does a_i = 2 (p - 1 - i) + (v - 1) p forwards, then a forward and a backward in turn:

    E_i  end of its first backward: after the next stage's, or after its a_i + 1 forwards, these by the longest way on
         which a stage before it (or the ring's first round) is the slow one
    G_i  from the start of its last forward, the same the other way round
    T    = max_i  E_i + (its work between the two) + G_i

For equal stages (m v + p - 1) (f + b) with f and b of one chunk (Narayanan et al. 2021, section 2.2).

Where stages stand still for their messages, Megatron exchanges all four of a forward and a backward at once: stages go
in step, and a backward reaches the stage before one forward later. The path may then move to a neighbour at every step
for nothing, so the head's chunk on the last stage is taken where it is longer than what another stage does meanwhile.

Arrays are stages x n, or stages x chunks x n, of n pipelines at once.
"""

from __future__ import annotations

import numpy as np

from estimator.schedules.candidates import Candidates, FloatArray, Paths, before, ends_from_last
from estimator.schedules.orders import Shape, warm_up


class _Ring:
    """The forwards of all stages; or the backwards, in reversed time, in which they go the same way round. `hop_s` from
    each stage to the next; `again_s` what a stage stands still for between two of its own."""

    def __init__(self, times_s: FloatArray, hop_s: FloatArray, again_s: FloatArray) -> None:
        stages, chunks, number = times_s.shape
        self.times_s, self.again_s = times_s, again_s
        # Of each stage its first chunks together.
        self.done_s = np.zeros((stages, chunks + 1, number))
        np.cumsum(times_s, axis=1, out=self.done_s[:, 1:])
        steps = times_s.swapaxes(0, 1) + hop_s
        # Until one micro-batch reaches chunk c of stage i, which is place c p + i of the way.
        self.way_s = before(steps.reshape(stages * chunks, number)).reshape(chunks, stages, number)

    def alone_s(self, counts: list[int]) -> FloatArray:
        """Each stage's own work in its first `counts[stage]`."""
        stages, chunks, _ = self.times_s.shape
        groups, rest = np.divmod(counts, stages * chunks)
        chunk, k = np.divmod(rest, stages)
        rows = np.arange(stages)
        done = (groups * stages)[:, None] * self.done_s[:, -1] + stages * self.done_s[rows, chunk]
        return np.asarray(done + k[:, None] * self.times_s[rows, chunk])

    def after_s(self, counts: list[int]) -> FloatArray:
        """From the start until each stage has done `counts[stage]`: some stage does its own back to back, the rest is
        way. That stage is one on the way of the last one's micro-batch, in this chunk or where it first went round."""
        stages, chunks, _ = self.times_s.shape
        until = np.empty_like(self.again_s)
        slowest = (self.times_s[:, 0] + self.again_s).max(axis=0)
        gains: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
        for i, count in enumerate(counts):
            group, rest = divmod(count - 1, stages * chunks)
            chunk, k = divmod(rest, stages)
            if (group, chunk) not in gains:
                gains[group, chunk] = self._gains(group, chunk)
            first, more = gains[group, chunk]
            longest = (first[: i + 1] + k * more[: i + 1]).max(axis=0)
            if group == 0 and chunk:
                longest = np.maximum(longest, k * slowest)
            until[i] = longest + self.way_s[chunk, i] + self.times_s[i, chunk]
        return until

    def _gains(self, group: int, chunk: int) -> tuple[FloatArray, FloatArray]:
        """Of each stage, where it is the slow one: what the path to the first pass of this chunk and group gains over
        its way, and the path to each later one over that."""
        stages, chunks, _ = self.times_s.shape
        passes = (group * chunks + chunk) * stages
        done = group * stages * self.done_s[:, -1] + stages * self.done_s[:, chunk] + passes * self.again_s
        return done + self.way_s[0] - self.way_s[chunk], self.times_s[:, chunk] + self.again_s


def interleaved_paths(shape: Shape, candidates: Candidates) -> Paths:
    """Return the longest paths of each pipeline."""
    count, total, blocking = shape.stages, shape.micro_batches * shape.chunks, not candidates.overlapped
    f, b = candidates.forward_s, candidates.backward_s
    hop = np.zeros_like(candidates.transfers_s) if count == 1 else candidates.transfers_s
    below = np.roll(hop, 1, axis=0)
    again = np.maximum(hop, below) if blocking else np.zeros_like(hop)
    forward, backward = _Ring(f, hop, again), _Ring(b, hop, again)
    ahead = [warm_up(shape, i) for i in range(count)]
    until = [min(a + 1, total) for a in ahead]
    own_up, own_down = forward.after_s(until), backward.after_s(until)
    up, down, stand = hop, hop, again
    if blocking:
        in_turn = np.array([a < total for a in ahead])[:, None]
        rows, chunk = np.arange(count), np.array(ahead) % (count * shape.chunks) // count
        up, down = np.where(in_turn, f[rows, chunk], 0.0), np.where(in_turn, b[rows, chunk], 0.0)
        stand = np.where(in_turn, hop + below, again)
        own_up, own_down = (own + np.where(in_turn, 0.0, again) for own in (own_up, own_down))
    to_first = ends_from_last(b[:, -1] + stand, own_up, up)
    from_last = ends_from_last(f[:, -1] + stand, own_down, down)
    all_forward, all_backward = (ring.alone_s([total] * count) for ring in (forward, backward))
    between = all_forward - forward.alone_s(until) - f[:, -1] + all_backward - backward.alone_s(until) - b[:, -1]
    paths = to_first + between + from_last
    if blocking:
        paths += (total - 3 - np.array(ahead))[:, None] * stand + _head_s(shape, candidates)
    short = sum(a + 1 >= total for a in ahead)
    if short:
        # The first stages do all their forwards first.
        rest = (total - 1) * again - (stand if blocking else 0.0)
        paths[:short] = np.maximum(
            to_first + all_backward - b[:, -1] + rest + backward.way_s[0],
            from_last + all_forward - f[:, -1] + rest + forward.way_s[0],
        )[:short]
    return Paths(longest_s=paths.max(axis=0), by_stage_s=paths)


def _head_s(shape: Shape, candidates: Candidates) -> FloatArray:
    """What each stage's path gains by moving to the last stage whenever that works on the last chunk, and back.

    In every group of p micro-batches the last stage does p forwards and backwards of the last chunk in step; the stages
    between are passed on the way there and back, one step each.
    """
    count, groups = shape.stages, shape.micro_batches // shape.stages
    own = candidates.stage_s / shape.chunks
    between = np.maximum(np.arange(count - 2, -2, -1), 0)
    others = (groups - 1) * ((shape.chunks - 1) * count - 2 * between)
    moves = others >= 2 * (between + 1)
    moves[-1] = False
    sums = np.cumsum(own, axis=0)
    less = between[:, None] * own - (sums[max(count - 2, 0)] - sums)
    last = candidates.forward_s[-1, -1] + candidates.backward_s[-1, -1]
    gained = (groups * count - 2) * (last - own) - 2 * (groups - 1) * less
    return np.where(moves[:, None], np.maximum(gained, 0.0), 0.0)
