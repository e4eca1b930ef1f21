"""Kill commands at random moments, and look at what is left of them.

    python -m bench.killed [--moments 500] [--seed 0] [--command WORDS] [--json FILE]

from the root of the repository, on Linux. A moment is either any of the command's life or one that comes within
milliseconds of a change in its folder. After each: no process stays longer than 5 s, nor the folder they worked in; a
store passes SQLite's integrity check and has lost nothing; a file is whole or absent. After several the command is let
end: with exit status 0, the same files as if nobody had killed it, and no temporary file beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
from dataclasses import asdict
from pathlib import Path

from bench.killed.killing import Verdict, kill_often, warm_commands
from bench.killed.scenarios import SCENARIOS
from estimator.host.cpu import cpu_name
from profiles.files import write_atomically


def main() -> int:
    """Print a row for each command and every fault; return 1 where there is one."""
    parser = argparse.ArgumentParser(prog="bench.killed", description=__doc__)
    parser.add_argument("--moments", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", choices=[scenario.name for scenario in SCENARIOS], help="(default: all)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if options.command in (None, scenario.name)]
    print(f"{cpu_name()}, {os.cpu_count()} cores, {platform.platform()}, python {platform.python_version()};", end=" ")
    print(f"seed {options.seed}, load {os.getloadavg()[0]:.1f}\n")
    print("| command | moments | of them at a change | let end | last process gone after | faults |")
    print("| :-- | --: | --: | --: | --: | --: |")
    verdicts = []
    with warm_commands() as commands:
        for number, scenario in enumerate(chosen):
            moments = round(options.moments * scenario.share / sum(each.share for each in chosen))
            draws = random.Random(f"{options.seed} {scenario.name}")
            verdicts.append(kill_often(scenario, moments, commands, commands.folder / str(number), draws))
            print(row_of(verdicts[-1]), flush=True)
    for verdict in verdicts:
        for fault in verdict.wrong:
            print(f"- {verdict.name}: {fault}")
    if options.json is not None:
        write_atomically(options.json, json.dumps([asdict(verdict) for verdict in verdicts], indent=2) + "\n")
    return int(any(verdict.wrong for verdict in verdicts))


def row_of(verdict: Verdict) -> str:
    """Return a scenario's line of the table."""
    figures = (verdict.moments, verdict.touched, verdict.completed, f"{verdict.slowest_s:.2f} s", len(verdict.wrong))
    return f"| {verdict.name} | {' | '.join(map(str, figures))} |"


if __name__ == "__main__":
    sys.exit(main())
