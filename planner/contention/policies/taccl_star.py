"""TACCL*, as Crux's footnote 3 has it: the least congested path for each job, and longer distances first."""

from __future__ import annotations

from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.levelling import compressed_levels
from planner.contention.policies.loads import contending_jobs, link_seconds
from planner.contention.policies.option_names import known_name
from planner.contention.policies.path_selection import least_congested_paths
from planner.contention.policies.priority import bytes_per_s
from planner.contention.policies.records import Contender, Decision, View


class TacclStar:
    """`tacclstar`: jobs in the order of the links on their longest path, most first, ties by bytes a second; each
    connection takes its least congested path (as `crux` measures it), levels follow the same order. How levels are
    shared is not said in the paper: equally many jobs in each."""

    name = "tacclstar"

    def __init__(self, compression: str = "equal-parts") -> None:
        self.compression = known_name("compression", compression, COMPRESSIONS)

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        order = farthest_first(view)
        paths = least_congested_paths(view, order)
        seconds = link_seconds(view, paths)
        contending = set(contending_jobs(seconds))
        ranked = tuple(job for job in order if job in contending)
        levels = compressed_levels(view, seconds, ranked, self.compression)
        return Decision(paths=paths, levels=levels, offsets_s=(0.0,) * len(view.jobs), order=ranked)


def farthest_first(view: View) -> tuple[int, ...]:
    """Return all jobs, the longest distance first, ties by bytes a second, then by id."""
    keys = [(-distance(job), -bytes_per_s(job), job.id) for job in view.jobs]
    return tuple(sorted(range(len(view.jobs)), key=keys.__getitem__))


def distance(job: Contender) -> int:
    """Return the links on the job's longest path."""
    return max((len(path) for options in job.paths for path in options), default=0)
