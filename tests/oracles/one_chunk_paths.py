"""Closed form of one pipeline at a time, path by path: what `estimator.schedules.one_chunk` does on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from estimator.schedules.orders import TIE, Shape
from estimator.schedules.records import StageTimes, Transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    """Seconds a path gains by passing a task: of each stage, and on the way between a stage and the next.

    `again_*`: by passing a task that follows one of its own kind on the same stage.
    """

    forward_s: list[float]
    backward_s: list[float]
    weight_s: list[float]
    again_forward_s: list[float]
    again_backward_s: list[float]
    hop_s: list[float]


def one_chunk_time(shape: Shape, stages: Sequence[StageTimes], transfers: Transfers) -> tuple[float, int]:
    """Seconds of the longest path, and the stage on which it stays."""
    costs = _costs(shape, stages, transfers)
    longest, bottleneck = _gpipe(shape, costs) if shape.schedule == "gpipe" else _in_turn(shape, costs)
    return max(longest, _over_a_link(shape, costs)), bottleneck


def _over_a_link(shape: Shape, costs: _Costs) -> float:
    """The longest path that waits for one boundary's messages, all of which follow each other in either direction: up
    to it once, then every message, then on to the end."""
    once = sum(costs.forward_s) + sum(costs.backward_s) + 2 * sum(costs.hop_s)
    return once + (shape.micro_batches - 1) * max(costs.hop_s, default=0.0)


def _costs(shape: Shape, stages: Sequence[StageTimes], transfers: Transfers) -> _Costs:
    count, split = shape.stages, shape.schedule == "zb-h1"
    above = [*transfers.forward_s[:-1], 0.0]
    forward = [stage.forward_s[0] for stage in stages]
    weight = [stage.weight_s[0] if split else 0.0 for stage in stages]
    backward = [stage.backward_s[0] - w for stage, w in zip(stages, weight, strict=True)]
    if transfers.overlapped:
        return _Costs(
            forward_s=forward,
            backward_s=backward,
            weight_s=weight,
            again_forward_s=forward,
            again_backward_s=backward,
            hop_s=above,
        )
    below = [0.0, *above[:-1]]
    # Only those that wait for their partner stand still to receive as well as to send.
    up = above if split else [a + b for a, b in zip(above, below, strict=True)]
    down = below if split else up
    return _Costs(
        forward_s=[x + c for x, c in zip(forward, above, strict=True)],
        backward_s=[x + c for x, c in zip(backward, below, strict=True)],
        weight_s=weight,
        again_forward_s=[x + c for x, c in zip(forward, up, strict=True)],
        again_backward_s=[x + c for x, c in zip(backward, down, strict=True)],
        hop_s=[0.0] * count,
    )


def _gpipe(shape: Shape, costs: _Costs) -> tuple[float, int]:
    """sum f + (m - 1) max f, the same for b, and every message once each way; a message slower than the stages takes
    their place."""
    both = [f + b for f, b in zip(costs.again_forward_s, costs.again_backward_s, strict=True)]
    once = sum(costs.forward_s) + sum(costs.backward_s) + 2 * sum(costs.hop_s)
    slowest = [max(*passes, *costs.hop_s) for passes in (costs.again_forward_s, costs.again_backward_s)]
    rest = (shape.micro_batches - 1) * sum(slowest)
    return once + rest, max(range(shape.stages), key=both.__getitem__)


def _in_turn(shape: Shape, costs: _Costs) -> tuple[float, int]:
    count, micro_batches = shape.stages, shape.micro_batches
    f, b, w, hop = costs.forward_s, costs.backward_s, costs.weight_s, costs.hop_s
    ahead = [min(count - 1 - i, micro_batches - 1) for i in range(count)]
    filled, drained, cleared = _ends(shape, costs, ahead)
    longest, bottleneck = 0.0, 0
    to_first = from_last = 0.0
    slowest = list(accumulate(costs.again_backward_s, max))
    for i in reversed(range(count)):
        to_first = b[i] + max(filled[i], to_first + hop[i])
        from_last = f[i] + max(drained[i], from_last + hop[i])
        turns = micro_batches - 2 - (count - 1 - i)
        if turns < 0:
            # All forwards come first: on with backwards alone, down the stages or on this one to the end.
            down = to_first - b[i] + cleared[i] + (micro_batches - 1) * slowest[i]
            found = max(down, to_first + (micro_batches - 1) * b[i] + micro_batches * w[i])
        else:
            weights = max(0, micro_batches - count) if any(w) else 0
            most = min(weights, turns)
            found = to_first + _to_and_fro(most, i, f, b, w, hop) + (weights - most) * w[i] + from_last
            found += _to_and_fro(turns - most, i, f, b, None, hop)
        if found >= longest * (1 - TIE):
            bottleneck = i
        longest = max(longest, found)
    return longest, bottleneck


def _ends(shape: Shape, costs: _Costs, ahead: Sequence[int]) -> tuple[list[float], list[float], list[float]]:
    """For each stage: from the very start to before its first backward by way of the stages up to it; from after its
    last forward to the very end by way of the same; and from the start of its last backward to the end."""
    f, b, w, hop = costs.forward_s, costs.backward_s, costs.weight_s, costs.hop_s
    filled, drained, cleared = [], [], []
    up = down = slow_forward = slow_backward = 0.0
    for i in range(shape.stages):
        below = hop[i - 1] if i else 0.0
        slow_forward = max(slow_forward, costs.again_forward_s[i])
        slow_backward = max(slow_backward, costs.again_backward_s[i])
        up += f[i] + below
        put_off = min(i + 1, shape.micro_batches) * w[i]
        down = b[i] + (max(put_off, down + below) if i else put_off)
        filled.append(up + ahead[i] * slow_forward)
        alone = (ahead[i] + 1) * b[i] + min(shape.micro_batches, shape.stages) * w[i]
        drained.append(max(down + ahead[i] * slow_backward, alone))
        cleared.append(down)
    return filled, drained, cleared


def _to_and_fro(
    turns: int,
    stage: int,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    weight_s: Sequence[float] | None,
    hop_s: Sequence[float],
) -> float:
    """The most seconds of a path that passes `turns` forwards and as many backwards from `stage` back to it.

    It stays, or goes to and fro between the stage and another n - 1 stages away: n of either in one round, and the
    hops on the way; the rest in a shorter round.
    """
    if turns <= 0:
        return 0.0
    w = weight_s or [0.0] * len(forward_s)
    stay = forward_s[stage] + backward_s[stage] + w[stage]
    best = turns * stay
    if not any(hop_s):
        return best
    for ahead in (1, -1):
        rounds = [0.0, stay]
        at = stage + ahead
        while 0 <= at < len(forward_s) and len(rounds) <= turns:
            lower = w[at] - w[at + 1] if ahead < 0 else 0.0
            rounds.append(rounds[-1] + forward_s[at] + backward_s[at] + 2 * hop_s[min(at, at - ahead)] + lower)
            at += ahead
        for n in range(2, len(rounds)):
            best = max(best, turns // n * rounds[n] + rounds[turns % n])
    return best
