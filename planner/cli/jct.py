"""`cellplan jct`: train a predictor of completion times on a trace, predict with it, and say how good it is."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.arguments import add_options, chosen
from planner.cli.output import format_seconds, print_json, print_table, print_text, progress
from planner.shared.options.jct import JctEvaluateOptions, JctPredictOptions, JctTrainOptions

SHOWN = 30


def add_arguments(parser: ArgumentParser) -> None:
    """`jct train TRACE -o MODEL`, `jct predict MODEL TRACE` and `jct evaluate TRACE`."""
    actions = parser.add_subparsers(metavar="train|predict|evaluate", required=True)
    train = actions.add_parser("train", help="train a predictor on a trace")
    predict = actions.add_parser("predict", help="predict jobs, each from what had finished when it was submitted")
    evaluate = actions.add_parser("evaluate", help="rolling chronological origins, beside baselines")
    for action, kind, run in (
        (train, JctTrainOptions, _train),
        (predict, JctPredictOptions, _predict),
        (evaluate, JctEvaluateOptions, _evaluate),
    ):
        add_options(action, kind)
        action.set_defaults(run=run)


def _train(arguments: Namespace) -> None:
    with progress(f"training on {arguments.trace.name}") as report:
        result = api.jct_train(chosen(arguments, JctTrainOptions, progress=report))
    if arguments.json:
        print_json(result)
        return
    window = result["training_window"]
    print_text(
        f"{result['model']}: {window['jobs']} of {result['jobs']} jobs, submitted from {window['first_submit_s']:g} to "
        f"{window['last_submit_s']:g} s; {len(result['features'])} features of {', '.join(result['columns'])}; "
        f"{format_seconds(result['timing']['train_s'])}",
        indent="  ",
    )
    rows = [(name, f"{share:.1%}") for name, share in result["most_used"].items()]
    print_table("What the trees use most", ("feature", "share of gain"), rows)


def _predict(arguments: Namespace) -> None:
    result = api.jct_predict(chosen(arguments, JctPredictOptions))
    if arguments.json:
        print_json(result)
        return
    jobs = result["jobs"]
    title = f"{len(jobs)} jobs, predicted for the {result['loss']} loss (modelled)"
    rows = [_predicted_row(job) for job in jobs[:SHOWN]]
    print_table(title, ("job", "submitted, s", "interval", "point", "90% from", "to"), rows)
    if len(jobs) > SHOWN:
        print_text(f"{len(jobs) - SHOWN} more: --json has all of them.")
    if result["unknown_columns"]:
        print_text(f"The model knows columns that this trace lacks: {', '.join(result['unknown_columns'])}.")


def _predicted_row(job: dict[str, Any]) -> tuple[str, ...]:
    low, high = job["interval_90_s"]
    return (
        job["job_id"],
        f"{job['submit_time_s']:g}",
        str(job["interval"]),
        f"{job['point_s'] / 60:.0f} min",
        f"{low / 60:.0f} min",
        "open" if high is None else f"{high / 60:.0f} min",
    )


def _evaluate(arguments: Namespace) -> None:
    with progress(f"evaluating {arguments.trace.name}") as report:
        result = api.jct_evaluate(chosen(arguments, JctEvaluateOptions, progress=report))
    if arguments.json:
        print_json(result)
        return
    rows = [("the model", *_figures(result))]
    if result["network"] is not None:
        rows.append(("neural network", *_figures(result["network"])))
    rows += [(name, *_figures(figures)) for name, figures in result["baselines"].items()]
    title = f"{result['test_jobs']} tested jobs, intervals of 10 minutes up to {result['cap_intervals']}"
    print_table(title, ("", "RMSE", "MAE", "RMSE of log", "within 2x"), rows)
    rows = [(f"{one['origin_s']:g}", str(one["training_jobs"]), *_figures(one)) for one in result["origins"]]
    print_table("By origin", ("trained at, s", "on jobs", "RMSE", "MAE", "RMSE of log", "within 2x"), rows)
    print_text(
        f"90% intervals hold {result['coverage_90']:.1%} and are {result['width_90_intervals']:.1f} intervals wide."
    )
    if result["quantiles"] is not None:
        beside = result["quantiles"]
        print_text(f"Quantile boosters': {beside['coverage_90']:.1%}, {beside['width_90_intervals']:.1f} wide.")


def _figures(found: dict[str, float]) -> tuple[str, ...]:
    return (
        f"{found['rmse_intervals']:.3f}",
        f"{found['mae_intervals']:.3f}",
        f"{found['log_rmse']:.3f}",
        f"{found['within_2x']:.1%}",
    )
