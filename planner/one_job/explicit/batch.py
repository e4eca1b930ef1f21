"""The batch of an explicit plan: samples an iteration and samples per rank and micro-batch, derived where unsaid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from estimator.cells.job import default_global_batch
from models_zoo.model import Model
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples an iteration, samples per rank and micro-batch, and sentences about what nobody said."""

    global_batch: int
    micro_batch_per_rank: int
    assumptions: tuple[str, ...]


def choose_batch(
    model: Model, seq_len: int, dp: int, devices: int, options: EstimateOptions, *, interleaved_over: int = 1
) -> Batch:
    """Return the batch that `options` mean for `dp` replicas on `devices` devices.

    A global batch that nobody gave is `default_global_batch`, rounded up to whole micro-batches (and to whole rounds of
    `interleaved_over` stages); a micro-batch that nobody gave is one sample per rank. Raise InputError where they
    contradict.
    """
    assumed = []
    count, micro_batch = options.micro_batches, options.micro_batch
    if isinstance(count, int):
        return _from_count(count, micro_batch, dp, options.global_batch)
    if count != "fit":
        refuse("--micro-batches", count, "a number: an explicit plan has nothing left to choose")
    if micro_batch is None:
        micro_batch = 1
        assumed.append("micro-batch of 1 sample per rank (--micro-batch)")
    unit = micro_batch * dp
    global_batch = options.global_batch
    if global_batch is None:
        usual, sentence = default_global_batch(model, seq_len, devices)
        step = unit * interleaved_over
        global_batch = -(-usual // step) * step
        rounded = f", rounded up to {global_batch}" if global_batch != usual else ""
        assumed.append(sentence.replace(" (--global-batch)", f"{rounded} (--global-batch)"))
    if global_batch % unit:
        sizes_said = f"{global_batch}, with dp = {dp} and {micro_batch} samples per rank and micro-batch"
        refuse("--global-batch", sizes_said, f"a multiple of {unit}")
    return Batch(global_batch=global_batch, micro_batch_per_rank=micro_batch, assumptions=tuple(assumed))


def _from_count(count: int, micro_batch: int | None, dp: int, global_batch: int | None) -> Batch:
    """The batch of `count` micro-batches: two of the three numbers tell the third."""
    if global_batch is None:
        if micro_batch is None:
            refuse("--micro-batches", f"{count} and no batch", "--global-batch or --micro-batch beside it")
        return Batch(global_batch=count * dp * micro_batch, micro_batch_per_rank=micro_batch, assumptions=())
    if global_batch % (count * dp):
        sizes_said = f"{count}, with dp = {dp} and a global batch of {global_batch}"
        refuse("--micro-batches", sizes_said, "micro-batches * dp to divide the global batch")
    derived = global_batch // (count * dp)
    if micro_batch not in (None, derived):
        sizes_said = f"both ({count}, {micro_batch})"
        refuse("--micro-batches, --micro-batch", sizes_said, f"one of them: {count} micro-batches make it {derived}")
    return Batch(global_batch=global_batch, micro_batch_per_rank=derived, assumptions=())


def refuse(key: str, found: object, expected: str) -> NoReturn:
    """Raise InputError about an option of an explicit plan."""
    raise InputError(where="plan", key=key, found=found, expected=expected)
