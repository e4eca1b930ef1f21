"""A plan of what jobs are to do on their network as the rows of contention.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from planner.contention.contending import Contention
from planner.contention.contention_file import (
    CONTENTION_SCHEMA,
    ClusterRow,
    ContentionFile,
    JobRow,
    LinkRow,
    PathRow,
    PolicyRow,
    this_version,
)
from planner.contention.planning import NetworkPlan
from planner.contention.viewing import End


def contention_rows(
    plan: NetworkPlan, *, policy: PolicyRow, cluster: ClusterRow, levels: int, dscps: Sequence[int] | None
) -> ContentionFile:
    """Return the file of a plan that `policy` made for jobs of `cluster`, whose fabric leaves so many levels free;
    `dscps` are those of the levels, None where packets have none."""
    return ContentionFile.model_validate(
        {
            "schema": CONTENTION_SCHEMA,
            "version": this_version(),
            "policy": policy,
            "cluster": cluster,
            "levels": levels,
            "jobs": tuple(_job(plan, number, dscps) for number in range(len(plan.seen))),
            "links": tuple(_links(plan)),
            "gpu_utilization": utilization(plan),
            "proved": plan.decision.proved,
            "unstable": tuple(job.job.id for job in plan.planned.jobs if job.unstable),
        }
    )


def utilization(plan: NetworkPlan) -> dict[str, dict[str, float | None]]:
    """Return GPU utilisation both ways: work done a second, and the share of the jobs' GPU-seconds that are busy; if
    nobody met, now, as planned, and what nothing can pass."""
    jobs = plan.now.jobs
    held = sum(len(job.job.seats) for job in jobs)
    known = all(job.job.flops is not None for job in jobs)

    def row(seconds: Sequence[float]) -> dict[str, float | None]:
        flops = sum((job.job.flops or 0.0) / its for job, its in zip(jobs, seconds, strict=True))
        busy = sum(len(job.job.seats) * min(1.0, job.compute_s / its) for job, its in zip(jobs, seconds, strict=True))
        return {"flops_per_s": flops if known else None, "busy": busy / held}

    return {
        "alone": row([job.alone_s for job in jobs]),
        "now": row([job.seconds for job in jobs]),
        "planned": row([job.seconds for job in plan.planned.jobs]),
        "bound": {"flops_per_s": plan.bound_flops_per_s if known else None, "busy": plan.bound_busy},
    }


def _job(plan: NetworkPlan, number: int, dscps: Sequence[int] | None) -> JobRow:
    now, then, decision = plan.now.jobs[number], plan.planned.jobs[number], plan.decision
    names = plan.now.fabric.links.names
    level = decision.levels[number]
    own = dict(decision.axis_levels[number]) if decision.axis_levels else {}
    return JobRow.model_validate(
        {
            "id": now.job.id,
            "hosts": tuple(dict.fromkeys(names[seat.node] for seat in now.job.seats)),
            "devices": len(now.job.seats),
            "flops": now.job.flops,
            "intensity_flops_per_s": plan.intensities[number],
            "factor": plan.factors[number],
            "priority": plan.priorities[number],
            "level": level,
            "axis_levels": own or None,
            "dscp": None if level is None or dscps is None else dscps[level],
            "offset_s": decision.offsets_s[number],
            "period_s": decision.periods_s[number] if decision.periods_s else None,
            "alone_s": finite(now.alone_s),
            "now_s": finite(now.seconds),
            "planned_s": finite(then.seconds),
            "range_s": tuple(finite(end) for end in then.range_s),
            "slowed_by": tuple(slower.id for slower in then.slowed_by),
            "provenance": "modelled",
            "paths": tuple(path_rows(plan, number)),
        }
    )


def path_rows(plan: NetworkPlan, number: int) -> Iterator[PathRow]:
    """Yield what the queue pairs of a job take that have a choice."""
    seen, links = plan.seen[number], plan.now.fabric.links

    def end(of: End) -> dict[str, object]:
        return {"host": links.names[of.node], "nic": of.nic}

    for pair, choice, before in zip(seen.queue_pairs, plan.decision.paths[number], seen.contender.now, strict=False):
        way = None if choice is None else pair.offer[choice]
        yield PathRow.model_validate(
            {
                "axis": pair.axis,
                "from": end(pair.source),
                "to": end(pair.destination),
                "queue_pair": pair.number,
                "way": () if way is None else tuple(links.name(link) for link in way.way),
                "ports": () if way is None else way.ports,
                "hashed": way is not None and not way.known,
                "changed": choice != before,
            }
        )


def _links(plan: NetworkPlan) -> Iterator[LinkRow]:
    """The links that two jobs or more send over, now or as planned, the fullest first."""
    links = plan.now.fabric.links
    busy = [_busy(found) for found in (plan.now, plan.planned)]
    jobs = {link.link: link.jobs for link in (*plan.now.links, *plan.planned.links)}
    for link in sorted(jobs, key=lambda each: (-max(busy[0][each], busy[1][each]), each)):
        yield LinkRow.model_validate(
            {
                "name": links.name(link),
                "bandwidth_bytes_per_s": float(links.bytes_per_s[link]),
                "busy_now": busy[0][link],
                "busy_planned": busy[1][link],
                "jobs": tuple(
                    {"id": plan.now.jobs[job].job.id, "level": plan.decision.levels[job]} for job in jobs[link]
                ),
            }
        )


def _busy(found: Contention) -> list[float]:
    rates = found.fabric.links.bytes_per_s
    return [
        float(c / r) if r > 0 else 0.0 for c, r in zip(found.carried_bytes_per_s.tolist(), rates.tolist(), strict=True)
    ]


def finite(value: float) -> float | None:
    """Return a figure; None of what never ends."""
    return value if isfinite(value) else None
