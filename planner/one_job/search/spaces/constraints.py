"""What the user leaves open: fixed degrees, the least and most of each, and what the tool that runs the plan can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import lru_cache
from typing import Literal, get_args

from estimator.bulk.records import StateRule
from estimator.pricing.recipe import OffloadPart, ScheduleName, ZeroStage
from planner.one_job.tools.base.shape import Shape
from planner.one_job.tools.base.tool import TrainingTool
from planner.shared.options.common import Tool
from planner.shared.options.search import Freedom
from profiles.errors import InputError
from profiles.numerals import read_whole
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind

Number = Literal["tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch", "micro_batches", "devices", "zero"]
NUMBERS: tuple[Number, ...] = get_args(Number)
UNLIMITED = 1 << 60


def tool_of(name: Tool | None) -> TrainingTool | None:
    """Return the record of the tool called `name`, None for none. The tools are imported where one is named."""
    if name is None:
        return None
    from planner.one_job.tools.catalogue import TOOLS

    return TOOLS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """`fix`, `least` and `most` by name of a number; `schedules`, `recompute` and `zero` are what may be chosen.

    `offload`: whether the optimizer's state may be on the host. `sequence_parallel`: whether tp
    ranks share the tokens where they can; `shares_tokens`: they all do, or none does, as the user says (None: nobody
    says). `allow` widens the space.
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
    shares_tokens: bool | None = None
    tool: Tool | None = None
    allow: frozenset[Freedom] = frozenset()

    def permits(self, name: Number, value: int) -> bool:
        """Return whether the user lets the number be `value`."""
        least, most = self.bounds(name)
        return least <= value <= most

    def bounds(self, name: Number) -> tuple[int, int]:
        """Return the least and the most that the user lets the number be."""
        if name in self.fix:
            return self.fix[name], self.fix[name]
        return self.least.get(name, 0), self.most.get(name, UNLIMITED)

    def allows_tp_beyond(self, island: int) -> bool:
        """Return whether tensor parallelism may join more devices than an island has: where the user widens the space
        to it, or fixes such a degree."""
        return "tp-across-islands" in self.allow or self.fix.get("tp", 0) > island

    @property
    def training_tool(self) -> TrainingTool | None:
        """The record of the named tool."""
        return tool_of(self.tool)

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
        """Whether tp ranks may share the tokens: what the tool allows, the user's wish first; empty where the tool
        cannot do as the user says."""
        tool = self.training_tool
        allowed = (True, False) if tool is None else tool.sequence_parallel()
        if self.shares_tokens is not None:
            return (self.shares_tokens,) if self.shares_tokens in allowed else ()
        return tuple(shares for shares in self.sequence_parallel if shares in allowed) or allowed

    def open_zero(self, shape: Shape) -> tuple[ZeroStage, ...]:
        """Return the stages of ZeRO over all replicas that the user and the tool allow under the degrees of `shape`."""
        return tuple(rule.zero for rule in self.open_states(shape))

    def open_states(
        self,
        shape: Shape,
        *,
        inside: int | None = None,
        offload: frozenset[OffloadPart] = frozenset(),
    ) -> tuple[StateRule, ...]:
        """Return the rules of state that the user and the tool allow under the degrees of `shape`: stages of ZeRO, the
        third also over `inside` ranks (None: over all alone), with what is on the host; the first of equal ones where
        there is nothing to share."""
        stages = tuple(zero for zero in self.zero if self.permits("zero", zero))
        rules = _state_rules(tuple(sorted(stages)) if shape.ranks == 1 else stages, shape.ranks, inside, offload)
        if self.tool is None:
            return rules[:1] if shape.ranks == 1 else rules
        kept = [rule for rule in rules if self._tool_runs(shape, rule)]
        return tuple(kept[:1] if shape.ranks == 1 else kept)

    def _tool_runs(self, shape: Shape, rule: StateRule) -> bool:
        """Whether the named tool holds the state so, and as it is priced."""
        tool = self.training_tool
        if tool is None:
            return True
        shards = (rule.shard or shape.ranks) if rule.zero else 1
        state = replace(
            shape, zero=rule.zero, shard=shards, replicate=shape.ranks // shards, offload=tuple(rule.offload)
        )
        return tool.allows_state(state) and tool.is_searched(state)


def _whole(word: str) -> int | None:
    try:
        return read_whole(word)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _state_rules(
    stages: tuple[ZeroStage, ...], ranks: int, inside: int | None, offload: frozenset[OffloadPart]
) -> tuple[StateRule, ...]:
    """Rules of state of so many ranks by stages of ZeRO, the third also over `inside` ranks."""
    split = (None, inside) if inside is not None and 1 < inside < ranks else (None,)
    return tuple(
        StateRule(zero=zero, shard=shard, offload=offload)
        for zero in stages
        for shard in (split if zero == 3 else (None,))
        if ranks % (shard or 1) == 0
    )


def read_numbers(option: str, texts: tuple[str, ...]) -> dict[Number, int]:
    """`NAME=N` pairs of an option.

    >>> read_numbers("--max", ("tp=8",))
    {'tp': 8}
    """
    numbers: dict[Number, int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        known_name = next((number for number in NUMBERS if number == name.strip().replace("-", "_")), None)
        number = _whole(value.strip())
        if known_name is None or not equals or number is None:
            raise InputError(
                where="plan",
                key=option,
                found=repr(text),
                expected=f"NAME=N such as tp=8, NAME one of {', '.join(NUMBERS)}",
            )
        if known_name in numbers:
            raise InputError(where="plan", key=option, found=f"{known_name} twice", expected="each name once")
        numbers[known_name] = number
        if number < (0 if known_name == "zero" else 1):
            raise InputError(where="plan", key=option, found=repr(text), expected="at least 1")
    return numbers
