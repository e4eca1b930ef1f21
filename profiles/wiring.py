"""The switches and cables of a site, in the shapes that fabrics have, or one by one.

The tree above the nodes (`profiles.wiring_levels`) is what estimates and placements read: which nodes share an uplink,
and how thin it is. The wires (`estimator.network.wires`) are what single flows pass. Both come from the records here.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from profiles.records import dataclass

ClosKind = Literal["clos2", "clos3", "fat-tree", "rail", "double-sided"]
Attachment = Literal["one", "rail", "two"]
"""Which leaves of its pod a node's NICs are cabled to: all to one; NIC i to leaf i; half of them to either of two."""


@dataclass(frozen=True, kw_only=True)
class Clos:
    """Tiers of equal switches. In each of `pods` every one of `leaves` is joined with each of `aggregations` by
    `leaf_cables` of `leaf_bytes_per_s`, one direction; every aggregation with the cores of its plane, of which there
    are as many as aggregations in a pod, by `top_cables` of `top_bytes_per_s`. Without aggregations leaves are joined
    with each of `tops`, the spines, by `leaf_cables`. `nodes_below` is how many nodes hang under a leaf (`rail`: under
    the leaves of a pod; `two`: under a pair of leaves)."""

    kind: ClosKind
    leaves: int
    tops: int
    nodes_below: int
    pods: int = 1
    aggregations: int = 0
    leaf_cables: int = 1
    top_cables: int = 1
    leaf_bytes_per_s: float
    top_bytes_per_s: float

    @property
    def attachment(self) -> Attachment:
        """How nodes hang under leaves."""
        return {"rail": "rail", "double-sided": "two"}.get(self.kind, "one")  # type: ignore[return-value]

    @property
    def groups(self) -> int:
        """How many sets of leaves have nodes of their own: leaves, pairs of leaves, pods of rails."""
        return self.pods * {"one": self.leaves, "rail": 1, "two": self.leaves // 2}[self.attachment]

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """Name and number of the switches of each tier, from the nodes up."""
        middle = (("aggregation", self.pods * self.aggregations),) if self.aggregations else ()
        top = "core" if self.aggregations else "spine"
        return (("leaf", self.pods * self.leaves), *middle, *(((top, self.tops),) if self.tops else ()))

    @property
    def leaf_up_bytes_per_s(self) -> float:
        """What all cables of a leaf carry up."""
        return (self.aggregations or self.tops) * self.leaf_cables * self.leaf_bytes_per_s

    @property
    def pod_up_bytes_per_s(self) -> float:
        """What all cables of a pod's aggregations carry up; of its leaves where these are straight under spines."""
        if not self.aggregations:
            return self.leaves * self.leaf_up_bytes_per_s
        return self.tops * self.top_cables * self.top_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Torus:
    """Nodes without switches: each is joined with the next along every dimension, and the last with the first, by a
    cable of `bytes_per_s`, one direction. A dimension of two has one cable between its two. Nodes are numbered with
    the last dimension fastest."""

    dimensions: tuple[int, ...]
    bytes_per_s: float

    @property
    def kind(self) -> str:
        """What the cluster file calls it."""
        return "torus"


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A switch by its name; `ports` is how many it has, where that was said."""

    name: str
    ports: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cables:
    """`count` equal cables between two ends, each `bytes_per_s`, one direction: a node by its number, a switch by that
    plus the number of nodes. 0: they are down."""

    ends: tuple[int, int]
    count: int = 1
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Wired:
    """Switches and cables one by one, under `nodes` nodes."""

    nodes: int
    switches: tuple[Switch, ...]
    cables: tuple[Cables, ...]

    @property
    def kind(self) -> str:
        """What the cluster file calls it."""
        return "wired"

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.nodes, self.switches, self.cables))

    @cached_property
    def node_bytes_per_s(self) -> tuple[float, ...]:
        """What all cables of each node carry out of it."""
        rates = [0.0] * self.nodes
        for each in self.cables:
            for end in each.ends:
                if end < self.nodes:
                    rates[end] += each.count * each.bytes_per_s
        return tuple(rates)

    @cached_property
    def tiers(self) -> tuple[int, ...]:
        """Of each switch how many cables that are up it is away from the nearest node, at least 1; of one that no way
        leads to one more than the most."""
        near: list[list[int]] = [[] for _ in range(self.nodes + len(self.switches))]
        for each in self.cables:
            if each.bytes_per_s:
                near[each.ends[0]].append(each.ends[1])
                near[each.ends[1]].append(each.ends[0])
        far = [0] * self.nodes + [-1] * len(self.switches)
        front = list(range(self.nodes))
        while front:
            beyond = dict.fromkeys(to for at in front for to in near[at] if far[to] < 0)
            for switch in beyond:
                far[switch] = far[front[0]] + 1
            front = list(beyond)
        most = max(far) + 1
        return tuple(most if away < 0 else away for away in far[self.nodes :])


Wiring = Clos | Torus | Wired
