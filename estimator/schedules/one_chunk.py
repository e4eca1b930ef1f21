"""Closed forms of gpipe, 1f1b and zb-h1, whose stages hold one chunk of layers each.

Stage i (of p, for m micro-batches) does a_i = min(p - 1 - i, m - 1) forwards, then a forward and a backward in turn. A
path through 1f1b goes up the stages by forwards, down by backwards, and turns on a stage between the two. With f_i and
b_i:

    E_i = b_i + max(E_(i+1), f_0 + .. + f_i + a_i max(f_0 .. f_i))    end of stage i's first backward
    G_i = f_i + max(G_(i+1), b_0 + .. + b_i + a_i max(b_0 .. b_i))    from the start of its last forward to the end
    T   = max_i  E_i + (m - 2 - (p - 1 - i)) (f_i + b_i) + G_i

For equal stages T = (m + p - 1) (f + b), as in Narayanan et al. 2021, section 2.2. Where stages stand still for their
messages, f_i is longer by the message up, b_i by the message down, and a forward that follows a forward by both.
Where messages only take their time, they count for every step up or down the path, and a path may go to and fro
between stages rather than stay on one. Stages with more than m forwards ahead do all of them first.

zb-h1: b_i without weight gradients w_i. A path that turns from backward to forward passes one w_i, but none in a
stage's first i turns, and min(i + 1, m) at its end: equal stages with m >= p take
m (f + b + w) + (p - 1) max(f + b - w, f, b), the first of which is Qi et al. 2023, table 1.

Arrays are stages x n, of n pipelines at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from estimator.schedules.candidates import BoolArray, Candidates, FloatArray, Paths, ends, ends_from_last, of_previous
from estimator.schedules.orders import Shape
from profiles.records import dataclass

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Costs:
    """Seconds a path gains by passing a task: of each stage, and on the way between a stage and the next. `again_*`: by
    passing a task that follows one of its own kind on the same stage. `weight_s` is None where no pipeline has any."""

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray | None
    again_forward_s: FloatArray
    again_backward_s: FloatArray
    hop_s: FloatArray


def one_chunk_paths(shape: Shape, candidates: Candidates) -> Paths:
    """Return the longest paths of each pipeline."""
    put_off: BoolArray = np.asarray(candidates.weight_s.any(axis=(0, 1)))
    weights = shape.schedule == "zb-h1" and bool(put_off.any())
    if weights and not put_off.all():
        # Paths of pipelines without weight gradients are split in other places.
        longest, by_stage = np.empty(len(put_off)), np.empty((shape.stages, len(put_off)))
        for chosen in (put_off, ~put_off):
            paths = one_chunk_paths(shape, candidates.only(chosen))
            longest[chosen], by_stage[:, chosen] = paths.longest_s, paths.by_stage_s
        return Paths(longest_s=longest, by_stage_s=by_stage)
    costs = _costs(shape, candidates, weights=weights)
    if shape.schedule == "gpipe":
        longest, by_stage = _gpipe(shape, costs), costs.again_forward_s + costs.again_backward_s
    else:
        by_stage = _in_turn(shape, costs)
        longest = by_stage.max(axis=0)
    return Paths(longest_s=np.maximum(longest, _over_a_link(shape, costs)), by_stage_s=by_stage)


def _once(costs: _Costs) -> FloatArray:
    """Every stage and every message once, each way."""
    return np.asarray((costs.forward_s + costs.backward_s + 2 * costs.hop_s).sum(axis=0))


def _over_a_link(shape: Shape, costs: _Costs) -> FloatArray:
    """The longest path that waits for one boundary's messages, all of which follow each other in either direction: up
    to it once, then every message, then on to the end."""
    return np.asarray(_once(costs) + (shape.micro_batches - 1) * costs.hop_s.max(axis=0))


def _costs(shape: Shape, candidates: Candidates, *, weights: bool) -> _Costs:
    split = shape.schedule == "zb-h1"
    above = candidates.transfers_s.copy()
    above[-1] = 0.0
    forward, backward = candidates.forward_s[:, 0], candidates.backward_s[:, 0]
    weight = candidates.weight_s[:, 0] if weights else None
    if weight is not None:
        backward = backward - weight
    if candidates.overlapped:
        return _Costs(
            forward_s=forward,
            backward_s=backward,
            weight_s=weight,
            again_forward_s=forward,
            again_backward_s=backward,
            hop_s=above,
        )
    below = of_previous(above)
    # Only those that wait for their partner stand still to receive as well as to send.
    both = above + below
    return _Costs(
        forward_s=forward + above,
        backward_s=backward + below,
        weight_s=weight,
        again_forward_s=forward + (above if split else both),
        again_backward_s=backward + (below if split else both),
        hop_s=np.zeros_like(above),
    )


def _gpipe(shape: Shape, costs: _Costs) -> FloatArray:
    """sum f + (m - 1) max f, the same for b, and every message once each way; a message slower than the stages takes
    their place."""
    message = costs.hop_s.max(axis=0)
    forward, backward = (np.maximum(x.max(axis=0), message) for x in (costs.again_forward_s, costs.again_backward_s))
    return np.asarray(_once(costs) + (shape.micro_batches - 1) * (forward + backward))


def _in_turn(shape: Shape, costs: _Costs) -> FloatArray:
    """The path that stays on each stage, (stages, n)."""
    count, micro_batches = shape.stages, shape.micro_batches
    f, b, w, hop = costs.forward_s, costs.backward_s, costs.weight_s, costs.hop_s
    ahead = np.minimum(np.arange(count)[::-1], micro_batches - 1)[:, None]
    slow_backward = np.maximum.accumulate(costs.again_backward_s, axis=0)
    filled, drained, cleared = _ends(shape, costs, ahead, slow_backward)
    to_first, from_last = ends_from_last(b, filled, hop), ends_from_last(f, drained, hop)
    turns = micro_batches - 1 - count + np.arange(count)
    paths = np.empty_like(to_first)
    # All forwards of these come first: on with backwards alone, down the stages or on this one to the end.
    first = min(max(count + 1 - micro_batches, 0), count)
    if first:
        down = to_first[:first] - b[:first] + cleared[:first] + (micro_batches - 1) * slow_backward[:first]
        stay = to_first[:first] + (micro_batches - 1) * b[:first]
        paths[:first] = np.maximum(down, stay if w is None else stay + micro_batches * w[:first])
    if first < count:
        between = _to_and_fro(turns, costs, None) if w is None else _by_weights(shape, turns, costs, w)
        paths[first:] = (to_first + between + from_last)[first:]
    return paths


def _by_weights(shape: Shape, turns: IntArray, costs: _Costs, weight_s: FloatArray) -> FloatArray:
    """To and fro, past as many weight gradients as are not put off to the end."""
    weights = max(0, shape.micro_batches - shape.stages)
    most = np.minimum(weights, turns)
    before = _to_and_fro(most, costs, weight_s) + (weights - most)[:, None] * weight_s
    return before + _to_and_fro(turns - most, costs, None)


def _ends(
    shape: Shape, costs: _Costs, ahead: IntArray, slow_backward_s: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For each stage: from the very start to before its first backward by way of the stages up to it; from after its
    last forward to the very end by way of the same; and from the start of its last backward to the end."""
    f, b, w, count = costs.forward_s, costs.backward_s, costs.weight_s, shape.stages
    below = of_previous(costs.hop_s)
    filled = np.cumsum(f + below, axis=0) + ahead * np.maximum.accumulate(costs.again_forward_s, axis=0)
    alone = (ahead + 1) * b
    if w is None:
        cleared = np.cumsum(b + below, axis=0)
    else:
        put_off = np.minimum(np.arange(count) + 1, shape.micro_batches)[:, None] * w
        cleared = ends(b, put_off, below)
        alone += min(shape.micro_batches, count) * w
    return filled, np.maximum(cleared + ahead * slow_backward_s, alone), cleared


def _to_and_fro(turns: IntArray, costs: _Costs, weight_s: FloatArray | None) -> FloatArray:
    """The most seconds of a path that passes `turns` forwards and as many backwards from each stage back to it.

    It stays, or goes to and fro between the stage and another n - 1 stages away: n of either in one round, and the
    hops on the way; the rest in a shorter round.
    """
    step = costs.forward_s + costs.backward_s
    stay = step if weight_s is None else step + weight_s
    best = np.asarray(np.maximum(turns, 0)[:, None] * stay)
    moves = costs.hop_s.any(axis=0)
    if turns.max() < 2 or not moves.any():
        return best
    # From each stage to the next one up: its own, and the hop there and back. To the next one down the same, and the
    # weight gradients of that stage instead of this one's.
    hop, stay, step = (x.compress(moves, axis=1) for x in (2 * costs.hop_s, stay, step))
    up, down = step + of_previous(hop), step + hop
    if weight_s is not None:
        down[:-1] -= np.diff(weight_s.compress(moves, axis=1), axis=0)
    most = np.maximum(_one_way(turns, stay, up), _one_way(turns[::-1], stay[::-1], down[::-1])[::-1])
    best[:, moves] = np.maximum(best[:, moves], most)
    return best


def _one_way(turns: IntArray, stay_s: FloatArray, step_s: FloatArray) -> FloatArray:
    """Of `_to_and_fro`, the most by going to each later stage and back; 0 where there is none or no time for it.

    A round of n forwards and n backwards from stage i is reached_(i+n-1) - start_i seconds, one of none start_i less
    itself. Where n is more than the turns, what is left is one round of as many as there are.
    """
    count, most = len(turns), min(len(turns), int(turns.max()))
    reached, stages = np.cumsum(step_s, axis=0), np.arange(count)
    start = reached - stay_s
    places = np.concatenate([reached, start])
    whole, rest = np.divmod(np.maximum(turns, 0), np.arange(2, most + 1)[:, None])
    rest_at = np.where(rest > 0, stages + rest - 1, stages + count)
    rounds = whole.astype(np.float64)[..., None]
    best = np.zeros_like(stay_s)
    for k in range(most - 1):
        # Rounds of k + 2, which so many stages have.
        some = count - 1 - k
        round_s = reached[k + 1 :] - start[:some]
        round_s *= rounds[k, :some]
        round_s += places.take(rest_at[k, :some], axis=0)
        round_s -= start[:some]
        np.maximum(best[:some], round_s, out=best[:some])
    return best
