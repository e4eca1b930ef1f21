"""One simulation of a figure, as a function that another process can be sent."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from bench.clusters.workloads import Setting, new_workload, philly, setting
from planner.many_jobs.jobs.records import Decision, Grant, Job, Policy, View
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.scheduling.cell_book import EstimatedCells
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Placement, Settings
from planner.many_jobs.simulation.site_prices import Key, SharedLinks, SitePrices
from planner.many_jobs.simulation.totals import FINISHED
from profiles.files import write_atomically

Run = dict[str, Any]
SLICES = 40
"""Points of a curve over time."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A policy (with options, under a label) on a cluster under jobs by seed. `load` None: durations as they are."""

    label: str
    policy: str
    options: tuple[tuple[str, Any], ...]
    place: str
    source: str
    jobs: int
    load: float | None
    seed: int
    data: str
    share: bool = True


@lru_cache(maxsize=4)
def _prices(place: str) -> SitePrices:
    return SitePrices(setting(place).cluster)


class Accounts:
    """The truth of a run, and the CPU seconds of the plans that it needs: each charged once, when first asked for,
    although another run of this process may have made it."""

    def __init__(self, prices: SitePrices) -> None:
        self.prices = prices
        self.charged: set[Key] = set()
        self.charged_s = self.spent_s = 0.0

    def truth(self, job: Job, grant: Grant, placement: Placement | None) -> float | None:
        """Of a grant with a planner. None without: rates are then relative to the duration that the job came with."""
        del placement
        if not grant.planner:
            return None
        key = self.prices.key(job.workload, grant)[0]
        began_s = time.process_time()
        planned = self.prices.plan(job.workload, grant)
        self.spent_s += time.process_time() - began_s
        if key not in self.charged:
            self.charged.add(key)
            self.charged_s += self.prices.cost_s[key]
        return None if planned is None else planned.time_s


class Timed:
    """A policy with the CPU seconds of every decision, plans left out, and the grants that it made."""

    def __init__(self, policy: Policy, accounts: Accounts) -> None:
        self.policy, self.name, self.accounts = policy, policy.name, accounts
        self.placing_s: list[float] = []
        self.decision_s: list[float] = []
        self.sites: dict[str, int] = {}

    def decide(self, view: View) -> Decision:
        """As the policy does."""
        accounts = self.accounts
        spent_s, charged_s, began_s = accounts.spent_s, accounts.charged_s, time.process_time()
        found = self.policy.decide(view)
        own_s = time.process_time() - began_s - (accounts.spent_s - spent_s)
        self.placing_s.append(own_s)
        self.decision_s.append(own_s + accounts.charged_s - charged_s)
        for id_, grant in found.grants.items():
            if grant is not None:
                self.sites[id_] = len({view.pools[pool].site for pool, _ in grant.parts})
        return found

    def state(self) -> object:
        """Nothing that outlives a run."""
        return self.policy.state()

    def restore(self, state: object) -> None:
        """As the policy does."""
        self.policy.restore(state)


def jobs_of(task: Task, place: Setting) -> tuple[tuple[Job, ...], float]:
    """The jobs, and the load that they offer."""
    if task.source == "new":
        assert task.load is not None
        return new_workload(place, jobs=task.jobs, load=task.load, seed=task.seed), task.load
    most = min(256, place.devices)
    jobs, offered, _ = philly(place, Path(task.data), jobs=task.jobs, most=most, load=task.load, seed=task.seed)
    return jobs, offered


def run_task(task: Task) -> Run:
    """One simulation."""
    place = setting(task.place)
    jobs, offered = jobs_of(task, place)
    prices = _prices(task.place)
    accounts = Accounts(prices)
    policy = Timed(make_policy(task.policy, **dict(task.options)), accounts)
    settings = Settings(
        truth=accounts.truth,
        site_links=place.cluster.site_links,
        sharing=SharedLinks(prices=prices) if task.share else None,
        series=True,
    )
    cells = EstimatedCells(cluster=place.cluster, pools=place.pools)
    began_s = time.process_time()
    result = simulate(jobs, place.pools, cells, policy, settings=settings)
    assert not result.summary.violations
    return {
        "label": task.label,
        "place": task.place,
        "load": task.load,
        "seed": task.seed,
        "offered": offered,
        "cpu_s": time.process_time() - began_s,
        **figures_of(result, policy, accounts),
    }


def run_or_recall(kept: Path | None, task: Task) -> Run:
    """One simulation, or what came of it when it ran before, as a file of the folder `kept` says."""
    if kept is None:
        return run_task(task)
    words = asdict(task)
    path = kept / f"{sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:20]}.json"
    if path.exists():
        content: dict[str, Run] = json.loads(path.read_text(encoding="utf-8"))
        return content["run"]
    kept.mkdir(parents=True, exist_ok=True)
    run = run_task(task)
    write_atomically(path, json.dumps({"task": words, "run": run}) + "\n")
    return run


def figures_of(result: Result, policy: Timed, accounts: Accounts) -> Run:
    """What the tables need of a run."""
    table, jobs = result.table, result.jobs
    done = np.frombuffer(table.status, dtype=np.uint8) == FINISHED
    submit = np.array([job.submit_s for job in jobs])
    samples = np.array([job.iterations * job.workload.global_batch for job in jobs])
    jct = np.asarray(table.end_s) - submit
    waited = np.asarray(table.waited_s)
    ran = np.maximum(jct - waited, 1e-9)
    decisions = np.array(policy.decision_s)
    summary = result.summary
    return {
        "jct_s": np.where(done, jct, np.nan).tolist(),
        "queue_s": np.where(done, waited, np.nan).tolist(),
        "finished": int(done.sum()),
        "jobs": len(jobs),
        "makespan_s": summary.makespan_s,
        "utilisation": summary.utilization_mean,
        "samples_per_s": float(samples[done].sum() / summary.makespan_s) if done.any() else 0.0,
        "samples_per_job_s": (samples / ran)[done].tolist(),
        "spread": sum(count > 1 for count in policy.sites.values()) / max(1, len(policy.sites)),
        "restarts": summary.restarts,
        "decisions": len(decisions),
        "placing_mean_s": float(np.mean(policy.placing_s)),
        "placing_p99_s": float(np.quantile(policy.placing_s, 0.99)),
        "scheduling_s": float(decisions.sum()),
        "planning_s": accounts.charged_s,
        "plans": len(accounts.charged),
        "ran_s": float(ran[done].sum()),
        "curve": curve(result.series),
    }


def curve(series: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(time, share of devices held), averaged over equal spans up to the end."""
    times, held = np.asarray(series["time_s"]), np.asarray(series["devices_held"])
    working = np.asarray(series["devices_working"])
    if len(times) < 2:
        return []
    edges = np.linspace(times[0], times[-1], SLICES + 1)
    total = np.concatenate([[0.0], np.cumsum(np.diff(times) * held[:-1] / np.maximum(1, working[:-1]))])
    at = np.interp(edges, times, total)
    means = np.diff(at) / np.maximum(np.diff(edges), 1e-9)
    return [(float(edge - times[0]), float(mean)) for edge, mean in zip(edges, means, strict=False)]


def mean_of(values: list[float]) -> float:
    """Of those that there are; NaN of none."""
    found = [value for value in values if not math.isnan(value)]
    return math.fsum(found) / len(found) if found else math.nan
