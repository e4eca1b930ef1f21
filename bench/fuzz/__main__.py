"""A fuzzer over every file format and every option of every command.

    python -m bench.fuzz --cases 1000 --seed 0          # so many cases; a line and a command for each that fails
    python -m bench.fuzz --seed 0 --case 17 --keep DIR  # one case, its files left in DIR

Each case spoils a valid example (`bench/fuzz/examples.py`) by structure, line, byte or option, and runs it in a fork of
this warm process. What must hold: an exit status of DESIGN.md's (0, 2, 3), one message on stderr, no traceback, no
half-written file, 5 s of CPU, 1 GiB beyond what the parent holds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.fuzz.cases import Case, make_case
from bench.fuzz.examples import make_files
from bench.fuzz.run import Outcome, run_cases, summarize


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; return 1 if any failed."""
    parser = argparse.ArgumentParser(prog="bench.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="this case alone")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="leave the folders of the cases that failed here")
    arguments = parser.parse_args(argv)
    numbers = range(arguments.first, arguments.first + arguments.cases)
    if arguments.case is not None:
        numbers = range(arguments.case, arguments.case + 1)
    with TemporaryDirectory(prefix="cellplan-fuzz-") as name:
        scratch = arguments.keep or Path(name) / "cases"
        scratch.mkdir(exist_ok=True, parents=True)
        began_s = time.monotonic()
        outcomes = []
        for outcome in fuzz(Path(name), scratch, seed=arguments.seed, numbers=numbers, workers=arguments.workers):
            outcomes.append(outcome)
            if outcome.wrong:
                print(describe(outcome, arguments.seed), flush=True)
            elif arguments.case is not None:
                print(f"{outcome.case.command}\nstatus {outcome.status}: {outcome.said}")
        failed = sum(bool(outcome.wrong) for outcome in outcomes)
        slowest = max((outcome.cpu_s for outcome in outcomes), default=0.0)
        print(
            f"{len(outcomes)} cases of seed {arguments.seed}: {failed} failed; by status {summarize(outcomes)};"
            f" slowest {slowest:.1f} s of CPU; {time.monotonic() - began_s:.0f} s in all"
        )
    return int(failed > 0)


def fuzz(folder: Path, scratch: Path, *, seed: int, numbers: range, workers: int) -> Iterator[Outcome]:
    """Give the outcomes of these cases. `folder` takes the examples' files; environment variables that name a user's
    own files point there."""
    examples = folder / "examples"
    examples.mkdir(exist_ok=True)
    os.environ["HOME"] = os.environ["XDG_DATA_HOME"] = str(folder)
    os.environ.pop("CELLPLAN_STORE", None)
    make_files(examples)

    def cases() -> Iterator[Case]:
        for number in numbers:
            yield make_case(examples, seed, number)

    yield from run_cases(examples, cases(), workers=workers, scratch=scratch)


def describe(outcome: Outcome, seed: int) -> str:
    """Return what a failed case did wrong, and the command that does it again."""
    number = outcome.case.name.rpartition("/")[2]
    spoilt = ", ".join(name for name, _ in outcome.case.files) or "no file"
    return (
        f"FAILED {outcome.case.name}: {'; '.join(outcome.wrong)}\n"
        f"    {outcome.case.command[:400]}  (spoilt: {spoilt})\n"
        f"    {outcome.said[-300:].strip()}\n    again: python -m bench.fuzz --seed {seed} --case {number} --keep DIR"
    )


if __name__ == "__main__":
    sys.exit(main())
