"""`cellplan jct`: train a predictor of completion times on a trace, predict with it, and say how good it is."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from math import isfinite
from pathlib import Path
from typing import Any

from planner.cli.options import add_json_option, natural, positive_int
from planner.cli.output import format_seconds, print_json, print_table, print_text, progress

LOSSES = ("squared", "absolute", "log", "within-2x")
SHOWN = 30
TRACE_HELP = "a trace: CSV (plain or gzip) in the documented columns, or Philly's, Helios's, PAI's, sacct's own form"


def add_arguments(parser: ArgumentParser) -> None:
    """`jct train TRACE -o MODEL`, `jct predict MODEL TRACE` and `jct evaluate TRACE`."""
    actions = parser.add_subparsers(metavar="train|predict|evaluate", required=True)
    train = actions.add_parser("train", help="train a predictor on a trace")
    train.add_argument("trace", type=Path, metavar="TRACE", help=TRACE_HELP)
    train.add_argument("-o", "--output", type=Path, required=True, metavar="MODEL", help="the file to write")
    train.add_argument(
        "--until", dest="until_s", type=_seconds, metavar="S", help="know nothing after this time of the trace's clock"
    )
    predict = actions.add_parser("predict", help="predict jobs, each from what had finished when it was submitted")
    predict.add_argument("model", type=Path, metavar="MODEL", help="a file of `cellplan jct train`")
    predict.add_argument("trace", type=Path, metavar="TRACE", help=TRACE_HELP + "; a blank duration is fine")
    predict.add_argument("--history", type=Path, action="append", metavar="TRACE", help="earlier jobs, not predicted")
    predict.add_argument("--from", dest="from_s", type=_seconds, metavar="S", help="only jobs submitted from then on")
    predict.add_argument("--loss", choices=LOSSES, default="squared", help="what the point is to be best at")
    evaluate = actions.add_parser("evaluate", help="rolling chronological origins, beside baselines")
    evaluate.add_argument("trace", type=Path, metavar="TRACE", help=TRACE_HELP)
    evaluate.add_argument("--origins", type=positive_int, default=5, help="times to train at (default: %(default)s)")
    evaluate.add_argument(
        "--tested", type=_share, default=0.5, help="the last share of the jobs, in equal blocks (default: %(default)s)"
    )
    evaluate.add_argument("--network", action="store_true", help="a small neural network beside it (torch)")
    evaluate.add_argument("--quantiles", action="store_true", help="intervals from quantile boosters beside it")
    for action, run in ((train, _train), (predict, _predict), (evaluate, _evaluate)):
        if action is not predict:
            action.add_argument(
                "--cap", type=positive_int, default=24, help="the last, open interval of 10 minutes (default: 24)"
            )
            action.add_argument(
                "--search", type=natural, default=0, metavar="N", help="try N random parameter sets first (default: 0)"
            )
            action.add_argument("--seed", type=natural, default=0)
        action.add_argument("--threads", type=positive_int, default=2, help="default: %(default)s")
        add_json_option(action)
        action.set_defaults(run=run)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not isfinite(found):
        raise ArgumentTypeError(f"found {text!r}, expected seconds on the trace's clock")
    return found


def _share(text: str) -> float:
    found = _seconds(text)
    if not 0 < found < 1:
        raise ArgumentTypeError(f"found {text!r}, expected a share between 0 and 1")
    return found


def _train(arguments: Namespace) -> None:
    from planner import api

    with progress(f"training on {arguments.trace.name}") as report:
        result = api.jct_train(
            arguments.trace,
            output=arguments.output,
            cap=arguments.cap,
            until_s=arguments.until_s,
            search=arguments.search,
            seed=arguments.seed,
            threads=arguments.threads,
            progress=report,
        )
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
    from planner import api

    result = api.jct_predict(
        arguments.model,
        arguments.trace,
        history=None if arguments.history is None else tuple(arguments.history),
        loss=arguments.loss,
        from_s=arguments.from_s,
        threads=arguments.threads,
    )
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
    from planner import api

    with progress(f"evaluating {arguments.trace.name}") as report:
        result = api.jct_evaluate(
            arguments.trace,
            cap=arguments.cap,
            origins=arguments.origins,
            tested=arguments.tested,
            search=arguments.search,
            network=arguments.network,
            quantiles=arguments.quantiles,
            seed=arguments.seed,
            threads=arguments.threads,
            progress=report,
        )
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
