"""A training job: a model and the settings that do not depend on the parallel plan, each default made explicit."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal, get_args

from estimator.cells.rules import MicroBatchRule
from estimator.memory import OPTIMIZERS, Optimizer, Schedule, Zero
from models_zoo.model import Model
from profiles.errors import InputError
from profiles.vocabulary import AttentionKernel, Device, DType

TOKENS_PER_BATCH = 4 * 2**20
SAMPLES_PER_BATCH = 1024

RecomputeRule = Literal["auto", "none", "full"]


def _require(holds: bool, key: str, found: object, expected: str) -> None:
    if not holds:
        raise InputError(where="job", key=key, found=found, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be trained. `recompute` auto means: none where it fits, else full. `attention` None: flash where the
    device has it.

    `micro_batches` is a number per iteration, or a rule: `crius` 4 per stage; `fit` these too, but where they do not
    fit without recomputation more and more until some do, and then the fastest of those tried; `best` the fastest of
    all `micro_batch_counts`. `micro_batch_per_rank` fixes the number as well.
    """

    model: Model
    global_batch: int
    seq_len: int
    dtype: DType = "bf16"
    optimizer_name: str = "adamw"
    schedule: Schedule = "1f1b"
    recompute: RecomputeRule = "auto"
    zero: Zero = 0
    attention: AttentionKernel | None = None
    sequence_parallel: bool = False
    micro_batches: int | MicroBatchRule = "fit"
    micro_batch_per_rank: int | None = None

    def __post_init__(self) -> None:
        counted = isinstance(self.micro_batches, int)
        for key, number, least in (
            ("--global-batch", self.global_batch, 1),
            ("--seq-len", self.seq_len, min(1, self.model.seq_len)),
            ("--micro-batches", self.micro_batches, 1),
            ("--micro-batch", self.micro_batch_per_rank, 1),
        ):
            _require(not isinstance(number, int) or number >= least, key, number, f"at least {least}")
        for key, name, known in (
            ("--micro-batches", "fit" if counted else self.micro_batches, ("a number", *get_args(MicroBatchRule))),
            ("--dtype", self.dtype, get_args(DType)),
            ("--attention", self.attention, (None, *get_args(AttentionKernel))),
            ("--optimizer", self.optimizer_name, tuple(OPTIMIZERS)),
            ("--schedule", self.schedule, get_args(Schedule)),
            ("--recompute", self.recompute, get_args(RecomputeRule)),
            ("--zero", self.zero, get_args(Zero)),
        ):
            _require(name in known, key, name, f"one of {', '.join(map(str, known))}")
        _require(
            self.micro_batches == "fit" or self.micro_batch_per_rank is None,
            "--micro-batches, --micro-batch",
            f"both ({self.micro_batches}, {self.micro_batch_per_rank})",
            "one of them: the other follows from the global batch",
        )
        _require(
            not isinstance(self.micro_batches, int) or self.global_batch % self.micro_batches == 0,
            "--micro-batches",
            f"{self.micro_batches}, which does not divide the global batch {self.global_batch}",
            "a divisor of the global batch",
        )

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer's record."""
        return OPTIMIZERS[self.optimizer_name]

    def attention_on(self, device: Device) -> AttentionKernel:
        """The attention kernel used on `device`."""
        return self.attention or ("flash" if device.flash_attention else "math")

    def micro_batch_counts(self, *, devices: int, stages: int) -> tuple[int, ...]:
        """Micro-batches per iteration that a Cell may use, fewest first; empty if `micro_batch_per_rank` leaves none.

        Unless the batch fixes it, 4 per stage as GPipe and Crius (section 5.1) take it, then twice, four times, ... as
        many, each lowered to a divisor of the global batch; the rule `best` tries 1, 2, 4, ... as well. A given
        `micro_batch_per_rank` is what each rank of a data-parallel stage takes, the devices being shared evenly.
        """
        if isinstance(self.micro_batches, int):
            return (self.micro_batches,)
        if self.micro_batch_per_rank is not None:
            micro_batch = self.micro_batch_per_rank * (devices // stages)
            return () if self.global_batch % micro_batch else (self.global_batch // micro_batch,)
        divisors = _divisors(self.global_batch)
        doublings = range(self.global_batch.bit_length())
        wanted = [4 * stages << doubling for doubling in doublings]
        if self.micro_batches == "best":
            wanted = sorted([1 << doubling for doubling in doublings] + wanted)
        return tuple(dict.fromkeys(max(n for n in divisors if n <= most) for most in wanted))


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return [*low, *(number // n for n in low)]


def default_global_batch(model: Model, seq_len: int, devices: int) -> tuple[int, str]:
    """Samples per iteration where the user gave none, and the sentence that says so.

    The model's published batch, if it has a sample for every device. Else 4 a device, so that 4 micro-batches a stage
    can be shared by its devices, doubled as long as they stay within 4 Mi tokens (or 1024 samples without tokens).
    """
    if model.global_batch is not None and model.global_batch >= devices:
        return (
            model.global_batch,
            f"global batch {model.global_batch} samples, the catalogue's for {model.name} (--global-batch)",
        )
    most = TOKENS_PER_BATCH // seq_len if seq_len else SAMPLES_PER_BATCH
    batch = 4 * devices
    while 2 * batch <= most:
        batch *= 2
    limit = f"{TOKENS_PER_BATCH >> 20} Mi tokens" if seq_len else f"{SAMPLES_PER_BATCH} samples"
    return batch, f"global batch {batch} samples: 4 a device, doubled while within {limit} (--global-batch)"
