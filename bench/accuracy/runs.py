"""Rows of the run table with what was predicted for them, prepared and evaluated once for all tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.accuracy.adapters.published import PublishedRun, prepare, read_published
from bench.accuracy.fitting import Timed
from estimator.pricing.evaluate import evaluate
from estimator.pricing.interval import ModelKind, memory_interval, time_interval
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from models_zoo.layers import Experts, TransformerBlock
from planner.one_job.validation.baselines import in_fit_half
from planner.one_job.validation.columns import RunRow
from planner.one_job.validation.results import RowResult
from planner.one_job.validation.run import STATED, predict_row
from profiles.vocabulary import Infeasible

THINNED = frozenset({"VTS"})
"""Sources whose times are exactly linear in layers and micro-batches: rows that share all else say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row as published, its result, and its plan and figures (None where it has no estimate)."""

    row: RunRow
    result: RowResult
    setup: Setup | None
    outcome: Evaluation | None

    @property
    def fitted(self) -> bool:
        """Whether the row is of the half that may be fitted on."""
        return in_fit_half(self.row.id)

    @property
    def error(self) -> float | None:
        """Signed relative error of the iteration time."""
        return self.result.error

    @property
    def device(self) -> str:
        """Name of the first stage's device, which all have in this table; the row's own word without an estimate."""
        return self.setup.stages[0].slots[0].device if self.setup else self.result.device


def load_runs(path: Path, progress: Callable[[str], None]) -> tuple[Run, ...]:
    """All rows of the table at `path`, in its order; InputError if it cannot be read."""
    rows = read_published(path)
    runs = []
    for number, row in enumerate(rows):
        if number % 200 == 0:
            progress(f"predicting row {number} of {len(rows)}")
        runs.append(_predict(row))
    return tuple(runs)


def timed_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Those with both a measured and an estimated time."""
    return tuple(run for run in runs if run.error is not None)


def thin_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """`runs` with one row for each distinct (hidden, tp, micro-batch) of the sources in `THINNED`: the middle by id."""
    cells: defaultdict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in runs:
        row = run.row
        known = (row.hidden, row.degree("tp"), row.micro_batch) if row.source in THINNED else (row.id,)
        cells[row.source, *known].append(run)
    return tuple(sorted(cell, key=lambda run: run.row.id)[len(cell) // 2] for cell in cells.values())


def as_timed(runs: Iterable[Run]) -> tuple[Timed, ...]:
    """`runs` as the fit takes them; those without a plan or a measured time are left out."""
    return tuple(
        Timed(
            id=run.row.id,
            source=run.result.source,
            setup=run.setup,
            measured_s=run.result.measured_iteration_time_s,
            fitted=run.fitted,
        )
        for run in runs
        if run.setup is not None and run.result.measured_iteration_time_s is not None
    )


def model_kind(setup: Setup) -> ModelKind:
    """Whether the model has mixtures of experts."""
    blocks = (layer for layer in setup.model.layers if isinstance(layer, TransformerBlock))
    return "experts" if any(isinstance(block.feed_forward, Experts) for block in blocks) else "dense"


def with_intervals(runs: Sequence[Run]) -> tuple[Run, ...]:
    """`runs` with the intervals that `profiles/data/uncertainty.toml` gives them now."""
    found = []
    for run in runs:
        if run.setup is None or run.outcome is None:
            found.append(run)
            continue
        outcome = _with_intervals(run.setup, run.outcome)
        result = replace(
            run.result,
            interval_90_s=_as_much_wider(outcome.interval_90_s, run.outcome.interval_90_s, run.result.interval_90_s),
            memory_interval_90_bytes=outcome.memory_interval_90_bytes,
        )
        found.append(replace(run, outcome=outcome, result=result))
    return tuple(found)


def _as_much_wider(
    interval_s: tuple[float, float], plain_s: tuple[float, float], widened_s: tuple[float, float] | None
) -> tuple[float, float]:
    """`interval_s` with its ends as much further as `widened_s` has them of `plain_s`."""
    if widened_s is None:
        return interval_s
    return interval_s[0] * widened_s[0] / plain_s[0], interval_s[1] * widened_s[1] / plain_s[1]


def _with_intervals(setup: Setup, outcome: Evaluation) -> Evaluation:
    device = setup.stages[0].slots[0].device
    return replace(
        outcome,
        interval_90_s=time_interval(outcome.iteration_time_s, outcome.breakdown, device, model_kind(setup)),
        memory_interval_90_bytes=memory_interval(outcome.peak_memory_bytes, device, model_kind(setup)),
    )


def _predict(row: PublishedRun) -> Run:
    """As `cellplan validate` predicts the explicit row, with the plan and its figures kept. Rows are repeats of one run
    where their sources state the same, blanks as blanks."""
    tried: list[tuple[Setup, Evaluation]] = []

    def keep(setup: Setup) -> Evaluation | Infeasible:
        outcome = evaluate(setup)
        if isinstance(outcome, Evaluation):
            outcome = _with_intervals(setup, outcome)
            tried.append((setup, outcome))
        return outcome

    result = predict_row(row.explicit, prepare=prepare, evaluate=keep)
    if not (result.predicted and tried):
        return Run(row=row.published, result=result, setup=None, outcome=None)
    seconds = result.estimated_iteration_time_s
    setup, outcome = next(each for each in tried if each[1].iteration_time_s == seconds)
    result = replace(result, stated=tuple(getattr(row.published, name) for name in STATED))
    return Run(row=row.published, result=result, setup=setup, outcome=outcome)
