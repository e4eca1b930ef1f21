"""Switches and cables as the cluster file has them (`fabric.topology`), and back into that form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError
from profiles.host_lists import expand_hosts
from profiles.limits import LIMITS
from profiles.network import Network
from profiles.wiring import Cables, Clos, Switch, Torus, Wired, Wiring
from profiles.wiring_levels import levels_of

if TYPE_CHECKING:
    from profiles.cluster import NodeGroup
    from profiles.cluster_schema import (
        Clos2Model,
        Clos3Model,
        DoubleSidedModel,
        FabricModel,
        FatTreeModel,
        LinkRef,
        RailModel,
        SwitchesModel,
        TorusModel,
    )
    from profiles.vocabulary import Link

ReadLink = Callable[["LinkRef", str], "Link"]
"""Gives the link that stands at a key of the fabric."""

KEY = "fabric.topology"
AGREES = 1e-6
"""An oversubscription that is stated beside switches and cables may differ so much from theirs."""


def read_wired_network(
    fabric: FabricModel, nodes: Sequence[NodeGroup], hosts: tuple[str, ...], link: Link, where: str, read_link: ReadLink
) -> Network:
    """Return the tree that a site's switches and cables make above `nodes`, with themselves in it. Raise InputError
    naming `where` and the site's key for what cannot be, and for what is stated as well and does not agree."""
    reader = _Reader(where=where, link=link, read_link=read_link, nodes=nodes, hosts=hosts)
    assert fabric.topology is not None
    if fabric.levels is not None:
        raise _wrong(where, "fabric.levels", "levels beside switches and cables", "one of them")
    wiring = reader.wiring(fabric.topology)
    LIMITS.cables.check(_rows(wiring), where=where, key=KEY)
    rates = [group.nics * group.nic_bytes_per_s(link) for group in nodes for _ in range(group.count)]
    try:
        levels = levels_of(wiring, rates)
    except InputError as error:
        raise _wrong(where, error.key or KEY, error.found, error.expected) from None
    network = Network(levels=levels, hosts=hosts, wiring=wiring)
    _check_stated(fabric, network, where)
    return network


def _check_stated(fabric: FabricModel, network: Network, where: str) -> None:
    """Raise InputError unless pods and oversubscription that are stated are those of the switches and cables."""
    derived = max((part.oversubscription for level in network.levels for part in level.parts), default=1.0)
    stated = fabric.oversubscription
    if stated is not None and abs(stated - max(derived, 1.0)) > AGREES * derived:
        raise _wrong(
            where, "fabric.oversubscription", stated, f"{max(derived, 1.0):.6g}, which the cables make, or none"
        )
    pods = next((len(level.parts) for level in network.levels if level.name == "pod"), 1)
    if fabric.pods is not None and fabric.pods != pods:
        raise _wrong(where, "fabric.pods", fabric.pods, f"{pods}, which the switches make, or none")


def _rows(wiring: Wiring) -> int:
    """How many rows of parallel cables there are between switches."""
    if isinstance(wiring, Clos):
        return wiring.pods * (
            wiring.leaves * (wiring.aggregations or wiring.tops) + (wiring.tops if wiring.aggregations else 0)
        )
    return len(wiring.cables) if isinstance(wiring, Wired) else 0


def _wrong(where: str, key: str, found: object, expected: str) -> InputError:
    return InputError(where=where, key=key, found=found, expected=expected)


class _Reader:
    """Turns what is written into records."""

    def __init__(
        self, *, where: str, link: Link, read_link: ReadLink, nodes: Sequence[NodeGroup], hosts: tuple[str, ...]
    ) -> None:
        self._where, self._link, self._read_link, self._hosts = where, link, read_link, hosts
        self._nodes = sum(group.count for group in nodes)
        self._most_nics = max(group.nics for group in nodes)

    def wiring(self, written: Any) -> Wiring:
        """Return the record of one kind of topology."""
        read: dict[str, Callable[[Any], Wiring]] = {
            "clos2": self._clos2,
            "clos3": self._clos3,
            "fat-tree": self._fat_tree,
            "rail": self._rail,
            "double-sided": self._double_sided,
            "torus": self._torus,
            "wired": self._wired,
        }
        return read[written.kind](written)

    def _rate(self, written: LinkRef | None, key: str) -> float:
        link = self._link if written is None else self._read_link(written, f"{KEY}.{key}")
        return link.bandwidth_bytes_per_s

    def _per(self, stated: int | None, groups: int) -> int:
        """How many nodes hang under each of so many groups: as stated, else as few as hold all."""
        return stated or max(1, -(-self._nodes // groups))

    def _clos2(self, written: Clos2Model) -> Clos:
        rate = self._rate(written.link, "link")
        return Clos(
            kind="clos2",
            leaves=written.leaves,
            tops=written.spines,
            nodes_below=self._per(written.nodes_per_leaf, written.leaves),
            leaf_cables=written.cables,
            leaf_bytes_per_s=rate,
            top_bytes_per_s=rate,
        )

    def _clos3(self, written: Clos3Model) -> Clos:
        if written.cores % written.aggregations:
            expected = f"a multiple of the {written.aggregations} aggregation switches of a pod"
            raise _wrong(self._where, f"{KEY}.cores", written.cores, expected)
        LIMITS.nodes.check(written.pods * written.leaves, where=self._where, key=f"{KEY}.leaves")
        LIMITS.nodes.check(written.pods * written.aggregations, where=self._where, key=f"{KEY}.aggregations")
        return Clos(
            kind="clos3",
            pods=written.pods,
            leaves=written.leaves,
            aggregations=written.aggregations,
            tops=written.cores,
            nodes_below=self._per(written.nodes_per_leaf, written.pods * written.leaves),
            leaf_cables=written.cables,
            top_cables=written.core_cables,
            leaf_bytes_per_s=self._rate(written.link, "link"),
            top_bytes_per_s=self._rate(written.core_link or written.link, "core_link"),
        )

    def _fat_tree(self, written: FatTreeModel) -> Clos:
        half, rate = written.k // 2, self._rate(written.link, "link")
        if self._most_nics > half:
            found = f"{written.k} ports: {half} down from each leaf, for nodes of {self._most_nics} NICs"
            raise _wrong(self._where, f"{KEY}.k", found, f"at least {2 * self._most_nics}")
        return Clos(
            kind="fat-tree",
            pods=written.k,
            leaves=half,
            aggregations=half,
            tops=half * half,
            nodes_below=half // max(self._most_nics, 1),
            leaf_bytes_per_s=rate,
            top_bytes_per_s=rate,
        )

    def _rail(self, written: RailModel) -> Clos:
        rate = self._rate(written.link, "link")
        pods = -(-self._nodes // written.nodes_per_pod)
        return Clos(
            kind="rail",
            pods=pods,
            leaves=self._most_nics,
            tops=written.spines,
            nodes_below=written.nodes_per_pod,
            leaf_cables=written.cables,
            leaf_bytes_per_s=rate,
            top_bytes_per_s=rate,
        )

    def _double_sided(self, written: DoubleSidedModel) -> Clos:
        rate = self._rate(written.link, "link")
        return Clos(
            kind="double-sided",
            leaves=written.leaves,
            tops=written.spines,
            nodes_below=self._per(written.nodes_per_pair, written.leaves // 2),
            leaf_cables=written.cables,
            leaf_bytes_per_s=rate,
            top_bytes_per_s=rate,
        )

    def _torus(self, written: TorusModel) -> Torus:
        return Torus(dimensions=tuple(written.dimensions), bytes_per_s=self._rate(written.link, "link"))

    def _wired(self, written: SwitchesModel) -> Wired:
        hosts = self._hosts or tuple(f"node{number}" for number in range(self._nodes))
        places = {host: number for number, host in enumerate(hosts)}
        switches: list[Switch] = []
        for number, switch in enumerate(written.switches):
            key = f"{KEY}.switches[{number}].name"
            for name in expand_hosts(switch.name, self._where, key):
                if name in places:
                    kind = "a node" if places[name] < self._nodes else "a switch"
                    raise _wrong(self._where, key, f"{name}, which is {kind} already", "each switch's own name")
                places[name] = self._nodes + len(switches)
                switches.append(Switch(name=name, ports=switch.ports))
        cables: list[Cables] = []
        used = [0] * (self._nodes + len(switches))
        for number, row in enumerate(written.cables):
            key = f"{KEY}.cables[{number}]"
            LIMITS.cables_by_name.check(len(cables), where=self._where, key=key)
            rate = 0.0 if row.down else self._rate(row.link, f"cables[{number}].link")
            for ends in self._pairs(row.between, places, f"{key}.between"):
                cables.append(Cables(ends=ends, count=row.count, bytes_per_s=rate))
                for end in ends:
                    used[end] += row.count
        for made, ports in zip(switches, used[self._nodes :], strict=True):
            if made.ports is not None and ports > made.ports:
                found = f"{ports} cables at {made.name}"
                raise _wrong(self._where, f"{KEY}.cables", found, f"at most its {made.ports} ports")
        return Wired(nodes=self._nodes, switches=tuple(switches), cables=tuple(cables))

    def _pairs(self, between: Sequence[str], places: dict[str, int], key: str) -> list[tuple[int, int]]:
        """The pairs of ends that two lists of names mean."""
        lists: list[list[int]] = []
        for text in between:
            names = expand_hosts(text, self._where, key)
            unknown = next((name for name in names if name not in places), None)
            if unknown is not None:
                called = "" if self._hosts else ", which are called node0, node1, ... where they have no names"
                raise _wrong(self._where, key, repr(unknown), f"switches of this fabric, or its nodes{called}")
            lists.append([places[name] for name in names])
        first, second = lists
        LIMITS.cables_by_name.check(len(first) * len(second), where=self._where, key=key)
        pairs = [(one, other) for one in first for other in second]
        if any(one == other for one, other in pairs):
            raise _wrong(self._where, key, "a cable from an end to itself", "two ends")
        if any(max(pair) < self._nodes for pair in pairs):
            raise _wrong(self._where, key, "a cable between two nodes", "a switch at one end (a torus has none)")
        return pairs


def describe_wiring(wiring: Wiring, hosts: Sequence[str]) -> dict[str, Any]:
    """Return the `topology` of a fabric that means `wiring`, whose nodes have these names, if any."""
    if isinstance(wiring, Torus):
        return {"kind": "torus", "dimensions": list(wiring.dimensions), "link": _rate_link(wiring.bytes_per_s)}
    if isinstance(wiring, Wired):
        names = [
            *(hosts or (f"node{number}" for number in range(wiring.nodes))),
            *(each.name for each in wiring.switches),
        ]
        return {
            "kind": "wired",
            "switches": [
                {"name": each.name} | ({"ports": each.ports} if each.ports else {}) for each in wiring.switches
            ],
            "cables": [
                {"between": [names[end] for end in each.ends], "count": each.count}
                | ({"link": _rate_link(each.bytes_per_s)} if each.bytes_per_s else {"down": True})
                for each in wiring.cables
            ],
        }
    link, cables = _rate_link(wiring.leaf_bytes_per_s), wiring.leaf_cables
    by_kind: dict[str, dict[str, Any]] = {
        "clos2": {
            "leaves": wiring.leaves, "spines": wiring.tops, "nodes_per_leaf": wiring.nodes_below, "cables": cables
        },
        "clos3": {
            "pods": wiring.pods,
            "leaves": wiring.leaves,
            "aggregations": wiring.aggregations,
            "cores": wiring.tops,
            "nodes_per_leaf": wiring.nodes_below,
            "cables": cables,
            "core_cables": wiring.top_cables,
            "core_link": _rate_link(wiring.top_bytes_per_s),
        },
        "fat-tree": {"k": wiring.pods},
        "rail": {"nodes_per_pod": wiring.nodes_below, "spines": wiring.tops, "cables": cables},
        "double-sided": {
            "leaves": wiring.leaves, "spines": wiring.tops, "nodes_per_pair": wiring.nodes_below, "cables": cables
        },
    }  # fmt: skip
    return {"kind": wiring.kind, **by_kind[wiring.kind], "link": link}


def _rate_link(bytes_per_s: float) -> dict[str, float]:
    """A cable of this rate: no price asks for more of it."""
    return {"bandwidth_bytes_per_s": bytes_per_s, "latency_s": 0.0}
