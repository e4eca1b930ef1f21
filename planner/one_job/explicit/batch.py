"""The batch of an explicit plan: samples an iteration and samples per rank and micro-batch, derived where unsaid."""

from __future__ import annotations

from typing import NoReturn

from estimator.cells.job import default_global_batch
from estimator.pricing.build import PipelineDegrees
from estimator.pricing.software import Framework
from models_zoo.model import Model
from planner.shared.options.estimate import EstimateOptions
from planner.shared.software_defaults import default_local_batch, default_micro_batch, usual_global_batch
from profiles.errors import InputError
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples an iteration, samples per rank and micro-batch, and sentences about what nobody said, of the batch and
    (`chosen`) of the micro-batch; smaller micro-batches that may be taken instead where memory forces it, largest
    first, and `larger` ones that a team with memory left may have settled for."""

    global_batch: int
    micro_batch_per_rank: int
    assumptions: tuple[str, ...]
    chosen: tuple[str, ...] = ()
    smaller: tuple[int, ...] = ()
    larger: tuple[int, ...] = ()


LARGER = 4
"""How many times the usual micro-batch published recipes go to where memory is left (Megatron-Bridge: 2 to 4)."""


def choose_batch(
    model: Model,
    seq_len: int,
    degrees: PipelineDegrees,
    options: EstimateOptions,
    framework: Framework,
    *,
    as_planned: bool = False,
) -> Batch:
    """Return the batch that `options` mean for the replicas and devices of `degrees`.

    A global batch that nobody gave is `default_global_batch`, rounded up to whole micro-batches (and, interleaved, to
    whole rounds of the stages); under software that does not accumulate, a local batch for each replica; `as_planned`:
    it is `usual_global_batch` in place of both. A micro-batch that nobody gave is `default_micro_batch`. Raise
    InputError where they contradict.
    """
    assumed, chosen = [], []
    dp, rounds = degrees.dp, degrees.pp if degrees.vpp > 1 else 1
    count, micro_batch, global_batch = options.micro_batches, options.micro_batch, options.global_batch
    if isinstance(count, int):
        return _from_count(count, micro_batch, dp, global_batch)
    if count not in (None, "fit"):
        refuse("--micro-batches", count, "a number: an explicit plan has nothing left to choose")
    if global_batch is None and not framework.accumulates and not as_planned:
        local = (micro_batch or default_local_batch(framework, seq_len, degrees.tp * degrees.cp)) * degrees.pp
        global_batch = dp * local
        assumed.append(f"global batch {global_batch}: {local} samples for each of {dp} replicas (--global-batch)")
    elif global_batch is None:
        usual_batch = usual_global_batch if as_planned else default_global_batch
        usual, sentence = usual_batch(model, seq_len, degrees.devices, fine_tunes=options.fine_tunes)
        step = (micro_batch or 1) * dp * rounds
        global_batch = -(-usual // step) * step
        if global_batch != usual and (options.dp or micro_batch):
            said = f"{usual}, the usual one, with dp = {dp}" + (f" and {micro_batch} samples" if micro_batch else "")
            refuse("--global-batch", said, f"a multiple of {step}, such as --global-batch {global_batch}")
        rounded = f", rounded up to {global_batch}" if global_batch != usual else ""
        assumed.append(sentence.replace(" (--global-batch)", f"{rounded} (--global-batch)"))
    smaller: tuple[int, ...] = ()
    larger: tuple[int, ...] = ()
    if micro_batch is None and global_batch % dp == 0:
        share = global_batch // (dp * rounds)
        micro_batch, why = default_micro_batch(framework, share=share, pp=degrees.pp, seq_len=seq_len)
        plural = "sample" if micro_batch == 1 else "samples"
        chosen.append(f"micro-batch of {micro_batch} {plural} per rank: {why} (--micro-batch)")
        smaller = tuple(n for n in range(micro_batch - 1, 0, -1) if share % n == 0)
        larger = tuple(n for n in range(micro_batch + 1, LARGER * micro_batch + 1) if share % n == 0)
    micro_batch = micro_batch or 1
    unit = micro_batch * dp
    if global_batch % unit:
        sizes_said = f"{global_batch}, with dp = {dp} and {micro_batch} samples per rank and micro-batch"
        refuse("--global-batch", sizes_said, f"a multiple of {unit}")
    return Batch(
        global_batch=global_batch,
        micro_batch_per_rank=micro_batch,
        assumptions=tuple(assumed),
        chosen=tuple(chosen),
        smaller=smaller,
        larger=larger,
    )


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
