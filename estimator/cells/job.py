"""A training job: a model and the settings that do not depend on the parallel plan, each default made explicit."""

from __future__ import annotations

from math import isqrt
from typing import Literal, get_args

from estimator.cells.rules import MicroBatchRule
from estimator.pricing.recipe import OptimizerName, Recipe, ScheduleName, ZeroStage
from estimator.pricing.software import load_framework, usual_framework
from models_zoo.model import Model
from profiles.errors import InputError
from profiles.records import dataclass, replace
from profiles.vocabulary import AttentionKernel, Device, DType, RecomputeKind

TOKENS_PER_BATCH = 4 * 2**20
FINE_TUNING_BATCH = 16
"""Samples of an iteration (QLoRA, Dettmers et al. 2023, appendix B.2: 16 for 7B and 13B; recipes of torchtune and
LLaMA-Factory have 8 to 32)."""
SAMPLES_PER_BATCH = 1024

CELL_SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "zb-h1")
"""Those of one chunk of layers a stage."""


def _require(holds: bool, key: str, found: object, expected: str) -> None:
    if not holds:
        raise InputError(where="job", key=key, found=found, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be trained, and what a Cell leaves open of it beside data or tensor parallelism.

    `attention` None: flash where the device has it (`recipe.attention` stands for nothing). `recompute` (kind, layers
    of a stage, None for all) or auto: of all kinds, and full of any number of layers, the fastest that fits. `zero`:
    what may be sharded. Tensor-parallel ranks share the tokens wherever they can; `sequence_parallel`: no others.

    `micro_batches` is a number per iteration, or a rule: `crius` 4 per stage; `fit` these too, but where they do not
    fit without recomputation more and more until some do, and then the fastest of those tried; `best` the fastest of
    all `micro_batch_counts`. `micro_batch_per_rank` fixes the number as well.
    """

    model: Model
    recipe: Recipe
    attention: AttentionKernel | None = None
    recompute: Literal["auto"] | tuple[RecomputeKind, int | None] = "auto"
    zero: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    sequence_parallel: bool = False
    micro_batches: int | MicroBatchRule = "fit"
    micro_batch_per_rank: int | None = None

    def __post_init__(self) -> None:
        counted = isinstance(self.micro_batches, int)
        for key, number in (("--micro-batches", self.micro_batches), ("--micro-batch", self.micro_batch_per_rank)):
            _require(not isinstance(number, int) or number >= 1, key, number, "at least 1")
        for key, name, words in (
            ("--micro-batches", "fit" if counted else self.micro_batches, ("a number", *get_args(MicroBatchRule))),
            ("--attention", self.attention, (None, *get_args(AttentionKernel))),
            ("--schedule", self.recipe.schedule, CELL_SCHEDULES),
        ):
            _require(name in words, key, name, f"one of {', '.join(map(str, words))}")
        stages = get_args(ZeroStage)
        _require(bool(self.zero) and set(self.zero) <= set(stages), "--zero", self.zero, f"some of {stages}")
        _require(
            self.micro_batches == "fit" or self.micro_batch_per_rank is None,
            "--micro-batches, --micro-batch",
            f"both ({self.micro_batches}, {self.micro_batch_per_rank})",
            "one of them: the other follows from the global batch",
        )
        _require(
            not isinstance(self.micro_batches, int) or self.recipe.global_batch % self.micro_batches == 0,
            "--micro-batches",
            f"{self.micro_batches}, which does not divide the global batch {self.recipe.global_batch}",
            "a divisor of the global batch",
        )

    @property
    def global_batch(self) -> int:
        """Samples an iteration."""
        return self.recipe.global_batch

    def recipe_on(self, device: Device) -> Recipe:
        """Return the recipe with the attention kernel used on `device`; with software that nobody names, as it is usual
        there."""
        recipe = replace(self.recipe, attention=self.attention_on(device))
        usual = usual_framework(device.name)
        if recipe.software != load_framework(None).software or usual.software == recipe.software:
            return recipe
        return replace(
            recipe,
            grad_dtype=dict(usual.grad_dtype)[recipe.dtype],
            vocabulary_multiple=usual.vocabulary_multiple,
            overlap=usual.overlap,
            software=usual.software,
        )

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


def cell_recipe(
    *,
    global_batch: int,
    seq_len: int,
    dtype: DType = "bf16",
    optimizer: OptimizerName = "adamw",
    schedule: ScheduleName = "1f1b",
) -> Recipe:
    """Return the recipe of a Cell, whose training software nobody names: that of an explicit plan of such software (on
    devices where another is usual, `Job.recipe_on` has that)."""
    framework = load_framework(None)
    return Recipe(
        global_batch=global_batch,
        seq_len=seq_len,
        dtype=dtype,
        grad_dtype=dict(framework.grad_dtype)[dtype],
        optimizer=optimizer,
        schedule=schedule,
        vocabulary_multiple=framework.vocabulary_multiple,
        overlap=framework.overlap,
        software=framework.software,
    )


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return [*low, *(number // n for n in low)]


def default_global_batch(model: Model, seq_len: int, devices: int, *, fine_tunes: bool = False) -> tuple[int, str]:
    """Samples per iteration where the user gave none, and the sentence that says so.

    Where the training only `fine_tunes`, `FINE_TUNING_BATCH`, doubled until there is a sample for every device.

    The model's published batch, if it has a sample for every device. Else 4 a device, so that 4 micro-batches a stage
    can be shared by its devices, doubled as long as they stay within 4 Mi tokens (or 1024 samples without tokens).
    """
    if fine_tunes:
        batch = FINE_TUNING_BATCH
        while batch < devices:
            batch *= 2
        return batch, f"global batch {batch} samples, as fine-tunings have it (--global-batch)"
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
