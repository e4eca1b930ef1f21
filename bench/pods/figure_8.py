"""Figure 8: CPU seconds of a placement against the nodes of the job: enumeration, Arnold's program, ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.pods.cases import TABLE_1, Setting, free_nodes
from planner.one_job.pods.consolidation import closed_form
from planner.one_job.pods.enumeration import place_by_enumeration
from planner.one_job.pods.least_spread import place_by_spread
from planner.one_job.pods.program import solve_program
from planner.one_job.pods.records import Placement, PodRequest
from profiles.vocabulary import Infeasible

ALPHA = 0.3
ENUMERATED = {"(i)": (2, 4, 6, 8, 10, 12), "(ii)": (2, 4, 6, 8)}
"""Nodes of the jobs that are enumerated; one step more takes minutes."""
SOLVED = {"(i)": (2, 4, 6, 8, 10, 12, 14), "(ii)": (2, 4, 8, 96), "(iii)": (8, 64, 128, 256, 368, 512)}
PAPER = {("(i)", 14): "enumeration 30 s", ("(ii)", 10): "enumeration over 100 s"}
LARGE = Setting(name="100 pods", pods=100, nodes=10_000, dp=0, tp=8, pp=8)
LARGE_JOBS = ((512, 8), (256, 16), (1000, 10))
BUSY = 0.3


def lines(*, program: bool = True) -> Iterator[str]:
    """Return the table's lines, row by row as they are measured."""
    yield "\n| cluster | nodes | enumeration | eq. 4, HiGHS | eq. 4, closed form | spread | value (bound) | paper |"
    yield "| -- | --: | --: | --: | --: | --: | --: | -- |"
    for setting in TABLE_1:
        for nodes in SOLVED[setting.name]:
            columns = 8 if nodes % 8 == 0 and nodes > 8 else 2
            request = PodRequest(rows=nodes // columns, columns=columns, free=free_nodes(setting, 0.0, 0), alpha=ALPHA)
            enumerated = nodes in ENUMERATED.get(setting.name, ())
            yield _row(setting.name, request, enumerated=enumerated, program=program)
    for rows, columns in LARGE_JOBS:
        busy = BUSY if rows * columns < 5_000 else 0.0
        free = free_nodes(LARGE, busy, 0)
        if rows * columns == LARGE.nodes:
            free = tuple(nodes + 2 for nodes in free)
        yield _row(LARGE.name, PodRequest(rows=rows, columns=columns, free=free, alpha=ALPHA), program=False)


def _row(name: str, request: PodRequest, *, enumerated: bool = False, program: bool) -> str:
    placement = place_by_spread(request)
    assert isinstance(placement, Placement)
    nodes = request.cells
    cells = [
        name,
        f"{nodes}",
        _timed(lambda: place_by_enumeration(request)) if enumerated else "",
        _timed(lambda: solve_program(request)) if program else "",
        _timed(lambda: closed_form(request)),
        _timed(lambda: place_by_spread(request)),
        f"{placement.value:.2f} ({placement.bound:.2f})",
        PAPER.get((name, nodes), ""),
    ]
    return f"| {' | '.join(cells)} |"


def _timed(work: Callable[[], object]) -> str:
    """CPU seconds of the quickest of three calls, of one where that takes long."""
    best = float("inf")
    for _ in range(3):
        before = time.process_time()
        result = work()
        best = min(best, time.process_time() - before)
        assert not isinstance(result, Infeasible)
        if best > 1:
            break
    return f"{best * 1e3:.1f} ms" if best < 1 else f"{best:.1f} s"
