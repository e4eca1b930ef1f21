"""The least time of a pipeline whose messages over several boundaries pass the same link, as between two sites.

A boundary is timed as if its messages had their links to themselves. Activations over one and gradients, or what goes
round a ring of virtual stages, over another may pass the same link in the same direction: an iteration takes at least

    until the first message can be there + the seconds of all of them on the link + what is left to do after any of them

with the first micro-batch's way there and the last one's way on, both without waiting. No schedule is shorter, whatever
it hides beside passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.schedules.candidates import BoolArray, Candidates, FloatArray
from estimator.schedules.orders import Shape

SharedSeconds = tuple[FloatArray, FloatArray]
"""`SharedLink.up_s` and `down_s` of n pipelines, both stages x n."""


def shared_floor_s(
    shape: Shape, candidates: Candidates, shared: Sequence[SharedSeconds], longest_s: FloatArray
) -> FloatArray:
    """Return `longest_s`, or what messages of an iteration need on one of the `shared` links where that is longer."""
    if not shared or shape.stages == 1:
        return longest_s
    counts = _messages(shape)[:, None]
    first_up_s, first_down_s, rest_up_s, rest_down_s = _around(shape, candidates)
    for up_s, down_s in shared:
        load_s = (counts * (up_s + down_s)).sum(axis=0)
        goes_up, goes_down = ((each > 0) & (counts > 0) for each in (up_s, down_s))
        first_s, rest_s = (
            np.minimum(_least(up, goes_up), _least(down, goes_down))
            for up, down in ((first_up_s, first_down_s), (rest_up_s, rest_down_s))
        )
        longest_s = np.maximum(longest_s, np.where(load_s > 0, load_s + np.where(load_s > 0, first_s + rest_s, 0), 0))
    return longest_s


def _messages(shape: Shape) -> FloatArray:
    """How often an iteration has a message over each boundary, either way."""
    chunks = 1 if shape.schedule == "dualpipe" else shape.chunks
    counts = np.full(shape.stages, float(shape.micro_batches * chunks))
    counts[-1] = shape.micro_batches * (chunks - 1) if shape.schedule == "interleaved" else 0
    return counts


def _least(seconds: FloatArray, passes: BoolArray) -> FloatArray:
    return np.asarray(np.where(passes, seconds, np.inf).min(axis=0))


def _around(shape: Shape, candidates: Candidates) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Of each boundary the least seconds before an activation over it, before a gradient over it, and after the last
    of either; none of dualpipe, whose stages begin and end at both ends at once."""
    f, b = candidates.forward_s, candidates.backward_s
    if shape.schedule == "dualpipe":
        nothing = np.zeros_like(candidates.transfers_s)
        return nothing, nothing, nothing, nothing
    if shape.schedule == "zb-h1":
        b = b - candidates.weight_s
    forward_s, backward_s = f.sum(axis=(0, 1)), b.sum(axis=(0, 1))
    there_s, on_s = np.cumsum(f[:, 0], axis=0), f[:, -1].sum(axis=0) - np.cumsum(f[:, -1], axis=0)
    down_s, back_s = b[:, -1].sum(axis=0) - np.cumsum(b[:, -1], axis=0), np.cumsum(b[:, 0], axis=0)
    # Over the last boundary a result goes on to the next chunk, a gradient to the one before.
    on_s[-1] = f[:, -1].sum(axis=0)
    down_s[-1] = b[:, -1].sum(axis=0)
    return there_s, forward_s + down_s, on_s + backward_s, back_s
