"""The closed form of `interleaved` for many pipelines at once; arrays are stages x n, or stages x chunks x n."""

from __future__ import annotations

import numpy as np

from estimator.schedules.bulk_records import Candidates, FloatArray, before, ends_from_last
from estimator.schedules.orders import Shape, warm_up


class _Ring:
    """As in `interleaved`: the forwards of all stages; or the backwards, in reversed time."""

    def __init__(self, times_s: FloatArray, hop_s: FloatArray, again_s: FloatArray) -> None:
        stages, chunks, number = times_s.shape
        self.times_s, self.again_s = times_s, again_s
        self.done_s = np.zeros((stages, chunks + 1, number))
        np.cumsum(times_s, axis=1, out=self.done_s[:, 1:])
        steps = times_s.swapaxes(0, 1) + hop_s
        # Chunk c of stage i is place c p + i of the way.
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
        """From the start until each stage has done `counts[stage]`: some stage does its own back to back."""
        stages, chunks, _ = self.times_s.shape
        found = np.empty_like(self.again_s)
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
            found[i] = longest + self.way_s[chunk, i] + self.times_s[i, chunk]
        return found

    def _gains(self, group: int, chunk: int) -> tuple[FloatArray, FloatArray]:
        """Of each stage, where it is the slow one: what the path to the first pass of this chunk and group gains over
        its way, and the path to each later one over that."""
        stages, chunks, _ = self.times_s.shape
        passes = (group * chunks + chunk) * stages
        done = group * stages * self.done_s[:, -1] + stages * self.done_s[:, chunk] + passes * self.again_s
        return done + self.way_s[0] - self.way_s[chunk], self.times_s[:, chunk] + self.again_s


def interleaved_times(shape: Shape, candidates: Candidates) -> FloatArray:
    """Seconds of each one's longest path."""
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
    found = to_first + between + from_last
    if blocking:
        found += (total - 3 - np.array(ahead))[:, None] * stand + _head_s(shape, candidates)
    short = sum(a + 1 >= total for a in ahead)
    if short:
        # The first stages do all their forwards first.
        rest = (total - 1) * again - (stand if blocking else 0.0)
        found[:short] = np.maximum(
            to_first + all_backward - b[:, -1] + rest + backward.way_s[0],
            from_last + all_forward - f[:, -1] + rest + forward.way_s[0],
        )[:short]
    return np.asarray(found.max(axis=0))


def _head_s(shape: Shape, candidates: Candidates) -> FloatArray:
    """As in `interleaved`: what each stage's path gains by moving to the last stage for its last chunk, and back."""
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
