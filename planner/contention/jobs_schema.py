"""The file of jobs that `cellplan contention` reads, as users write it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from profiles.schema import FileModel, printable
from profiles.vocabulary import CollectiveOp

Name = Annotated[str, Field(min_length=1, max_length=253), printable("a job's name")]
Scalar = str | int | float | bool
Seconds = Annotated[float, Field(ge=0, le=1e6)]


class WrittenTraffic(FileModel):
    """A job's iteration by hand: compute, and a collective of all its devices that begins `begins_s` after it."""

    compute_s: Annotated[float, Field(gt=0, le=1e6)]
    bytes: Annotated[float, Field(ge=0, le=1e18)]
    op: CollectiveOp = "all_reduce"
    begins_s: Seconds | None = None
    times: Annotated[int, Field(ge=1, le=10_000)] = 1
    flops: Annotated[float, Field(gt=0, le=1e30)] | None = None


class WrittenJob(FileModel):
    """A job: what it sends, where it sits, which comes first where it meets others."""

    id: Name
    traffic: WrittenTraffic | None = None
    plan: Annotated[str, Field(min_length=1)] | None = None
    model: Annotated[str, Field(min_length=1)] | None = None
    degrees: dict[str, Scalar | list[Scalar]] = Field(default_factory=dict, max_length=30)
    hosts: Annotated[str | list[str], Field(min_length=1)] | None = None
    gpus: Annotated[str, Field(min_length=1)] | Annotated[int, Field(ge=0)] | None = None
    level: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0


class WrittenJobs(FileModel):
    """The whole file."""

    format: Literal["cellplan.jobs/1"] = Field(alias="schema")
    jobs: Annotated[list[WrittenJob], Field(min_length=1, max_length=10_000)]
