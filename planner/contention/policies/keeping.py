"""What of a decision is as it was: jobs whose paths or level would change, and views in which some cannot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from planner.contention.policies.levelling import needed_levels
from planner.contention.policies.loads import path_of
from planner.contention.policies.records import Choice, Decision, View

Paths = tuple[tuple[Choice, ...], ...]


def is_changed(view: View, decision: Decision, job: int) -> bool:
    """Whether a job takes another path or has another level than now. A job that needs no level keeps what it has."""
    level, now = decision.levels[job], view.jobs[job]
    by_axis = bool(decision.axis_levels and decision.axis_levels[job])
    return decision.paths[job] != now.now or by_axis or (level is not None and level != now.own_level)


def changed_jobs(view: View, decision: Decision) -> tuple[int, ...]:
    """Return the jobs whose paths or level change. When a job begins is no change: nothing in the fabric is set."""
    return tuple(job for job in range(len(view.jobs)) if is_changed(view, decision, job))


def restored(view: View, decision: Decision, jobs: Collection[int]) -> Decision:
    """Return the decision with the paths and levels of now of these jobs. Whoever shares a link only because they do
    has the level of now, too."""
    if not jobs:
        return decision
    paths = tuple(now.now if job in jobs else decision.paths[job] for job, now in enumerate(view.jobs))
    levels = [
        now.own_level if job in jobs or level is None else level
        for job, (now, level) in enumerate(zip(view.jobs, decision.levels, strict=True))
    ]
    return replace(
        decision,
        paths=paths,
        levels=needed_levels(view, paths, levels),
        axis_levels=tuple(() if job in jobs else its for job, its in enumerate(decision.axis_levels)),
        proved=False,
        given_up=0.0,
    )


def relabelled(view: View, decision: Decision) -> Decision:
    """Return the decision with other numbers for its levels, in the same order, so that as many jobs as can be have the
    level of now; of such numbers those nearest to the decision's own."""
    if view.levels is None:
        return decision
    pairs = [(its, job.own_level) for job, its in zip(view.jobs, decision.levels, strict=True) if its is not None]
    numbers = fitting_numbers(pairs, view.levels, [level for its in decision.axis_levels for _, level in its])
    if numbers is None:
        return decision
    return replace(
        decision,
        levels=tuple(None if level is None else numbers[level] for level in decision.levels),
        axis_levels=tuple(tuple((axis, numbers[level]) for axis, level in its) for its in decision.axis_levels),
    )


def fitting_numbers(pairs: Sequence[tuple[int, int]], levels: int, more: Sequence[int] = ()) -> dict[int, int] | None:
    """Return other numbers for levels, in the same order, with which most jobs have the level of now; of such numbers
    those nearest to the levels' own. None where there is nothing to number, or more than there are levels.

    Args:
        pairs: of each job its level, and the level that it has now.
        levels: that there are.
        more: levels that are used beside those of jobs.
    """
    used = sorted({*(level for level, _ in pairs), *more})
    fits = {level: [0] * levels for level in used}
    for level, now in pairs:
        if now < levels:
            fits[level][now] += 1
    # best[n]: of the levels so far, numbered below n: how many fit, how far the numbers are off, the numbers.
    best: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())] * (levels + 1)
    for place, level in enumerate(used):
        following: list[tuple[int, int, tuple[int, ...]]] = [(-1, 0, ())] * (levels + 1)
        for number in range(place, levels):
            before = best[number]
            if before[0] >= 0:
                tried = before[0] + fits[level][number], before[1] - abs(number - level), (*before[2], number)
                following[number + 1] = max(following[number], tried)
            else:
                following[number + 1] = following[number]
        best = following
    return dict(zip(used, best[-1][2], strict=True)) if used and best[-1][0] >= 0 else None


def with_paths(view: View, paths: Paths) -> View:
    """Return the view in which each connection has the chosen path alone. Decisions on it have choice 0 throughout:
    `replace(decision, paths=paths)` is theirs on `view`."""
    jobs = tuple(
        replace(
            job,
            paths=tuple((path_of(options, choice),) for options, choice in zip(job.paths, choices, strict=True)),
            now=(0,) * len(choices),
        )
        for job, choices in zip(view.jobs, paths, strict=True)
    )
    return replace(view, jobs=jobs)
