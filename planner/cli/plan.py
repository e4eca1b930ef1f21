"""`cellplan plan`: the best plan for a model on a cluster, shown and written to a file; why it, and what else."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from planner.cli.choices import add_choice_options, run_choice
from planner.cli.options import (
    add_cluster_option,
    add_json_option,
    add_model_argument,
    add_options,
    add_store_option,
    chosen_options,
    store_path,
)
from planner.cli.output import print_json, progress, status
from planner.cli.timeline_option import add_timeline_option, check_timeline, write_timeline
from planner.shared.options import SearchOptions
from profiles.errors import NothingFits

if TYPE_CHECKING:
    from planner.one_job.planning.plan_comparison import PlanComparison
    from planner.one_job.search.explanation import Certificate, Explanation
    from planner.shared.plan import Plan


def add_arguments(parser: ArgumentParser) -> None:
    """`plan MODEL --cluster C -o plan.json`."""
    add_model_argument(parser)
    add_cluster_option(parser)
    add_options(parser, SearchOptions)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also why: what binds, what other plans lose, what changes would bring (some thirty searches more)",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="also the plan of this file beside it: what differs, and what it costs",
    )
    add_store_option(parser)
    add_json_option(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the plan to this file")
    add_timeline_option(parser)
    add_choice_options(parser)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    from planner.shared.plan_file import load_plan, save_plan

    check_timeline(arguments)
    if arguments.compare is not None:
        load_plan(arguments.compare)  # what is wrong with it is said before the search, not after
    if run_choice(arguments):
        return
    plan, certificate, explanation = _search(arguments)
    if arguments.output is not None:
        save_plan(plan, arguments.output)
    comparison = _compare(plan, arguments)
    if arguments.json:
        _print_json(plan, explanation, comparison)
    else:
        _print(plan, certificate, explanation, comparison, arguments)
    write_timeline(plan, arguments)


def _search(arguments: Namespace) -> tuple[Plan, Certificate | None, Explanation | None]:
    """The plan, with what vouches for it (nothing does for a Cell's), and its explanation where one is asked for."""
    from planner.one_job.planning.searching import plan_model
    from planner.one_job.search.explain import certify

    chosen = cast(SearchOptions, chosen_options(arguments, SearchOptions))
    if arguments.explain:
        explanation = _explain(arguments, chosen)
        return explanation.plan, explanation.certificate, explanation
    with status("searching") as say:
        planned = plan_model(
            arguments.model, cluster=arguments.cluster, store=store_path(arguments), options=chosen, progress=say
        )
    return planned.plan, None if planned.best is None else certify(planned.best), None


def _explain(arguments: Namespace, chosen: SearchOptions) -> Explanation:
    from planner import api
    from planner.cli.explain_output import print_lack
    from planner.one_job.planning.explaining import Lack, describe_lack

    try:
        with progress("searching") as report:
            return api.explain(
                arguments.model, cluster=arguments.cluster, store=store_path(arguments), progress=report, **chosen
            )
    except NothingFits as failure:
        lack = failure.result
        if isinstance(lack, Lack) and arguments.json:
            print_json({"plan": None, "explanation": describe_lack(lack)})
        elif isinstance(lack, Lack):
            print_lack(lack)
        raise


def _compare(plan: Plan, arguments: Namespace) -> PlanComparison | None:
    from planner import api

    if arguments.compare is None:
        return None
    return api.compare(plan, arguments.compare, profiles=arguments.profiles, store=store_path(arguments))


def _print_json(plan: Plan, explanation: Explanation | None, comparison: PlanComparison | None) -> None:
    import json

    from planner.one_job.planning.plan_comparison import describe_plan_comparison
    from planner.one_job.search.explain import describe_explanation
    from planner.shared.plan_file import plan_to_json

    if explanation is None and comparison is None:
        print(plan_to_json(plan), end="")
        return
    value = {"plan": json.loads(plan_to_json(plan))}
    if explanation is not None:
        value["explanation"] = describe_explanation(explanation)
    if comparison is not None:
        value["comparison"] = describe_plan_comparison(comparison)
    print_json(value)


def _print(
    plan: Plan,
    certificate: Certificate | None,
    explanation: Explanation | None,
    comparison: PlanComparison | None,
    arguments: Namespace,
) -> None:
    from planner.cli.explain_output import print_comparison, print_explanation
    from planner.cli.plan_output import print_plan

    print_plan(plan, certificate)
    if explanation is not None:
        print()
        print_explanation(explanation)
    if comparison is not None:
        print()
        print_comparison(comparison, str(arguments.compare))
    if arguments.output is not None:
        print(f"written to {arguments.output}")
