"""What `cellplan contention --json` says of what jobs are to do, beside what it says of now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.contention.contention_file import ContentionFile
from planner.contention.deciding import Decided
from planner.contention.emitting.environment import environment_of
from planner.contention.emitting.planned import planned_jobs
from planner.contention.much_slower import much_slower
from planner.contention.plan_rows import finite


def with_plan(said: Mapping[str, Any], decided: Decided | None, rows: ContentionFile | None) -> dict[str, Any]:
    """Return what is said of now with the plan beside it; without one its keys are null. `level` is the one that was
    decided, `own_level` that of the users."""
    jobs = [{**job, "own_level": job["level"]} for job in said["jobs"]]
    if decided is None or rows is None:
        return {**said, "jobs": [{**job, **NO_PLAN} for job in jobs], **NOTHING_DECIDED}
    described = rows.model_dump(mode="json", by_alias=True)
    return {
        **said,
        "policy": described["policy"],
        "levels": decided.levels,
        "jobs": [
            {**job, **_job(decided, number, row)}
            for number, (job, row) in enumerate(zip(jobs, described["jobs"], strict=True))
        ],
        "links": [{**link, "busy": link["busy_now"]} for link in described["links"]],
        "gpu_utilization": described["gpu_utilization"],
        "proved": described["proved"],
        "unstable": described["unstable"],
        "shares_links": decided.plan.shares_links,
        "much_slower": much_slower(described["jobs"]),
        "short_plays": said["short_plays"] + decided.plan.planned.short_plays,
        "beliefs": [
            {"error": belief.error, "flops_per_s": belief.flops_per_s, "lost": belief.lost}
            for belief in decided.beliefs
        ],
        "front": [
            {
                "flops_per_s": point.flops_per_s,
                "slowdown": finite(point.slowdown),
                "job": point.job,
                "levels": {
                    found.job.id: level for found, level in zip(decided.plan.now.jobs, point.levels, strict=True)
                },
                "proved": point.proved,
            }
            for point in decided.front
        ],
    }


NO_PLAN: Mapping[str, Any] = {
    "now_s": None,
    "planned_s": None,
    "planned_range_s": None,
    "planned_slowed_by": [],
    "factor": None,
    "priority": None,
    "axis_levels": None,
    "dscp": None,
    "offset_s": None,
    "period_s": None,
    "paths": [],
    "connections": None,
    "environment": None,
}
NOTHING_DECIDED: Mapping[str, Any] = {
    "policy": None,
    "levels": None,
    "gpu_utilization": None,
    "proved": None,
    "unstable": [],
    "shares_links": None,
    "much_slower": None,
    "beliefs": [],
    "front": [],
}


def _job(decided: Decided, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    plan, asked = decided.plan, decided.asked
    seen, links = plan.seen[number], plan.now.fabric.links
    (planned,) = planned_jobs([row])
    fits = all(level < len(asked.map.levels) for level in planned.levels)
    return {
        "now_s": row["now_s"],
        "planned_s": row["planned_s"],
        "planned_range_s": row["range_s"],
        "planned_slowed_by": [
            {
                "id": slower.id,
                "gained_s": finite(slower.gained_s),
                "links": [links.name(link) for link in slower.links],
            }
            for slower in plan.planned.jobs[number].slowed_by
        ],
        "factor": row["factor"],
        "priority": row["priority"],
        "level": row["level"],
        "axis_levels": row["axis_levels"],
        "dscp": row["dscp"],
        "offset_s": row["offset_s"],
        "period_s": row["period_s"],
        "paths": row["paths"],
        "connections": {
            "chosen": len(seen.queue_pairs),
            "changed": sum(path["changed"] for path in row["paths"]),
            "hashed": sum(path["hashed"] for path in row["paths"]),
            "without_choice": seen.fixed + seen.left,
        },
        "environment": environment_of(planned, asked.map, asked.transport, asked.release).by_name if fits else None,
    }
