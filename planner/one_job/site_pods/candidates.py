"""Placements worth pricing: what every method seats, both ways round, and what schedulers do by default."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random

from planner.one_job.pods.baselines import NODE_ORDERS, NodeOrder
from planner.one_job.pods.consolidation import METHOD as ARNOLD
from planner.one_job.pods.host_order import host_key
from planner.one_job.pods.least_spread import METHOD as SPREAD
from planner.one_job.pods.methods import METHODS, RULES, place_into_pods
from planner.one_job.pods.records import Placement, PodRequest
from planner.one_job.pods.seating import seat
from planner.one_job.site_pods.site_job import Seating, SiteJob, by_columns
from planner.one_job.site_pods.slurm_default import nodes_by_slurm
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

DEFAULT_SCHEDULER = "slurm"
ALPHAS = (0.0, 0.5, 1.0)
"""What our own method is asked for beside the job's alpha; eq. 4's optima between are found at those below."""
ALPHAS_OF_PAPER = (0.0, 0.3, 0.5, 0.7, 1.0)
MOST_CELLS_TO_BISECT = 512
FIXED = tuple(name for name in RULES if name != "random-fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A seating, and what made it."""

    name: str
    seating: Seating


def seating_by(job: SiteJob, method: str, alpha: float, *, order: NodeOrder = "megatron") -> Seating | Infeasible:
    """Return the seating of one of the methods of `planner.one_job.pods`; Infeasible where the job does not fit, or
    where its stages differ in nodes and the method needs that they do not.

    Methods that hand out nodes do it in the order of the ranks (`order`); those that stand for a scheduler number hosts
    by name first. Raise InputError for an unknown method.
    """
    if method not in METHODS:
        raise InputError(where="pods", key="method", found=method, expected=f"one of {', '.join(METHODS)}")
    shortage = job.shortage()
    if shortage is not None:
        return shortage
    shape = job.matrix.shape
    if method in RULES and (isinstance(shape, Infeasible) or order == "megatron" or method == DEFAULT_SCHEDULER):
        columns = _handed_out(job, method)
        return columns if order == "megatron" or isinstance(shape, Infeasible) else _row_by_row(columns)
    request = job.matrix.request(job.nodes.counts, alpha=alpha, leaves=job.nodes.leaves)
    if isinstance(request, Infeasible):
        return request
    placement = place_into_pods(method, request, order=order)
    return placement if isinstance(placement, Infeasible) else by_columns(seat(placement, job.nodes.nodes))


def candidates(job: SiteJob, alpha: float) -> Iterator[Candidate]:
    """Return the candidates for a job that fits: the default scheduler's first, then the paper's and ours at `alpha`,
    then at other weights, then those of other schedulers."""
    asked: list[tuple[str, str, float, NodeOrder]] = [
        (DEFAULT_SCHEDULER, DEFAULT_SCHEDULER, alpha, "megatron"),
        (ARNOLD, ARNOLD, alpha, "rows"),
        (SPREAD, SPREAD, alpha, "rows"),
    ]
    asked += [(f"{SPREAD}, alpha {weight:g}", SPREAD, weight, "rows") for weight in ALPHAS if weight != alpha]
    asked += [(f"{ARNOLD}, alpha {weight:g}", ARNOLD, weight, "rows") for weight in ALPHAS_OF_PAPER if weight != alpha]
    for order in reversed(NODE_ORDERS):
        beside = "" if order == "megatron" else ", row by row"
        asked += [
            (f"{name}{beside}", name, alpha, order)
            for name in FIXED
            if (name, order) != (DEFAULT_SCHEDULER, "megatron")
        ]
    if job.matrix.nodes // job.matrix.nodes_a_cell <= MOST_CELLS_TO_BISECT:
        asked.append(("topo-aware", "topo-aware", alpha, "rows"))
    for name, method, weight, order in asked:
        seating = seating_by(job, method, weight, order=order)
        if not isinstance(seating, Infeasible):
            yield Candidate(name=name, seating=seating)


def _handed_out(job: SiteJob, method: str) -> Seating:
    """Cells as the rule hands them out, in the order of the ranks: stage after stage. Where a scheduler stands behind
    the rule, it numbers the hosts that it took by name; Slurm takes them leaf by leaf."""
    heights = [column.cells for column in job.matrix.columns]
    width = job.matrix.nodes_a_cell
    if method == DEFAULT_SCHEDULER:
        nodes = nodes_by_slurm(job.site.network, sorted(job.pod_of_node), sum(heights) * width)
        nodes.sort(key=lambda node: _host_key(job, node))
        line = [tuple(nodes[first : first + width]) for first in range(0, len(nodes), width)]
    else:
        request = PodRequest(rows=sum(heights), columns=1, nodes_a_cell=width, free=job.nodes.counts, alpha=0.0)
        placement = place_into_pods(method, request, order="rows", rng=Random(0))
        assert isinstance(placement, Placement), "the job fits"
        line = _in_line(placement, job.nodes.nodes)
        if method == "kueue":
            line.sort(key=lambda cell: _host_key(job, cell[0]))
    columns, first = [], 0
    for height in heights:
        columns.append(tuple(line[first : first + height]))
        first += height
    return tuple(columns)


def _row_by_row(columns: Seating) -> Seating:
    """The cells of equal columns, in their line, as rows: a PP group's nodes follow each other."""
    line, width = list(chain.from_iterable(columns)), len(columns)
    return tuple(tuple(line[first::width]) for first in range(width))


def _in_line(placement: Placement, nodes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The nodes of cells in one line: of each pod the next ones."""
    width, used = placement.request.nodes_a_cell, [0] * len(nodes)
    line = []
    for (pod,) in placement.cells:
        line.append(tuple(nodes[pod][used[pod] : used[pod] + width]))
        used[pod] += width
    return line


def _host_key(job: SiteJob, node: int) -> tuple[tuple[str, int], ...]:
    """Hosts by name, numbers in it as numbers, as Slurm sorts them; nodes without names by number."""
    hosts = job.site.network.hosts
    return (*(host_key(hosts[node]) if hosts else ()), ("", node))
