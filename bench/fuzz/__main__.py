"""A fuzzer over every file format and every option of every command.

    python -m bench.fuzz --cases 1000 --seed 0          # so many cases; a line and a command for each that fails
    python -m bench.fuzz --seed 0 --case 17 --keep DIR  # one case, its files left in DIR
    python -m bench.fuzz --options --cases 10000        # each option of each command with each wrong value

Each case spoils a valid example (`bench/fuzz/examples.py`) by structure, line, byte or option, and runs it in a fork of
this warm process. What must hold: an exit status of DESIGN.md's (0, 2, 3), one message on stderr, no traceback, no
half-written file, 5 s of CPU, 1 GiB beyond what the parent holds; of every other case, which is asked for JSON, a
document by the command's schema that says the same.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.fuzz.cases import Case, make_case
from bench.fuzz.examples import make_files
from bench.fuzz.options import option_cases
from bench.fuzz.run import Outcome, run_cases, summarize


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 if any failed."""
    parser = argparse.ArgumentParser(prog="bench.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--options", action="store_true", help="in place of chance: each option of each command with each wrong value"
    )
    parser.add_argument("--case", type=int, help="this case alone")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="leave the folders of the cases that failed here")
    parser.add_argument("--say", action="store_true", help="print what every case was answered")
    arguments = parser.parse_args(argv)
    numbers = range(arguments.first, arguments.first + arguments.cases)
    if arguments.case is not None:
        numbers = range(arguments.case, arguments.case + 1)
    with TemporaryDirectory(prefix="cellplan-fuzz-") as name:
        scratch = arguments.keep or Path(name) / "cases"
        scratch.mkdir(exist_ok=True, parents=True)
        examples = prepare(Path(name))
        began_s = time.monotonic()
        cases = (make_case(examples, arguments.seed, number) for number in numbers)
        chosen: Iterator[Case] = islice(option_cases(), numbers.start, numbers.stop) if arguments.options else cases
        outcomes = []
        for outcome in run_cases(examples, chosen, workers=arguments.workers, scratch=scratch):
            outcomes.append(outcome)
            if outcome.wrong:
                print(describe(outcome), flush=True)
            elif arguments.say or arguments.case is not None:
                print(
                    f"{outcome.case.name}: {outcome.case.command}\n    status {outcome.status}: {outcome.said.strip()}"
                )
        failed = sum(bool(outcome.wrong) for outcome in outcomes)
        slowest = max((outcome.cpu_s for outcome in outcomes), default=0.0)
        which = "options" if arguments.options else f"seed {arguments.seed}"
        print(
            f"{len(outcomes)} cases of {which}: {failed} failed; by status {summarize(outcomes)};"
            f" slowest {slowest:.1f} s of CPU; {time.monotonic() - began_s:.0f} s in all"
        )
    return int(failed > 0)


def prepare(folder: Path) -> Path:
    """Return a folder in `folder` with the examples' files. Environment variables that name a user's own files point
    to `folder`."""
    examples = folder / "examples"
    examples.mkdir(exist_ok=True)
    os.environ["HOME"] = os.environ["XDG_DATA_HOME"] = str(folder)
    os.environ.pop("CELLPLAN_STORE", None)
    os.environ["HF_HUB_OFFLINE"] = "1"  # a spoilt path may read as a model there
    make_files(examples)
    gc.collect()
    gc.freeze()  # what the forks share stays shared: their own collections leave it alone
    return examples


def describe(outcome: Outcome) -> str:
    """Return what a failed case did wrong, and the command that does it again."""
    kind, _, number = outcome.case.name.partition("/")
    spoilt = ", ".join(name for name, _ in outcome.case.files) or "no file"
    again = "--options" if kind == "options" else f"--seed {kind}"
    return (
        f"FAILED {outcome.case.name}: {'; '.join(outcome.wrong)}\n"
        f"    {outcome.case.command[:400]}  (spoilt: {spoilt})\n"
        f"    {outcome.said[-300:].strip()}\n    again: python -m bench.fuzz {again} --case {number} --keep DIR"
    )


if __name__ == "__main__":
    sys.exit(main())
