"""Many runs over this machine's cores or a Ray cluster, and what they say on average.

Runs go to the workers as requests, plain values, and come back as summaries; nothing else crosses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any

from estimator.host.capacity import SIMULATION_BYTES, process_limit
from planner.many_jobs.simulation.iteration_times import price_notes
from planner.many_jobs.simulation.network_choice import WITHOUT_POLICY, network_steering
from planner.many_jobs.simulation.result import summary_json
from planner.many_jobs.simulation.run import Inputs, check_placer, load_inputs, options_of, run_request
from planner.many_jobs.simulation.tables import csv_text
from planner.one_job.tuning.student import Student
from planner.shared.options.record import Progress
from planner.shared.options.simulate import PolicyOption, ReplayOptions, SweepOptions, TraceOptions
from profiles.errors import InputError, MachineError, NothingFits
from profiles.files import write_atomically

MEANS = (
    "jct_mean_s",
    "jct_median_s",
    "jct_p99_s",
    "queue_mean_s",
    "makespan_s",
    "throughput_mean",
    "throughput_peak",
    "utilization_mean",
    "restarts_mean",
    "moves",
    "moves_device_hours",
    "finished",
    "unfinished",
    "deadlines_met_ratio",
    "fairness_mean",
    "fairness_p99",
    "violations",
    "nodes_in_use_mean",
    "nodes_in_use_peak",
    "nodes_least_mean",
    "nodes_idle_mean",
    "machine_hours",
    "fragmentation_mean",
    "scattered_ratio",
    "held_back",
    "cross_node_bytes_per_s",
    "uplinks_load_mean",
    "uplinks_load_peak",
    "device_hours_per_machine_hour",
    "device_hours_as_printed",
    "revenue_per_machine_hour",
    "revenue_as_printed",
    "slowdown_by_others_mean",
    "slowdown_by_others_max",
    "contended_hours",
    "lost_to_others_hours",
    "gpu_utilization_mean",
    "work_flops_per_s",
    "network_decisions",
    "network_changes",
    "network_changes_device_hours",
)
"""Figures of a run that are averaged over seeds."""
SAID_ONCE = ("notes", "as_logged")
"""Of a run, what is told once for all of them."""
TOLD_BY = ("load", "network")
"""What says which runs a note is of; the seed where neither does."""


def make_requests(options: SweepOptions) -> tuple[ReplayOptions, ...]:
    """Return a run for each load, seed, policy, rule of placement and network. An option `crius.depth` goes to the
    policy `crius` alone."""
    policies, placers = options.policies or (options.policy,), options.placers or (options.placer,)
    networks = options.networks or (options.network,)
    base = options.part(ReplayOptions)
    # What policies are told is not for a network without one beside theirs.
    decided = [network for network in networks if network not in WITHOUT_POLICY] or networks
    base_without = replace(base, network_levels=None, network_change_s=None, network_change_at_most=None)
    return tuple(
        replace(
            base if network in decided else base_without,
            seed=seed,
            load=load,
            policy=policy,
            option=options_of(policy, options.option, policies),
            placer=placer,
            placer_option=options_of(placer, options.placer_option, placers, key="--placer-option"),
            network=network,
            network_option=_network_options(options, network, networks) if network in decided else None,
        )
        for load in options.loads or (options.load,)
        for seed in options.seeds or (options.seed,)
        for policy in policies
        for placer in placers
        for network in networks
    )


def _network_options(options: SweepOptions, network: str, networks: Sequence[str]) -> dict[str, PolicyOption] | None:
    return options_of(network, options.network_option, networks, key="--network-option") or None


def simulate_sweep(options: SweepOptions) -> dict[str, Any]:
    """Return the summary of each run (`runs`), the `means` over the seeds, how the jobs fared where they were logged
    (`as_logged`, null where the trace does not say) and the `notes` of the runs, each once; write the table of runs."""
    requests = make_requests(options)
    for request in requests:
        check_placer(request)
    for steering in dict.fromkeys(map(network_steering, requests)):
        if steering is not None:
            steering.try_users()
    runs = run_sweep(requests, workers=options.workers, ray_address=options.ray, progress=options.progress)
    if options.csv is not None:
        write_atomically(options.csv, sweep_csv(runs))
    logged = next((run["as_logged"] for run in runs if run["as_logged"] is not None), None)
    told = [{name: value for name, value in run.items() if name not in SAID_ONCE} for run in runs]
    return {"runs": told, "means": summarize(runs), "as_logged": logged, "notes": notes_of(runs)}


def notes_of(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the notes of the runs, each once; before one that not all have, the loads (or networks, or seeds) of those
    that do."""
    said = []
    for note in dict.fromkeys(note for run in runs for note in run["notes"]):
        those = [run for run in runs if note in run["notes"]]
        name = next((name for name in TOLD_BY if {run[name] for run in those} != {run[name] for run in runs}), "seed")
        values = ", ".join(dict.fromkeys(format(run[name], "g" if name != "network" else "") for run in those))
        said.append(note if len(those) == len(runs) else f"({name} {values}) {note}")
    return said


def run_sweep(
    requests: Sequence[ReplayOptions],
    *,
    workers: int = 1,
    ray_address: str | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], ...]:
    """Return the summaries, in the order of the requests, each with `load`, `seed` and `options`. Raise InputError,
    NothingFits and MachineError as a single run; InputError for more `workers` than this machine holds, MachineError
    where one died or Ray cannot be reached."""
    if ray_address is not None:
        answers = _over_ray(requests, ray_address)
    elif workers == 1:
        answers = map(run_one, requests)
    else:
        limit = process_limit(each_bytes=SIMULATION_BYTES)
        limit.check(min(workers, len(requests)), where="simulate", key="--workers")
        answers = _over_cores(requests, workers)
    summaries = []
    for request, answer in zip(requests, answers, strict=True):
        _raise_error(answer)
        summaries.append(answer)
        if progress is not None:
            progress(len(summaries), len(requests), None, _named(request))
    return tuple(summaries)


def _named(request: ReplayOptions) -> str:
    network = "" if request.network == "none" else f", {request.network}"
    return f"{request.policy}, {request.placer}{network}, seed {request.seed}"


def run_one(request: ReplayOptions) -> dict[str, Any]:
    """One run in this process: its summary, or its expected failure as a value, because exceptions with arguments of
    their own do not survive the way between processes."""
    try:
        inputs = _inputs(request.part(TraceOptions))
        summary = summary_json(run_request(request, inputs))
    except InputError as error:
        words = {"where": error.where, "key": error.key, "found": str(error.found), "expected": error.expected}
        return {"failed": "InputError", **words}
    except (NothingFits, MachineError) as error:
        return {"failed": type(error).__name__, "message": str(error)}
    del summary["reasons"]
    asked = {
        "load": request.load,
        "seed": request.seed,
        "network": request.network,
        "options": dict(request.option or {}),
    }
    priced = price_notes(request.placement_cost, inputs.jobs, request.network, network_steering(request))
    said = {
        "notes": [*inputs.notes, *priced],
        "as_logged": None if inputs.logged is None else inputs.logged.as_dict(),
    }
    return asked | summary | {"policy": request.policy, "placer": request.placer} | said


@lru_cache(maxsize=1)
def _inputs(source: TraceOptions) -> Inputs:
    """Runs of one load and seed follow each other, and share what they read."""
    return load_inputs(source)


def _raise_error(answer: dict[str, Any]) -> None:
    failed = answer.get("failed")
    if failed == "InputError":
        words = {name: answer[name] for name in ("where", "key", "found", "expected")}
        raise InputError(**words)
    if failed is not None:
        raise (NothingFits if failed == "NothingFits" else MachineError)(answer["message"])


def _over_cores(requests: Sequence[ReplayOptions], workers: int) -> Iterator[dict[str, Any]]:
    from concurrent.futures.process import BrokenProcessPool

    from estimator.host.children import process_pool

    with process_pool(min(workers, len(requests))) as pool:
        try:
            yield from pool.map(run_one, requests)
        except BrokenProcessPool as error:
            raise MachineError("a worker of the sweep died (out of memory?)") from error


def _over_ray(requests: Sequence[ReplayOptions], address: str) -> Iterator[dict[str, Any]]:
    try:
        ray = import_module("ray")
    except ImportError:
        expected = "it to be there: pip install ray"
        raise InputError(where="simulate", key="--ray", found="no ray in this Python", expected=expected) from None
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise MachineError(f"Ray at {address}: {error}") from error
    try:
        remote = ray.remote(run_one)
        for pending in [remote.remote(request) for request in requests]:
            try:
                yield ray.get(pending)
            except ray.exceptions.RayError as error:
                raise MachineError(f"Ray at {address}: {error}") from error
    finally:
        ray.shutdown()


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each policy, rule of placement, network and load the mean over seeds of each figure of `MEANS`, and half the
    width of its 95% confidence interval (Student's t; None of a single seed). Runs in which a figure is absent do not
    count for it."""
    groups: dict[tuple[str, str, str, float], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["policy"], run["placer"], run.get("network", "none"), run["load"]), []).append(run)
    return [
        {"policy": policy, "placer": placer, "network": network, "load": load, "seeds": len(group)}
        | {name: mean_of([run[name] for run in group if run[name] is not None]) for name in MEANS}
        for (policy, placer, network, load), group in groups.items()
    ]


def mean_of(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and half the width of its 95% interval."""
    count = len(values)
    if not count:
        return {"mean": None, "half_width_95": None}
    mean = math.fsum(values) / count
    if count == 1:
        return {"mean": mean, "half_width_95": None}
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return {"mean": mean, "half_width_95": Student(count - 1).quantile(0.975) * math.sqrt(variance / count)}


def sweep_csv(runs: Sequence[dict[str, Any]]) -> str:
    """A row for each run."""
    names = [name for name in runs[0] if name not in ("timing", "options", *SAID_ONCE)]
    timing = list(runs[0]["timing"])
    values = ([run[name] for name in names] + [run["timing"][name] for name in timing] for run in runs)
    return csv_text([[*names, *timing], *(["" if value is None else value for value in row] for row in values)])
