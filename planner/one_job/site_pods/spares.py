"""Spare nodes: which free ones to keep, so that one of them may take the place of any node that fails.

Any of the job's nodes is as likely to fail as another. The spare that costs an iteration least takes its place, nobody
else moves; kept are the nodes with the least mean cost of that. Of equal sets the one is kept that has a spare in the
own part of most of the job's nodes, then the one to which these fall most evenly: a second spare goes where most rows
are served.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.one_job.site_pods.free_nodes import Alike, alike_nodes, level_of_pods
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.site_job import SiteJob, site_job
from profiles.cluster import Cluster, DeviceSlot, host_of
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible

Node = tuple[str, int]
"""A site, and the number of a node in it."""
Kind = tuple[str, Alike]
"""What prices know a node by: its site, the parts that hold something back, and the rack that joins it to others."""

Choice = tuple[float, bool]
"""What a spare costs a node that fails, and whether it is outside the node's part."""

MOST_PRICES = 160
"""Exchanges of a node for a spare that are priced one by one; of more, those of alike nodes are one."""
MOST_SETS = 20_000
"""Sets of spares that are all looked at; of more, they are chosen one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareNode:
    """A node that is kept: where it is, what it is called (None: it has no name), its part of the pods' level."""

    site: str
    node: int
    host: str | None
    part: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """Nodes that are kept, with the seconds that an iteration of `time_s` takes longer once one of them took the place
    of a node that failed: in the mean and at worst. `rows_free` of `rows` PP groups (0: they are not alike) lose
    nothing, whichever of their nodes fails. `proved`: no other set has a smaller mean."""

    nodes: tuple[SpareNode, ...]
    time_s: float
    mean_s: float
    worst_s: float
    rows_free: int
    rows: int
    proved: bool


@dataclass(frozen=True, kw_only=True)
class SpareProblem:
    """Which free nodes may stand in for which nodes of a plan: `used` in the order of their first ranks, `free` by
    kind."""

    setup: Setup
    used: tuple[Node, ...]
    free: Mapping[Kind, tuple[Node, ...]]

    @cached_property
    def kind_of(self) -> dict[Node, Kind]:
        """The kind of every node of the plan's sites; nodes of different racks that NVLink joins are not alike."""
        kinds: dict[Node, Kind] = {}
        for name in dict.fromkeys(site for site, _ in self.used):
            site = self.setup.cluster.site(name)
            rows, node = alike_nodes(site.network), 0
            for group in site.nodes:
                rack = group.island_size // group.devices
                for place in range(group.count):
                    joined = (node - place + place // rack * rack,) if rack > 1 else ()
                    kinds[name, node] = (name, (*(rows[node] if rows else ()), *joined))
                    node += 1
        return kinds

    def with_spare(self, failed: Node, spare: Node) -> Setup:
        """Return the plan with one node in another's place, its ranks in their order."""
        return with_node(self.setup, failed, spare)


def with_node(setup: Setup, failed: Node, other: Node) -> Setup:
    """Return a plan with the ranks of one node on the first free devices of another, in their order."""
    there = (slot for slot in setup.cluster.free_slots if (slot.site, slot.node) == other)
    places: dict[DeviceSlot, DeviceSlot] = {}
    here = {slot for stage in setup.stages for slot in stage.slots if (slot.site, slot.node) == failed}
    for slot in sorted(here, key=lambda slot: slot.index):
        places[slot] = next(there)
    stages = tuple(
        replace(stage, slots=tuple(places.get(slot, slot) for slot in stage.slots)) for stage in setup.stages
    )
    return replace(setup, stages=stages)


def used_nodes(setup: Setup) -> Counter[Node]:
    """Return how many devices the plan has on every node, in the order of their first ranks."""
    return Counter((slot.site, slot.node) for stage in setup.stages for slot in stage.slots)


def fitting_nodes(setup: Setup, failed: Node, devices: int) -> tuple[Node, ...]:
    """Return the nodes of the site of `failed` that the plan does not use and on which so many devices of its type are
    free."""
    used = used_nodes(setup)
    device = next(slot.device for stage in setup.stages for slot in stage.slots if (slot.site, slot.node) == failed)
    free = Counter(
        (slot.site, slot.node)
        for slot in setup.cluster.free_slots
        if slot.site == failed[0] and slot.device == device and (slot.site, slot.node) not in used
    )
    return tuple(node for node, count in free.items() if count >= devices)


def spare_problem(setup: Setup) -> SpareProblem:
    """Return which free nodes may be spares of a plan: those that fit any of its nodes of their site."""
    used = used_nodes(setup)
    problem = SpareProblem(setup=setup, used=tuple(used), free={})
    free: defaultdict[Kind, list[Node]] = defaultdict(list)
    for site in dict.fromkeys(site for site, _ in used):
        largest = max((node for node in used if node[0] == site), key=lambda node: used[node])
        for node in fitting_nodes(setup, largest, used[largest]):
            free[problem.kind_of[node]].append(node)
    return replace(problem, free={kind: tuple(nodes) for kind, nodes in free.items()})


def choose_spares(setup: Setup, count: int, evaluate: Evaluate) -> Spares | Infeasible:
    """Return the `count` free nodes that are worth keeping for a plan; Infeasible where fewer are free, or the plan has
    no price."""
    problem = spare_problem(setup)
    room = sum(map(len, problem.free.values()))
    if room < count:
        return Infeasible(
            reason=f"{count} spare nodes asked for, {room} free ones beside the job's: {count - room} too few",
            lacking="devices",
        )
    base = evaluate(setup)
    if not isinstance(base, Evaluation):
        return base
    kinds = tuple(problem.free)
    costs = _costs(problem, kinds, base.iteration_time_s, evaluate)
    limits = [len(problem.free[kind]) for kind in kinds]
    homes = [part_of(setup.cluster, problem.free[kind][0]) for kind in kinds]
    own = [[home is not None and home == part_of(setup.cluster, node) for home in homes] for node in problem.used]
    choices = [
        [(round(cost, 12), not mine) for cost, mine in zip(row, mine_of, strict=True)]
        for row, mine_of in zip(costs, own, strict=True)
    ]
    chosen, proved = _best_set(choices, limits, count)
    least = [min(row[place] for place in set(chosen)) for row in costs]
    rows_free, rows = _rows(problem, least, base.iteration_time_s)
    return Spares(
        nodes=tuple(_named(setup.cluster, node) for node in _nodes(problem, kinds, chosen)),
        time_s=base.iteration_time_s,
        mean_s=sum(least) / len(least),
        worst_s=max(least),
        rows_free=rows_free,
        rows=rows,
        proved=proved,
    )


def _nodes(problem: SpareProblem, kinds: Sequence[Kind], chosen: Sequence[int]) -> Iterator[Node]:
    taken: Counter[int] = Counter()
    for place in chosen:
        yield problem.free[kinds[place]][taken[place]]
        taken[place] += 1


def _costs(problem: SpareProblem, kinds: Sequence[Kind], time_s: float, evaluate: Evaluate) -> list[list[float]]:
    """Of each of the plan's nodes the seconds that an iteration takes longer with a node of each kind in its place."""
    signatures = _signatures(problem)
    known: dict[object, float] = {}
    table = []
    for node, signature in zip(problem.used, signatures, strict=True):
        row = []
        for kind in kinds:
            if kind == problem.kind_of[node]:
                row.append(0.0)
                continue
            key = signature, kind
            if key not in known:
                priced = evaluate(problem.with_spare(node, problem.free[kind][0]))
                known[key] = priced.iteration_time_s - time_s if isinstance(priced, Evaluation) else float("inf")
            row.append(known[key])
        table.append(row)
    return table


def _signatures(problem: SpareProblem) -> list[object]:
    """What the price of a node's exchange is taken to depend on: the node itself; of large jobs its stage, its kind and
    the kinds of its row."""
    if len(problem.used) * len(problem.free) <= MOST_PRICES:
        return list(problem.used)
    signatures: dict[Node, object] = {}
    for job in _jobs(problem.setup):
        for row in _rows_of(job):
            pattern = tuple(problem.kind_of[job.nodes.site, node] for cell in row for node in cell)
            for column, cell in enumerate(row):
                for node in cell:
                    signatures[job.nodes.site, node] = (column, pattern, problem.kind_of[job.nodes.site, node])
    return [signatures.get(node, node) for node in problem.used]


def _jobs(setup: Setup) -> Iterator[SiteJob]:
    for site in dict.fromkeys(slot.site for stage in setup.stages for slot in stage.slots):
        job = site_job(setup, site)
        if isinstance(job, SiteJob):
            yield job


def _rows_of(job: SiteJob) -> list[tuple[tuple[int, ...], ...]]:
    """The nodes of every cell as the plan has them now, row by row; none where stages differ in cells."""
    slots = [slot for number in job.stages for slot in job.setup.stages[number].slots]
    columns = [
        [tuple(dict.fromkeys(slots[rank].node for rank in ranks)) for ranks in column.ranks]
        for column in job.matrix.columns
    ]
    return [] if len(set(map(len, columns))) > 1 else list(zip(*columns, strict=True))


def _rows(problem: SpareProblem, least: Sequence[float], time_s: float) -> tuple[int, int]:
    """(rows that lose nothing whichever of their nodes fails, all rows)."""
    cost = dict(zip(problem.used, least, strict=True))
    rows = [
        [cost[job.nodes.site, node] for cell in row for node in cell]
        for job in _jobs(problem.setup)
        for row in _rows_of(job)
    ]
    return sum(max(row) <= 1e-9 * time_s for row in rows), len(rows)


def _best_set(costs: Sequence[Sequence[Choice]], limits: Sequence[int], count: int) -> tuple[tuple[int, ...], bool]:
    """The kinds of `count` nodes with the least mean cost, and whether that was proved."""
    kinds = range(len(limits))
    weights = Counter(map(tuple, costs))
    if comb(len(limits) + count - 1, count) <= MOST_SETS:
        sets = (
            chosen
            for chosen in combinations_with_replacement(kinds, count)
            if all(chosen.count(kind) <= limits[kind] for kind in set(chosen))
        )
        return min(sets, key=lambda chosen: _worth(weights, chosen)), True
    chosen: tuple[int, ...] = ()
    for _ in range(count):
        open_kinds = [kind for kind in kinds if chosen.count(kind) < limits[kind]]
        chosen = min(((*chosen, kind) for kind in open_kinds), key=lambda more: _worth(weights, more))
    return tuple(sorted(chosen)), False


def _worth(weights: Mapping[tuple[Choice, ...], int], chosen: tuple[int, ...]) -> tuple[float, int, float]:
    """(sum of the least costs, nodes without a spare in their own part, how unevenly nodes fall to spares): less is
    better."""
    each = Counter(chosen)
    fallen: Counter[int] = Counter()
    total, elsewhere = 0.0, 0
    for row, nodes in weights.items():
        nearest = min(each, key=lambda kind: (row[kind], kind))
        total += row[nearest][0] * nodes
        elsewhere += row[nearest][1] * nodes
        fallen[nearest] += nodes
    return round(total, 12), elsewhere, sum(nodes * nodes / each[kind] for kind, nodes in fallen.items())


def _named(cluster: Cluster, node: Node) -> SpareNode:
    slot = next(slot for slot in cluster.slots if (slot.site, slot.node) == node)
    return SpareNode(site=node[0], node=node[1], host=host_of(cluster, slot), part=part_of(cluster, node))


def part_of(cluster: Cluster, node: Node) -> str | None:
    """Return the part of the pods' level that a node is in; None where its site has no pods."""
    network = cluster.site(node[0]).network
    level = level_of_pods(network)
    return None if level is None else network.levels[level].parts[network.part_of_node[level][node[1]]].name
