"""The closed forms of `one_chunk` for many pipelines at once: gpipe, 1f1b and zb-h1; arrays are stages x n."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from estimator.schedules.bulk_records import BoolArray, Candidates, FloatArray, ends, ends_from_last, of_previous
from estimator.schedules.orders import Shape

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Costs:
    """As in `one_chunk`; `weight_s` is None where no pipeline has any."""

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray | None
    again_forward_s: FloatArray
    again_backward_s: FloatArray
    hop_s: FloatArray


def one_chunk_times(shape: Shape, candidates: Candidates) -> FloatArray:
    """Seconds of each one's longest path."""
    put_off: BoolArray = np.asarray(candidates.weight_s.any(axis=(0, 1)))
    weights = shape.schedule == "zb-h1" and bool(put_off.any())
    if weights and not put_off.all():
        # Paths of pipelines without weight gradients are split in other places.
        found = np.empty(len(put_off))
        for chosen in (put_off, ~put_off):
            found[chosen] = one_chunk_times(shape, candidates.only(chosen))
        return found
    costs = _costs(shape, candidates, weights=weights)
    longest = _gpipe(shape, costs) if shape.schedule == "gpipe" else _in_turn(shape, costs)
    return np.maximum(longest, _over_a_link(shape, costs))


def _once(costs: _Costs) -> FloatArray:
    """Every stage and every message once, each way."""
    return np.asarray((costs.forward_s + costs.backward_s + 2 * costs.hop_s).sum(axis=0))


def _over_a_link(shape: Shape, costs: _Costs) -> FloatArray:
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
    message = costs.hop_s.max(axis=0)
    forward, backward = (np.maximum(x.max(axis=0), message) for x in (costs.again_forward_s, costs.again_backward_s))
    return np.asarray(_once(costs) + (shape.micro_batches - 1) * (forward + backward))


def _in_turn(shape: Shape, costs: _Costs) -> FloatArray:
    """Row i of what follows: the path that stays on stage i."""
    count, micro_batches = shape.stages, shape.micro_batches
    f, b, w, hop = costs.forward_s, costs.backward_s, costs.weight_s, costs.hop_s
    ahead = np.minimum(np.arange(count)[::-1], micro_batches - 1)[:, None]
    slow_backward = np.maximum.accumulate(costs.again_backward_s, axis=0)
    filled, drained, cleared = _ends(shape, costs, ahead, slow_backward)
    to_first, from_last = ends_from_last(b, filled, hop), ends_from_last(f, drained, hop)
    turns = micro_batches - 1 - count + np.arange(count)
    found = np.empty_like(to_first)
    # All forwards of these come first: on with backwards alone, down the stages or on this one to the end.
    first = min(max(count + 1 - micro_batches, 0), count)
    if first:
        down = to_first[:first] - b[:first] + cleared[:first] + (micro_batches - 1) * slow_backward[:first]
        stay = to_first[:first] + (micro_batches - 1) * b[:first]
        found[:first] = np.maximum(down, stay if w is None else stay + micro_batches * w[:first])
    if first < count:
        between = _to_and_fro(turns, costs, None) if w is None else _by_weights(shape, turns, costs, w)
        found[first:] = (to_first + between + from_last)[first:]
    return np.asarray(found.max(axis=0))


def _by_weights(shape: Shape, turns: IntArray, costs: _Costs, weight_s: FloatArray) -> FloatArray:
    """To and fro, past as many weight gradients as are not put off to the end."""
    weights = max(0, shape.micro_batches - shape.stages)
    most = np.minimum(weights, turns)
    found = _to_and_fro(most, costs, weight_s) + (weights - most)[:, None] * weight_s
    return found + _to_and_fro(turns - most, costs, None)


def _ends(
    shape: Shape, costs: _Costs, ahead: IntArray, slow_backward_s: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """As in `one_chunk`: to before each stage's first backward, after its last forward, and from its last backward."""
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
    """The most seconds of a path that passes `turns` forwards and as many backwards from each stage back to it."""
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
        found = reached[k + 1 :] - start[:some]
        found *= rounds[k, :some]
        found += places.take(rest_at[k, :some], axis=0)
        found -= start[:some]
        np.maximum(best[:some], found, out=best[:some])
    return best
