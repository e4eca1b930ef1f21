"""What the user leaves open: fixed degrees, the least and most of each, and what the tool that runs the plan can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from estimator.pricing.recipe import ScheduleName, ZeroStage
from planner.one_job.tools.base.shape import Shape
from planner.one_job.tools.base.tool import TrainingTool
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.options.common import Tool
from planner.shared.options.search import Freedom
from profiles.errors import InputError
from profiles.vocabulary import RecomputeKind

Number = Literal["tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch", "micro_batches", "devices", "zero"]
NUMBERS: tuple[Number, ...] = get_args(Number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """`fix`, `least` and `most` by name of a number; `schedules`, `recompute` and `zero` are what may be chosen.

    `offload`: whether the optimizer's state may be on the host. `sequence_parallel`: whether tp
    ranks share the tokens where they can. `allow` widens the space.
    """

    fix: Mapping[Number, int] = field(default_factory=dict)
    least: Mapping[Number, int] = field(default_factory=dict)
    most: Mapping[Number, int] = field(default_factory=dict)
    schedules: tuple[ScheduleName, ...] = ("1f1b", "interleaved")
    recompute: tuple[RecomputeKind, ...] = ("none", "selective", "full")
    recompute_layers: int | None = None
    zero: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    offload: bool = True
    sequence_parallel: tuple[bool, ...] = (True,)
    tool: Tool | None = None
    allow: frozenset[Freedom] = frozenset()

    def permits(self, name: Number, value: int) -> bool:
        """Whether the user lets the number be `value`."""
        if name in self.fix:
            return value == self.fix[name]
        return self.least.get(name, value) <= value <= self.most.get(name, value)

    @property
    def training_tool(self) -> TrainingTool | None:
        """The record of the named tool."""
        return TOOLS[self.tool] if self.tool else None

    @property
    def alike(self) -> bool:
        """Whether the named tool wants all stages alike."""
        return self.training_tool is not None and self.training_tool.alike

    @property
    def open_schedules(self) -> tuple[ScheduleName, ...]:
        """Schedules that the user and the tool allow."""
        tool = self.training_tool
        return tuple(name for name in self.schedules if tool is None or name in tool.schedules)

    @property
    def open_recompute(self) -> tuple[RecomputeKind, ...]:
        """Kinds of recomputation that the user and the tool allow."""
        tool = self.training_tool
        return tuple(kind for kind in self.recompute if tool is None or kind in tool.recompute)

    @property
    def open_sequence_parallel(self) -> tuple[bool, ...]:
        """Whether tp ranks may share the tokens: what the tool allows, the user's wish first."""
        tool = self.training_tool
        allowed = (True, False) if tool is None else tool.sequence_parallel()
        return tuple(shares for shares in self.sequence_parallel if shares in allowed) or allowed

    def open_zero(self, shape: Shape) -> tuple[ZeroStage, ...]:
        """Stages of ZeRO that the user and the tool allow under the degrees of `shape`, the first of equal ones where
        there is nothing to share."""
        tool = self.training_tool
        stages = [zero for zero in self.zero if self.permits("zero", zero)]
        if shape.ranks == 1:
            stages.sort()
        if tool is not None:
            shards = {zero: shape.ranks if zero else 1 for zero in stages}
            states = [replace(shape, zero=zero, shard=shards[zero]) for zero in stages]
            stages = [zero for zero, state in zip(stages, states, strict=True) if runs_state(tool, state)]
        return tuple(stages[:1] if shape.ranks == 1 else stages)


def runs_state(tool: TrainingTool, shape: Shape) -> bool:
    """Return whether the tool holds the state of `shape` so, and as it is priced."""
    return tool.allows_state(shape) and tool.is_searched(shape)


def read_numbers(option: str, texts: tuple[str, ...]) -> dict[Number, int]:
    """`NAME=N` pairs of an option.

    >>> read_numbers("--max", ("tp=8",))
    {'tp': 8}
    """
    found: dict[Number, int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        known = next((number for number in NUMBERS if number == name.strip().replace("-", "_")), None)
        digits = value.strip()
        if known is None or not equals or not digits.isdecimal():
            raise InputError(
                where="plan",
                key=option,
                found=repr(text),
                expected=f"NAME=N such as tp=8, NAME one of {', '.join(NUMBERS)}",
            )
        if known in found:
            raise InputError(where="plan", key=option, found=f"{known} twice", expected="each name once")
        found[known] = int(digits)
        if found[known] < (0 if known == "zero" else 1):
            raise InputError(where="plan", key=option, found=repr(text), expected="at least 1")
    return found
