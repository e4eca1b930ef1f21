"""The whole file that a run of `bench/gpu` leaves: a profile file, and beside it what no profile store holds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from profiles.profile_file import ProfileFile
from profiles.schema import STRICT


class BenchFailure(BaseModel):
    """What could not be measured, and why."""

    model_config = STRICT

    what: str
    error: str


class OperatorRow(BaseModel):
    """One operator's time.

    `seconds` is the least of the samples, `efficiency` the share of the catalogue's peak (FLOP/s where it has FLOPs,
    else bytes/s; null for a device that the catalogue does not know), `instead_of` the variant that was wanted, and why
    it could not be had.
    """

    model_config = STRICT

    kind: str
    dtype: str
    shape: dict[str, int]
    direction: str
    variant: str
    seconds: float = Field(ge=0)
    median_s: float = Field(ge=0)
    samples: int = Field(ge=1)
    flops: int = Field(ge=0)
    bytes: int = Field(ge=0)
    instead_of: str | None = None
    tflops: float | None = None
    gb_per_s: float | None = None
    efficiency: float | None = None


class BenchSection(BaseModel):
    """What one part of a run left: a row, a failure or a skipped label for each thing that it had planned."""

    model_config = STRICT

    rows: tuple[dict[str, JsonValue], ...]
    failures: tuple[BenchFailure, ...]
    skipped: tuple[str, ...]


class OperatorSection(BenchSection):
    """Its rows are operators."""

    rows: tuple[OperatorRow, ...]  # type: ignore[assignment]


class BenchSections(BaseModel):
    """Those that a run has begun."""

    model_config = STRICT

    operators: OperatorSection | None = None
    layers: BenchSection | None = None
    steps: BenchSection | None = None


class BenchRun(BaseModel):
    """All that was measured with one framework, and on what."""

    model_config = STRICT

    framework: Literal["torch", "jax"]
    provenance: dict[str, JsonValue]
    sections: BenchSections


class Bench(BaseModel):
    """Operators and whole steps, which no profile store holds."""

    model_config = STRICT

    runs: tuple[BenchRun, ...] = ()


class BenchFile(ProfileFile):
    """A profile file with what the run left beside it."""

    bench: Bench | None = None  # type: ignore[assignment]
