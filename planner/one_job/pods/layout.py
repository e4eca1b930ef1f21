"""A placement as Arnold's eq. 4 sees it: rows are units, of which only the pods they touch count."""

from __future__ import annotations

from planner.one_job.pods.records import Cells, PodRequest
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Cells in pods, and eq. 4's two terms of them: pods of the job, and the most that a unit (row) touches."""

    cells: Cells
    pods: int
    widest: int

    def objective(self, request: PodRequest) -> float:
        """Return eq. 4's value."""
        return request.value(self.pods, self.widest)


def layout_of(cells: Cells) -> Layout:
    """Return `cells` with eq. 4's terms."""
    return Layout(
        cells=cells, pods=len({pod for row in cells for pod in row}), widest=max(len(set(row)) for row in cells)
    )
