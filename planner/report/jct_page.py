"""Predictions of completion times as a page: how good they are, beside baselines and over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.report.charts import bars, lines
from planner.report.records import Chart, Fact, Page, Section, Table

COLUMNS = ("", "RMSE", "MAE", "RMSE of log", "within 2x")
DAY = 86400.0


def jct_page(answer: Mapping[str, Any], *, trace: str) -> Page:
    """Return the page of what `jct evaluate --json` prints of the trace."""
    rows = [("the model", answer)]
    if answer["network"] is not None:
        rows.append(("neural network", answer["network"]))
    rows += list(answer["baselines"].items())
    table = Table(
        title="Errors in intervals of 10 minutes",
        columns=COLUMNS,
        rows=tuple((name, *_figures(figures)) for name, figures in rows),
    )
    chart = Chart(
        title="RMSE of the logarithm: the model and baselines, least first",
        about="Bars: the error of the model and of each baseline",
        spec=bars(
            [
                {"name": name, "rmse": each["log_rmse"]}
                for name, each in sorted(rows, key=lambda row: row[1]["log_rmse"])
            ],
            along="rmse",
            of="name",
            unit="RMSE of the logarithm",
        ),
    )
    origins = [
        {"days": origin["origin_s"] / DAY, "rmse": origin["log_rmse"], "of": "the model"}
        for origin in answer["origins"]
    ]
    over_time = Chart(
        title="Over time: each block predicted by a model of what was known when it began",
        about="The error of the model in each block of jobs",
        spec=lines(origins, x="days", y="rmse", x_unit="days", y_unit="RMSE of the logarithm", of="of"),
    )
    by_origin = Table(
        title="By block",
        columns=("trained at, days", "on jobs", *COLUMNS[1:]),
        rows=tuple(
            (f"{origin['origin_s'] / DAY:.1f}", f"{origin['training_jobs']:,}", *_figures(origin))
            for origin in answer["origins"]
        ),
        folded=True,
    )
    return Page(
        title=f"Completion times predicted: {trace}",
        subtitle=f"{answer['test_jobs']:,} tested jobs, intervals of 10 minutes up to {answer['cap_intervals']}",
        facts=(
            Fact(label="within a factor of two", value=f"{answer['within_2x']:.1%}"),
            Fact(label="RMSE of the logarithm", value=f"{answer['log_rmse']:.3f}"),
            Fact(label="mean error", value=f"{answer['mae_intervals']:.2f} intervals", note="of 10 minutes"),
            Fact(
                label="90% intervals hold",
                value=f"{answer['coverage_90']:.1%}",
                note=f"{answer['width_90_intervals']:.1f} intervals wide",
            ),
        ),
        sections=(
            Section(name="beside", title="Beside baselines", parts=(chart, table)),
            Section(name="time", title="Over time", parts=(over_time, by_origin)),
        ),
        notes=("Each block of jobs is predicted by what was known before it.",),
        answer=answer,
    )


def _figures(errors: Mapping[str, Any]) -> tuple[str, ...]:
    digits = [f"{errors[key]:.3f}" for key in ("rmse_intervals", "mae_intervals", "log_rmse")]
    return (*digits, f"{errors['within_2x']:.1%}")
