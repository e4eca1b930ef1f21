"""The options of `plan` that take several searches, and the table they end in."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from planner import api
from planner.cli.arguments import chosen
from planner.cli.headline import print_largest
from planner.cli.output import (
    format_bytes,
    format_count,
    format_seconds,
    print_json,
    print_table,
    print_text,
    print_written,
    status,
)
from planner.shared.options.record import entries
from planner.shared.options.search import (
    FrontOptions,
    LargestOptions,
    PlanOptions,
    SearchOptions,
    SideBySideOptions,
    SmallestOptions,
)
from planner.shared.plan_file import plan_to_json
from profiles.errors import InputError

if TYPE_CHECKING:
    from planner.one_job.planning.choices import Choice


ASKED = {"--front": "against", "--meet": "meet_s", "--beside": "beside", "--largest": "largest"}
"""The questions, each with the option that asks it."""


def run_choice(arguments: Namespace, options: PlanOptions) -> bool:
    """Answer the question that takes several searches; False where none is asked."""
    choices: tuple[Choice, ...]
    asked = [flag for flag, name in ASKED.items() if getattr(arguments, name)]
    if not asked:
        return False
    may_be = entries(LargestOptions if arguments.largest else SearchOptions)
    one_plan = [entries(PlanOptions)[name].flag for name in options.changed() if name not in may_be]
    if len(asked) > 1 or one_plan:
        conflicting = ", ".join((*asked, *one_plan))
        raise InputError(where="plan", key=asked[0], found=conflicting, expected="one question, which has many plans")
    if arguments.largest:
        _answer_largest(arguments)
        return True
    if arguments.against:
        choices = api.front(chosen(arguments, FrontOptions))
        title = f"{options.model} on {options.cluster}: no plan is better in both time and {arguments.against}"
    elif arguments.meet_s:
        choices = (api.smallest(chosen(arguments, SmallestOptions)),)
        title = f"{options.model}: the fewest devices of {options.cluster} for {format_seconds(arguments.meet_s)}"
    else:
        choices = api.side_by_side(chosen(arguments, SideBySideOptions))
        title = f"{options.model}: the best plan on each cluster"
    if arguments.json:
        print_json({"choices": [choice.as_dict() for choice in choices]})
        return True
    _print(title, choices)
    return True


def _answer_largest(arguments: Namespace) -> None:
    """The largest size that fits, and the best plan there."""
    with status("searching"):
        answer = api.largest(chosen(arguments, LargestOptions))
    value = answer.largest.as_dict()
    if arguments.json:
        print_json({"plan": json.loads(plan_to_json(answer.plan)), "largest": value})
        return
    from planner.cli.plan_output import print_plan

    print_largest(value)
    print()
    print_plan(answer.plan, every_assumption=arguments.assumptions)
    print_written(arguments.output, None)


def _print(title: str, choices: tuple[Choice, ...]) -> None:
    costs = any(choice.cost is not None for choice in choices)
    columns = (
        *("cluster", "devices", "iteration", "tokens/s", "in all", "memory"),
        *(("cost",) if costs else ()),
        *("energy", "plan"),
    )
    rows = []
    for choice in choices:
        if choice.plan is None:
            continue
        tokens = choice.plan.estimate.tokens_per_s_per_device
        row = (
            choice.cluster,
            choice.devices,
            format_seconds(choice.iteration_time_s or 0.0),
            format_count(tokens),
            format_count(None if tokens is None else tokens * choice.devices),
            format_bytes(choice.needed_bytes),
            *((None if choice.cost is None else f"{choice.cost:.3g}",) if costs else ()),
            None if choice.energy_j is None else f"{choice.energy_j / 3.6e6:.3g} kWh",
            _words(choice),
        )
        rows.append(row)
    if rows:
        print_table(title, columns, rows)
        print_text(
            "tokens/s of one device and in all; cost and energy of an iteration; memory is what the"
            " fullest device needs with its reserve; all modelled but what the"
            " plans say was measured"
        )
    for choice in choices:
        if choice.plan is None:
            print_text(f"{choice.cluster}: {choice.reason}")


def _words(choice: Choice) -> str:
    assert choice.plan is not None
    plan, stage = choice.plan, choice.plan.stages[0]
    parts = [f"tp{stage.tp}", f"pp{len(plan.stages)}", f"dp{stage.dp}"]
    parts += [f"cp{stage.cp}"] if stage.cp > 1 else []
    parts += [f"ep{stage.ep}"] if stage.ep > 1 else []
    parts += [f"zero{stage.sharding.zero}"] if stage.sharding.zero else []
    parts += [stage.recompute.kind] if stage.recompute.kind != "none" else []
    return " ".join(parts)
