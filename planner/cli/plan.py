"""`cellplan plan`: the best plan for a model on a cluster, shown and written to a file; why it, and what else."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.arrays import load_numpy
from planner.cli.choices import run_choice
from planner.cli.output import print_written, progress, status
from planner.shared.options.search import (
    AffordOptions,
    FrontOptions,
    LargestOptions,
    PlanOptions,
    SideBySideOptions,
    SmallestOptions,
)
from profiles.errors import NothingFits

if TYPE_CHECKING:
    from planner.one_job.planning.answer import PlanAnswer


def add_arguments(parser: ArgumentParser) -> None:
    """`plan MODEL --cluster C -o plan.json`."""
    add_options(parser, PlanOptions, FrontOptions, SmallestOptions, SideBySideOptions, LargestOptions, AffordOptions)
    parser.add_argument("--assumptions", action="store_true", help="list all that was assumed")
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    load_numpy()
    options = chosen(arguments, PlanOptions)
    if run_choice(arguments, options):
        return
    answer = _ask(arguments)
    if arguments.json:
        print(answer.to_json(), end="")
        return
    _print(answer, options, every_assumption=arguments.assumptions)
    print_written(options.output, options.timeline)


def _ask(arguments: Namespace) -> PlanAnswer:
    """The answer; where there is no plan, what would make one possible is printed before NothingFits is raised."""
    from planner.cli.explain_output import print_lack

    with ExitStack() as shown:
        report = shown.enter_context(progress("searching")) if arguments.explain else None
        say = None if arguments.explain else shown.enter_context(status("searching"))
        try:
            return api.plan(chosen(arguments, PlanOptions, progress=report, say=say))
        except NothingFits as failure:
            shown.close()
            if isinstance(failure.result, dict) and failure.result.get("explanation") and not arguments.json:
                print_lack(failure.result)
            raise


def _print(answer: PlanAnswer, options: PlanOptions, *, every_assumption: bool) -> None:
    from planner.cli.explain_output import print_comparison, print_explanation
    from planner.cli.plan_output import print_plan

    print_plan(
        answer.plan,
        answer.certificate,
        effects=[asdict(effect) for effect in answer.effects],
        every_assumption=every_assumption,
    )
    if answer.described_training is not None:
        from planner.cli.training_output import print_training

        print_training(answer.described_training)
    if answer.explanation is not None:
        print()
        print_explanation(answer.explanation)
    for why in answer.why:
        from planner.cli.why_output import print_why_not

        print()
        print_why_not(why)
    if answer.comparison is not None:
        print()
        print_comparison(answer.comparison, str(options.compare))
