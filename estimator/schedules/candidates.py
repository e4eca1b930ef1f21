"""What the closed forms of many pipelines at once are computed from, and the recurrence that they share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiles.records import dataclass

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Seconds of n pipelines, as in `StageTimes` and `Transfers`: stages x chunks x n, transfers stages x n."""

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    transfers_s: FloatArray
    overlapped: bool

    @property
    def stage_s(self) -> FloatArray:
        """Forward and backward of all chunks, for one micro-batch: stages x n."""
        return np.asarray(self.forward_s.sum(axis=1) + self.backward_s.sum(axis=1))

    def only(self, chosen: BoolArray) -> Candidates:
        """Those of the n that are chosen."""
        return Candidates(
            forward_s=self.forward_s.compress(chosen, axis=-1),
            backward_s=self.backward_s.compress(chosen, axis=-1),
            weight_s=self.weight_s.compress(chosen, axis=-1),
            transfers_s=self.transfers_s.compress(chosen, axis=-1),
            overlapped=self.overlapped,
        )

    def with_and_without_transfers(self) -> Candidates:
        """Twice as many: these, then the same whose messages take no time."""
        return Candidates(
            forward_s=np.concatenate([self.forward_s] * 2, axis=-1),
            backward_s=np.concatenate([self.backward_s] * 2, axis=-1),
            weight_s=np.concatenate([self.weight_s] * 2, axis=-1),
            transfers_s=np.concatenate([self.transfers_s, np.zeros_like(self.transfers_s)], axis=-1),
            overlapped=self.overlapped,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paths:
    """Of n pipelines the seconds of the longest path, and those of the path that stays on each stage, stages x n (of
    gpipe, whose stages wait for the slowest pass of either kind, a micro-batch's of each stage)."""

    longest_s: FloatArray
    by_stage_s: FloatArray


def check_candidates(candidates: Candidates) -> None:
    """A ValueError where the arrays are not of these shapes, or hold what is no time."""
    arrays = {
        "forward_s": candidates.forward_s,
        "backward_s": candidates.backward_s,
        "weight_s": candidates.weight_s,
        "transfers_s": candidates.transfers_s,
    }
    shape = candidates.forward_s.shape
    alike = len(shape) == 3 and shape == candidates.backward_s.shape == candidates.weight_s.shape
    if not alike or candidates.transfers_s.shape != (shape[0], shape[2]):
        shapes = {name: seconds.shape for name, seconds in arrays.items()}
        raise ValueError(f"{shapes}; expected three of stages x chunks x n, and transfers_s of stages x n")
    for name, seconds in arrays.items():
        least, most = seconds.min(initial=0.0), seconds.max(initial=0.0)
        # What is not a number is neither.
        if not (least >= 0 and most < np.inf):
            raise ValueError(f"{name} from {least} to {most}; expected finite seconds >= 0")
    if (candidates.weight_s > candidates.backward_s).any():
        raise ValueError("weight_s longer than backward_s; expected it to be a part of that")


def ends(own_s: FloatArray, ready_s: FloatArray, way_s: FloatArray) -> FloatArray:
    """x_i = own_i + max(ready_i, x_(i-1) + way_i) along the first axis; nothing comes before the first."""
    passed = np.cumsum(own_s + way_s, axis=0)
    return np.asarray(passed + np.maximum.accumulate(ready_s + own_s - passed, axis=0))


def ends_from_last(own_s: FloatArray, ready_s: FloatArray, way_s: FloatArray) -> FloatArray:
    """x_i = own_i + max(ready_i, x_(i+1) + way_i) along the first axis; nothing comes after the last."""
    return ends(own_s[::-1], ready_s[::-1], way_s[::-1])[::-1]


def before(seconds: FloatArray) -> FloatArray:
    """Of each place the sum of those before it, along the first axis."""
    sums = np.zeros_like(seconds)
    np.cumsum(seconds[:-1], axis=0, out=sums[1:])
    return sums


def of_previous(seconds: FloatArray) -> FloatArray:
    """Of each place the seconds of the one before it, along the first axis; of the first none."""
    moved = np.zeros_like(seconds)
    moved[1:] = seconds[:-1]
    return moved
