"""Closed form of one pipeline at a time, path by path: what `estimator.schedules.dualpipe` does on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from estimator.schedules.orders import TIE, Shape
from estimator.schedules.records import StageTimes, Transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Seconds of one stage, `far` and `near`; backward without weight gradients; `hop_s` to the next place inwards."""

    near_forward_s: float
    near_backward_s: float
    near_weight_s: float
    far_forward_s: float
    far_backward_s: float
    far_weight_s: float
    hop_s: float

    @property
    def near_back_s(self) -> float:
        """The whole backward of a near micro-batch."""
        return self.near_backward_s + self.near_weight_s

    @property
    def far_back_s(self) -> float:
        """The whole backward of a far micro-batch."""
        return self.far_backward_s + self.far_weight_s

    @property
    def block_s(self) -> float:
        """Forward far with backward near."""
        return self.far_forward_s + self.near_back_s

    @property
    def both_s(self) -> float:
        """One micro-batch of either direction."""
        return self.near_forward_s + self.far_back_s + self.block_s


def dualpipe_time(shape: Shape, stages: Sequence[StageTimes], transfers: Transfers) -> tuple[float, int]:
    """Seconds of the longest path, and the stage on which it stays."""
    halves = [_half(stages, transfers, side) for side in (0, 1)]
    everywhere = [place for half in halves for place in half]
    # Messages slow the steady state as well: a round over all stages passes every link once for p micro-batches.
    waits = sum(transfers.forward_s[:-1]) if transfers.overlapped else 0.0
    pace = (sum(place.both_s for place in everywhere) / 2 + waits) / shape.stages if waits else 0.0
    longest, bottleneck = 0.0, 0
    for side, half in enumerate(halves):
        to_block, from_block = _starts(half, halves[1 - side]), _ends(half)
        for r, place in enumerate(half):
            rest = len(half) - 1 - r
            before = (2 * rest + r + 2) * place.near_forward_s + (rest + r + 1) * place.far_forward_s
            before += (rest + 1) * place.far_back_s + place.block_s
            after = len(half) * place.near_back_s + (r + 1) * place.far_back_s + place.block_s
            found = to_block[r] + (shape.micro_batches / 2 * place.both_s - before - after) + from_block[r]
            found += max(0.0, (shape.micro_batches - 2 * shape.stages) * (pace - place.both_s / 2))
            if found > longest * (1 + TIE):
                bottleneck = r if side == 0 else shape.stages - 1 - r
            longest = max(longest, found)
    return longest, bottleneck


def _half(stages: Sequence[StageTimes], transfers: Transfers, side: int) -> list[_Place]:
    """The places of one half, outermost first; a stage that is not overlapped stands still while it sends."""
    found = []
    for r in range(len(stages) // 2):
        at = r if side == 0 else len(stages) - 1 - r
        links = (transfers.forward_s[at], transfers.forward_s[at - 1] if at else 0.0)
        inwards, outwards = links if side == 0 else (links[1], links[0])
        send_in, send_out = (0.0, 0.0) if transfers.overlapped else (inwards, outwards if r else 0.0)
        times, near, far = stages[at], side, 1 - side
        found.append(
            _Place(
                near_forward_s=times.forward_s[near] + send_in,
                near_backward_s=times.backward_s[near] - times.weight_s[near] + send_out,
                near_weight_s=times.weight_s[near],
                far_forward_s=times.forward_s[far] + send_out,
                far_backward_s=times.backward_s[far] - times.weight_s[far] + send_in,
                far_weight_s=times.weight_s[far],
                hop_s=inwards if transfers.overlapped else 0.0,
            )
        )
    return found


def _starts(half: Sequence[_Place], other: Sequence[_Place]) -> list[float]:
    """E_r of every place."""
    count = len(half)
    arrives = [0.0] * count
    way = sum(place.near_forward_s + place.hop_s for place in other)
    for r in reversed(range(count)):
        arrives[r] = way
        way += half[r].far_forward_s + (half[r - 1].hop_s if r else 0.0)
    ends = []
    first_in = back = 0.0
    for r, place in enumerate(half):
        rest, pair = count - 1 - r, place.near_forward_s + place.far_forward_s
        own = first_in + 2 * rest * place.near_forward_s + (r + 1) * pair + (0.0 if rest else place.near_forward_s)
        back = max(own, arrives[r] + place.far_forward_s + r * pair, back) + place.far_backward_s
        more = rest * (place.far_back_s + place.far_forward_s) + place.near_forward_s if rest else 0.0
        ends.append(back + place.far_weight_s + more + place.block_s)
        back += (0.0 if rest else place.far_weight_s) + place.hop_s
        first_in += place.near_forward_s + place.hop_s
    for r in reversed(range(count - 1)):
        ends[r] = max(ends[r], ends[r + 1] + half[r].hop_s + half[r].block_s)
    return ends


def _ends(half: Sequence[_Place]) -> list[float]:
    """G_r of every place."""
    count, left = len(half), half[0].near_weight_s
    out = [0.0]
    for r, place in enumerate(half):
        out.append(out[-1] + place.near_backward_s + (half[r - 1].hop_s if r else 0.0))
    inwards = [0.0] * count
    for r in reversed(range(count - 1)):
        inwards[r] = inwards[r + 1] + half[r].hop_s + half[r + 1].far_backward_s
    found: list[float] = []
    for r, place in enumerate(half):
        weights = (place.near_weight_s + place.far_weight_s) / 2
        gradients = (r + 1) * place.far_backward_s + r * place.near_backward_s
        own = count * place.near_back_s + (r + 1) * place.far_back_s
        leaves = gradients + (count - 1 - r) * place.near_backward_s + count * weights + out[r + 1] + left
        turns = gradients + min(r + 1, 2 * r) * weights + (0.0 if r else place.far_weight_s)
        turns += inwards[r] + out[count] + left
        by_next = half[r - 1].hop_s + found[-1] if r else 0.0
        found.append(place.block_s + max(own, leaves, turns, by_next))
    return found
