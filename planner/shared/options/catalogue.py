"""The options of `models show` and `hardware show`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from planner.shared.options.code import CodeOptions
from planner.shared.options.common import ComputeType, ModelName, SeqLen
from planner.shared.options.record import Option, Options
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelsShowOptions(CodeOptions):
    """One model."""

    command: ClassVar[str] = "models show"

    model: ModelName = field(kw_only=False)
    seq_len: SeqLen = None
    dtype: ComputeType = "bf16"


@dataclass(frozen=True, kw_only=True)
class HardwareShowOptions(Options):
    """One device, link or training software."""

    command: ClassVar[str] = "hardware show"

    name: Annotated[str, Option("a device, a link or a training software", "NAME")] = field(kw_only=False)
