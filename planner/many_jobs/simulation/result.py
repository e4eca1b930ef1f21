"""What came out of a simulation: figures in sum, a row for each job, a series over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from planner.many_jobs.jobs.records import Job
from planner.many_jobs.simulation.seat_costs import uplink_loads
from planner.many_jobs.simulation.settings import KnowsWork, Steering
from planner.many_jobs.simulation.totals import FINISHED, SERIES, STATUS, JobTable, Totals
from planner.many_jobs.simulation.turn_groups import TurnsTaken
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.many_jobs.simulation.run_state import Moved, RunState, Slice

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of this machine that decisions took, since a resume those after it: by its clock, and of the processor
    (`_cpu_`), which other programs on it lengthen less; `network_`: those of the network's policy by themselves, None
    where there is none. No part of the promise that a run repeats exactly."""

    decisions: int
    decision_mean_s: float
    decision_p99_s: float
    decision_max_s: float
    decision_p99_cpu_s: float
    network_decision_mean_s: float | None
    network_decision_p99_s: float | None
    network_decision_max_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a run; all are modelled. Times in seconds; None where there is nothing to average.

    JCT: from submission to end, of finished jobs; queueing: all the time without devices of a finished job,
    `first_wait` only up to the first start. `makespan_s`: first submission to last end. `throughput_*`: the sum over
    running jobs of the job's rate relative to that on the Cell it asked for, averaged over the time simulated;
    `utilization_mean`: devices held over devices that work. `restarts_mean`: of finished jobs. `fairness_*`:
    finish-time fairness rho (Themis, NSDI 2020, section 3): JCT over the time that the job would take alone on its
    share, which is iterations x asked-for iteration time x max(1, n d / D), d what it asked for, D all devices, n the
    time-averaged number of jobs in the system while it was; `fair_ratio`: the share of jobs with rho of 1 or less.
    `moves`: how often the rule of placement moved a running job, each one of the restarts, and what these moves cost:
    their restarts, times the devices that stood still. `violations` of the simulator's own invariants: there are none.

    A node is in use while a job holds a device of it: `nodes_in_use_*`, `machine_hours` (their sum over time);
    `nodes_least_mean`: how many would hold what is held at each time, pool by pool, below which no placement is;
    `nodes_idle_mean`: those that work and are wholly free. `fragmentation_mean`: devices that nobody holds on nodes in
    use over all devices of these, both summed over time (Titan, section V-A). `scattered_ratio`: of the starts on
    several devices those on more nodes than would hold them; `held_back`: jobs that had to wait though enough devices
    were free when they came. `cross_node_bytes_per_s`: what jobs on several nodes send between them while they make
    progress, an all-reduce of the gradients of all parameters over all devices in each iteration
    (`planner.many_jobs.simulation.seat_costs`), summed over the jobs, mean over time; None where the model of one is
    not known. `uplinks_load_mean`, `uplinks_load_peak`: what of that goes up out of parts of the network, over what all
    uplinks carry, and of the busiest uplink over what it carries, means over time; None where there is no tree.
    `device_hours_per_machine_hour`, `revenue_per_machine_hour`: what running jobs hold, and what that is
    sold for, over `machine_hours`; revenue is None where a pool that was used has no price. `*_as_printed`: Titan's
    profit K P / (N T), K the jobs that run at a time, P the mean of a finished job's device-hours or revenue, N the
    nodes in use, T the mean JCT in hours: means over jobs, long and short alike, and T holds the wait. None of a run
    that went on from a checkpoint that lacks them.

    Where jobs slow each other (else None): `slowdown_by_others_*`: of a finished job, what its iterations took over
    what they would have taken alone on the same seats; `contended_hours`: what iterations took that others slowed, and
    `lost_to_others_hours`, how much longer than alone, both summed over all jobs. With a network (else None, and None
    where a job without a model made progress), both ways in which Crux uses the word: `gpu_utilization_mean` is the
    device-seconds in which devices compute over those of all that work (its examples), `work_flops_per_s` the
    floating-point operations of all devices over the time simulated (its eq. 1). Of a policy of the network (else
    None): its name, its decisions, how often it gave another path or level to a job that ran on
    (`network_changes`), and the device-hours in which these stood still for it.
    """

    policy: str
    placer: str
    jobs: int
    finished: int
    dropped: int
    unfinished: int
    jct_mean_s: float | None
    jct_median_s: float | None
    jct_p99_s: float | None
    queue_mean_s: float | None
    queue_median_s: float | None
    queue_p99_s: float | None
    first_wait_mean_s: float | None
    makespan_s: float
    simulated_s: float
    throughput_mean: float
    throughput_peak: float
    utilization_mean: float
    waiting_mean: float
    restarts_mean: float
    restarts: int
    moves: int
    moves_device_hours: float
    deadlines: int
    deadlines_met: int
    deadlines_met_ratio: float | None
    fairness_mean: float | None
    fairness_p99: float | None
    fairness_max: float | None
    fair_ratio: float | None
    node_failures: int
    lost_iterations: float
    decisions: int
    violations: int
    nodes_in_use_mean: float | None
    nodes_in_use_peak: int | None
    nodes_least_mean: float | None
    nodes_idle_mean: float | None
    machine_hours: float | None
    fragmentation_mean: float | None
    scattered_ratio: float | None
    held_back: int | None
    cross_node_bytes_per_s: float | None
    uplinks_load_mean: float | None
    uplinks_load_peak: float | None
    device_hours_per_machine_hour: float | None
    device_hours_as_printed: float | None
    revenue_per_machine_hour: float | None
    revenue_as_printed: float | None
    slowdown_by_others_mean: float | None
    slowdown_by_others_max: float | None
    contended_hours: float | None
    lost_to_others_hours: float | None
    gpu_utilization_mean: float | None
    work_flops_per_s: float | None
    network_policy: str | None
    network_decisions: int | None
    network_changes: int | None
    network_changes_device_hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A run: `summary`, what became of each of `jobs` (in order of submission; `table` by the same numbers), why some
    did not finish (by number), where they were kept the series over time and the slices of the timeline, the moves, and
    the parts of all grants. `turns`: how much jobs took turns on the same devices (None: none did)."""

    summary: Summary
    timing: Timing
    jobs: Sequence[Job]
    table: JobTable
    reasons: Mapping[int, str]
    devices: int
    series: Mapping[str, Sequence[float]]
    slices: Sequence[Slice]
    moves: Sequence[Moved]
    granted: frozenset[tuple[tuple[str, int], ...]]
    turns: TurnsTaken | None = None

    @property
    def unfinished(self) -> dict[str, str]:
        """Jobs that did not end, by id, and why."""
        return {self.jobs[number].id: reason for number, reason in sorted(self.reasons.items())}

    @property
    def jct_s(self) -> Column:
        """Seconds from submission to end of finished jobs."""
        return finished_times(self.jobs, self.table)[0]

    @property
    def fairness(self) -> Column:
        """rho of every job, NaN where it has none."""
        return fairness(self.jobs, self.table, self.devices)

    def status(self, number: int) -> str:
        """finished, dropped or unfinished."""
        return STATUS[self.table.status[number]]


def finished_times(jobs: Sequence[Job], table: JobTable) -> tuple[Column, NDArray[np.intp]]:
    """JCTs of the finished jobs, and their numbers."""
    status = np.frombuffer(table.status, dtype=np.uint8)
    numbers = np.flatnonzero(status == FINISHED)
    submitted = np.fromiter((job.submit_s for job in jobs), dtype=float, count=len(jobs))
    return np.asarray(table.end_s)[numbers] - submitted[numbers], numbers


def make_result(run: RunState) -> Result:
    """The result of a run that is over."""
    devices = sum(pool.nodes * pool.devices_per_node for pool in run.pools.values())
    calls = np.asarray(run.calls_s, dtype=float)
    timing = Timing(
        decisions=len(calls),
        decision_mean_s=float(calls.mean()) if len(calls) else 0.0,
        decision_p99_s=float(np.quantile(calls, 0.99)) if len(calls) else 0.0,
        decision_max_s=float(calls.max()) if len(calls) else 0.0,
        decision_p99_cpu_s=float(np.quantile(np.asarray(run.calls_cpu_s), 0.99)) if len(calls) else 0.0,
        **_network_timing(run),
    )
    return Result(
        summary=_summary(run, devices),
        timing=timing,
        jobs=run.jobs,
        table=run.table,
        reasons=dict(run.given_up),
        devices=devices,
        series=dict(zip(SERIES, run.series, strict=True)),
        slices=run.slices,
        moves=run.moves,
        granted=frozenset(run.granted),
        turns=run.turns.taken(run.totals.now_s, run.totals.held_s),
    )


def _network_timing(run: RunState) -> dict[str, float | None]:
    sharing, names = run.settings.sharing, ("mean", "p99", "max")
    calls = np.asarray(sharing.calls_s if isinstance(sharing, Steering) else (), dtype=float)
    figures = (calls.mean(), np.quantile(calls, 0.99), calls.max()) if len(calls) else (None,) * len(names)
    return {
        f"network_decision_{name}_s": None if figure is None else float(figure)
        for name, figure in zip(names, figures, strict=True)
    }


def _summary(run: RunState, devices: int) -> Summary:
    jobs, table, totals = run.jobs, run.table, run.totals
    jct, numbers = finished_times(jobs, table)
    rho = fairness(jobs, table, devices)
    rho = rho[~np.isnan(rho)]
    waited = np.asarray(table.waited_s)[numbers]
    first = jct - (np.asarray(table.end_s) - np.asarray(table.start_s))[numbers]
    restarts = np.asarray(table.restarts)
    ends = np.asarray(table.end_s)
    began_s = jobs[0].submit_s if jobs else 0.0
    simulated_s = totals.now_s - began_s
    due = [number for number, job in enumerate(jobs) if job.deadline_s is not None]
    met = sum(
        table.status[number] == FINISHED and table.end_s[number] <= (jobs[number].deadline_s or 0.0) for number in due
    )
    dropped = sum(1 for number in run.ended if table.status[number] != FINISHED)
    return Summary(
        policy=run.policy.name,
        placer="best-fit" if run.settings.placer is None else run.settings.placer.name,
        jobs=len(jobs),
        finished=len(numbers),
        dropped=dropped,
        unfinished=len(jobs) - len(numbers) - dropped,
        jct_mean_s=_mean(jct),
        jct_median_s=_quantile(jct, 0.5),
        jct_p99_s=_quantile(jct, 0.99),
        queue_mean_s=_mean(waited),
        queue_median_s=_quantile(waited, 0.5),
        queue_p99_s=_quantile(waited, 0.99),
        first_wait_mean_s=_mean(first),
        makespan_s=float(np.nanmax(ends)) - began_s if run.ended else 0.0,
        simulated_s=simulated_s,
        throughput_mean=totals.throughput_s / simulated_s if simulated_s > 0 else 0.0,
        throughput_peak=totals.peak_throughput,
        utilization_mean=totals.held_s / totals.working_s if totals.working_s > 0 else 0.0,
        waiting_mean=totals.waiting_s / simulated_s if simulated_s > 0 else 0.0,
        restarts_mean=_mean(restarts[numbers].astype(float)) or 0.0,
        restarts=int(restarts.sum()) if len(jobs) else 0,
        moves=len(run.moves),
        moves_device_hours=math.fsum(device_s for *_, device_s in run.moves) / 3600,
        deadlines=len(due),
        deadlines_met=met,
        deadlines_met_ratio=met / len(due) if due else None,
        fairness_mean=_mean(rho),
        fairness_p99=_quantile(rho, 0.99),
        fairness_max=float(rho.max()) if len(rho) else None,
        fair_ratio=float((rho <= 1.0 + 1e-9).mean()) if len(rho) else None,
        node_failures=totals.failures,
        lost_iterations=totals.lost_iterations,
        decisions=totals.decisions,
        violations=totals.violations,
        **_of_nodes(totals, simulated_s),
        **_of_seats(run, simulated_s),
        **_of_others(run, simulated_s),
        **_of_network_policy(run),
    )


def _of_network_policy(run: RunState) -> dict[str, Any]:
    """The summary's figures of what a policy of the network decided."""
    sharing = run.settings.sharing
    if not isinstance(sharing, Steering):
        names = ("network_policy", "network_decisions", "network_changes", "network_changes_device_hours")
        return dict.fromkeys(names)
    return {
        "network_policy": sharing.policy_name,
        "network_decisions": sharing.decisions,
        "network_changes": sharing.changes,
        "network_changes_device_hours": run.totals.reopening_device_s / 3600,
    }


def _of_nodes(totals: Totals, simulated_s: float) -> dict[str, Any]:
    """The summary's figures of nodes; None of those that were not counted from the start."""
    names = ("in_use", "least_nodes", "idle_nodes")
    means = [getattr(totals, f"{name}_s") / simulated_s if simulated_s > 0 else 0.0 for name in names]
    several, used_s = totals.starts_on_several, totals.devices_in_use_s
    figures = {
        "nodes_in_use_mean": means[0],
        "nodes_in_use_peak": totals.peak_in_use,
        "nodes_least_mean": means[1],
        "nodes_idle_mean": means[2],
        "machine_hours": totals.in_use_s / 3600,
        "fragmentation_mean": 1 - totals.held_s / used_s if used_s else math.nan,
        "scattered_ratio": totals.scattered / several if several else math.nan,
        "held_back": totals.held_back,
    }
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def _of_seats(run: RunState, simulated_s: float) -> dict[str, Any]:
    """The summary's figures of what is sent between nodes, and of what devices are sold for."""
    table, totals = run.table, run.totals
    jct, numbers = finished_times(run.jobs, table)
    machine_h = totals.in_use_s / 3600
    # K over N T, per hour.
    running_s = totals.jobs_s - totals.waiting_s
    turnover = _ratio(running_s, totals.in_use_s * float(jct.sum()) / 3600)
    hours = np.asarray(table.attained_device_s) / 3600
    revenue = np.asarray(table.revenue) if run.settings.prices else np.full(len(run.jobs), math.nan)
    load_mean, load_peak = uplink_loads(run, simulated_s)
    figures = {
        "cross_node_bytes_per_s": _ratio(math.fsum(table.cross_node_bytes), simulated_s),
        "uplinks_load_mean": load_mean,
        "uplinks_load_peak": load_peak,
        "device_hours_per_machine_hour": _ratio(math.fsum(hours), machine_h),
        "device_hours_as_printed": turnover * math.fsum(hours[numbers]),
        "revenue_per_machine_hour": _ratio(math.fsum(revenue), machine_h),
        "revenue_as_printed": turnover * math.fsum(revenue[numbers]),
    }
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def _of_others(run: RunState, simulated_s: float) -> dict[str, Any]:
    """The summary's figures of jobs that slow each other, and of what devices compute."""
    names = ("slowdown_by_others_mean", "slowdown_by_others_max", "contended_hours", "lost_to_others_hours")
    figures: dict[str, float] = dict.fromkeys((*names, "gpu_utilization_mean", "work_flops_per_s"), math.nan)
    table, sharing = run.table, run.settings.sharing
    if sharing is not None:
        took_s, lost_s = np.asarray(table.progress_s), np.asarray(table.lost_to_others_s)
        done = (np.frombuffer(table.status, dtype=np.uint8) == FINISHED) & (took_s != 0)
        slowdown = took_s[done] / (took_s - lost_s)[done]
        hours = [math.fsum(column) / 3600 for column in (table.contended_s, lost_s)]
        most = (float(slowdown.mean()), float(slowdown.max())) if len(slowdown) else (math.nan, math.nan)
        figures |= dict(zip(names, (*most, *hours), strict=True))
    if isinstance(sharing, KnowsWork):
        figures["gpu_utilization_mean"] = _ratio(math.fsum(table.busy_device_s), run.totals.working_s)
        figures["work_flops_per_s"] = _ratio(math.fsum(table.flops), simulated_s)
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


def fairness(jobs: Sequence[Job], table: JobTable, devices: int) -> Column:
    """rho of every job (see `Summary`); NaN of one that did not finish or had nothing to do."""
    rho = np.full(len(jobs), math.nan)
    jct, numbers = finished_times(jobs, table)
    for number, jct_s in zip(numbers.tolist(), jct.tolist(), strict=True):
        job = jobs[number]
        share = max(1.0, table.sharing[number] * job.devices / devices)
        alone_s = job.iterations * table.asked_s[number] * share
        if alone_s > 0:
            rho[number] = jct_s / alone_s
    return rho


def _mean(values: Column) -> float | None:
    return float(math.fsum(values) / len(values)) if len(values) else None


def _quantile(values: Column, share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


def summary_json(result: Result) -> dict[str, Any]:
    """The object that `cellplan simulate --json` prints."""
    return {
        **asdict(result.summary),
        **({} if result.turns is None else {"turns": asdict(result.turns)}),
        "reasons": result.unfinished,
        "timing": asdict(result.timing),
    }
