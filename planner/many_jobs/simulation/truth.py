"""How long an iteration really takes, as far as the Cells say."""

from __future__ import annotations

from planner.many_jobs.jobs.records import CellBook, Grant, Job, Workload
from planner.many_jobs.simulation.settings import Placement, Truth


def cells_truth(cells: CellBook) -> Truth:
    """Return the truth of jobs on one pool: the time of the Cell with the grant's stages, or of the fastest one. It
    says None over several pools: what joins them must say how fast that is."""
    times_s: dict[tuple[Workload, str, int, int | None], float | None] = {}

    def truth(job: Job, grant: Grant, placement: Placement | None) -> float | None:
        del placement
        if len(grant.parts) != 1:
            return None
        pool, devices = grant.parts[0]
        key = (job.workload, pool, devices, grant.stages)
        try:
            return times_s[key]
        except KeyError:
            seconds = times_s[key] = _cell_s(cells, *key)
            return seconds

    return truth


def _cell_s(cells: CellBook, workload: Workload, pool: str, devices: int, stages: int | None) -> float | None:
    if stages is None:
        best = cells.best(workload, pool, devices)
        return None if best is None else best.iteration_time_s
    options = cells.options(workload, pool, devices)
    return next((option.iteration_time_s for option in options if option.stages == stages), None)
