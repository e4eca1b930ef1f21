"""A job's iteration with what meets nobody in a row drawn together: there only its length counts.

Transfers that no shared link holds take a fixed time, so a step of them alone takes a share of its compute, whichever
way that varies, and a fixed time after it; steps like that in a row are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator.network.player.folding import FoldedMover
from estimator.network.player.packing import Packed
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class ShortTransfer:
    """As `estimator.network.steps.Transfer`. Without movers it is over when its latency is."""

    latency_s: float
    times: int = 1
    movers: tuple[FoldedMover, ...] = ()

    @property
    def length_s(self) -> float | None:
        """What it takes wherever it stands; None where links decide."""
        if any(mover.way or not mover.most for mover in self.movers):
            return None
        return self.times * (self.latency_s + max((mover.seconds / mover.most for mover in self.movers), default=0.0))


@dataclass(frozen=True, kw_only=True)
class ShortStep:
    """As `estimator.network.steps.Step`."""

    compute_s: float
    begins_s: float
    times: int
    transfers: tuple[ShortTransfer, ...]


def shorten(job: Packed, movers: Sequence[tuple[FoldedMover, ...]], jitter: float) -> tuple[ShortStep, ...]:
    """Return the steps of a job whose transfers have these movers, for compute that varies by up to `jitter`."""
    shorter: list[ShortStep] = []
    compute_s = waits_s = 0.0
    for step in _steps(job, movers):
        parts = _linear(step, jitter)
        if parts is not None:
            compute_s += step.times * parts[0]
            waits_s += step.times * parts[1]
            continue
        if compute_s or waits_s:
            shorter.append(_blocking(compute_s, waits_s))
            compute_s = waits_s = 0.0
        shorter.append(step)
    if compute_s or waits_s:
        shorter.append(_blocking(compute_s, waits_s))
    return tuple(shorter)


def _steps(job: Packed, movers: Sequence[tuple[FoldedMover, ...]]) -> Iterator[ShortStep]:
    """The steps, in each of which transfers in a row that nobody holds are one."""
    number = 0
    columns = (job.step_compute_s, job.step_begins_s, job.step_times, job.transfer_count)
    for compute_s, begins_s, times, count in zip(*(column.tolist() for column in columns), strict=True):
        transfers: list[ShortTransfer] = []
        for place in range(number, number + count):
            transfer = ShortTransfer(
                latency_s=float(job.transfer_latency_s[place]),
                times=int(job.transfer_times[place]),
                movers=movers[place],
            )
            length_s = transfer.length_s
            if length_s is not None and transfers and not transfers[-1].movers:
                transfers[-1] = ShortTransfer(latency_s=transfers[-1].latency_s + length_s)
            else:
                transfers.append(transfer if length_s is None else ShortTransfer(latency_s=length_s))
        number += count
        yield ShortStep(compute_s=compute_s, begins_s=begins_s, times=times, transfers=tuple(transfers))


def _linear(step: ShortStep, jitter: float) -> tuple[float, float] | None:
    """What of a step that meets nobody varies as compute does, and what does not; None where that depends on how much
    it varies, or links decide."""
    lengths_s = [transfer.length_s for transfer in step.transfers]
    if any(length_s is None for length_s in lengths_s):
        return None
    waits_s = sum(length_s or 0.0 for length_s in lengths_s)
    hides_s = step.compute_s - step.begins_s
    if not step.transfers or hides_s * (1 - jitter) >= waits_s:
        return max(step.compute_s, step.begins_s), 0.0
    return (step.begins_s, waits_s) if hides_s * (1 + jitter) <= waits_s else None


def _blocking(compute_s: float, waits_s: float) -> ShortStep:
    transfers = (ShortTransfer(latency_s=waits_s),) if waits_s else ()
    return ShortStep(compute_s=compute_s, begins_s=compute_s, times=1, transfers=transfers)
