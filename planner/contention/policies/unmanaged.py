"""What fabrics do by themselves, or as their users told them."""

from __future__ import annotations

from planner.contention.policies.levelling import same_level
from planner.contention.policies.loads import contending_jobs, link_seconds, paths_now, spread_paths
from planner.contention.policies.records import Choice, Decision, View


class Ecmp:
    """`ecmp`: the paths that hashes chose, and fair shares."""

    name = "ecmp"

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        return _fair(view, paths_now(view))


class Spray:
    """`spray`: packets go over all paths of a connection evenly, as adaptive routing does, and fair shares."""

    name = "spray"

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        return _fair(view, spread_paths(view))


class Static:
    """`static`: the paths that are, and the levels that users gave their jobs; levels that the fabric has not are its
    last."""

    name = "static"

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        paths = paths_now(view)
        contending = set(contending_jobs(link_seconds(view, paths)))
        last = float("inf") if view.levels is None else view.levels - 1
        levels = tuple(int(min(job.own_level, last)) if n in contending else None for n, job in enumerate(view.jobs))
        return Decision(paths=paths, levels=levels, offsets_s=(0.0,) * len(view.jobs))


def _fair(view: View, paths: tuple[tuple[Choice, ...], ...]) -> Decision:
    levels = same_level(link_seconds(view, paths))
    return Decision(paths=paths, levels=levels, offsets_s=(0.0,) * len(view.jobs))
