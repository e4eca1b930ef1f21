"""Ours, priced: of the candidates, and of what exchanges of nodes make of the best one, the least estimated time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, combinations
from random import Random

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.one_job.pods.records import spreads_of
from planner.one_job.site_pods.candidates import Candidate
from planner.one_job.site_pods.free_nodes import level_of_pods
from planner.one_job.site_pods.site_job import Seating, SiteJob
from profiles.cluster import Cluster
from profiles.network import Network
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

Evaluate = Callable[[Setup], Evaluation | Infeasible]

EQUAL = 1e-12
"""Relative difference up to which times are the same."""
MOST_RANKS, MOST_PRICES = 24_000, 1_200
"""Exchanges are priced as long as neither so many ranks nor so many placements were: work, never the clock."""
MOST_CELLS_IN_TURN = 16
"""Jobs of so many cells try every exchange in turn from several starts, larger ones draw them."""
MOST_STARTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A placement with its price; `value` is eq. 2's, which decides between equal times."""

    name: str
    seating: Seating
    setup: Setup
    evaluation: Evaluation
    value: float

    @property
    def time_s(self) -> float:
        """Seconds of an iteration."""
        return self.evaluation.iteration_time_s

    def beats(self, other: Timed) -> bool:
        """Return whether this one is faster, or as fast and worth less."""
        if abs(self.time_s - other.time_s) > EQUAL * other.time_s:
            return self.time_s < other.time_s
        return self.value < other.value - EQUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastTime:
    """The best placement, all `candidates` in their order, the placements that were `priced`, and the time that no
    placement is below (None where that is not known)."""

    best: Timed
    candidates: tuple[Timed, ...]
    priced: int
    bound_s: float | None


def place_by_time(
    job: SiteJob,
    alpha: float,
    proposals: Iterable[Candidate],
    evaluate: Evaluate,
    *,
    allowed: Callable[[Setup], bool] = lambda _: True,
    exchanges: bool = True,
) -> LeastTime | Infeasible:
    """Return the placement of least estimated iteration time among `proposals` and, with `exchanges`, what exchanges of
    nodes make of the best of them; Infeasible where no proposal can be priced, or none is `allowed`. `alpha` is eq. 2's
    weight between equal times."""
    search = _Search(job, alpha, evaluate)
    timed = [priced for proposal in proposals if (priced := search.price(proposal)) is not None]
    permitted = [one for one in timed if allowed(one.setup)]
    if not permitted:
        reason = "no placement that was tried can be priced" if not timed else "no placement that was tried meets it"
        return Infeasible(reason=reason, lacking="support")
    bound_s = bound_of(job, timed[0].setup, evaluate)
    starts: list[Timed] = []
    for one in permitted:
        place = next((number for number, other in enumerate(starts) if one.beats(other)), len(starts))
        starts.insert(place, one)
    best = starts[0]
    if exchanges:
        best = search.improved(starts, bound_s, allowed)
    return LeastTime(best=best, candidates=tuple(timed), priced=search.priced, bound_s=bound_s)


def bound_of(job: SiteJob, setup: Setup, evaluate: Evaluate) -> float | None:
    """Return the seconds of an iteration that no placement is below: the plan where trees hold nothing back, as if all
    of it sat in one part. None where racks that stages do not fill make placements differ there, too."""
    group = setup.cluster.group_of(setup.stages[job.stages[0]].slots[0])
    if group.island_size > group.devices and (job.matrix.nodes_a_cell * group.devices) % group.island_size:
        return None
    evaluation = evaluate(replace(setup, cluster=without_pods(setup.cluster)))
    return evaluation.iteration_time_s if isinstance(evaluation, Evaluation) else None


def without_pods(cluster: Cluster) -> Cluster:
    """Return the cluster with nothing above the nodes of sites that have pods."""
    sites = tuple(
        replace(site, network=Network(hosts=site.network.hosts)) if level_of_pods(site.network) is not None else site
        for site in cluster.sites
    )
    return replace(cluster, sites=sites)


class _Search:
    """The placements priced so far, by what prices know of them."""

    def __init__(self, job: SiteJob, alpha: float, evaluate: Evaluate) -> None:
        self.job, self.alpha, self.evaluate = job, alpha, evaluate
        self.priced = 0
        self.evaluations: dict[object, Evaluation | None] = {}

    def price(self, proposal: Candidate) -> Timed | None:
        """Return a proposal with its price, None where it has none."""
        seating, alike = proposal.seating, self.job.alike
        key = tuple(tuple(tuple(alike[node] for node in cell) for cell in column) for column in seating)
        setup = self.job.seated(seating)
        if key not in self.evaluations:
            priced = self.evaluate(setup)
            self.priced += 1
            self.evaluations[key] = priced if isinstance(priced, Evaluation) else None
        evaluation = self.evaluations[key]
        if evaluation is None:
            return None
        value = self.value(seating)
        return Timed(name=proposal.name, seating=seating, setup=setup, evaluation=evaluation, value=value)

    def value(self, seating: Seating) -> float:
        """Return eq. 2 of a seating; where stages differ in nodes, the pods of the widest column and of all."""
        pods = self.job.pods_of(seating)
        if len({len(column) for column in pods}) == 1:
            spreads = spreads_of(tuple(zip(*pods, strict=True)))
            return self.alpha * spreads.dp + (1 - self.alpha) * spreads.pp
        widest = max(len(set(column)) for column in pods)
        return self.alpha * widest + (1 - self.alpha) * len(set(chain.from_iterable(pods)))

    def improved(self, starts: list[Timed], bound_s: float | None, allowed: Callable[[Setup], bool]) -> Timed:
        """Return the best that exchanges reach while work is left: from the best start, of small jobs from others."""
        best = starts[0]
        cells = sum(map(len, best.seating))
        small = cells <= MOST_CELLS_IN_TURN
        most = min(MOST_PRICES, MOST_RANKS // sum(len(best.setup.stages[number].slots) for number in self.job.stages))
        before = self.priced
        for start in starts[: MOST_STARTS if small else 1]:
            reached = start
            going_on = True
            while going_on:
                going_on = False
                for seating in _neighbours(self.job, reached.seating, small=small):
                    if self.priced - before >= most or (bound_s is not None and best.time_s <= bound_s * (1 + EQUAL)):
                        return best
                    timed = self.price(Candidate(name="exchanges", seating=seating))
                    if timed is not None and timed.beats(reached) and allowed(timed.setup):
                        reached, going_on = timed, True
                        best = reached if reached.beats(best) else best
                        break
        return best


def _neighbours(job: SiteJob, seating: Seating, *, small: bool) -> Iterator[Seating]:
    """Seatings that an exchange away from `seating`: cells that change places, cells that move to free nodes, and rows
    and columns that do; in turn where the job is small, else as they are drawn."""
    alike = job.alike
    places = [(column, cell) for column, cells in enumerate(seating) for cell in range(len(cells))]
    pairs = list(combinations(places, 2)) if small else _drawn(places)
    lines = _line_exchanges(seating)
    free = _free_cells(job, seating)
    moves = [(place, cell) for place in places for cell in free] if small else []
    if not small:
        yield from lines
    for one, other in pairs:
        first, second = seating[one[0]][one[1]], seating[other[0]][other[1]]
        if [alike[node] for node in first] != [alike[node] for node in second]:
            yield _with(seating, {one: second, other: first})
    for place, cell in moves:
        if [alike[node] for node in seating[place[0]][place[1]]] != [alike[node] for node in cell]:
            yield _with(seating, {place: cell})
    if small:
        yield from lines
        for (one, other), (third, cell) in ((pair, move) for pair in pairs for move in moves if move[0] not in pair):
            first, second = seating[one[0]][one[1]], seating[other[0]][other[1]]
            yield _with(seating, {one: second, other: first, third: cell})
        yield from _three_way(seating, places)


def _drawn(places: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """So many pairs of cells, always the same ones of as many places."""
    rng = Random(len(places))
    return [(rng.choice(places), rng.choice(places)) for _ in range(MOST_PRICES)]


def _free_cells(job: SiteJob, seating: Seating) -> list[tuple[int, ...]]:
    """A cell of free nodes of every kind that is left, from one pod each."""
    used = set(chain.from_iterable(chain.from_iterable(seating)))
    width = job.matrix.nodes_a_cell
    kinds: dict[object, tuple[int, ...]] = {}
    for nodes in job.nodes.nodes:
        left = [node for node in nodes if node not in used]
        for first in range(0, len(left) - width + 1, width):
            cell = tuple(left[first : first + width])
            kinds.setdefault(tuple(job.alike[node] for node in cell), cell)
    return list(kinds.values())


def _line_exchanges(seating: Seating) -> Iterator[Seating]:
    """Two columns (where they have as many cells) or two rows that change places."""
    columns = len(seating)
    for one, other in combinations(range(columns), 2):
        if len(seating[one]) == len(seating[other]):
            order = list(range(columns))
            order[one], order[other] = other, one
            yield tuple(seating[number] for number in order)
    if len({len(column) for column in seating}) == 1 and len(seating) > 1:
        for one, other in combinations(range(len(seating[0])), 2):
            order = list(range(len(seating[0])))
            order[one], order[other] = other, one
            yield tuple(tuple(column[number] for number in order) for column in seating)


def _three_way(seating: Seating, places: list[tuple[int, int]]) -> Iterator[Seating]:
    """Three cells that change places in a ring, both ways."""
    for ring in combinations(places, 3):
        nodes = [seating[column][cell] for column, cell in ring]
        for turn in (1, 2):
            yield _with(seating, {place: nodes[(number + turn) % 3] for number, place in enumerate(ring)})


def _with(seating: Seating, changed: dict[tuple[int, int], tuple[int, ...]]) -> Seating:
    """The seating with other nodes at some places."""
    return tuple(
        tuple(changed.get((column, cell), nodes) for cell, nodes in enumerate(cells))
        for column, cells in enumerate(seating)
    )
