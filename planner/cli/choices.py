"""The options of `plan` that take several searches, and the table they end in."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, cast

from planner.cli.options import chosen_options, positive_seconds, store_path
from planner.cli.output import format_bytes, format_count, format_seconds, print_json, print_table, print_text
from planner.shared.options import SearchOptions
from profiles.errors import InputError

if TYPE_CHECKING:
    from planner.one_job.planning.choices import Choice


def add_choice_options(parser: ArgumentParser) -> None:
    """`--front`, `--meet` and `--beside`."""
    group = parser.add_argument_group("several searches")
    group.add_argument(
        "--front", choices=("devices", "memory"), help="the fastest plan for each number of devices, or memory of one"
    )
    group.add_argument(
        "--meet", type=positive_seconds, metavar="S", help="the fewest devices on which an iteration takes so long"
    )
    group.add_argument(
        "--beside", action="append", default=[], metavar="C", help="another cluster to compare with; several times"
    )


def run_choice(arguments: Namespace) -> bool:
    """Answer the question that takes several searches; False where none is asked."""
    from planner import api

    if not (arguments.front or arguments.meet or arguments.beside):
        return False
    found: tuple[Choice, ...]
    asked = [name for name in ("front", "meet", "beside") if getattr(arguments, name)]
    one_plan = [name for name in ("output", "explain", "compare", "timeline") if getattr(arguments, name, None)]
    if len(asked) > 1 or one_plan:
        words = ", ".join(f"--{name}" for name in (*asked, *one_plan))
        raise InputError(where="plan", key=f"--{asked[0]}", found=words, expected="one question, which has many plans")
    options = cast("SearchOptions", chosen_options(arguments, SearchOptions))
    store = store_path(arguments)
    if arguments.front:
        found = api.front(arguments.model, cluster=arguments.cluster, against=arguments.front, store=store, **options)
        title = f"{arguments.model} on {arguments.cluster}: no plan is better in both time and {arguments.front}"
    elif arguments.meet:
        found = (
            api.smallest(arguments.model, cluster=arguments.cluster, meet_s=arguments.meet, store=store, **options),
        )
        title = f"{arguments.model}: the fewest devices of {arguments.cluster} for {format_seconds(arguments.meet)}"
    else:
        clusters = (arguments.cluster, *arguments.beside)
        found = api.side_by_side(arguments.model, clusters=clusters, store=store, **options)
        title = f"{arguments.model}: the best plan on each cluster"
    if arguments.json:
        from planner.one_job.planning.choices import describe_choice

        print_json({"choices": [describe_choice(choice) for choice in found]})
        return True
    _print(title, found)
    return True


def _print(title: str, found: tuple[Choice, ...]) -> None:
    costs = any(choice.cost is not None for choice in found)
    columns = ("cluster", "devices", "iteration", "tokens/s", "memory", *(("cost",) if costs else ()), "energy", "plan")
    rows = []
    for choice in found:
        if choice.plan is None:
            continue
        tokens = choice.plan.estimate.tokens_per_s_per_device
        row = (
            choice.cluster,
            str(choice.devices),
            format_seconds(choice.iteration_time_s or 0.0),
            format_count(None if tokens is None else tokens * choice.devices),
            "-" if choice.needed_bytes is None else format_bytes(choice.needed_bytes),
            *((("-" if choice.cost is None else f"{choice.cost:.3g}"),) if costs else ()),
            "-" if choice.energy_j is None else f"{choice.energy_j / 3.6e6:.3g} kWh",
            _words(choice),
        )
        rows.append(row)
    if rows:
        print_table(title, columns, rows)
        print_text(
            "per iteration; memory is what the fullest device needs with its reserve; all modelled but what the"
            " plans say was measured"
        )
    for choice in found:
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
