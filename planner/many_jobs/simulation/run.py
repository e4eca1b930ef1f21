"""From a request to a result: reads trace and cluster, makes jobs and Cells, and simulates."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from planner.many_jobs.jobs.records import CellBook, Job, Policy, Pool
from planner.many_jobs.placers.catalogue import BEST_FIT, PLACERS, make_placer
from planner.many_jobs.policies.user_policy import Makers, try_apart
from planner.many_jobs.scheduling.bound import Bounds, bound_run, counts_of
from planner.many_jobs.scheduling.cell_book import EstimatedCells, common_dtype, left_out, pool_prices
from planner.many_jobs.scheduling.cell_use import uses_of_cells
from planner.many_jobs.scheduling.measured import cells_on
from planner.many_jobs.scheduling.pool_networks import pool_networks
from planner.many_jobs.simulation.apart import simulate_apart
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures, read_failures
from planner.many_jobs.simulation.iteration_times import iteration_times, price_notes
from planner.many_jobs.simulation.moving import check_moving
from planner.many_jobs.simulation.network_choice import network_steering
from planner.many_jobs.simulation.plot import save_plot
from planner.many_jobs.simulation.result import Result, summary_json
from planner.many_jobs.simulation.seat_shapes import uplinks_of_pools
from planner.many_jobs.simulation.settings import CheckpointFile, Predictor, Settings
from planner.many_jobs.simulation.tables import jobs_csv, series_csv
from planner.many_jobs.simulation.timeline import check_timeline, save_timeline
from planner.many_jobs.traces.assign import assign_workloads
from planner.many_jobs.traces.job_models import with_job_models
from planner.many_jobs.traces.logged import Logged, as_logged, overfilling
from planner.many_jobs.traces.read import read_trace
from planner.many_jobs.traces.records import head, load, window
from planner.shared.options.record import Progress
from planner.shared.options.simulate import PolicyOption, ReplayOptions, SimulateOptions, TraceOptions
from planner.shared.pictures import picture_format
from profiles.cluster_file import load_cluster
from profiles.errors import InputError, MachineError
from profiles.files import check_folder, write_atomically
from profiles.numerals import read_number
from profiles.records import dataclass

SCOPE = (
    "the bounds hold for grants on one pool of as many devices as a power of two, as a job asked for, halved or"
    " doubled, or as some job got in this run; JCT and makespan are compared over the jobs that finished"
)
NO_BOUND = "no bound: it holds for grants of devices of one's own on one pool, and this run had others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a source means. `notes`: what was left out, drawn or assumed. `logged`: how the jobs fared in the log."""

    jobs: tuple[Job, ...]
    pools: Mapping[str, Pool]
    cells: EstimatedCells
    notes: tuple[str, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    logged: Logged | None = None


def check_files(options: SimulateOptions) -> None:
    """Raise InputError for a file that the run cannot write, whole or not at all, before it begins."""
    for key, path in (("--jobs-csv", options.jobs_csv), ("--series-csv", options.series_csv)):
        if path is not None:
            check_folder(path, where="simulate", key=key)
    if options.timeline is not None:
        check_timeline(options.timeline)
    if options.plot is not None:
        picture_format(options.plot, where="simulate")


def save_files(options: SimulateOptions, result: Result) -> None:
    """Write the files that the options name."""
    if options.jobs_csv is not None:
        write_atomically(options.jobs_csv, jobs_csv(result))
    if options.series_csv is not None:
        write_atomically(options.series_csv, series_csv(result))
    if options.timeline is not None:
        save_timeline(options.timeline, result)
    if options.plot is not None:
        save_plot(options.plot, {result.summary.policy: result})


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What `cellplan simulate` has to say: the result, what was left out, drawn or assumed, and where asked for what no
    policy can beat. `skipped`: lines of the trace by why they were left out; `logged`: how its jobs fared where it was
    logged, where it says; `devices_per_node`: of each pool."""

    result: Result
    notes: tuple[str, ...]
    skipped: Mapping[str, int]
    bounds: Bounds | None = None
    logged: Logged | None = None
    devices_per_node: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as values that `json.dumps` takes."""
        bounds = None if self.bounds is None else asdict(self.bounds)
        logged = None if self.logged is None else self.logged.as_dict()
        more = {
            "bounds": bounds,
            "as_logged": logged,
            "skipped_lines": dict(self.skipped),
            "notes": list(self.notes),
        }
        return summary_json(self.result) | more


def simulate_trace(options: SimulateOptions) -> Simulated:
    """Return what a run comes to, and write its files. Raise as `load_inputs` and `run_request`."""
    check_files(options)
    given = options_of(options.policy, options.option, (options.policy,))
    placing = options_of(options.placer, options.placer_option, (options.placer,), key="--placer-option")
    options = replace(options, option=given, placer_option=placing)
    _try_code(options)  # What is wrong with it is said before a long trace is read.
    inputs = load_inputs(options)
    checkpoint = None
    if options.checkpoint is not None:
        checkpoint = CheckpointFile(
            path=options.checkpoint,
            every_s=options.checkpoint_every_s,
            resume=options.resume,
            label=_label(options, given, placing),
        )
    result = run_request(
        options,
        inputs,
        series=any(path is not None for path in (options.series_csv, options.timeline, options.plot, options.report)),
        slices=any(path is not None for path in (options.timeline, options.jobs_csv, options.report)),
        checkpoint=checkpoint,
        progress=options.progress,
        stop=options.stop,
    )
    save_files(options, result)
    restart = (
        f"a restart takes {options.restart_s:g} s and the checkpoint's bytes at"
        f" {options.storage_bandwidth_bytes_per_s / 1e9:g} GB/s, under every policy; the first start is free"
    )
    priced = price_notes(options.placement_cost, inputs.jobs, options.network, network_steering(options))
    notes = [*inputs.notes, *priced, restart]
    bounds = bound_result(result, inputs.pools, inputs.cells) if options.bound else None
    if options.bound:
        notes.append(SCOPE if bounds else NO_BOUND)
    return Simulated(
        result=result,
        notes=tuple(notes),
        skipped=inputs.skipped,
        bounds=bounds,
        logged=inputs.logged,
        devices_per_node={name: pool.devices_per_node for name, pool in inputs.pools.items()},
    )


def _label(options: ReplayOptions, given: Mapping[str, object], placing: Mapping[str, object]) -> str:
    """What of the options a run from a checkpoint must have in common with the one that wrote it, in a text."""
    rule = repr((options.placer, *placing.items())) if _has_rule(options) else ""
    priced = "" if options.placement_cost == "none" else options.placement_cost
    met = "" if options.network == "none" else f"{options.network} {options.seed}"
    steering = network_steering(options)
    return repr(tuple(given.items())) + rule + priced + met + ("" if steering is None else steering.label)


def bound_result(result: Result, pools: Mapping[str, Pool], cells: CellBook) -> Bounds | None:
    """What no policy can beat on the jobs of this run, None where it joined pools or jobs took turns: of the jobs that
    finished the least mean JCT and makespan; of all jobs the greatest throughput over the time that the run took, where
    some did not finish, and else to the last job's end."""
    if any(len(parts) > 1 for parts in result.granted) or result.turns is not None:
        return None

    def counts(jobs: Sequence[Job], pool: Pool) -> tuple[int, ...]:
        granted = {count for ((name, count),) in result.granted if name == pool.name}
        return tuple(sorted(granted.union(counts_of(jobs, pool))))

    finished = [job for number, job in enumerate(result.jobs) if result.status(number) == "finished"]
    done = bound_run(finished, pools, cells, counts=counts)
    if len(finished) == len(result.jobs):
        return done
    until_s = result.jobs[0].submit_s + result.summary.simulated_s
    whole = bound_run(result.jobs, pools, cells, until_s=until_s, counts=counts)
    return replace(done, throughput_mean=whole.throughput_mean, throughput_prices=whole.throughput_prices)


def load_inputs(source: TraceOptions) -> Inputs:
    """Read everything; InputError, NothingFits as the readers say."""
    cluster = load_cluster(source.cluster)
    cells = cells_on(cluster, source.store)
    pools = dict(cells.pools)
    if not pools:
        expected = "at least one node all of whose devices are free, as pools are made of whole nodes"
        raise InputError(where=source.cluster, key="free", found="no node that is wholly free", expected=expected)
    if source.cells_file is not None:
        cells.load(source.cells_file)
    trace = read_trace(source.trace, format=source.format, lenient=source.lenient, fractional=source.fractional)
    notes = [f"{count} lines of {source.trace} left out: {reason}" for reason, count in trace.reasons.items()]
    notes += [
        f"{count} free {device} of site {site} left out: not all of their node is free"
        for (site, device), count in left_out(cluster).items()
    ]
    if trace.rounded_up:
        notes.append(f"{trace.rounded_up} rows asked for a fraction of a GPU, and got a whole one")
    if source.window_s is not None:
        trace = window(trace, *source.window_s)
    if source.head is not None:
        trace = head(trace, source.head)
    trace = load(trace, source.load)
    if source.job_models is not None:
        trace = with_job_models(trace, source.job_models)
    notes += overfilling(trace, sum(pool.devices for pool in pools.values()))
    drawn = sum(not row.model for row in trace.rows)
    if drawn:
        notes.append(_without_model(source, drawn, len(trace.rows)))
        if source.no_model == "keep-durations" and len(cluster.sites) > 1:
            expected = "draw: over several sites jobs run plans of models"
            raise InputError(where="simulate", key="--no-model", found=source.no_model, expected=expected)
    dtype = common_dtype(cluster)
    notes.append(f"everything trains in {dtype}, which all devices have")
    jobs = assign_workloads(
        trace,
        pools=pools,
        cells=cells,
        seed=source.seed,
        counts=source.counts,
        oversize=source.oversize,
        unknown_device=source.unknown_device,
        deadlines=source.deadlines,
        dtype=dtype,
        no_model=source.no_model,
    )
    spread = sum(job.devices > pools[job.pool].devices for job in jobs)
    if spread:
        notes.append(
            f"{spread} jobs ask for more devices than their pool has, which only policies that join sites give them:"
            " drawn on the largest power of two of devices that a pool of the type has, and work that is not stated is"
            " duration / (the time of that Cell x its devices / the job's)"
        )
    if source.cells_file is not None:
        cells.save(source.cells_file)
    where = "" if source.store is None else f", layers and links that {source.store} has as measured there"
    notes.append(f"all iteration times are modelled: those of the Cells that the estimator finds{where}")
    if len(cluster.sites) > 1:
        notes.append(
            "jobs of policies over sites run explicit plans, also modelled; they share links between sites evenly"
        )
    logged = as_logged(trace) if source.load == 1 else None
    return Inputs(jobs=jobs, pools=pools, cells=cells, notes=tuple(notes), skipped=trace.reasons, logged=logged)


def _without_model(source: TraceOptions, count: int, of: int) -> str:
    """What is done with rows that name no model."""
    if source.no_model == "keep-durations":
        return (
            f"{count} of {of} rows name no model: they run as long as logged, on as many devices as they asked for and"
            " no others; their restarts read and write nothing (--no-model, --job-models)"
        )
    return f"{count} of {of} rows name no model: theirs are drawn with seed {source.seed} (--no-model, --job-models)"


def options_of(
    policy: str, given: Mapping[str, PolicyOption] | None, policies: Sequence[str], *, key: str = "--option"
) -> dict[str, PolicyOption]:
    """Return those of the options `given` that go to the policy, or the rule of placement, without its name before
    them; raise InputError for one of a policy that is none of `policies`."""
    chosen: dict[str, PolicyOption] = {}
    for name, value in (given or {}).items():
        owner, dot, own_key = name.rpartition(".")
        if not dot:
            chosen[name] = value
        elif owner == policy:
            chosen[own_key] = value
        elif owner not in policies:
            expected = "an option's name, or one of those that run before it: " + ", ".join(
                f"{other}.NAME" for other in policies
            )
            raise InputError(where="simulate", key=key, found=name, expected=expected)
    return chosen


def run_request(
    options: ReplayOptions,
    inputs: Inputs,
    *,
    series: bool = False,
    slices: bool = False,
    checkpoint: CheckpointFile | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Simulate it. Errors as `planner.many_jobs.simulation.engine.simulate`; InputError for values that cannot be."""
    steering = network_steering(options)
    times = iteration_times(options.placement_cost, inputs.cells, options.network, options.seed, steering)
    settings = Settings(
        truth=times.truth,
        seat_times=times.seat_times,
        uses=uses_of_cells(inputs.cells),
        sharing=times.sharing,
        site_links=times.site_links,
        networks=pool_networks(inputs.cells.cluster, inputs.pools),
        prices=pool_prices(inputs.cells.cluster),
        uplinks=uplinks_of_pools(inputs.cells.cluster, inputs.pools),
        round_s=options.round_s,
        restart_s=options.restart_s,
        storage_bandwidth_bytes_per_s=options.storage_bandwidth_bytes_per_s,
        defragment_s=options.defragment,
        failures=read_failure_option(options.failures, seed=options.seed),
        checkpoint_interval_s=options.checkpoint_interval_s,
        until_s=options.until_s,
        predictor=make_predictor(options.jct),
        series=series,
        slices=slices,
        checkpoint=checkpoint,
        progress=progress,
        stop=stop,
    )

    def run(policy: Policy, settings: Settings) -> Result:
        with _out_of_the_collectors_way():
            result = simulate(inputs.jobs, inputs.pools, inputs.cells, policy, settings=settings)
        _keep_cells(options, inputs.cells)
        return result

    makers = _makers(options)
    if not makers.of_user:
        return run(makers.policy(None), replace(settings, placer=makers.placer(None)))
    jobs = sorted(inputs.jobs, key=lambda job: job.submit_s)
    return simulate_apart(makers, jobs, settings, run)


def _makers(options: ReplayOptions) -> Makers:
    """Who makes the policy and the rule of placement; none of the latter where it is the one that is built in."""
    code = options.user_code
    return Makers(
        policy_name=options.policy,
        policy_options=options.option or {},
        policy_factory=code.factory(options.policy),
        placer_name=options.placer if _has_rule(options) else None,
        placer_options=options.placer_option or {},
        placer_factory=code.factory(options.placer),
    )


def _has_rule(options: ReplayOptions) -> bool:
    return options.placer != BEST_FIT or bool(options.placer_option)


def _try_code(options: ReplayOptions) -> None:
    """InputError and MachineError for a policy, of the network too, or a rule of placement that cannot be had."""
    steering = network_steering(options)
    if steering is not None:
        steering.try_users()
    makers = _makers(options)
    if makers.of_user:
        try_apart(makers)
    else:
        makers.policy(None)
        check_moving(makers.placer(None), options.defragment)
    check_placer(options)


def check_placer(options: ReplayOptions) -> None:
    """Raise InputError for a rule of the program's that asks what the network has left where places have no price."""
    if options.placement_cost != "none" or options.network != "none" or options.placer not in PLACERS:
        return
    given = options.placer_option or {}
    if getattr(make_placer(options.placer, **given), "asks_network", False):
        asked = f"{options.placer} with " + ", ".join(f"{name}={value}" for name, value in given.items())
        expected = "--placement-cost estimate beside it, which says what the network has left"
        raise InputError(where="simulate", key="--placer-option", found=asked, expected=expected)


def _keep_cells(options: ReplayOptions, cells: EstimatedCells) -> None:
    if options.cells_file is not None:
        # They were saved before the run: where that cannot be any more, the next one lacks time, this one no result.
        with suppress(MachineError):
            cells.save(options.cells_file)


def make_predictor(jct: str | None) -> Predictor | None:
    """What predicts durations (the option `jct`); InputError where the file is no model."""
    if jct is None:
        return None
    from planner.many_jobs.jct.model_file import load_model
    from planner.many_jobs.jct.online import OnlinePredictor, OnlineSetting

    return OnlinePredictor(OnlineSetting(model=None if jct == "online" else load_model(Path(jct))))


def read_failure_option(text: str | None, *, seed: int) -> Failures | None:
    """`MTBF_S:REPAIR_S` or the path of a CSV file."""
    if text is None:
        return None
    mtbf, colon, repair = text.partition(":")
    try:
        figures = read_number(mtbf), read_number(repair)
    except ValueError:
        return read_failures(Path(text))
    if not (colon and all(1 <= figure < float("inf") for figure in figures)):
        expected = "two times in seconds, each at least 1, or the path of a CSV file"
        raise InputError(where="simulate", key="--failures", found=text, expected=expected)
    return Failures(mtbf_s=figures[0], repair_s=figures[1], seed=seed)


@contextmanager
def _out_of_the_collectors_way() -> Iterator[None]:
    """A million jobs are a million objects that all stay: the garbage collector need not look at them every time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
