"""What the options of a search leave open of a plan."""

from __future__ import annotations

from typing import Any, NoReturn

from estimator.pricing.recipe import ScheduleName
from planner.one_job.explicit.request import recompute_rules
from planner.one_job.search.spaces.constraints import NUMBERS, Constraints, Number, read_numbers, tool_of
from planner.shared.options.choices import SIZES
from planner.shared.options.search import SpaceOptions
from profiles.errors import InputError
from profiles.vocabulary import RecomputeKind

SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "interleaved", "gpipe", "zb-h1")
"""Schedules that a search can choose. DualPipe holds two copies of the weights: it is for an explicit plan."""


def read_constraints(options: SpaceOptions, assumed: list[str]) -> Constraints:
    """What the options leave open of a plan."""
    fix, least, most = _read_numbers(options)
    tool = tool_of(options.tool)
    usual: tuple[ScheduleName, ...] = ("1f1b", "interleaved")
    if tool is not None:
        assumed.append(f"what {options.tool} can run: {tool.basis}")
        usual = tuple(name for name in tool.schedules if name in usual) or tool.schedules
    schedules: tuple[ScheduleName, ...] = options.schedule or usual
    if options.schedule is None and len(usual) > 1:
        assumed.append("schedules 1f1b and interleaved are open (--schedule)")
    for schedule in schedules:
        if schedule not in SCHEDULES:
            refuse("--schedule", schedule, f"some of {', '.join(SCHEDULES)}")
    kinds: tuple[RecomputeKind, ...] = ("none", "selective", "full")
    layers = None
    if options.recompute != "auto":
        ((kind, layers),) = recompute_rules(options.recompute)
        kinds = (kind,)
    return Constraints(
        fix=fix,
        least=least,
        most=most,
        schedules=tuple(schedules),
        recompute=kinds,
        recompute_layers=layers,
        offload=not options.no_offload,
        shares_tokens=options.sequence_parallel,
        tool=options.tool,
        allow=frozenset(options.allow),
    )


def _read_numbers(options: SpaceOptions) -> tuple[dict[Number, int], dict[Number, int], dict[Number, int]]:
    """What numbers of a plan are fixed, and their least and most."""
    fix, least, most = (
        read_numbers(f"--{name}", texts)
        for name, texts in (("fix", options.fix), ("min", options.min), ("max", options.max))
    )
    named: tuple[tuple[Number, Any, str], ...] = (
        ("micro_batch", options.micro_batch, "--micro-batch"),
        ("micro_batches", options.micro_batches, "--micro-batches"),
        ("zero", options.zero, "--zero"),
        *((name, getattr(options, name), f"--{name}") for name in NUMBERS if name in SIZES),
    )
    for name, value, option in named:
        if value is None:
            continue
        if not isinstance(value, int):
            refuse(option, value, "a number: the rules are for --search cells")
        if fix.setdefault(name, value) != value:
            refuse(f"{option}, --fix", f"{value} and {fix[name]}", "one of them")
    for number, count in fix.items():
        if not least.get(number, count) <= count <= most.get(number, count):
            refuse("--fix", f"{number}={count}", f"within --min {number} and --max {number}")
    if options.devices is not None:
        most["devices"] = min(options.devices, most.get("devices", options.devices))
    return fix, least, most


def refuse(key: str, stated: object, expected: str) -> NoReturn:
    """Raise InputError about the option `key`."""
    raise InputError(where="plan", key=key, found=stated, expected=expected)
