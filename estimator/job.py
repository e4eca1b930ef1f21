"""A training job: a model and the settings that do not depend on the parallel plan, each default made explicit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from estimator.memory import OPTIMIZERS, Optimizer, Schedule, Zero
from models_zoo.model import ImageInput, Model
from profiles.errors import InputError
from profiles.vocabulary import AttentionKernel, Device, DType

TOKENS_PER_BATCH = 4 * 2**20
SAMPLES_PER_BATCH = 1024

RecomputeRule = Literal["auto", "none", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be trained. `recompute` auto means: none where it fits, else full. `attention` None: flash where the
    device has it.

    `micro_batches` is a number per iteration, or a rule: `crius` 4 per stage; `fit` the same, and more only where those
    do not fit without recomputation; `best` whichever count is fastest. `micro_batch_per_rank` fixes it too.
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
    micro_batches: int | Literal["crius", "fit", "best"] = "fit"
    micro_batch_per_rank: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.micro_batches, int) and self.micro_batch_per_rank is not None:
            raise InputError(
                where="job",
                key="--micro-batches, --micro-batch",
                found=f"both ({self.micro_batches}, {self.micro_batch_per_rank})",
                expected="one of them: the other follows from the global batch",
            )
        if isinstance(self.micro_batches, int) and self.global_batch % self.micro_batches:
            raise InputError(
                where="job",
                key="--micro-batches",
                found=f"{self.micro_batches}, which does not divide the global batch {self.global_batch}",
                expected="a divisor of the global batch",
            )
        if self.optimizer_name not in OPTIMIZERS:
            raise InputError(
                where="job", key="--optimizer", found=self.optimizer_name, expected=f"one of {', '.join(OPTIMIZERS)}"
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
        many, each lowered to a divisor of the global batch. A given `micro_batch_per_rank` is what each rank of a
        data-parallel stage takes, the devices being shared evenly.
        """
        if isinstance(self.micro_batches, int):
            return (self.micro_batches,)
        if self.micro_batch_per_rank is not None:
            micro_batch = self.micro_batch_per_rank * (devices // stages)
            return () if self.global_batch % micro_batch else (self.global_batch // micro_batch,)
        counts: list[int] = []
        wanted = 4 * stages
        while not counts or counts[-1] < self.global_batch:
            counts.append(_divisor_at_most(self.global_batch, wanted))
            wanted *= 2
        return tuple(dict.fromkeys(counts))


def _divisor_at_most(number: int, most: int) -> int:
    return next(count for count in range(min(most, number), 0, -1) if number % count == 0)


def default_global_batch(model: Model, seq_len: int, devices: int) -> tuple[int, str]:
    """Samples per iteration where the user gave none, and the sentence that says so.

    The model's published batch; else the largest power of two within 4 Mi tokens (or 1024 images); at least 4 a device.
    """
    if model.global_batch is not None and model.global_batch >= devices:
        return (
            model.global_batch,
            f"global batch {model.global_batch} samples, as published for {model.name} (--global-batch)",
        )
    most = SAMPLES_PER_BATCH if isinstance(model.input, ImageInput) or not seq_len else TOKENS_PER_BATCH // seq_len
    batch = max(1 << max(0, most.bit_length() - 1), 1 << (4 * devices - 1).bit_length())
    return (
        batch,
        f"global batch {batch} samples, about {TOKENS_PER_BATCH >> 20} Mi tokens or 4 a device (--global-batch)",
    )
