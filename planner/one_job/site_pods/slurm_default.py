"""The nodes that Slurm's topology/tree takes by itself, without `--switches` and node weights.

As a real slurmctld does it (22.05 with select/cons_tres, which hands out GPUs; `python -m bench.pods real-slurm` holds
the two together): leaf switches are taken whole, one after another, the last one as far as it is needed, nodes by
number. Of two leaves that are as far from those taken so far, the better one holds all that is left, the tighter where
both do; else what they hang under is compared in the same way, up to where they meet; and where nothing decides, the
one with more free nodes is better. A nearer leaf is preferred unless it is the worse of the two. Of switches above the
leaves what was just taken still counts as free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from profiles.network import Network


def nodes_by_slurm(network: Network, free: Sequence[int], count: int) -> list[int]:
    """Return `count` of the `free` nodes of a site (numbers), those that Slurm takes, in order of their numbers.

    Raise ValueError where there are not so many.
    """
    if count > len(free):
        raise ValueError(f"{count} of {len(free)} free nodes")
    if not network.levels:
        return sorted(free)[:count]
    leaves = _Leaves(network, free)
    below: dict[int, list[int]] = {}
    for node in sorted(free):
        below.setdefault(network.part_of_node[0][node], []).append(node)
    taken: list[int] = []
    while len(taken) < count:
        wanted = count - len(taken)
        taken += below[leaves.take(wanted)][:wanted]
    return sorted(taken)


class _Leaves:
    """The leaf switches that are left, and how far they are from those that were taken."""

    def __init__(self, network: Network, free: Sequence[int]) -> None:
        rows = network.part_of_node
        self.paths = {network.path(node)[0]: network.path(node) for node in free}
        self.room = [Counter(row[node] for node in free) for row in rows]
        self.left = sorted(self.paths)
        self.distances = dict.fromkeys(self.left, 0)

    def take(self, wanted: int) -> int:
        """Return the next leaf for `wanted` more nodes."""
        best = self.left[0]
        for leaf in self.left[1:]:
            nearer = self.distances[best] - self.distances[leaf]
            if nearer < 0:
                continue
            verdict = self._compare(leaf, best, wanted)
            if verdict > 0 or (nearer > 0 and verdict == 0):
                best = leaf
        self.left.remove(best)
        for leaf in self.left:
            self.distances[leaf] += self._hops(leaf, best)
        self.room[0][best] = 0
        return best

    def _compare(self, leaf: int, other: int, wanted: int) -> int:
        """Above 0 where `leaf` is the better one, below where `other` is."""
        for room, mine, its in zip(self.room, self.paths[leaf], self.paths[other], strict=True):
            if mine == its:
                break
            here, there = room[mine], room[its]
            if here >= wanted and there >= wanted:
                return there - here
            if here >= wanted or there >= wanted:
                return here - there
            last = here - there
        return last

    def _hops(self, leaf: int, other: int) -> int:
        """Levels between two leaves and the switch above both."""
        return sum(mine != its for mine, its in zip(self.paths[leaf], self.paths[other], strict=True))
