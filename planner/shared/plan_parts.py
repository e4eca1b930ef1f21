"""Parts of a plan file: the recipe, memory by part, the iteration by part; and what all records of the file share."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Self

from estimator.pricing.headroom import MemoryFit
from estimator.pricing.memory_features import MemoryFeatures
from estimator.pricing.outcome import TimeBreakdown
from estimator.pricing.recipe import GradDType, Overlap, Software
from estimator.pricing.software import load_frameworks
from profiles.errors import InputError
from profiles.limits import LIMITS
from profiles.records import dataclass


def require(holds: bool, found: str, expected: str) -> None:
    """InputError about the plan unless `holds`."""
    if not holds:
        raise InputError(where="plan", found=found, expected=expected)


class FileRecord:
    """What the plan's records tell pydantic, which reads and writes them: no unknown key, no coercion, no NaN."""

    __slots__ = ()
    __pydantic_config__ = {  # noqa: RUF012  (pydantic's own name and form)
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMemoryFeatures(MemoryFeatures, FileRecord):
    """What the training framework is declared to hold, as strictly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSoftware(Software, FileRecord):
    """What the training framework is declared to do: the estimator's record, read and written as strictly as the
    plan's own. `memory` null, as older files have it: what is declared today for that name."""

    memory: PlanMemoryFeatures | None = None  # type: ignore[assignment]

    @classmethod
    def of(cls, software: Software) -> Self:
        """Return `software` as the plan file keeps it."""
        return cls(**{**asdict(software), "memory": PlanMemoryFeatures(**asdict(software.memory))})

    def features(self) -> Software:
        """Return the estimator's record of the same features."""
        stated = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "memory"}
        if self.memory is not None:
            return Software(**stated, memory=MemoryFeatures(**asdict(self.memory)))
        declared = load_frameworks().get(self.name)
        return Software(**stated, memory=declared.software.memory if declared else MemoryFeatures())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecipe(FileRecord):
    """Settings of the training that do not depend on where a rank sits, beside those at the top of the plan.

    `vocabulary_multiple`: the vocabulary is padded to a multiple of this times tp. `lora_rank` above 0: adapters of
    that rank on every matrix, all else frozen; `frozen_layers`: layers [first, end) without gradients.
    `moe_capacity_factor` null: dropless routing; `moe_imbalance`: the fullest rank's tokens over the mean. `overlap`:
    communication that runs beside compute.
    """

    grad_dtype: GradDType
    vocabulary_multiple: int = 1
    lora_rank: int = 0
    frozen_layers: tuple[int, int] | None = None
    moe_capacity_factor: float | None = None
    moe_imbalance: float = 1.0
    overlap: tuple[Overlap, ...] = ()
    software: PlanSoftware

    def __post_init__(self) -> None:
        multiple, most = self.vocabulary_multiple, LIMITS.vocabulary_multiple
        require(1 <= multiple <= most.most, f"vocabulary_multiple={multiple}", f"at least 1, {most.expected}")
        require(self.lora_rank >= 0, f"lora_rank={self.lora_rank}", "0, or a rank")
        require(1 <= self.moe_imbalance <= 1e4, f"moe_imbalance={self.moe_imbalance}", "at least 1, at most 10,000")
        factor = self.moe_capacity_factor
        fits = factor is None or 1e-3 <= factor <= 1e4
        require(fits, f"moe_capacity_factor={factor}", "null or from 0.001 to 10,000")
        require(list(self.overlap) == sorted(set(self.overlap)), f"overlap={self.overlap}", "each once, in order")
        if self.frozen_layers is not None:
            first, end = self.frozen_layers
            require(0 <= first < end, f"frozen_layers={self.frozen_layers}", "[first, end) with 0 <= first < end")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMemory(FileRecord):
    """Bytes on a rank of the stage at its fullest moment, by part; all but the reserve sum to `memory_bytes`.
    `firm_reserve_bytes` of the reserve cannot be given back where the device is full.
    """

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    temporary_bytes: int
    communication_bytes: int
    reserve_bytes: int
    firm_reserve_bytes: int | None = None

    def __post_init__(self) -> None:
        least = min(getattr(self, part.name) or 0 for part in fields(self))
        require(least >= 0, f"memory of {least} bytes", "none below 0")

    @property
    def peak_bytes(self) -> int:
        """All parts but the reserve."""
        return sum(getattr(self, part.name) for part in fields(self) if not part.name.endswith("reserve_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMemoryFit(MemoryFit, FileRecord):
    """How sure it is that the plan fits: the estimator's record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTimeBreakdown(TimeBreakdown, FileRecord):
    """Where an iteration's time goes: the estimator's record; the fields sum to the iteration."""
