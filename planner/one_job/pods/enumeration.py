"""Every way to put the cells into pods: exact, and of no use beyond a dozen nodes (Arnold, figure 8)."""

from __future__ import annotations

from planner.one_job.pods.records import Cells, Placement, PodRequest
from profiles.errors import InputError
from profiles.vocabulary import Infeasible

METHOD = "enumeration"
MOST_WAYS = 10**8


def place_by_enumeration(request: PodRequest) -> Placement | Infeasible:
    """Return the placement of least value, after looking at every one: pods to the power of cells, less those that
    overfill a pod. Raise InputError where these are more than a hundred million."""
    shortage = request.shortage()
    if shortage is not None:
        return shortage
    ways = len(request.largest_first) ** request.cells
    if ways > MOST_WAYS:
        raise InputError(
            where="pods", key="method", found=f"enumeration of {ways:.1e} placements", expected=f"at most {MOST_WAYS}"
        )
    walk = _Walk(request)
    walk.place(0)
    return Placement(method=METHOD, request=request, cells=walk.best(), bound=walk.value)


class _Walk:
    """The placements so far met, one cell after another, row by row."""

    def __init__(self, request: PodRequest) -> None:
        self.request, self.left = request, list(request.room)
        self.pods = [0] * request.cells
        self.in_row = [[0] * len(self.left) for _ in range(request.rows)]
        self.in_column = [[0] * len(self.left) for _ in range(request.columns)]
        self.value = float("inf")
        self.line: list[int] = []

    def best(self) -> Cells:
        """Return the best placement met."""
        width = self.request.columns
        return tuple(tuple(self.line[first : first + width]) for first in range(0, self.request.cells, width))

    def place(self, cell: int) -> None:
        """Put cell number `cell` and all after it into every pod with room in turn."""
        if cell == self.request.cells:
            self._note()
            return
        row, column = self.in_row[cell // self.request.columns], self.in_column[cell % self.request.columns]
        for pod in range(len(self.left)):
            if self.left[pod]:
                self.left[pod] -= 1
                self.pods[cell] = pod
                row[pod] += 1
                column[pod] += 1
                self.place(cell + 1)
                self.left[pod] += 1
                row[pod] -= 1
                column[pod] -= 1

    def _note(self) -> None:
        widest = [max(len(counts) - counts.count(0) for counts in lines) for lines in (self.in_column, self.in_row)]
        value = self.request.value(*widest)
        if value < self.value:
            self.value, self.line = value, list(self.pods)
