"""The plan of one job: estimated, searched, run, validated, written for a tool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.shared.options.call import takes
from planner.shared.options.code import CodeOfFileOptions
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.running import ExportOptions, RunOptions, ValidateOptions
from planner.shared.options.search import (
    AffordOptions,
    FrontOptions,
    LargestOptions,
    PlanOptions,
    SideBySideOptions,
    SmallestOptions,
)

if TYPE_CHECKING:
    from estimator.profiling.setting import Framework
    from planner.one_job.planning.affording import Affordable
    from planner.one_job.planning.answer import PlanAnswer
    from planner.one_job.planning.choices import Choice
    from planner.one_job.planning.largest import LargestPlan
    from planner.one_job.planning.plan_comparison import PlanComparison
    from planner.one_job.timeline.events import Timeline
    from planner.shared.plan import Plan


@takes(EstimateOptions)
def estimate(options: EstimateOptions) -> dict[str, Any]:
    """Return how fast the model trains on the cluster: its Cells, or one explicit plan.

    Without a degree of parallelism among the options, the Cells, one for each device type and stage count. With any, or
    with a `plan` file in place of model and options (`cluster` may then stand for the file's), that one plan: its
    record, and the estimate with time and memory taken apart; `output` and `timeline` are files to write them to. With
    `launcher` (`("megatron", ARGS)`, or `torchtitan` or `deepspeed` and a file) the plan is that launcher's present
    settings, compared with the best plan that the launcher can run, and `model` may be left out where these say it.

    With `network="flow"` the collectives of a plan's file are also timed as flows on the fabric (`network_flow`), and
    with `beside_jobs`, a file of jobs, the plan is played among these.

    With `largest` it is the explicit plan at the longest sequence, the largest micro-batch or of the largest model of
    the family that fits, and `largest` says which that is.

    `store` holds measured profiles and link tables; without it, or where it lacks something, the operator model and the
    catalogue's links stand in, and `assumptions` say so. NothingFits, which has the figures all the same, if no Cell
    can be had or the plan does not fit.
    """
    if options.report is not None:
        from planner.report.page import check_report
        from planner.report.writing import report_estimate

        check_report(options.report, where="estimate")
        answer = _estimate(options)
        code = options.user_code
        report_estimate(answer, options.report, store=options.store, profiles=options.profiles, code=code)
        return answer
    return _estimate(options)


def _estimate(options: EstimateOptions) -> dict[str, Any]:
    if options.launcher is not None:
        from planner.one_job.importing.best import best_of_setting
        from planner.one_job.importing.estimate import estimate_imported, tool_of_launcher

        find_best = best_of_setting(
            tool_of_launcher(options.launcher[0]), store=options.store, profiles=options.profiles
        )
        return estimate_imported(options, find_best=find_best)
    if options.largest is not None:
        from planner.one_job.explicit.largest import estimate_largest

        return estimate_largest(options)
    if options.explicit:
        from planner.one_job.planning.estimating_plan import estimate_plan

        return estimate_plan(options) if options.beside_jobs is None else _estimate_beside(options, options.beside_jobs)
    from planner.one_job.cells.estimating import estimate_cells

    return estimate_cells(options)


def _estimate_beside(options: EstimateOptions, jobs: Path) -> dict[str, Any]:
    """The estimate of a plan's file, and in its `network_flow` what becomes of it `beside` the jobs of another one."""
    from planner.contention.plan_beside import describe_beside, read_beside
    from planner.one_job.explicit.dispatch import read_any_request
    from planner.one_job.explicit.evaluation import pricing_with_store
    from planner.one_job.planning.estimating_plan import estimate_plan
    from planner.shared.inputs import open_existing

    with open_existing(options.store) as opened:
        setup = read_any_request(options, store=opened).setups[0]
        pricing = pricing_with_store(setup, store=opened, profiles=options.profiles)
        others = read_beside(jobs, setup)
        answer = estimate_plan(options)
        answer["network_flow"]["beside"] = describe_beside(setup, pricing, others)
    return answer


@takes(PlanOptions)
def plan(options: PlanOptions) -> PlanAnswer:
    """Return the best plan on the cluster's free devices, proved to be the best of the space that the options leave
    open, with what vouches for it.

    With `search="cells"` it is the best Cell's best assembly, as Crius estimates it, and with `search="crius"` that
    Cell tuned as Crius does. `profile_budget` seconds may be spent on running candidate plans on local workers. With
    `explain` also why: what binds, what the best plans without one of its choices lose, what more hardware or a larger
    batch would bring, what the constraints among the options cost, each a search of its own. With `compare` also what
    the plan in that file does otherwise. `output` and `timeline` are files to write. Failures as of `estimate`.
    """
    from planner.one_job.planning.answer import answer_plan

    if options.report is None:
        return answer_plan(options)
    from planner.report.page import check_report
    from planner.report.writing import report_plan

    check_report(options.report, where="plan")
    answer = answer_plan(options)
    report_plan(options, answer, options.report)
    return answer


@takes(FrontOptions)
def front(options: FrontOptions) -> tuple[Choice, ...]:
    """Return the plans that no other one beats in both time and devices, or time and memory of a device; the fastest
    first."""
    from planner.one_job.planning.choices import front as find_front

    return find_front(options)


@takes(SmallestOptions)
def smallest(options: SmallestOptions) -> Choice:
    """Return the best plan on the fewest of the cluster's devices on which an iteration takes at most `meet_s`
    seconds."""
    from planner.one_job.planning.choices import smallest as find_smallest

    return find_smallest(options)


@takes(LargestOptions)
def largest(options: LargestOptions) -> LargestPlan:
    """Return the longest sequence, the largest micro-batch or the largest model of the family for which any plan fits,
    with the best plan there."""
    from planner.one_job.planning.largest import find_largest

    return find_largest(options)


@takes(SideBySideOptions)
def side_by_side(options: SideBySideOptions) -> tuple[Choice, ...]:
    """Return the best plan on the cluster, and on each of the clusters `beside` it."""
    from planner.one_job.planning.choices import side_by_side as find_side_by_side

    return find_side_by_side(options)


@takes(AffordOptions)
def afford(options: AffordOptions) -> Affordable:
    """Return which of the clusters, and how many of its devices, ends a whole training within `budget` the fastest, or
    within `days` (and `budget`) the cheapest, with all that was looked at; NothingFits, with the same, where nothing
    is within. `output` is a file for its plan."""
    from planner.one_job.planning.affording import afford as find_affordable

    return find_affordable(options)


def compare(
    plan: Plan | Path,
    other: Path,
    *,
    profiles: Framework | None = None,
    store: Path | None = None,
    code: tuple[str, ...] = (),
) -> PlanComparison:
    """A plan (or that of a file) beside the plan in the file `other`, which is estimated again: what it does otherwise,
    and what of an iteration and of memory takes more. `code` as in `timeline`."""
    from planner.one_job.planning.plan_comparison import compare_with_file
    from planner.shared.plan_file import load_plan

    first_plan = load_plan(plan) if isinstance(plan, Path) else plan
    user_code = CodeOfFileOptions(code=code).user_code
    return compare_with_file(first_plan, other, store=store, profiles=profiles, code=user_code)


def timeline(
    plan: Plan | Path,
    *,
    output: Path | None = None,
    profiles: Framework | None = None,
    store: Path | None = None,
    code: tuple[str, ...] = (),
) -> Timeline:
    """When each stage of a plan, or of the plan in a file, works on which micro-batch, as `estimate` has it.

    `output` is a file to write it to: a picture (.svg) or a trace for Perfetto (.json, .json.gz). `store` and
    `profiles` (whose measured layer times count) as in `estimate`. `code` is what the plan may run of the caller's own.
    """
    from planner.one_job.timeline.events import make_timeline
    from planner.one_job.timeline.save import save_timeline, timeline_form
    from planner.shared.inputs import open_existing
    from planner.shared.plan_file import load_plan

    if output is not None:
        timeline_form(output)
    where, read = (str(plan), load_plan(plan)) if isinstance(plan, Path) else ("plan", plan)
    with open_existing(store) as opened:
        user_code = CodeOfFileOptions(code=code).user_code
        drawn = make_timeline(read, where=where, store=opened, profiles=profiles, code=user_code)
    if output is not None:
        save_timeline(drawn, output)
    return drawn


@takes(RunOptions)
def run(options: RunOptions) -> dict[str, Any] | None:
    """Train some iterations with exactly the plan in `file`, and set what was measured beside the estimate.

    Each rank is a process of this machine, or this process is one rank of `world`; of those, rank 0 alone returns
    something. `warm_up` iterations come before the `steps` that are measured; `losses` holds all of them. `data` is
    a file of tokens (`data_dtype` where it is raw), None random samples. On a CPU a worker computes with `threads`,
    on cores of its own where `pin` and there are enough. After `timeout` seconds without any rank getting on it is
    given up. `profile` first measures on one device what the store lacks for the estimate; `learn` puts what the
    run measured into the store; `trace` is a file for Perfetto.
    """
    from planner.one_job.running.run import run_plan

    path = options.report
    if path is None:
        return run_plan(options)
    from planner.report.page import check_report
    from planner.report.writing import report_run

    check_report(path, where="run")
    return run_plan(options, show=lambda answer, traced: report_run(answer, traced, path))


@takes(ValidateOptions)
def validate(options: ValidateOptions) -> dict[str, Any]:
    """Predict every run of the CSV table at `path` from its configuration alone, beside what was measured.

    Rows with errors, groups with statistics and baselines, and what could not be predicted with the reason; see
    `planner.one_job.validation`. `store` holds measured profiles, which win over the operator model. `plot` is a file
    for the picture, coloured by `group` (None: by source).
    """
    from planner.one_job.validation.plot import save_plot
    from planner.one_job.validation.run import validate_runs
    from planner.shared.inputs import open_existing
    from planner.shared.pictures import picture_format

    if options.plot is not None:
        picture_format(options.plot, where="validate")  # what cannot be drawn is said before the work, not after it
    if options.report is not None:
        from planner.report.page import check_report
        from planner.report.writing import report_validation

        check_report(options.report, where="validate")
    with open_existing(options.store) as opened:
        result = validate_runs(options.path, store=opened, progress=options.progress)
    if options.plot is not None:
        save_plot(options.plot, result["rows"], by=options.group or "source")
    if options.report is not None:
        report_validation(options, result, options.report)
    return result


@takes(ExportOptions)
def export(options: ExportOptions) -> dict[str, Any]:
    """Write the plan in a file as what a tool is started with; return its files and what the user should know of them.

    `to` is a format of `export_formats`; `script` the training script that a launcher starts; `output` a file, or a
    folder where there are several. NothingFits where the tool cannot run the plan, with the key of the plan, the
    nearest plan that it runs and both times; `nearest` exports that one instead. `network` is a file that
    `contention` wrote, whose job `job` is the plan's: what a manager starts has its level in its environment.
    `store` as in `estimate`.
    """
    from planner.one_job.exporting.exporting import export_plan

    if options.network is None:
        return export_plan(options)
    from planner.contention.plan_environment import environment_of_plan

    return export_plan(options, lambda plan: environment_of_plan(plan, options))


def export_formats() -> list[dict[str, str]]:
    """Return the formats that a plan is exported in, each with a line about it."""
    from planner.one_job.exporting.exporting import list_formats

    return list_formats()
