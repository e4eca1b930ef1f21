"""How good a choice among many plans is, and how many of them it measures: writes RESULTS.md.

    python -m bench.tuning --data DIR [--fit] [--real-runs] [--rounds 2] [--steps 3] [--out FOLDER] [--json FILE]

from the root of the repository; DIR holds train_runs.csv (its columns: planner/one_job/validation/COLUMNS.md). One
minute. `--fit` fits the error model anew on the fit half and shows it beside the committed one; `--real-runs` trains
every plan of two workers of this machine, ten to fifteen minutes; without either, its section is kept as RESULTS.md has
it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.accuracy.markdown import section_of
from bench.accuracy.runs import load_runs
from bench.tuning.approaches import APPROACHES
from bench.tuning.fitting import fit_error_model
from bench.tuning.groups import Group, Half, groups_of
from bench.tuning.local import describe_rows, run_local
from bench.tuning.report import (
    write_cells,
    write_fit,
    write_half,
    write_header,
    write_local,
    write_missed,
    write_odds,
    write_sources,
)
from estimator.host.cpu import cpu_name
from planner.one_job.tuning.measured import Rules
from profiles.files import write_atomically

RUNS = "train_runs.csv"
RESULTS = "RESULTS.md"
COMMAND = "python -m bench.tuning --data DIR --fit --real-runs"
FIT, LOCAL = "The error model", "Two workers of this machine"
NOT_RUN = "Not run yet."


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 where DIR has no run table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help=f"folder of {RUNS}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to")
    parser.add_argument("--fit", action="store_true", help="fit the error model")
    parser.add_argument("--real-runs", action="store_true", help="train the plans of two workers of this machine")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of --real-runs (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="measured iterations of a run (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write every group's outcomes here as well")
    options = parser.parse_args(arguments)
    path = options.data / RUNS
    if not path.is_file():
        print(f"skipped: no {path}")
        return 2
    runs = load_runs(path, progress)
    halves: tuple[Half, ...] = ("held", "fit", "all")
    groups = {half: groups_of(runs, half, progress) for half in halves}
    results = options.out / RESULTS
    before = results.read_text(encoding="utf-8") if results.is_file() else ""
    fitted = (section_of(before, FIT) or NOT_RUN).strip()
    if options.fit:
        plans = sum(len(group.candidates) for group in groups["fit"])
        fitted = write_fit(fit_error_model(groups["fit"]), plans)
    local = (section_of(before, LOCAL) or NOT_RUN).strip()
    rows: list[dict[str, object]] = []
    here: tuple[Group, ...] = ()
    if options.real_runs:
        here, found = run_local(options.rounds, options.steps, progress)
        rows = describe_rows(found)
        machine = f"{cpu_name()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
        local = write_local(here, found, machine, options.rounds)
    sections = {
        "Held half": write_half(groups["held"]),
        "Held half, by source": write_sources(groups["held"]),
        "Held half, inside each Cell": write_cells(groups["held"]),
        "Fit half": write_half(groups["fit"]),
        "All rows": write_half(groups["all"]),
        "All rows, inside each Cell": write_cells(groups["all"]),
        "Surer or cheaper": f"The default's odds ({Rules().odds}) are the most in this table with which the choices in"
        " the fit half are 99.5% accurate.\n\n" + write_odds(groups),
        "Where our default missed the best of the held half": write_missed(groups["held"]),
        FIT: fitted,
        LOCAL: local,
    }
    text = "\n\n".join((write_header(COMMAND), *(f"## {title}\n\n{body}" for title, body in sections.items())))
    write_atomically(results, text + "\n")
    if options.json is not None:
        described = {str(half): _describe(own) for half, own in groups.items()} | {"local": _describe(here)}
        document = {"local_rows": rows, "groups": described}
        write_atomically(options.json, json.dumps(document, indent=1) + "\n")
    print(f"written: {results}")
    return 0


def progress(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)


def _describe(groups: Sequence[Group]) -> list[dict[str, object]]:
    described: list[dict[str, object]] = []
    for group in groups:
        outcomes = {name: approach(group) for name, approach in APPROACHES.items()}
        described.append(
            {
                "source": group.source,
                "name": group.name,
                "plans": len(group.candidates),
                "approaches": {name: asdict(one) if one else None for name, one in outcomes.items()},
            }
        )
    return described


if __name__ == "__main__":
    raise SystemExit(main())
