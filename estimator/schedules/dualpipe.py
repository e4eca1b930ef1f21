"""Closed form of dualpipe: p stages in two halves that mirror each other, half of the micro-batches from either end.

Place r of h = p / 2 counts from the end of the pipeline; `near` micro-batches enter at that end, `far` ones at the
other. After its start-up a place does pairs of blocks, forward near with backward far, then forward far with backward
near.

    E_r  end of its first block of the second sort: after its own work, after the first far micro-batch has come back
         from the end (which is far's last stage), or after the same block of the next place
    G_r  from the start of its last such block to the end: its own work; its near gradients on their way out, the weight
         gradients left for later; far gradients in to the middle, then near ones out; or by way of the next place out
    T    = max_r  E_r + (its work between the two) + G_r

Equal stages, with b without the weight gradients w: m (f + b + w) + max(0, 2 (h - 1) f, (h - 1) (f + b) - f)
+ (h - 1) max(0, b - w). DeepSeek-V3's report, table 2, has the bubble (h - 1) (F&B + B - 3 W), in these words
(h - 1) (f + 2 b - w): the same where f = b >= w. Elsewhere their library's order takes what stands here: longer by
(h - 1) (f - b) where f > b >= w, and shorter by the less of (h - 1) (b - f) and f where b > f, b >= w.

Arrays are places x the two halves x n, of n pipelines at once; place r of one half beside place r of the other.
"""

from __future__ import annotations

import numpy as np

from estimator.schedules.candidates import Candidates, FloatArray, Paths, before, ends, ends_from_last, of_previous
from estimator.schedules.orders import Shape
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Places:
    """Seconds of all stages, `far` and `near`: the places of one half, outermost first, beside the other's; backward
    without weight gradients; `hop_s` to the next place inwards."""

    near_forward_s: FloatArray
    near_backward_s: FloatArray
    near_weight_s: FloatArray
    far_forward_s: FloatArray
    far_backward_s: FloatArray
    far_weight_s: FloatArray
    hop_s: FloatArray
    near_back_s: FloatArray
    far_back_s: FloatArray
    block_s: FloatArray
    both_s: FloatArray


def dualpipe_paths(shape: Shape, candidates: Candidates) -> Paths:
    """Return the longest paths of each pipeline."""
    places, half = _places(candidates), shape.stages // 2
    r = np.arange(half)[:, None, None]
    rest = half - 1 - r
    start = (2 * rest + r + 2) * places.near_forward_s + half * places.far_forward_s
    start += (rest + 1) * places.far_back_s + places.block_s
    end = half * places.near_back_s + (r + 1) * places.far_back_s + places.block_s
    paths = _starts(places) + (shape.micro_batches / 2 * places.both_s - start - end) + _ends(places)
    # Messages slow the steady state as well: a round over all stages passes every link once for p micro-batches.
    waits = candidates.transfers_s[:-1].sum(axis=0)
    if candidates.overlapped and waits.any():
        pace = (places.both_s.sum(axis=(0, 1)) / 2 + waits) / shape.stages
        slower = (shape.micro_batches - 2 * shape.stages) * (pace - places.both_s / 2)
        paths += np.where(waits > 0, np.maximum(slower, 0.0), 0.0)
    by_stage = np.concatenate([paths[:, 0], paths[::-1, 1]])
    return Paths(longest_s=by_stage.max(axis=0), by_stage_s=by_stage)


def _places(candidates: Candidates) -> _Places:
    half = len(candidates.forward_s) // 2
    # Between neighbours, from the ends of the pipeline to its middle.
    links = candidates.transfers_s[:-1]
    inwards = np.stack([links[:half], links[::-1][:half]], axis=1)
    waited = np.zeros_like(inwards) if candidates.overlapped else inwards
    send_in, send_out = waited, of_previous(waited)

    def of_chunk(seconds: FloatArray, near: int) -> FloatArray:
        """Of the chunk that is first in the first half, and second in the other."""
        return np.stack([seconds[:half, near], seconds[::-1][:half, 1 - near]], axis=1)

    forward, backward, weight = candidates.forward_s, candidates.backward_s, candidates.weight_s
    bare = backward - weight
    near_forward, far_forward = of_chunk(forward, 0) + send_in, of_chunk(forward, 1) + send_out
    near_backward, far_backward = of_chunk(bare, 0) + send_out, of_chunk(bare, 1) + send_in
    near_weight, far_weight = of_chunk(weight, 0), of_chunk(weight, 1)
    near_back, far_back = near_backward + near_weight, far_backward + far_weight
    block = far_forward + near_back
    return _Places(
        near_forward_s=near_forward,
        near_backward_s=near_backward,
        near_weight_s=near_weight,
        far_forward_s=far_forward,
        far_backward_s=far_backward,
        far_weight_s=far_weight,
        hop_s=inwards if candidates.overlapped else np.zeros_like(inwards),
        near_back_s=near_back,
        far_back_s=far_back,
        block_s=block,
        both_s=near_forward + far_back + block,
    )


def _starts(places: _Places) -> FloatArray:
    """E_r of every place."""
    count = len(places.hop_s)
    r = np.arange(count)[:, None, None]
    rest, reached = count - 1 - r, of_previous(places.hop_s)
    pair = places.near_forward_s + places.far_forward_s
    entered = places.near_forward_s + places.hop_s
    # Far micro-batches come by all places of the other half, then by those of this one from the middle on.
    arrives = entered.sum(axis=0)[::-1] + before((places.far_forward_s + reached)[::-1])[::-1]
    own = before(entered) + np.where(rest > 0, 2 * rest, 1) * places.near_forward_s + (r + 1) * pair
    ready = np.maximum(own, arrives + places.far_forward_s + r * pair)
    back = ends(places.far_backward_s, ready, reached)
    more = rest * (places.far_back_s + places.far_forward_s) + np.where(rest > 0, places.near_forward_s, 0.0)
    blocks = back + places.far_weight_s + more + places.block_s
    return ends_from_last(np.zeros_like(blocks), blocks, places.hop_s + places.block_s)


def _ends(places: _Places) -> FloatArray:
    """G_r of every place."""
    count, left = len(places.hop_s), places.near_weight_s[0]
    r = np.arange(count)[:, None, None]
    reached = of_previous(places.hop_s)
    out = np.cumsum(places.near_backward_s + reached, axis=0)
    inwards = before((places.far_backward_s + reached)[::-1])[::-1]
    weights = (places.near_weight_s + places.far_weight_s) / 2
    gradients = (r + 1) * places.far_backward_s + r * places.near_backward_s
    own = count * places.near_back_s + (r + 1) * places.far_back_s
    leaves = gradients + (count - 1 - r) * places.near_backward_s + count * weights + out + left
    turns = gradients + np.minimum(r + 1, 2 * r) * weights + inwards + out[-1] + left
    turns[0] += places.far_weight_s[0]
    return ends(places.block_s, np.maximum(np.maximum(own, leaves), turns), reached)
