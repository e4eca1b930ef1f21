"""HiveD: virtual clusters own cells of the tree, which they always get back; what nobody uses is lent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from planner.many_jobs.jobs.records import Decision, Grant, Job, JobState, NodeCounts, Pool, View, grant_on
from planner.many_jobs.placers.hived_cells import place_cells
from planner.many_jobs.policies.priority import least_first
from planner.many_jobs.scheduling.buddy_cells import Cell, CellTree, cell_tree
from planner.many_jobs.scheduling.owned_cells import OwnedCells, load_owned_cells, read_owned_cells
from planner.many_jobs.scheduling.queueing import can_run, expected_duration_s
from planner.many_jobs.scheduling.quotas import demand_quotas
from planner.many_jobs.scheduling.virtual_clusters import VirtualClusters, restored
from profiles.errors import InputError


class HiveD:
    """Guaranteed cells and buddy allocation (Zhao et al., OSDI 2020, section 3).

    Whose a job is says its virtual cluster, or its user (`tenant`). A virtual cluster owns cells of the levels of the
    tree: devices, parts of nodes, nodes, leaves, pods. A job starts on as few of its virtual cluster's own cells as may
    be, inside the smallest cell that has room for it; they are bound to cells of the pool when they are needed, the
    smallest free one that holds them, of equal ones that where fewest others would have to leave. In order of priority,
    then of waiting; who does not fit is passed over. Where its virtual cluster has no room for a job it may start as an
    *opportunistic* one (`opportunistic`), near together on whatever is free, and is suspended, or moved where there is
    room, as soon as somebody's own cells need its devices, the least important and last started first. It stays what it
    is until then.

    `cells` (a mapping, or a file: `planner.many_jobs.scheduling.owned_cells`) says what each owns. Without it the pool
    is split among those that have submitted jobs, in proportion to the device-seconds of these, into the largest cells
    that a share holds; anew every `requota_s`, and when a new one appears. Jobs that then sit on what is no longer
    their owner's go on as opportunistic ones.

    Nodes that fail are lost to whose cells they are in; nothing replaces them until they are repaired. Grants name
    nodes: no rule of placement has a say.
    """

    name = "hived"

    def __init__(
        self,
        *,
        cells: Mapping[str, object] | str | None = None,
        tenant: str = "virtual_cluster",
        opportunistic: bool = True,
        requota_s: float = 86400.0,
    ) -> None:
        if tenant not in ("virtual_cluster", "user"):
            raise ValueError(f"tenant={tenant}; virtual_cluster or user")
        if not float(requota_s) > 0:
            raise ValueError(f"requota_s={requota_s}; more than 0")
        self._fixed: OwnedCells | None = load_owned_cells(cells) if isinstance(cells, str) else None
        if cells is not None and self._fixed is None:
            self._fixed = read_owned_cells(cast("Mapping[str, object]", cells), where="cells")
        self._by_user, self._opportunistic, self._requota_s = tenant == "user", opportunistic, float(requota_s)
        self._demand: dict[str, dict[str, float]] = {}
        self._split_s: float | None = None
        self._clusters: dict[str, VirtualClusters] = {}
        self._trees: dict[str, CellTree] = {}
        self._held: Mapping[str, Any] = {}

    def decide(self, view: View) -> Decision:
        """Own cells first, then what is lent."""
        fresh = self._note_demand(view)
        split = fresh or self._split_s is None or view.now_s >= self._split_s + self._requota_s
        if split and self._fixed is None:
            self._split_s = view.now_s
        grants: dict[str, Grant | None] = {}
        for pool in view.pools.values():
            self._keep_up(view, pool, split=split and self._fixed is None)
            waiting = [state for state in view.waiting.values() if state.job.pool == pool.name]
            if waiting:
                able = [state for state in waiting if can_run(view, state.job)]
                board = _Board(view, pool.name, self._clusters[pool.name], grants)
                self._serve(board, sorted(able, key=lambda state: -state.job.priority))
        return Decision(grants=grants)

    def _serve(self, board: _Board, waiting: Iterable[JobState]) -> None:
        without_room = [state for state in waiting if not board.start(state, self._tenant(state.job))]
        for state in [*board.sent_away, *without_room] if self._opportunistic else ():
            board.lend(state)

    def _tenant(self, job: Job) -> str:
        return job.user if self._by_user else job.virtual_cluster

    def _note_demand(self, view: View) -> bool:
        """Add what was submitted; return whether somebody is new."""
        fresh = False
        for id_ in view.arrived:
            state = view.waiting.get(id_) or view.running.get(id_)
            if state is None or self._fixed is not None:
                continue
            job, name = state.job, self._tenant(state.job)
            demand = self._demand.setdefault(job.pool, {})
            fresh |= name not in demand
            demand[name] = demand.get(name, 0.0) + job.devices * max(1.0, expected_duration_s(view, job))
        return fresh

    def _keep_up(self, view: View, pool: Pool, *, split: bool) -> None:
        """Bring the cells of a pool to what runs and works now."""
        name = pool.name
        if name not in self._trees:
            self._trees[name] = cell_tree(view.networks[name], pool.nodes, pool.devices_per_node)
        tree, clusters = self._trees[name], self._clusters.get(name)
        if clusters is None and name in self._held:
            clusters = self._clusters[name] = restored(tree, self._held[name])
        if clusters is not None:
            for id_ in [id_ for id_ in clusters.held if id_ not in view.running]:
                clusters.end(id_)
        if clusters is None or split:
            self._clusters[name] = clusters = self._anew(tree, name, clusters)
        down = view.nodes[name].down
        for node in [node for node in clusters.broken if node not in down]:
            clusters.repair_node(node)
        for node in sorted(down):
            if node not in clusters.broken:
                clusters.break_node(node)

    def _anew(self, tree: CellTree, pool: str, old: VirtualClusters | None) -> VirtualClusters:
        """The virtual clusters with the cells that they own from now on; jobs keep theirs where these are still their
        owner's."""
        if self._fixed is not None:
            owned = self._fixed.on(pool, tree)
            try:
                return VirtualClusters(tree, owned)
            except ValueError as error:
                total = f"cells of {pool} that it has not ({tree.devices} devices, levels {', '.join(tree.names)})"
                raise InputError(where=self._fixed.where, found=total, expected="cells that it all holds") from error
        quotas = demand_quotas({pool: tree.devices}, {pool: self._demand.get(pool, {})})
        new = VirtualClusters(tree, {name: tree.split(queue.nominal(pool)) for name, queue in quotas.items()})
        for id_, (name, cells) in old.held.items() if old is not None else ():
            new.adopt(id_, name, cells)
        return new

    def state(self) -> object:
        """Demand, and whose cells are where."""
        pools = dict(self._held) | {name: clusters.state() for name, clusters in self._clusters.items()}
        return {"demand": self._demand, "split_s": self._split_s, "pools": pools}

    def restore(self, state: object) -> None:
        """What `state` gave."""
        kept = cast("dict[str, Any]", state)
        self._demand, self._split_s, self._held = kept["demand"], kept["split_s"], kept["pools"]
        self._clusters = {}


class _Board:
    """A pool while a decision is made: what is free on each node, who sits there on what is lent, what was decided."""

    def __init__(self, view: View, pool: str, clusters: VirtualClusters, grants: dict[str, Grant | None]) -> None:
        self.pool, self.clusters, self.grants = pool, clusters, grants
        self.free = list(view.nodes[pool].counts)
        self.lent: dict[str, tuple[JobState, dict[int, int]]] = {}
        self.on_node: dict[int, set[str]] = {}
        self.sent_away: list[JobState] = []
        for id_, state in view.running.items():
            if pool in state.placement and id_ not in clusters.held:
                self.lent[id_] = state, {node: mask.bit_count() for node, mask in state.placement[pool]}
                for node, _ in state.placement[pool]:
                    self.on_node.setdefault(node, set()).add(id_)

    def start(self, state: JobState, tenant: str) -> bool:
        """Start a job on its virtual cluster's own cells, where it has room."""
        cells = self.clusters.start(state.job.id, tenant, state.job.devices, self._cost())
        if cells is None:
            return False
        seats = self.clusters.tree.nodes(cells)
        for node, count in seats.items():
            self._clear(node, count)
            self.free[node] -= count
        self.grants[state.job.id] = grant_on(self.pool, tuple(seats.items()))
        return True

    def _cost(self) -> Callable[[Cell], float]:
        """How many devices of others would have to be cleared of a cell."""
        tree = self.clusters.tree

        def cost(cell: Cell) -> float:
            if not self.on_node:
                return 0.0
            held = tree.nodes([cell])
            return sum(max(0, count - self.free[node]) for node, count in held.items() if node in self.on_node)

        return cost

    def _clear(self, node: int, count: int) -> None:
        """Send those away who sit on a node on what is lent, the least important first, until so much is free."""
        sitting = sorted(self.on_node.get(node, ()), key=lambda id_: least_first(self.lent[id_][0]))
        for id_ in sitting:
            if self.free[node] >= count:
                return
            state, seats = self.lent.pop(id_)
            for place, held in seats.items():
                self.free[place] += held
                self.on_node[place].discard(id_)
            self.grants[id_] = None
            self.sent_away.append(state)

    def lend(self, state: JobState) -> None:
        """Start a job on what nobody uses, below the lowest switch that has enough, of these the one with least."""
        devices = state.job.devices
        if devices > sum(self.free):
            return
        seats = near_seats(self.clusters.tree, self.free, devices)
        for node, count in seats:
            self.free[node] -= count
        self.grants[state.job.id] = grant_on(self.pool, seats)


def near_seats(tree: CellTree, free: list[int], devices: int) -> NodeCounts:
    """Return free devices of nodes near each other, `devices` in all, in the order of the tree; so many are free."""
    for size in [size // tree.node_size for size in tree.sizes if size >= tree.node_size] + [len(tree.order)]:
        parts = [tree.order[first : first + size] for first in range(0, len(tree.order), size)]
        sums = [sum(free[node] for node in part) for part in parts]
        enough = [number for number, count in enumerate(sums) if count >= devices]
        if enough:
            part = parts[min(enough, key=lambda number: (sums[number], number))]
            chosen = dict(place_cells([free[node] for node in part], devices, tree.node_size))
            return tuple((node, chosen[place]) for place, node in enumerate(part) if place in chosen)
    raise RuntimeError(f"{devices} devices were counted free, and are not")
