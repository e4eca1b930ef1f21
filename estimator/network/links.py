"""Every single cable of a cluster's networks, in each direction, as a link with a number.

Link 2c leads along cable c as its row of wires says, link 2c + 1 back: `link ^ 1` is the same cable the other way.
Nodes come first among the vertices, then the switches of one site after the other, each site's from its leaves up; then
a gateway for each site that is linked with another, which all of its highest switches reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from estimator.network.wires import ALL_NICS, Floats, Integers, Wires, wires_of
from profiles.cluster import Cluster, Site
from profiles.records import dataclass, replace
from profiles.vocabulary import Link


@dataclass(frozen=True, kw_only=True, eq=False)
class Links:
    """All links of a network. `ends` are the vertices that each leads from and to, (links, 2), `bytes_per_s` what it
    carries, 0 where it is down; `names` are the vertices', the first `nodes` of them nodes, `tier_of` is 0 for a node
    and else grows from the leaves up. NICs are numbered through all nodes, those of node n from `nic_begins[n]`; NIC i
    sends on `ports[port_begins[i] : port_begins[i + 1]]`. `dimensions` are those of a torus."""

    names: tuple[str, ...]
    nodes: int
    tier_of: Integers
    ends: Integers
    bytes_per_s: Floats
    nic_begins: Integers
    ports: Integers
    port_begins: Integers
    dimensions: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.bytes_per_s)

    @property
    def nics(self) -> int:
        """How many NICs all nodes have together."""
        return int(self.nic_begins[-1])

    @cached_property
    def node_of_nic(self) -> Integers:
        """The node of each NIC."""
        return np.repeat(np.arange(self.nodes), np.diff(self.nic_begins))

    @cached_property
    def at_node(self) -> NDArray[np.bool_]:
        """Whether each link leads from a NIC of a node or to one."""
        there = np.zeros(self.count, dtype=bool)
        there[self.ports] = there[self.ports ^ 1] = True
        return there

    def name(self, link: int) -> str:
        """Return what a link is called: its ends, and which of parallel ones it is."""
        start, end = self.ends[link]
        beside = int(self._first_beside[link // 2])
        number = f" ({link // 2 - beside + 1})" if self._are_beside(link // 2, beside) else ""
        return f"{self.names[start]} -> {self.names[end]}{number}"

    @cached_property
    def _first_beside(self) -> Integers:
        """Of each cable the first of those next to it that join the same ends."""
        pairs = self.ends[::2]
        new = np.ones(len(pairs), dtype=bool)
        new[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
        return np.maximum.accumulate(np.where(new, np.arange(len(pairs)), 0))

    def _are_beside(self, cable: int, first: int) -> bool:
        return cable != first or (cable + 1 < len(self._first_beside) and self._first_beside[cable + 1] == first)

    def between(self, first: int, second: int) -> tuple[int, ...]:
        """Return the links that lead from one vertex straight to another."""
        return tuple(np.flatnonzero((self.ends[:, 0] == first) & (self.ends[:, 1] == second)).tolist())

    def without(self, links: Iterable[int]) -> Links:
        """Return the network with the cables of these links down, both ways."""
        rates = self.bytes_per_s.copy()
        down = np.fromiter(links, dtype=np.int64)
        rates[down], rates[down ^ 1] = 0.0, 0.0
        return replace(self, bytes_per_s=rates)


def links_of(wires: Wires, *, reached: float = 1.0) -> Links:
    """Return the links of one site's wires, of whose rates training reaches a share."""
    cables = np.repeat(np.arange(len(wires.ends)), wires.counts)
    ends = wires.ends[cables]
    ports, port_begins, nic_begins = _ports(wires, cables)
    return Links(
        names=wires.names,
        nodes=wires.nodes,
        tier_of=wires.tier_of,
        ends=np.stack([ends, ends[:, ::-1]], axis=1).reshape(-1, 2),
        bytes_per_s=np.repeat(wires.bytes_per_s[cables] * reached, 2),
        nic_begins=nic_begins,
        ports=ports,
        port_begins=port_begins,
    )


def _ports(wires: Wires, cables: Integers) -> tuple[Integers, Integers, Integers]:
    """The links that NICs send on, where each NIC's begin, and where each node's NICs do. What leaves a node by any of
    its NICs is dealt out to them in turn; of fewer cables than NICs, several share one."""
    numbers = np.arange(len(cables))
    nics, row_nic = wires.node_nics, wires.nics[cables]
    at = wires.ends[cables, 0]
    nic_begins = np.concatenate([[0], np.cumsum(nics)])
    of_node = np.flatnonzero((row_nic == ALL_NICS) & (nics[np.minimum(at, wires.nodes - 1)] > 0))
    if not wires.tiers:
        of_node = of_node[:0]
    named = np.flatnonzero(row_nic >= 0)
    of_node = of_node[np.argsort(at[of_node], kind="stable")]
    node, have = at[of_node], np.bincount(at[of_node], minlength=wires.nodes)
    place = np.arange(len(of_node)) - np.repeat(np.cumsum(have) - have, have)
    # The p-th cable is NIC p's; where cables are fewer than NICs, NIC p's is the (p mod cables)-th.
    owner = nic_begins[node] + place % np.maximum(nics[node], 1)
    short = np.flatnonzero((have > 0) & (have < nics))
    begins_of_node = np.cumsum(have) - have
    missing = nics[short] - have[short]
    late_node = np.repeat(short, missing)
    late = have[late_node] + np.arange(missing.sum()) - np.repeat(np.cumsum(missing) - missing, missing)
    owners = np.concatenate([nic_begins[at[named]] + row_nic[named], owner, nic_begins[late_node] + late])
    sent_on = np.concatenate(
        [numbers[named], of_node, of_node[begins_of_node[late_node] + late % np.maximum(have[late_node], 1)]]
    )
    order = np.argsort(owners, kind="stable")
    begins = np.searchsorted(owners[order], np.arange(nic_begins[-1] + 1))
    return 2 * sent_on[order], begins, nic_begins


def links_of_cluster(cluster: Cluster) -> Links:
    """Return the links of a cluster's sites, and those between the sites: rates that training reaches of them, by the
    efficiencies that its links have for the estimator."""
    parts = [links_of_site(site) for site in cluster.sites]
    if len(parts) == 1:
        return parts[0]
    nodes = sum(part.nodes for part in parts)
    node, switch = 0, nodes
    called = [_told_apart(site, part) for site, part in zip(cluster.sites, parts, strict=True)]
    names = [name for part, own in zip(parts, called, strict=True) for name in own[: part.nodes]]
    tiers: list[Integers] = [np.zeros(nodes, dtype=np.int64)]
    ends: list[Integers] = []
    tops: list[Integers] = []
    for part, own in zip(parts, called, strict=True):
        renumbered = np.concatenate([node + np.arange(part.nodes), switch + np.arange(len(part.names) - part.nodes)])
        ends.append(renumbered[part.ends])
        tops.append(renumbered[part.tier_of == part.tier_of.max()])
        names += own[part.nodes :]
        tiers.append(part.tier_of[part.nodes :])
        node, switch = node + part.nodes, switch + len(part.names) - part.nodes
    gates = {site.name: switch + number for number, site in enumerate(cluster.sites)}
    names += [f"gateway of {site.name}" for site in cluster.sites]
    tiers.append(np.full(len(gates), 1 + max(int(part.tier_of.max()) for part in parts)))
    to_gates = [
        np.stack([top, np.full(len(top), gate)], axis=1) for top, gate in zip(tops, gates.values(), strict=True)
    ]
    across = np.array([[gates[name] for name in link.between] for link in cluster.site_links], dtype=np.int64)
    added = np.concatenate([*to_gates, across.reshape(-1, 2)])
    rates = [np.inf] * (len(added) - len(across)) + [link.bandwidth_bytes_per_s for link in cluster.site_links]
    port_counts = np.cumsum([0, *(len(part.ports) for part in parts)])
    nic_counts = np.cumsum([0, *(part.nics for part in parts)])
    link_counts = np.cumsum([0, *(part.count for part in parts)])
    return Links(
        names=tuple(names),
        nodes=nodes,
        tier_of=np.concatenate(tiers),
        ends=np.concatenate([*ends, np.stack([added, added[:, ::-1]], axis=1).reshape(-1, 2)]),
        bytes_per_s=np.concatenate([*(part.bytes_per_s for part in parts), np.repeat(rates, 2)]),
        nic_begins=_joined([part.nic_begins for part in parts], nic_counts),
        ports=np.concatenate([part.ports + first for part, first in zip(parts, link_counts[:-1], strict=True)]),
        port_begins=_joined([part.port_begins for part in parts], port_counts),
    )


def _told_apart(site: Site, links: Links) -> list[str]:
    """The names of a site's vertices among those of other sites: whatever the user did not name has the site's."""
    return [name_among_sites(site, name) for name in links.names]


def name_among_sites(site: Site, name: str) -> str:
    """Return what a node or a switch of a site is called among those of several sites."""
    return name if name in _hosts(site) else f"{site.name}/{name}"


@lru_cache(maxsize=64)
def _hosts(site: Site) -> frozenset[str]:
    return frozenset(site.network.hosts)


def _joined(begins: Sequence[Integers], counts: Integers) -> Integers:
    """Where things begin, one part after the other."""
    shifted = [part[:-1] + first for part, first in zip(begins, counts[:-1], strict=True)]
    return np.concatenate([*shifted, counts[-1:]])


def links_of_site(site: Site) -> Links:
    """Return the links of one site, with the rates that training reaches of them."""
    from profiles.wiring import Torus

    sent = sum(group.count * group.nics * group.nic_bytes_per_s(site.fabric_link) for group in site.nodes)
    reached = sum(
        group.count * group.nics * min(_effective(group.nic_link), _effective(site.fabric_link)) for group in site.nodes
    )
    links = links_of(wires_of(site), reached=reached / sent if sent else site.fabric_link.efficiency)
    wiring = site.network.wiring
    return replace(links, dimensions=wiring.dimensions) if isinstance(wiring, Torus) else links


def _effective(link: Link) -> float:
    return link.bandwidth_bytes_per_s * link.efficiency
