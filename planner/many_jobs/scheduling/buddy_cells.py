"""Cells of a pool in levels, each made of equally many of the level below, and the buddy allocation of them.

HiveD (Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020, section 3): a cell is a
device, a half or a quarter of a node (its islands are among them), a node, the nodes under one leaf switch, those of a
pod; cells of a level are equal. A cell is its level and its number in the order of the tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from profiles.network import Network
from profiles.records import dataclass

Cell = tuple[int, int]
"""Level, from devices (0) up, and number."""

DEVICE, NODE = "device", "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTree:
    """The levels of a pool's cells, from single devices up: `names`, and `sizes` in devices, each a multiple of the one
    before. `order` are the pool's nodes in the order of the tree; devices are numbered in it. Nodes have `node_size`
    devices. On top stand `count` cells of the highest level."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    node_size: int

    @property
    def devices(self) -> int:
        """Devices of the pool, working or not."""
        return len(self.order) * self.node_size

    @property
    def count(self) -> int:
        """Cells of the highest level."""
        return self.devices // self.sizes[-1]

    def fanout(self, level: int) -> int:
        """Return how many cells of the level below one has."""
        return self.sizes[level] // self.sizes[level - 1]

    def nodes(self, cells: Sequence[Cell]) -> Counter[int]:
        """Return on which nodes cells are, with how many devices of each."""
        held: Counter[int] = Counter()
        for level, number in cells:
            size = self.sizes[level]
            first = number * size // self.node_size
            if size <= self.node_size:
                held[self.order[first]] += size
            else:
                held.update(dict.fromkeys(self.order[first : first + size // self.node_size], self.node_size))
        return held

    def split(self, devices: int) -> Counter[int]:
        """Return the fewest cells that are so many devices, by level."""
        parts: Counter[int] = Counter()
        for level in reversed(range(len(self.sizes))):
            times, devices = divmod(devices, self.sizes[level])
            if times:
                parts[level] = times
        return parts


def cell_tree(network: Network, nodes: int, node_size: int) -> CellTree:
    """Return the cells of a pool of so many equal nodes below a tree of switches.

    Inside a node a cell is divided by the smallest number that divides it (8 devices: 4, 2, 1). Above nodes the levels
    count whose parts all have equally many nodes: where leaves differ there are no cells of leaves, as the paper's
    guarantee is of equal ones; their nodes still stand side by side.
    """
    sizes = _inside(node_size)
    names = [DEVICE if size == 1 else NODE if size == node_size else f"{size} devices" for size in sizes]
    if node_size == 1:
        names = [NODE]
    rows = network.part_of_node if network.levels else ()
    order = tuple(sorted(range(nodes), key=lambda node: (*(row[node] for row in reversed(rows)), node)))
    for level, row in zip(network.levels, rows, strict=True):
        held = Counter(row)
        size = node_size * next(iter(held.values()))
        if len(set(held.values())) == 1 and size > sizes[-1] and size % sizes[-1] == 0:
            sizes.append(size)
            names.append(level.name)
    return CellTree(names=tuple(names), sizes=tuple(sizes), order=order, node_size=node_size)


def _inside(size: int) -> list[int]:
    """A node's cells, smallest first.

    >>> _inside(12)
    [1, 3, 6, 12]
    """
    sizes = [size]
    while sizes[-1] > 1:
        smallest = next(factor for factor in range(2, sizes[-1] + 1) if sizes[-1] % factor == 0)
        sizes.append(sizes[-1] // smallest)
    return sizes[::-1]


def _never(cell: Cell) -> float:
    del cell
    return 0.0


class FreeCells:
    """Cells that are free: each stands here once, as a part of the largest free one that holds it."""

    __slots__ = ("free", "tops", "tree")

    def __init__(self, tree: CellTree) -> None:
        self.tree = tree
        self.free: list[set[int]] = [set() for _ in tree.sizes]
        self.tops: set[Cell] = set()

    def add_top(self, cell: Cell) -> None:
        """Add a free cell that is never joined to its neighbours."""
        self.tops.add(cell)
        self.free[cell[0]].add(cell[1])

    def remove_top(self, cell: Cell) -> None:
        """Take one that is wholly free away again."""
        self.tops.remove(cell)
        self.free[cell[0]].remove(cell[1])

    def level_for(self, level: int) -> int | None:
        """Return the lowest level, from this one up, that has a free cell."""
        return next((above for above in range(level, len(self.free)) if self.free[above]), None)

    def take(self, level: int, cost: Callable[[Cell], float] = _never, *, inside: Cell | None = None) -> Cell | None:
        """Take a cell of a level, the cheapest and of equal ones the first; where there is none, of the smallest larger
        one, which is split (the paper's Algorithm 1). None where none is large enough. `inside`: of those that are
        parts of this cell alone."""
        for above in range(level, len(self.free)):
            there = [n for n in self.free[above] if inside is None or self._holds(inside, (above, n))]
            if there:
                break
        else:
            return None
        cell = (above, min(there, key=lambda number: (cost((above, number)), number)))
        while cell[0] > level:
            parts = self._parts(cell)
            cell = min(parts, key=lambda part: (cost(part), part[1]))
        self.take_exactly(cell)
        return cell

    def take_exactly(self, cell: Cell) -> bool:
        """Take this cell; False where it is not wholly free."""
        holder = self._holder(cell)
        if holder is None:
            return False
        self.free[holder[0]].remove(holder[1])
        while holder != cell:
            parts = self._parts(holder)
            holder = next(part for part in parts if self._holds(part, cell))
            self.free[holder[0]].update(part[1] for part in parts if part != holder)
        return True

    def give(self, cell: Cell) -> Cell:
        """Give a cell back, joined with its neighbours as far as all of them are free; return what it is part of."""
        while cell not in self.tops and cell[0] + 1 < len(self.free):
            above = self._above(cell)
            siblings = [part for part in self._parts(above) if part != cell]
            if not all(part[1] in self.free[part[0]] for part in siblings):
                break
            self.free[cell[0]].difference_update(part[1] for part in siblings)
            cell = above
        self.free[cell[0]].add(cell[1])
        return cell

    def room_by_cell(self, level: int) -> Counter[int]:
        """Return how many devices are free in each cell of a level, by its number, in cells that are parts of it."""
        room: Counter[int] = Counter()
        for below in range(level + 1):
            size = self.tree.sizes[below]
            for number in self.free[below]:
                room[number * size // self.tree.sizes[level]] += size
        return room

    def devices(self) -> int:
        """Return the devices of all free cells."""
        return sum(len(cells) * size for cells, size in zip(self.free, self.tree.sizes, strict=True))

    def hold(self, wanted: Mapping[int, int]) -> bool:
        """Return whether so many more cells of each level can all be taken, whatever else is taken meanwhile of them:
        those of a level come out of what is free there and of what is left of larger ones."""
        left = 0
        for level in reversed(range(len(self.free))):
            fanout = self.tree.fanout(level + 1) if level + 1 < len(self.free) else 0
            left = left * fanout + len(self.free[level]) - wanted.get(level, 0)
            if left < 0:
                return False
        return True

    def _holder(self, cell: Cell) -> Cell | None:
        """The free cell that this one is part of."""
        level, number = cell
        for above in range(level, len(self.free)):
            inside = number * self.tree.sizes[level] // self.tree.sizes[above]
            if inside in self.free[above]:
                return above, inside
        return None

    def _holds(self, outer: Cell, inner: Cell) -> bool:
        sizes = self.tree.sizes
        return outer[0] >= inner[0] and inner[1] * sizes[inner[0]] // sizes[outer[0]] == outer[1]

    def _parts(self, cell: Cell) -> list[Cell]:
        fanout = self.tree.fanout(cell[0])
        return [(cell[0] - 1, cell[1] * fanout + part) for part in range(fanout)]

    def _above(self, cell: Cell) -> Cell:
        return cell[0] + 1, cell[1] // self.tree.fanout(cell[0] + 1)
