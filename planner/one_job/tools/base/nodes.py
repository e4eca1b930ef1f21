"""A plan's ranks by the nodes they sit on, as launchers and cluster managers count them."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from itertools import groupby

from planner.shared.plan import Plan
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanks:
    """A node of the plan: its ranks in the order of the devices they use there."""

    node: int
    device: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`nodes` are in the order in which a launcher should count them, rank 0 on the first."""

    nodes: tuple[NodeRanks, ...]

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return sum(len(node.ranks) for node in self.nodes)

    @property
    def per_node(self) -> int | None:
        """Ranks of each node, None where they differ."""
        counts = {len(node.ranks) for node in self.nodes}
        return counts.pop() if len(counts) == 1 else None

    @cached_property
    def node_major(self) -> bool:
        """Whether ranks follow the nodes, and on each node its devices: rank = ranks before the node + local rank, as
        torchrun has it."""
        return [rank for node in self.nodes for rank in node.ranks] == list(range(self.world_size))

    @cached_property
    def parts(self) -> tuple[tuple[NodeRanks, ...], ...]:
        """Neighbours in `nodes` with the same device and as many ranks."""
        return tuple(tuple(part) for _, part in groupby(self.nodes, key=lambda node: (node.device, len(node.ranks))))

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """(number of the node, local rank) of each rank."""
        place_of = {
            rank: (number, local) for number, node in enumerate(self.nodes) for local, rank in enumerate(node.ranks)
        }
        return tuple(place_of[rank] for rank in range(self.world_size))


def nodes_of(plan: Plan) -> Layout:
    """Return where the ranks sit, the nodes in the order of their first ranks."""
    on_node: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for device in plan.devices:
        on_node[device.site, device.node].append((device.index, device.rank))
    nodes = (
        NodeRanks(
            node=number,
            device=plan.devices[places[0][1]].device,
            ranks=tuple(rank for _, rank in sorted(places)),
        )
        for (_, number), places in on_node.items()
    )
    return Layout(nodes=tuple(sorted(nodes, key=lambda node: min(node.ranks))))
