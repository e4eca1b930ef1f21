"""`cellplan jct`: train a predictor of completion times on a trace, predict with it, and say how good it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_actions
from planner.cli.output import format_seconds, print_table, print_text

SHOWN = 30


def add_arguments(parser: ArgumentParser) -> None:
    """`jct train TRACE -o MODEL`, `jct predict MODEL TRACE` and `jct evaluate TRACE`."""
    add_actions(
        parser,
        train=Action(api.jct_train, _print_training, "train a predictor on a trace", doing="training on {trace.name}"),
        predict=Action(
            api.jct_predict, _print_predictions, "predict jobs, each from what had finished when it was submitted"
        ),
        evaluate=Action(
            api.jct_evaluate,
            _print_evaluation,
            "rolling chronological origins, beside baselines",
            doing="evaluating {trace.name}",
        ),
    )


def _print_training(result: dict[str, Any], _: Namespace) -> None:
    window = result["training_window"]
    print_text(
        f"{result['model']}: {window['jobs']} of {result['jobs']} jobs, submitted from {window['first_submit_s']:g} to "
        f"{window['last_submit_s']:g} s; {len(result['features'])} features of {', '.join(result['columns'])}; "
        f"{format_seconds(result['timing']['train_s'])}",
        indent="  ",
    )
    rows = [(name, f"{share:.1%}") for name, share in result["most_used"].items()]
    print_table("What the trees use most", ("feature", "share of gain"), rows)


def _print_predictions(result: dict[str, Any], _: Namespace) -> None:
    jobs = result["jobs"]
    title = f"{len(jobs)} jobs, predicted for the {result['loss']} loss (modelled)"
    rows = [_predicted_row(job) for job in jobs[:SHOWN]]
    print_table(title, ("job", "submitted, s", "interval", "point", "90% from", "to"), rows)
    if len(jobs) > SHOWN:
        print_text(f"{len(jobs) - SHOWN} more: --json has all of them.")
    if result["unknown_columns"]:
        print_text(f"The model knows columns that this trace lacks: {', '.join(result['unknown_columns'])}.")


def _predicted_row(job: dict[str, Any]) -> tuple[object, ...]:
    low, high = job["interval_90_s"]
    return (
        job["job_id"],
        f"{job['submit_time_s']:g}",
        job["interval"],
        f"{job['point_s'] / 60:.0f} min",
        f"{low / 60:.0f} min",
        "open" if high is None else f"{high / 60:.0f} min",
    )


def _print_evaluation(result: dict[str, Any], _: Namespace) -> None:
    rows = [("the model", *_figures(result))]
    if result["network"] is not None:
        rows.append(("neural network", *_figures(result["network"])))
    rows += [(name, *_figures(figures)) for name, figures in result["baselines"].items()]
    title = f"{result['test_jobs']} tested jobs, intervals of 10 minutes up to {result['cap_intervals']}"
    print_table(title, ("", "RMSE", "MAE", "RMSE of log", "within 2x"), rows)
    by_origin = [
        (f"{origin['origin_s']:g}", origin["training_jobs"], *_figures(origin)) for origin in result["origins"]
    ]
    print_table("By origin", ("trained at, s", "on jobs", "RMSE", "MAE", "RMSE of log", "within 2x"), by_origin)
    print_text(
        f"90% intervals hold {result['coverage_90']:.1%} and are {result['width_90_intervals']:.1f} intervals wide."
    )
    if result["quantiles"] is not None:
        beside = result["quantiles"]
        print_text(f"Quantile boosters': {beside['coverage_90']:.1%}, {beside['width_90_intervals']:.1f} wide.")


def _figures(errors: dict[str, float]) -> tuple[str, ...]:
    digits = [f"{errors[key]:.3f}" for key in ("rmse_intervals", "mae_intervals", "log_rmse")]
    return (*digits, f"{errors['within_2x']:.1%}")
