"""What `cellplan contention` prints of what jobs are to do on their network."""

from __future__ import annotations

from typing import Any

from planner.cli.contention_shown import devices_moved, devices_paid, names_shown, shown_jobs, shown_title
from planner.cli.output import format_count, format_seconds, print_items, print_table, print_text

MOST_PAYERS = 8
MOST_LINKS = 8
MOST_SLOWERS = 2
PARTS_OF_OURS = {"paths": "ours", "priorities": "ours", "compression": "exact", "offsets": "ours"}
"""What `ours` is made of, which goes without saying."""
SAME = 1e-3
"""An iteration that takes by no more longer, relatively, takes the same."""


def print_plan(found: dict[str, Any]) -> None:
    """Print what is decided: job by job, who pays, what links and GPUs are used, what nothing can pass."""
    if found["policy"] is None:
        return
    print()
    if not found["shares_links"]:
        print("What to do: nothing. No two jobs share a link.")
        return
    jobs = shown_jobs(found["jobs"], devices_moved)
    which = "whose devices gain or lose most"
    what = f"What to do, by {policy_named(found['policy'])}, {found['levels']} level{'s' * (found['levels'] != 1)}"
    print_table(
        shown_title(what, jobs, found["jobs"], which),
        ("job", "intensity", "factor", "rank", "level", "new paths", "hashed"),
        [_job_row(job) for job in jobs],
    )
    _print_begins(found["jobs"])
    columns = ("job", "alone", "now", "then", "as compute varies")
    title = shown_title("An iteration of each job then", jobs, found["jobs"], which)
    print_table(title, columns, [_time_row(job) for job in jobs])
    _print_who_pays(found["jobs"])
    _print_much_slower(found["much_slower"])
    print()
    _print_links(found["links"])
    _print_utilization(found)
    if found["unstable"]:
        shown, names = f"{2 * found['jitter']:.0%}", names_shown(found["unstable"])
        print_text(f"Then unstable, moving by more than 5% as compute varies by up to {shown}: {names}")
    _print_more(found)


def policy_named(policy: dict[str, Any]) -> str:
    """Return a policy's name, with the parts that it does not say."""
    own = PARTS_OF_OURS if policy["name"] == "ours" else {}
    parts = [f"{name} {policy[name]}" for name in PARTS_OF_OURS if policy[name] and policy[name] != own.get(name)]
    return f"{policy['name']} ({', '.join(parts)})" if parts else str(policy["name"])


def _job_row(job: dict[str, Any]) -> tuple[object, ...]:
    shares = job["level"] is not None
    factor = job["factor"]
    return (
        job["id"],
        format_count(job["intensity_flops_per_s"], "FLOP/s") if shares and job["intensity_flops_per_s"] else None,
        None if factor is None else f"{factor:.3g}",
        None if job["priority"] is None else f"{job['priority'] + 1}",
        _level(job),
        *_paths(job["connections"]),
    )


def _time_row(job: dict[str, Any]) -> tuple[object, ...]:
    low, high = job["planned_range_s"]
    same = low == high if low is None or high is None else high <= low * (1 + SAME)
    return (
        job["id"],
        _seconds(job["alone_s"]),
        _seconds(job["now_s"]),
        _seconds(job["planned_s"]),
        None if same else f"{_seconds(low)} to {_seconds(high)}",
    )


def _level(job: dict[str, Any]) -> str | None:
    by_axis = job["axis_levels"]
    if by_axis:
        return ", ".join(f"{axis} {level}" for axis, level in by_axis.items())
    return None if job["level"] is None else f"{job['level']}"


def _paths(connections: dict[str, int]) -> tuple[str | None, str | None]:
    """How many connections that have a choice take another path than now, and of how many a hash that is assumed says
    which."""
    if not connections["chosen"]:
        return None, None
    return f"{connections['changed']} of {connections['chosen']}", f"{connections['hashed']}"


def _seconds(value: float | None) -> str:
    return "gets nowhere" if value is None else format_seconds(value)


def _print_begins(jobs: list[dict[str, Any]]) -> None:
    begins = [job for job in jobs if job["offset_s"] or job["period_s"] is not None]
    sentences = [_begin(job) for job in begins[:MOST_PAYERS]]
    if len(begins) > MOST_PAYERS:
        sentences.append(f"{len(begins) - MOST_PAYERS} more begin later; --json has them")
    print_items(sentences)
    if sentences:
        print()


def _begin(job: dict[str, Any]) -> str:
    later = f" {format_seconds(job['offset_s'])} later" if job["offset_s"] else ""
    apart = "" if job["period_s"] is None else f" at least {format_seconds(job['period_s'])} apart"
    return f"{job['id']} begins its iterations{' and'.join(part for part in (later, apart) if part)}"


def _print_who_pays(jobs: list[dict[str, Any]]) -> None:
    payers = [job for job in jobs if _loses(job)]
    if not payers:
        print("Nobody pays: no job's iteration takes longer than now.")
        return
    items = []
    # Of more than are said, those are who pay most.
    most = payers if len(payers) <= MOST_PAYERS else sorted(payers, key=lambda job: (-devices_paid(job), job["id"]))
    for job in most[:MOST_PAYERS]:
        more = (
            f"{_seconds(job['planned_s'] - job['now_s'])} an iteration"
            if job["planned_s"] is not None
            else "all: it gets nowhere"
        )
        firsts = [
            slower["id"] + (f" on {slower['links'][0]}" if slower["links"] else "")
            for slower in job["planned_slowed_by"][:2]
        ]
        items.append(f"{job['id']} pays {more}" + (f", to {' and '.join(firsts)}" if firsts else ""))
    if len(payers) > MOST_PAYERS:
        items.append(f"{len(payers) - MOST_PAYERS} more pay; --json has them")
    print_items(items)


def _print_much_slower(much: dict[str, Any] | None) -> None:
    """Warn of jobs that take much longer than now, with the cap that would hold them."""
    if much is None:
        return
    said = [
        f"{job['id']} (" + ("gets nowhere" if job["times_now"] is None else f"{job['times_now']:.3g} times") + ")"
        for job in much["jobs"][:MOST_PAYERS]
    ]
    more = f" and {len(much['jobs']) - MOST_PAYERS} more" if len(much["jobs"]) > MOST_PAYERS else ""
    print()
    print_text(
        f"Warning: the most work is bought with jobs that take more than {much['times']:g} times as long as now:"
        f" {', '.join(said)}{more}. --slowdown-cap {much['slowdown_cap']:g} keeps every iteration within so many times"
        " alone, or says which cap can be kept."
    )


def _loses(job: dict[str, Any]) -> bool:
    now, then = job["now_s"], job["planned_s"]
    if now is None:
        return False
    return then is None or then > now * (1 + SAME)


def _print_links(links: list[dict[str, Any]]) -> None:
    rows = [
        (link["name"], f"{link['busy_now']:.0%}", f"{link['busy_planned']:.0%}", _users(link["jobs"]))
        for link in links[:MOST_LINKS]
    ]
    more = f" ({len(links)} in all; --json has them)" if len(links) > MOST_LINKS else ""
    print_table(f"Links that jobs share, now or then{more}", ("link", "busy now", "then", "jobs (level)"), rows)


def _users(jobs: list[dict[str, Any]]) -> str:
    shown = ", ".join(f"{job['id']} ({'-' if job['level'] is None else job['level']})" for job in jobs[:4])
    return shown + (f" and {len(jobs) - 4} more" if len(jobs) > 4 else "")


def _print_utilization(found: dict[str, Any]) -> None:
    rows = found["gpu_utilization"]
    columns = ("alone", "now", "planned", "bound")
    busy = [f"{rows[name]['busy']:.1%}" for name in columns]
    print_table(
        "GPU utilisation (modelled)",
        ("", "alone", "now", "then", "at most"),
        [
            ("GPU-seconds of jobs that are busy", *busy),
            *(
                [("work done", *(format_count(rows[name]["flops_per_s"], "FLOP/s") for name in columns))]
                if rows["now"]["flops_per_s"] is not None
                else []
            ),
        ],
    )
    if any(_is_faster_than_alone(job) for job in found["jobs"]):
        print_text("Alone a job is on its paths of now, on which its own connections may meet each other.")
    now, then, bound = (rows[name]["flops_per_s"] for name in columns[1:])
    if now:
        gained = f"Work gained: {then / now - 1:+.1%}"
        if found["proved"]:
            print(f"{gained}; no paths and levels do more (proved).")
        elif bound:
            print(f"{gained}; {max(0.0, 1 - then / bound):.1%} below what no paths, levels or offsets can pass.")


def _is_faster_than_alone(job: dict[str, Any]) -> bool:
    alone, then = job["alone_s"], job["planned_s"]
    return alone is not None and then is not None and then < alone * (1 - SAME)


def _print_more(found: dict[str, Any]) -> None:
    if found["front"]:
        rows = [
            (
                format_count(point["flops_per_s"], "FLOP/s"),
                "without end" if point["slowdown"] is None else f"{point['slowdown']:.3f}",
                point["job"],
                "yes" if point["proved"] else "no",
            )
            for point in found["front"]
        ]
        print_table("Less work for a smaller worst slowdown", ("work done", "worst slowdown", "of job", "proved"), rows)
    if found["beliefs"]:
        lost = [
            (
                f"W, t and periods wrong by {belief['error']:.0%}",
                format_count(belief["flops_per_s"], "FLOP/s"),
                f"{belief['lost']:.2%}",
            )
            for belief in found["beliefs"]
        ]
        print_table("What wrong beliefs cost", ("belief", "work done", "lost"), lost)
