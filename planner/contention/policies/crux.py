"""Crux: paths, priorities and their compression by GPU intensity (SIGCOMM'24, section 4), and its parts alone.

Intensities are asked twice: paths are chosen by them while the time on the wire depends on paths. They are those of
evenly spread paths there, and those of the chosen ones after.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.compression.dag import dag_of_losses
from planner.contention.policies.contending_loss import loss_of_sharing
from planner.contention.policies.intensity import READINGS, intensities
from planner.contention.policies.levelling import compressed_levels, levels_of_dag, own_levels
from planner.contention.policies.loads import (
    LinkSeconds,
    contending_jobs,
    contending_pairs,
    link_seconds,
    paths_now,
    spread_paths,
)
from planner.contention.policies.option_names import known_name
from planner.contention.policies.path_selection import least_congested_paths
from planner.contention.policies.priority import TRAFFIC, correction_factors, order_by
from planner.contention.policies.records import Choice, Decision, View

WEIGHTS = ("intensity", "loss")


class Crux:
    """All three parts; `paths=False` leaves paths as they are, `compress=False` gives each job a level of its own, as
    no fabric has them. `weights` of what compression loses: `intensity` of the more important job, as the paper has it,
    or `loss`, what both lose as they are played."""

    name = "crux"

    def __init__(
        self,
        compression: str = "exact",
        intensity: str = "bottleneck",
        traffic: str = "second",
        paths: bool = True,
        compress: bool = True,
        weights: str = "intensity",
    ) -> None:
        if weights not in WEIGHTS:
            raise ValueError(f"weights {weights}: {' or '.join(WEIGHTS)}")
        self.weights = weights
        self.compression = known_name("compression", compression, COMPRESSIONS)
        self.intensity = known_name("intensity", intensity, READINGS)
        self.traffic = known_name("traffic", traffic, TRAFFIC)
        self.paths, self.compress = paths, compress

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        paths = self.choose_paths(view) if self.paths else paths_now(view)
        seconds = link_seconds(view, paths)
        order = self.rank(view, seconds)
        levels = own_levels(len(view.jobs), order)
        if self.compress and self.weights == "loss":
            dag = dag_of_losses(order, contending_pairs(seconds), partial(loss_of_sharing, view, paths))
            levels = levels_of_dag(view, dag, order, self.compression)
        elif self.compress:
            levels = compressed_levels(view, seconds, order, self.compression, self.intensity)
        return Decision(paths=paths, levels=levels, offsets_s=(0.0,) * len(view.jobs), order=order)

    def choose_paths(self, view: View) -> tuple[tuple[Choice, ...], ...]:
        """Return a path for each connection (4.1)."""
        evenly = intensities(view, link_seconds(view, spread_paths(view)), self.intensity)
        return least_congested_paths(view, order_by(view, range(len(view.jobs)), evenly, self.traffic))

    def rank(self, view: View, seconds: Sequence[LinkSeconds]) -> tuple[int, ...]:
        """Return the jobs that share links, the highest priority first (4.2)."""
        intensity, jobs = intensities(view, seconds, self.intensity), contending_jobs(seconds)
        factors = correction_factors(view, seconds, jobs, self.traffic)
        return order_by(view, jobs, [factors[job] * intensity[job] for job in jobs], self.traffic)


class CruxPriorities(Crux):
    """`crux-pa`: priorities alone, on the paths that are in force, each job a level of its own."""

    name = "crux-pa"

    def __init__(self, intensity: str = "bottleneck", traffic: str = "second") -> None:
        super().__init__(intensity=intensity, traffic=traffic, paths=False, compress=False)


class CruxPathsPriorities(Crux):
    """`crux-ps-pa`: paths and priorities, each job a level of its own."""

    name = "crux-ps-pa"

    def __init__(self, intensity: str = "bottleneck", traffic: str = "second") -> None:
        super().__init__(intensity=intensity, traffic=traffic, compress=False)
