"""`cellplan simulate`: a trace replayed on a cluster under a policy, or under several with seeds and loads."""

from __future__ import annotations

import signal
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.output import print_json, progress
from planner.cli.simulate_output import print_run, print_sweep
from planner.shared.options.record import entries
from planner.shared.options.simulate import ReplayOptions, SimulateOptions, SweepOptions


def add_arguments(parser: ArgumentParser) -> None:
    """`simulate TRACE --cluster C --policy P`."""
    add_options(parser, SimulateOptions, SweepOptions)
    parser.set_defaults(run=_run)


def _run(arguments: Namespace) -> None:
    one_run = chosen(arguments, SimulateOptions)
    many = chosen(arguments, SweepOptions)
    asked = set(many.changed()) - {*entries(ReplayOptions), "report"}
    if asked == {"workers"}:
        raise many.wrong("workers", found="a single run", expected="--policies, --seeds, --loads")
    if not asked:
        _run_one(arguments, one_run.checkpoint)
        return
    for name in one_run.changed():
        if name not in entries(SweepOptions):
            raise one_run.wrong(name, found="several runs", expected="one, for a file of one run")
    with progress(f"simulating {arguments.trace.name}") as report:
        answer = api.simulate_sweep(chosen(arguments, SweepOptions, progress=report))
    if arguments.json:
        print_json(answer)
    else:
        print_sweep(answer["means"], answer["notes"], answer["as_logged"])


def _run_one(arguments: Namespace, checkpoint: Path | None) -> None:
    with progress(f"simulating {arguments.trace.name}") as report, _stopped(checkpoint) as stop:
        answer = api.simulate(chosen(arguments, SimulateOptions, progress=report, stop=stop))
    if arguments.json:
        print_json(answer.as_dict())
    else:
        print_run(
            answer.result, answer.notes, answer.bounds, None if answer.logged is None else answer.logged.as_dict()
        )


@contextmanager
def _stopped(checkpoint: Path | None) -> Iterator[Callable[[], bool] | None]:
    """With a checkpoint file, the first interrupt lets the run write it before it ends; the second ends at once."""
    if checkpoint is None:
        yield None
        return
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
