"""How many micro-batches' activations a stage holds at once, by schedule."""

from __future__ import annotations

from estimator.schedules.orders import shape_of, warm_up
from profiles.vocabulary import ScheduleName


def in_flight(schedule: ScheduleName, *, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[float, ...]:
    """Micro-batches whose activations `stage` holds, for each chunk, when it holds most of all chunks together.

    From the start of a forward to the end of its backward, and of its weight gradients where those are put off:
    gpipe m; 1f1b min(m, p - i); zb-h1 min(m, p) on every stage, which is 1f1b's most; interleaved one more than its
    warm-up, 2 (p - 1 - i) + (v - 1) p + 1, in chunks as the warm-up takes them; dualpipe p + 1 in all (DeepSeek-V3
    report, table 2), p - i of them in the first chunk. Raises ValueError where the schedule cannot be run with these
    counts (`schedule_problem`).

    >>> in_flight("1f1b", stage=1, stages=4, chunks=1, micro_batches=8)
    (3.0,)
    >>> in_flight("interleaved", stage=0, stages=4, chunks=2, micro_batches=8)
    (7.0, 4.0)
    """
    shape = shape_of(schedule, stages, chunks, micro_batches)
    if not 0 <= stage < stages:
        raise ValueError(f"stage {stage}; expected 0 to {stages - 1}")
    if schedule == "dualpipe":
        return float(stages - stage), float(stage + 1)
    if shape.schedule == "interleaved":
        most = min(warm_up(shape, stage) + 1, micro_batches * chunks)
        # As `turn` has it: each chunk in turn as many as there are stages.
        rounds, rest = divmod(most, stages * chunks)
        return tuple(float(rounds * stages + min(max(0, rest - chunk * stages), stages)) for chunk in range(chunks))
    if schedule == "zb-h1":
        return (float(min(micro_batches, stages)),)
    return (float(min(micro_batches, warm_up(shape, stage) + 1)),)
