"""`cellplan simulate`: a trace replayed on a cluster under a policy, or under several with seeds and loads."""

from __future__ import annotations

import signal
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.options import (
    add_json_option,
    natural,
    number,
    positive_int,
    positive_rate,
    positive_seconds,
    store_path,
)
from planner.cli.output import print_json, progress
from planner.cli.simulate_output import print_run, print_sweep

if TYPE_CHECKING:
    from planner.many_jobs.simulation.request import OptionValue, SimulateOptions

FORMATS = ("auto", "cellplan", "philly", "helios", "pai", "sacct")


def add_arguments(parser: ArgumentParser) -> None:
    """`simulate TRACE --cluster C --policy P`."""
    parser.add_argument("trace", type=Path, metavar="TRACE", help="jobs as people submitted them")
    parser.add_argument("--cluster", required=True, metavar="C", help="such as a40:16x2+a10:16x2, or a YAML file")
    parser.add_argument(
        "--policy", default="fcfs", metavar="P", help="its name, or package.module:Class (default: %(default)s)"
    )
    parser.add_argument(
        "--option",
        action="append",
        type=policy_option,
        metavar="K=V",
        help="an option of the policy; POLICY.K=V of one among several",
    )
    _add_trace_options(parser)
    _add_run_options(parser)
    _add_output_options(parser)
    _add_sweep_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=_run)


def _add_trace_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("the trace")
    group.add_argument("--format", choices=FORMATS, default="auto", help="(default: %(default)s, by its first line)")
    group.add_argument(
        "--lenient",
        action="store_true",
        help="skip malformed lines and count them (not models or devices that there are not)",
    )
    group.add_argument("--fractional", choices=("round-up", "refuse"), default="round-up", help="parts of a GPU")
    group.add_argument(
        "--counts", choices=("keep", "powers"), default="keep", help="devices as asked, or powers of two"
    )
    group.add_argument(
        "--oversize",
        choices=("refuse", "clip", "spread"),
        default="refuse",
        help="jobs larger than any pool; spread: over several pools of one type, for policies that join sites",
    )
    group.add_argument(
        "--unknown-device", choices=("refuse", "draw"), default="refuse", help="rows on a device that no pool has"
    )
    group.add_argument("--window", dest="window_s", type=span, metavar="A:B", help="jobs submitted in [A, B) seconds")
    group.add_argument("--head", type=positive_int, metavar="N", help="the first N jobs")
    group.add_argument("--load", type=positive_rate, default=1.0, metavar="F", help="jobs arrive F times as fast")
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="of all that is drawn (default: 0)")
    group.add_argument(
        "--deadlines", type=span, metavar="A:B", help="draw deadlines, A to B durations after submission (Crius: 1:3)"
    )
    group.add_argument(
        "--cells",
        dest="cells_file",
        metavar="FILE",
        help="Cells of earlier runs, to which this one adds (default: of this cluster, beside the profile store)",
    )
    group.add_argument(
        "--store",
        type=Path,
        metavar="PATH",
        help="measured profiles and link tables, which count wherever they are (default: all Cells are modelled)",
    )


def _add_run_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("the run")
    group.add_argument(
        "--round",
        dest="round_s",
        type=positive_seconds,
        metavar="S",
        help="decide every S seconds (default: after every event)",
    )
    group.add_argument(
        "--failures", metavar="MTBF:REPAIR|FILE", help="seconds between a node's failures and of a repair, or a CSV"
    )
    group.add_argument("--restart-s", type=number, default=60.0, metavar="S", help="(default: %(default)s)")
    group.add_argument(
        "--storage-bandwidth",
        dest="storage_bandwidth_bytes_per_s",
        type=positive_rate,
        default=2e9,
        metavar="B",
        help="bytes/s at which a restart reads and writes its checkpoint (default: %(default)s)",
    )
    group.add_argument(
        "--checkpoint-interval",
        dest="checkpoint_interval_s",
        type=number,
        default=1800.0,
        metavar="S",
        help="progress between two checkpoints of a job; what came after the last is lost when a node fails "
        "(default: %(default)s; 0: nothing)",
    )
    group.add_argument(
        "--jct",
        metavar="MODEL|online",
        help="predict durations by a model of `cellplan jct train`, or learn from jobs as they end (default: policies "
        "see the trace's durations)",
    )
    group.add_argument("--until", dest="until_s", type=positive_seconds, metavar="S", help="end the simulation then")
    group.add_argument("--checkpoint", type=Path, metavar="FILE", help="keep there what it takes to go on")
    group.add_argument(
        "--checkpoint-every",
        dest="checkpoint_every_s",
        type=number,
        default=60.0,
        metavar="S",
        help="this machine's seconds (default: 60)",
    )
    group.add_argument("--resume", action="store_true", help="go on from --checkpoint, where there is one")


def _add_output_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("files of one run")
    group.add_argument("--jobs-csv", type=Path, metavar="FILE", help="a row for each job")
    group.add_argument("--series-csv", type=Path, metavar="FILE", help="the cluster over time")
    group.add_argument(
        "--timeline", type=Path, metavar="FILE", help="who sat where when, for Perfetto (.json, .json.gz)"
    )
    group.add_argument("--plot", type=Path, metavar="FILE", help="throughput, queue and JCTs (.svg, .png)")
    group.add_argument("--bound", action="store_true", help="also say what no policy can beat, and how far this one is")


def _add_sweep_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("many runs")
    group.add_argument("--policies", type=words, metavar="P,Q,...", help="in place of --policy")
    group.add_argument("--seeds", type=seed_range, metavar="A..B|LIST", help="in place of --seed")
    group.add_argument("--loads", type=rates, metavar="LIST", help="in place of --load")
    group.add_argument("--workers", type=positive_int, default=1, metavar="N", help="processes (default: 1)")
    group.add_argument("--ray", metavar="ADDRESS", help="run on this Ray cluster (`auto`: the one that runs here)")
    group.add_argument("--csv", type=Path, metavar="FILE", help="a row for each run")


def policy_option(text: str) -> tuple[str, OptionValue]:
    """`K=V`; V is a number, true, false, null, or else text."""
    import json

    key, equals, word = text.partition("=")
    if not (key and equals):
        raise ArgumentTypeError(f"found {text!r}, expected NAME=VALUE such as depth=3")
    try:
        value = json.loads(word)
    except ValueError:
        return key, word
    return key, value if value is None or isinstance(value, str | int | float | bool) else word


def span(text: str) -> tuple[float, float]:
    """Two numbers `A:B`, rising."""
    first, colon, last = text.partition(":")
    try:
        found = float(first), float(last)
    except ValueError:
        found = 1.0, 0.0
    if not (colon and 0 <= found[0] <= found[1] < float("inf")):
        raise ArgumentTypeError(f"found {text!r}, expected two rising numbers A:B of at least 0")
    return found


def words(text: str) -> tuple[str, ...]:
    """Words with commas between."""
    return tuple(text.split(","))


def rates(text: str) -> tuple[float, ...]:
    """Numbers above 0 with commas between."""
    return tuple(positive_rate(part) for part in text.split(","))


def seed_range(text: str) -> tuple[int, ...]:
    """`0..4`, or whole numbers with commas between."""
    first, dots, last = text.partition("..")
    if not dots:
        return tuple(natural(part) for part in text.split(","))
    found = tuple(range(natural(first), natural(last) + 1))
    if not 0 < len(found) <= 10_000:
        raise ArgumentTypeError(f"found {text!r}, expected a range such as 0..4 of at most 10000 seeds")
    return found


def _run(arguments: Namespace) -> None:
    from profiles.errors import InputError

    many = (arguments.policies, arguments.seeds, arguments.loads, arguments.ray, arguments.csv)
    if any(one is not None for one in many):
        _run_many(arguments)
        return
    if arguments.workers != 1:
        raise InputError(
            where="simulate", key="--workers", found="a single run", expected="--policies, --seeds, --loads"
        )
    _run_one(arguments)


def options_for(arguments: Namespace) -> SimulateOptions:
    """The keywords that the arguments mean."""
    return {
        "format": arguments.format,
        "lenient": arguments.lenient,
        "fractional": arguments.fractional,
        "counts": arguments.counts,
        "oversize": arguments.oversize,
        "unknown_device": arguments.unknown_device,
        "window_s": arguments.window_s,
        "head": arguments.head,
        "load": arguments.load,
        "seed": arguments.seed,
        "deadlines": arguments.deadlines,
        "store": None if arguments.store is None else str(arguments.store),
        "cells_file": arguments.cells_file or str(_cells_folder()),
        "round_s": arguments.round_s,
        "restart_s": arguments.restart_s,
        "storage_bandwidth_bytes_per_s": arguments.storage_bandwidth_bytes_per_s,
        "failures": arguments.failures,
        "checkpoint_interval_s": arguments.checkpoint_interval_s,
        "until_s": arguments.until_s,
        "jct": arguments.jct,
    }


def _cells_folder() -> Path:
    folder = store_path(Namespace(store=None), to_write=True).parent / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run_one(arguments: Namespace) -> None:
    from dataclasses import asdict

    from planner import api
    from planner.many_jobs.simulation.result import summary_json
    from planner.many_jobs.simulation.sweep import options_of

    policy, given = arguments.policy, arguments.option or ()

    with progress(f"simulating {arguments.trace.name}") as report, _stopped(arguments.checkpoint) as stop:
        answer = api.simulate(
            arguments.trace,
            cluster=arguments.cluster,
            policy=policy,
            option=dict(options_of(policy, given, (policy,))),
            jobs_csv=arguments.jobs_csv,
            series_csv=arguments.series_csv,
            timeline=arguments.timeline,
            plot=arguments.plot,
            bound=arguments.bound,
            checkpoint=arguments.checkpoint,
            checkpoint_every_s=arguments.checkpoint_every_s,
            resume=arguments.resume,
            progress=report,
            stop=stop,
            **options_for(arguments),
        )
    if arguments.json:
        bounds = None if answer.bounds is None else asdict(answer.bounds)
        more = {"bounds": bounds, "skipped_lines": dict(answer.skipped), "notes": list(answer.notes)}
        print_json(summary_json(answer.result) | more)
    else:
        print_run(answer.result, answer.notes, answer.bounds)


def _run_many(arguments: Namespace) -> None:
    from planner import api
    from profiles.errors import InputError

    for name in ("jobs_csv", "series_csv", "timeline", "plot", "bound", "checkpoint"):
        if getattr(arguments, name) not in (None, False):
            key = "--" + name.replace("_", "-")
            raise InputError(where="simulate", key=key, found="several runs", expected="one, for a file of one run")
    for one, several, default in (("policy", "policies", "fcfs"), ("load", "loads", 1.0), ("seed", "seeds", 0)):
        if getattr(arguments, several) is not None and getattr(arguments, one) != default:
            found = f"--{one} too"
            raise InputError(where="simulate", key=f"--{several}", found=found, expected="one of them")
    policies = arguments.policies or (arguments.policy,)
    with progress(f"simulating {arguments.trace.name}") as report:
        answer = api.simulate_sweep(
            arguments.trace,
            cluster=arguments.cluster,
            policies=policies,
            seeds=arguments.seeds or (arguments.seed,),
            loads=arguments.loads or (arguments.load,),
            option=dict(arguments.option or ()),
            workers=arguments.workers,
            ray=arguments.ray,
            csv=arguments.csv,
            progress=report,
            **options_for(arguments),
        )
    if arguments.json:
        print_json(answer)
    else:
        print_sweep(answer["means"])


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
