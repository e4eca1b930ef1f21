"""Jobs on a cluster: where one runs, how all fare under a policy, when they will end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planner.shared.options.call import takes
from planner.shared.options.jct import JctEvaluateOptions, JctPredictOptions, JctTrainOptions
from planner.shared.options.place import PlaceOptions
from planner.shared.options.simulate import SimulateOptions, SweepOptions

if TYPE_CHECKING:
    from planner.many_jobs.simulation.run import Simulated


@takes(PlaceOptions)
def place(options: PlaceOptions) -> dict[str, Any]:
    """Return over which sites of the cluster a job of `devices` devices runs, in which of their pods, on which nodes,
    under which plan, and what else could be done: `alternatives` other ways at most are planned, and as many placed.

    `plan` is a file whose plan is placed, in place of a model; `local` the site that the job is submitted at; `method`
    how pods or sites are chosen (docs/pods.md); `alpha`, `affinity`, `distance` and `affinity_else` say what a DP
    group's spread weighs, `max_spread` how far groups may reach; `types` are the device types to take (none: any).
    `comm` are files of measured links, `links` the state that they are added to, ages counted to `now` (seconds since
    1970; None: by the clock). `running` are the jobs that run, which end by their limits or by `jct`: start now or
    wait, and with `reserve` what to hold; `spares` nodes are kept, `replace` is a host of `plan` that failed,
    `measure_affinity` a database that a row is added to. Where `free` or `running` say that machines are partly used
    the job gets single GPUs of them (docs/machines.md); `move` says how many running jobs may be moved so that it fits
    whole, each standing still for `move_time` seconds. `output` is a file for the plan; where the links are not the
    cluster file's, a cluster file is written beside it. NothingFits where sites, pods or memory do not suffice.
    """
    if options.report is None:
        return _place(options)
    from planner.report.page import check_report
    from planner.report.writing import report_placed

    check_report(options.report, where="place")
    answer = _place(options)
    if answer.get("plan"):
        from planner.one_job.explicit.details import plan_details

        answer |= plan_details(answer["plan"], store=options.store, profiles=None, code=options.user_code)
    report_placed(options, answer, options.report)
    return answer


def _place(options: PlaceOptions) -> dict[str, Any]:
    from estimator.pricing.training import over_limits
    from planner.many_jobs.placement.alternatives import other_ways
    from planner.many_jobs.placement.describing import describe_placed, save_placed
    from planner.many_jobs.placement.later import look_later
    from planner.many_jobs.placement.placing import place_model
    from planner.one_job.explicit.whole import read_whole
    from planner.one_job.launchers.node_layout import job_name
    from planner.one_job.planning.whole_training import train_plan
    from profiles.errors import NothingFits

    if options.plan is not None and options.replace is not None:
        from planner.many_jobs.placement.replacing import replace_in_plan

        return replace_in_plan(options, options.plan, options.replace)
    from planner.many_jobs.placement.machines.answer import place_on_machines

    on_machines = place_on_machines(options)
    if on_machines is not None:
        return on_machines
    if options.plan is not None:
        from planner.many_jobs.placement.existing import place_existing

        return place_existing(options, options.plan)
    whole = read_whole(options)
    placed = place_model(options)
    later = look_later(placed.placed_plan, options, whole)
    training = None if whole is None else train_plan(whole, placed.plan, placed.ground.cluster)
    plan = placed.plan
    if options.output is not None:
        plan = save_placed(placed, options.output, later.reserved if options.reserve else None)[0]
    described = describe_placed(placed, plan, other_ways(placed, options), options, training)
    described |= later.describe(options, job_name(plan))
    over = () if whole is None or training is None else over_limits(whole, training)
    if over:
        raise NothingFits(f"{options.model} on {options.cluster}: placed, but {' and '.join(over)}", result=described)
    return described


@takes(SimulateOptions)
def simulate(options: SimulateOptions) -> Simulated:
    """Replay a trace on a cluster under a policy of `planner.many_jobs.policies.catalogue` (or
    `package.module:Class`) with its options, and return what it comes to.

    `planner.many_jobs.simulation.result.Summary` says what the figures are. `jobs_csv`, `series_csv`, `timeline` and
    `plot` are files to write; `bound` adds what no policy can beat. With `checkpoint` the run writes there what it
    takes to go on, every `checkpoint_every_s` seconds and when `stop` says that it must end (KeyboardInterrupt); with
    `resume` it goes on from that file, where there is one, to the very result of a run without a stop.
    """
    from planner.many_jobs.simulation.run import simulate_trace

    if options.report is None:
        return simulate_trace(options)
    from planner.report.page import check_report
    from planner.report.writing import report_simulation

    check_report(options.report, where="simulate")
    answer = simulate_trace(options)
    report_simulation(options, answer, options.report)
    return answer


@takes(SweepOptions)
def simulate_sweep(options: SweepOptions) -> dict[str, Any]:
    """Run `simulate` for each policy, seed and load, in `workers` processes of this machine or on the Ray cluster at
    `ray`, and return `runs` (a summary of each) and `means` over the seeds with half the width of their 95% confidence
    intervals."""
    from planner.many_jobs.simulation.sweep import simulate_sweep as sweep

    if options.report is None:
        return sweep(options)
    from planner.report.page import check_report
    from planner.report.writing import report_sweep

    check_report(options.report, where="simulate")
    answer = sweep(options)
    report_sweep(options, answer, options.report)
    return answer


@takes(JctTrainOptions)
def jct_train(options: JctTrainOptions) -> dict[str, Any]:
    """Train a predictor of completion times on a trace and write it to `output`; return what it rests on.

    `cap` is the last, open one of the intervals of 600 s. Nothing is used that was not known at `until_s` on the
    trace's clock (None: all of it). `search` parameter sets are drawn at random and compared on chronological splits.
    """
    from planner.many_jobs.jct.commands import train_file

    return train_file(options)


@takes(JctPredictOptions)
def jct_predict(options: JctPredictOptions) -> dict[str, Any]:
    """Return what the model in a file says of the jobs of `trace`: the likely interval, a point for the loss, a 90%
    interval.

    Each job is predicted from what is known at its submission: itself, and the jobs of `trace` and of the files in
    `history` before it. `from_s`: only jobs submitted from then on.
    """
    from planner.many_jobs.jct.commands import predict_file

    return predict_file(options)


@takes(JctEvaluateOptions)
def jct_evaluate(options: JctEvaluateOptions) -> dict[str, Any]:
    """Return how good predictions of a trace are, beside baselines: the last share `tested` of its jobs in `origins`
    blocks, each predicted by a model of what was known when it begins. `network` and `quantiles` set the paper's neural
    network and intervals of quantile boosters beside it. Errors are in intervals of 600 s; see
    `planner.many_jobs.jct.evaluation`.
    """
    from planner.many_jobs.jct.commands import evaluate_file

    if options.report is None:
        return evaluate_file(options)
    from planner.report.page import check_report
    from planner.report.writing import report_jct

    check_report(options.report, where="jct evaluate")
    answer = evaluate_file(options)
    report_jct(options, answer, options.report)
    return answer
