"""What the user leaves open: fixed degrees, the least and most of each, and what the tool that runs the plan can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from estimator.pricing.recipe import ScheduleName, ZeroStage
from planner.shared.options.common import Tool
from planner.shared.options.search import Freedom
from profiles.errors import InputError
from profiles.vocabulary import RecomputeKind

Number = Literal["tp", "cp", "pp", "dp", "ep", "etp", "vpp", "micro_batch", "micro_batches", "devices", "zero"]
NUMBERS: tuple[Number, ...] = get_args(Number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """What a training framework can run. `sharded_pipelines`: ZeRO stages that it has with more than one stage."""

    schedules: tuple[ScheduleName, ...]
    recompute: tuple[RecomputeKind, ...]
    counts_recomputed_layers: bool
    zero: tuple[ZeroStage, ...]
    sharded_pipelines: tuple[ZeroStage, ...]
    shards_within_nodes: bool
    context_parallel: bool
    splits_experts: bool
    offloads_optimizer: bool
    basis: str


TOOLS: dict[Tool, ToolLimits] = {
    "megatron": ToolLimits(
        schedules=("1f1b", "interleaved"),
        recompute=("none", "selective", "full"),
        counts_recomputed_layers=True,
        zero=(0, 1),
        sharded_pipelines=(0, 1),
        shards_within_nodes=False,
        context_parallel=True,
        splits_experts=True,
        offloads_optimizer=True,
        basis="Megatron-LM core 0.12: distributed optimizer (ZeRO 1), forward_backward_pipelining with and without"
        " interleaving, --recompute-granularity, --optimizer-cpu-offload",
    ),
    "torchtitan": ToolLimits(
        schedules=("1f1b", "gpipe", "interleaved"),
        recompute=("none", "selective", "full"),
        counts_recomputed_layers=False,
        zero=(0, 3),
        sharded_pipelines=(0, 3),
        shards_within_nodes=True,
        context_parallel=True,
        splits_experts=True,
        offloads_optimizer=False,
        basis="torchtitan 0.2: FSDP2 and HSDP, torch.distributed.pipelining's schedules, activation checkpointing none,"
        " selective or full",
    ),
    "deepspeed": ToolLimits(
        schedules=("1f1b",),
        recompute=("none", "full"),
        counts_recomputed_layers=False,
        zero=(0, 1, 2, 3),
        sharded_pipelines=(0, 1),
        shards_within_nodes=True,
        context_parallel=False,
        splits_experts=False,
        offloads_optimizer=True,
        basis="DeepSpeed 0.16: PipelineEngine refuses ZeRO 2 and 3 (runtime/pipe/engine.py), ZeRO-Offload",
    ),
}


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
    def limits(self) -> ToolLimits | None:
        """What the named tool can run."""
        return TOOLS[self.tool] if self.tool else None


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
