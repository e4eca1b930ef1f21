"""Virtual clusters with cells of their own on one pool: which are bound to which devices, and whose jobs sit there.

A virtual cluster owns so many cells of each level. One of them is bound to a cell of the pool when a job first needs
it, and let go when none of its jobs is there any more (HiveD, OSDI 2020, section 3.3). Whatever the others do, each
finds cells for all that it owns: `FreeCells.hold` is true of what is owned and not bound, and no step here makes it
false, as long as the pool's nodes work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from planner.many_jobs.scheduling.buddy_cells import Cell, CellTree, FreeCells

Cost = Callable[[Cell], float]


class VirtualClusters:
    """The cells of a pool and of the virtual clusters on it. `owned`: how many cells of each level each has; ValueError
    where the pool does not hold them all. `held` has the cells of each job that runs on its virtual cluster's own."""

    def __init__(self, tree: CellTree, owned: Mapping[str, Mapping[int, int]]) -> None:
        self.tree = tree
        self.pool = FreeCells(tree)
        top = len(tree.sizes) - 1
        for number in range(tree.count):
            self.pool.add_top((top, number))
        self.unbound = {name: Counter({level: n for level, n in cells.items() if n}) for name, cells in owned.items()}
        if not self.pool.hold(self._all_unbound()):
            raise ValueError("the pool does not hold the cells of all virtual clusters")
        self.own = {name: FreeCells(tree) for name in owned}
        self.held: dict[str, tuple[str, tuple[Cell, ...]]] = {}
        self.broken: dict[int, list[tuple[str, Cell]]] = {}

    def room(self, name: str) -> int:
        """Return the devices that a virtual cluster owns and no job has."""
        if name not in self.own:
            return 0
        unbound = sum(self.tree.sizes[level] * count for level, count in self.unbound[name].items())
        return self.own[name].devices() + unbound

    def start(self, job: str, name: str, devices: int, cost: Cost) -> tuple[Cell, ...] | None:
        """Give a job cells of its virtual cluster's own, as few as may be, the largest first, below the lowest switch
        that has them; None where there is not enough room. `cost` is what it costs to take a cell of the pool: who
        would have to leave it."""
        if devices > self.room(name):
            return None
        home = self._home(name, devices, cost)
        taken: list[Cell] = []
        wanted = sorted(self.tree.split(devices).elements())
        while wanted:
            level = wanted.pop()
            cell = self.own[name].take(level, cost, inside=home) if home else self._take(name, level, cost)
            if cell is not None:
                taken.append(cell)
            elif level:
                wanted += [level - 1] * self.tree.fanout(level)
            else:
                self._give_back(name, taken)
                return None
        self.held[job] = name, tuple(taken)
        return tuple(taken)

    def end(self, job: str) -> None:
        """Take a job's cells back."""
        name, cells = self.held.pop(job)
        self._give_back(name, cells)

    def adopt(self, job: str, name: str, cells: Sequence[Cell]) -> bool:
        """Let a job go on as one of its virtual cluster's own on just these cells, if that takes from nobody what he
        owns; return whether it does."""
        if sum(self.tree.sizes[level] for level, _ in cells) > self.room(name):
            return False
        taken: list[Cell] = []
        for cell in cells:
            if not (self.own[name].take_exactly(cell) or self._bind_around(name, cell)):
                self._give_back(name, taken)
                return False
            taken.append(cell)
        self.held[job] = name, tuple(cells)
        return True

    def break_node(self, node: int) -> None:
        """Take the devices of a node that has failed, on which no job is any more, from whom they are."""
        place = self.tree.order.index(node) * self.tree.node_size
        self.broken[node] = []
        for device in range(place, place + self.tree.node_size):
            for name, cells in (("", self.pool), *self.own.items()):
                if cells.take_exactly((0, device)):
                    self.broken[node].append((name, (0, device)))
                    break

    def repair_node(self, node: int) -> None:
        """Give them back."""
        for name, cell in self.broken.pop(node):
            if name:
                self._give_back(name, [cell])
            else:
                self.pool.give(cell)

    def bound(self) -> Iterator[tuple[str, Cell]]:
        """Yield the cells of the pool that are bound, with whose they are."""
        for name, cells in self.own.items():
            yield from ((name, cell) for cell in sorted(cells.tops))

    def _home(self, name: str, devices: int, cost: Cost) -> Cell | None:
        """The smallest cell with room for a job among what is bound, of equal ones that with least; or one of its own
        that is bound now where that is smaller. None where no cell has room for all of it."""
        own, unbound, sizes = self.own[name], self.unbound[name], self.tree.sizes
        for level in (level for level, size in enumerate(sizes) if size >= devices):
            room = own.room_by_cell(level)
            enough = [number for number, count in room.items() if count >= devices]
            if enough:
                return level, min(enough, key=lambda number: (room[number], cost((level, number)), number))
            cell = self.pool.take(level, cost) if unbound[level] > 0 else None
            if cell is not None:
                self._bind(name, cell)
                return cell
        return None

    def _take(self, name: str, level: int, cost: Cost) -> Cell | None:
        """The smallest cell that holds one of this level: of those that are bound, or else one that is bound now."""
        own, unbound = self.own[name], self.unbound[name]
        at = own.level_for(level)
        fresh = [above for above in sorted(unbound) if above >= level and unbound[above] > 0]
        for above in fresh:
            if at is not None and at <= above:
                break
            cell = self.pool.take(above, cost)
            if cell is not None:
                self._bind(name, cell)
                break
        return own.take(level, cost)

    def _bind(self, name: str, cell: Cell) -> None:
        self.unbound[name][cell[0]] -= 1
        self.own[name].add_top(cell)

    def _bind_around(self, name: str, cell: Cell) -> bool:
        """Bind one of the virtual cluster's cells where it holds this one, which it then takes."""
        for level in sorted(self.unbound[name]):
            if level < cell[0] or self.unbound[name][level] <= 0:
                continue
            around = level, cell[1] * self.tree.sizes[cell[0]] // self.tree.sizes[level]
            if not self.pool.take_exactly(around):
                continue
            rest = self._all_unbound()
            rest[level] -= 1
            if self.pool.hold(rest):
                self._bind(name, around)
                return self.own[name].take_exactly(cell)
            self.pool.give(around)
        return False

    def _give_back(self, name: str, cells: Collection[Cell]) -> None:
        own = self.own[name]
        for cell in cells:
            whole = own.give(cell)
            if whole in own.tops:
                own.remove_top(whole)
                self.pool.give(whole)
                self.unbound[name][whole[0]] += 1

    def _all_unbound(self) -> Counter[int]:
        wanted: Counter[int] = Counter()
        for cells in self.unbound.values():
            wanted.update(cells)
        return wanted

    def state(self) -> dict[str, Any]:
        """Return all of it as values of JSON."""
        owned = {name: Counter(cells) for name, cells in self.unbound.items()}
        for name, cell in self.bound():
            owned[name][cell[0]] += 1
        return {
            "owned": {name: sorted(cells.items()) for name, cells in owned.items()},
            "bound": [[name, *cell] for name, cell in self.bound()],
            "held": [[job, name, [list(cell) for cell in cells]] for job, (name, cells) in self.held.items()],
            "broken": [
                [node, [[name, *cell] for name, cell in devices]] for node, devices in sorted(self.broken.items())
            ],
        }


def restored(tree: CellTree, state: Mapping[str, Any]) -> VirtualClusters:
    """Return the virtual clusters that `VirtualClusters.state` gave the values of. KeyError, TypeError, ValueError for
    others."""
    clusters = VirtualClusters(tree, {name: dict(cells) for name, cells in state["owned"].items()})
    for name, level, number in state["bound"]:
        clusters.pool.take_exactly((level, number))
        clusters.unbound[name][level] -= 1
        clusters.own[name].add_top((level, number))
    for job, name, cells in state["held"]:
        own = tuple(cast("Cell", tuple(cell)) for cell in cells)
        for cell in own:
            clusters.own[name].take_exactly(cell)
        clusters.held[job] = name, own
    for node, devices in state["broken"]:
        clusters.broken[node] = [(name, (level, number)) for name, level, number in devices]
        for name, cell in clusters.broken[node]:
            (clusters.own[name] if name else clusters.pool).take_exactly(cell)
    return clusters
