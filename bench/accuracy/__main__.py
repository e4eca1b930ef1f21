"""How far estimates are from published runs: writes RESULTS.md and the plot, and fits what is fitted on whole runs.

    python -m bench.accuracy --data DIR [--fit] [--intervals] [--out FOLDER]

from the root of the repository; DIR holds train_runs.csv, and may hold train_runs_2.csv and
settings_*.csv (their columns: planner/one_job/validation/COLUMNS.md, bench/accuracy/adapters/told.py). Every source and
every generation of devices is left out once, which takes some minutes. `--fit` first fits
profiles/data/training.toml on the fit half and writes its values; `--intervals` writes profiles/data/uncertainty.toml.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.accuracy.ablation import write_ablation
from bench.accuracy.fitting import committed_values
from bench.accuracy.groups import GROUPS
from bench.accuracy.intervals import calibrate, calibrate_time, write_uncertainty
from bench.accuracy.left_out import Slopes, fit_all, fit_rows, take_slopes
from bench.accuracy.parameters import set_values, write_elsewhere, write_parameters
from bench.accuracy.report import (
    write_baselines,
    write_coverage,
    write_halves,
    write_header,
    write_memory,
    write_noise,
    write_skipped,
    write_targets,
    write_worst,
)
from bench.accuracy.runs import Run, load_runs, thin_runs, timed_runs, with_intervals
from bench.accuracy.unseen import covered_by_others, describe_unseen, leave_out, write_unseen
from planner.one_job.validation.plot import draw_runs
from profiles.files import write_atomically
from profiles.tables import write_tables
from profiles.training_parameters import load_training_parameters, load_training_rows
from profiles.uncertainty import generation_of, load_uncertainty

DATA_FOLDER = Path(__file__).parents[2] / "profiles" / "data"
RUNS = "train_runs.csv"
MORE_RUNS = "train_runs_2.csv"
RESULTS = "RESULTS.md"
PLOT = "measured-against-estimated.svg"
UNSEEN = "Sources that nothing was fitted on"


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 where DIR has no run table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help=f"folder of {RUNS}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to")
    parser.add_argument("--fit", action="store_true", help="fit the parameters and write training.toml")
    parser.add_argument("--intervals", action="store_true", help="calibrate the intervals and write uncertainty.toml")
    options = parser.parse_args(arguments)
    path = options.data / RUNS
    if not path.is_file():
        print(f"skipped: no {path}")
        return 2
    runs = _load(options.data)
    if options.fit:
        _fit_and_write(runs)
        runs = _load(options.data)
    values = committed_values()
    slopes = take_slopes(fit_rows(runs), values, progress)
    by_source = leave_out(runs, slopes, lambda run: run.result.source, progress)
    by_generation = leave_out(runs, slopes, lambda run: generation_of(run.device), progress)
    if options.intervals:
        uncertainty = calibrate(runs, by_source, by_generation)
        write_tables(DATA_FOLDER / "uncertainty.toml", write_uncertainty(uncertainty))
        load_uncertainty.cache_clear()
        runs = with_intervals(runs)
    unseen = write_unseen(by_source, covered_by_others(by_source, by_generation, calibrate_time))
    results = options.out / RESULTS
    name = f"{RUNS} and {MORE_RUNS}" if (options.data / MORE_RUNS).is_file() else RUNS
    write_atomically(results, describe(runs, slopes, unseen, name=name))
    write_atomically(options.out / PLOT, draw_runs(list(map(describe_unseen, by_source)), by="generation"))
    print(f"written: {results} and {options.out / PLOT}")
    return 0


def _load(folder: Path) -> tuple[Run, ...]:
    """All rows of the run tables in `folder`, the first of which is there."""
    paths = [folder / name for name in (RUNS, MORE_RUNS)]
    return tuple(run for path in paths if path.is_file() for run in load_runs(path, progress))


def describe(runs: Sequence[Run], slopes: Slopes, unseen: str, *, name: str) -> str:
    """The whole of RESULTS.md."""
    sections: list[tuple[str, Callable[[], str]]] = [
        (UNSEEN, lambda: unseen),
        ("Targets", lambda: write_targets(runs)),
        ("Both halves", lambda: write_halves(runs)),
        ("Baselines and peers", lambda: write_baselines(runs)),
        ("Memory", lambda: write_memory(runs)),
        ("Coverage of the 90% interval", lambda: write_coverage(runs)),
        ("Noise floor", lambda: write_noise(runs)),
        ("Ablation", lambda: write_ablation(thin_runs(timed_runs(runs)), GROUPS, slopes.values, progress)),
        ("Parameters of whole runs", lambda: write_parameters(slopes)),
        ("Other figures that rest on runs", write_elsewhere),
        ("Furthest off", lambda: write_worst(runs)),
        ("Skipped", lambda: write_skipped(runs)),
    ]
    texts = [f"## {title}\n\n{write()}" for title, write in sections]
    plot = f"![measured against estimated]({PLOT})"
    return "\n\n".join((write_header(runs, name), plot, *texts)) + "\n"


def progress(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)


def _fit_and_write(runs: Sequence[Run]) -> None:
    path = DATA_FOLDER / "training.toml"
    write_tables(path, set_values(path.read_text(encoding="utf-8"), fit_all(fit_rows(runs), progress)))
    load_training_rows.cache_clear()
    load_training_parameters.cache_clear()


if __name__ == "__main__":
    raise SystemExit(main())
