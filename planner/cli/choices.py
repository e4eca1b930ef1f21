"""The options of `plan` that take several searches, and the table they end in."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from planner import api
from planner.cli.arguments import chosen
from planner.cli.headline import print_assumptions, print_largest
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
from planner.shared.options.record import Options, entries
from planner.shared.options.search import (
    AffordOptions,
    FrontOptions,
    LargestOptions,
    PlanOptions,
    SearchOptions,
    SideBySideOptions,
    SmallestOptions,
)
from planner.shared.plan_file import plan_to_values
from profiles.errors import InputError, NothingFits

if TYPE_CHECKING:
    from planner.one_job.planning.affording import Affordable
    from planner.one_job.planning.choices import Choice


ASKED = {"--front": "against", "--meet": "meet_s", "--beside": "beside", "--largest": "largest"}
"""The questions, each with the option that asks it."""


def run_choice(arguments: Namespace, options: PlanOptions) -> bool:
    """Answer the question that takes several searches; False where none is asked."""
    choices: tuple[Choice, ...]
    asked = [flag for flag, name in ASKED.items() if getattr(arguments, name)]
    limited = options.budget is not None or options.days is not None
    if limited and (not asked or asked == ["--beside"]):
        return _afford(arguments, options)
    if not asked:
        return False
    one_plan = _of_one_plan(options, LargestOptions if arguments.largest else SearchOptions)
    if limited:
        raise InputError(where="plan", key=asked[0], found="--budget or --days too", expected="one question")
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
    fastest = min((choice for choice in choices if choice.plan is not None), key=_iteration_s)
    if arguments.json:
        print_json({"choices": [choice.as_dict() for choice in choices], "assumption_effects": _effects(fastest)})
        return True
    _print(title, choices)
    _print_assumptions(fastest, arguments, of_several=len(choices) > 1)
    return True


def _iteration_s(choice: Choice) -> float:
    return choice.iteration_time_s or math.inf


def _effects(choice: Choice) -> list[dict[str, object]]:
    return [asdict(effect) for effect in choice.effects()]


def _print_assumptions(choice: Choice, arguments: Namespace, *, of_several: bool) -> None:
    """What moves the plan of a choice most, and what it rests on."""
    if choice.plan is None:
        return
    if of_several:
        print_text(f"assumptions of the plan on {choice.devices} devices of {choice.cluster}:")
    print_assumptions(choice.plan.assumptions, every=arguments.assumptions, effects=_effects(choice))


def _answer_largest(arguments: Namespace) -> None:
    """The largest size that fits, and the best plan there."""
    with status("searching"):
        answer = api.largest(chosen(arguments, LargestOptions))
    value = answer.largest.as_dict()
    if arguments.json:
        effects = [asdict(effect) for effect in answer.effects]
        print_json({"plan": plan_to_values(answer.plan), "largest": value, "assumption_effects": effects})
        return
    from planner.cli.plan_output import print_plan

    print_largest(value)
    print()
    effects = [asdict(effect) for effect in answer.effects]
    print_plan(answer.plan, every_assumption=arguments.assumptions, effects=effects)
    print_written(arguments.output, None)


def _of_one_plan(options: PlanOptions, others: type[Options]) -> list[str]:
    """Options said that a question with many plans has not."""
    return [entries(PlanOptions)[name].flag for name in options.changed() if name not in entries(others)]


def _afford(arguments: Namespace, options: PlanOptions) -> bool:
    """What is within a budget or so many days; where nothing is, what was looked at is printed before NothingFits is
    raised."""
    one_plan = _of_one_plan(options, AffordOptions)
    if one_plan:
        found = ", ".join(("--budget/--days", *one_plan))
        raise InputError(where="plan", key=one_plan[0], found=found, expected="one question, which has many plans")
    try:
        answer = api.afford(chosen(arguments, AffordOptions))
    except NothingFits as failure:
        looked_at = cast("Affordable | None", failure.result)
        if looked_at is None:
            raise
        if arguments.json:
            raise NothingFits(str(failure), result=looked_at.as_dict()) from failure
        _print_affordable(looked_at, arguments, options)
        raise
    _print_affordable(answer, arguments, options)
    return True


def _print_affordable(answer: Affordable, arguments: Namespace, options: PlanOptions) -> None:
    from planner.cli.training_output import print_training

    if arguments.json:
        print_json(answer.as_dict())
        return
    shown = _telling(answer)
    _print(f"{options.model}: within {answer.limits}", (*shown, *answer.nothing), chosen_one=answer.chosen)
    if len(shown) < len(answer.choices):
        print_text(f"the fastest and the cheapest of each cluster; all {len(answer.choices)} looked at: --json")
    if answer.chosen is None or answer.chosen.described_training is None:
        return
    aim = "the cheapest" if options.days is not None else "the fastest"
    print_text(f"chosen (*): {aim} of these, {answer.chosen.devices} devices of {answer.chosen.cluster}")
    print_training(answer.chosen.described_training)
    if not answer.is_sure(answer.chosen):
        sure = answer.sure
        instead = "" if sure is None else f"; that of {sure.devices} devices of {sure.cluster} is not"
        print_text(f"within the limits as estimated; the far end of the 90% interval is beyond them{instead}")
    _print_assumptions(answer.chosen, arguments, of_several=False)
    if arguments.output is not None:
        print(f"written to {arguments.output}")


def _telling(answer: Affordable) -> tuple[Choice, ...]:
    """The chosen one, and each cluster's fastest and cheapest."""
    told = [] if answer.chosen is None else [answer.chosen]
    for cluster in {choice.cluster for choice in answer.choices}:
        there = [choice for choice in answer.choices if choice.cluster == cluster and choice.training is not None]
        told += [min(there, key=_seconds), min(there, key=_price)] if there else []
    asked = {(choice.cluster, choice.devices) for choice in told}
    return tuple(choice for choice in answer.choices if (choice.cluster, choice.devices) in asked)


def _seconds(choice: Choice) -> float:
    return math.inf if choice.training is None else choice.training.seconds


def _price(choice: Choice) -> float:
    return math.inf if choice.training is None or choice.training.price is None else choice.training.price


def _print(title: str, choices: tuple[Choice, ...], *, chosen_one: Choice | None = None) -> None:
    trained = any(choice.training is not None for choice in choices)
    costs = any(choice.cost is not None for choice in choices) and not trained
    whole = ("days", "cost", "90%") if trained else ()
    columns = (
        *(("",) if chosen_one else ()),
        "cluster",
        "devices",
        "iteration",
        *(() if trained else ("tokens/s", "total", "memory")),
        *(("cost",) if costs else ()),
        *(whole or ("energy",)),
        "plan",
    )
    rows = []
    for choice in choices:
        if choice.plan is None:
            continue
        row = (
            *(("*" if choice is chosen_one else "",) if chosen_one else ()),
            choice.cluster,
            choice.devices,
            format_seconds(choice.iteration_time_s or 0.0),
            *(() if trained else _rates_and_memory(choice)),
            *((None if choice.cost is None else f"{choice.cost:.3g}",) if costs else ()),
            *(_whole_cells(choice) if trained else (_energy(choice),)),
            _words(choice),
        )
        rows.append(row)
    if rows:
        print_table(title, columns, rows)
        of_what = (
            "days and cost of the whole training, the cost with its 90% interval"
            if trained
            else "tokens/s per device and in total; energy per iteration; memory is what the fullest device needs with"
            " its reserve"
        )
        print_text(f"{of_what}; all modelled but what the plans say was measured")
    for choice in choices:
        if choice.plan is None:
            print_text(f"{choice.cluster}: {choice.reason}")


def _rates_and_memory(choice: Choice) -> tuple[str | None, ...]:
    """Tokens/s per device and in total, and what the fullest device needs."""
    tokens = None if choice.plan is None else choice.plan.estimate.tokens_per_s_per_device
    total = None if tokens is None else tokens * choice.devices
    return format_count(tokens), format_count(total), format_bytes(choice.needed_bytes)


def _energy(choice: Choice) -> str | None:
    return None if choice.energy_j is None else f"{choice.energy_j / 3.6e6:.3g} kWh"


def _days(days: float) -> str:
    return f"{days:,.0f}" if days >= 100 else f"{days:.3g}"


def _whole_cells(choice: Choice) -> tuple[str | None, str | None, str | None]:
    """Days and cost of the whole training, the cost with its 90% interval."""
    training = choice.training
    if training is None:
        return None, None, None
    if training.price is None:
        return _days(training.days), None, None
    low, high = training.interval_of(training.price)
    return _days(training.days), format_count(training.price), _span(format_count(low), format_count(high))


def _span(low: str | None, high: str | None) -> str:
    """From one figure to another, the unit once where it is the same.

    >>> _span("55.8 k", "80.7 k"), _span("980", "1.2 k")
    ('55.8-80.7 k', '980-1.2 k')
    """
    (least, _, unit), (_, _, other) = (low or "").partition(" "), (high or "").partition(" ")
    return f"{least if unit == other else low}-{high}"


def _words(choice: Choice) -> str:
    assert choice.plan is not None
    plan, stage = choice.plan, choice.plan.stages[0]
    parts = [f"tp{stage.tp}", f"pp{len(plan.stages)}", f"dp{stage.dp}"]
    parts += [f"cp{stage.cp}"] if stage.cp > 1 else []
    parts += [f"ep{stage.ep}"] if stage.ep > 1 else []
    parts += [f"zero{stage.sharding.zero}"] if stage.sharding.zero else []
    parts += [stage.recompute.kind] if stage.recompute.kind != "none" else []
    return " ".join(parts)
