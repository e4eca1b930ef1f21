"""The PCIe lanes inside nodes as links of the network: what sends from devices that share a NIC meets there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.network.links import Links
from estimator.network.wires import Integers
from profiles.cluster import NodeGroup
from profiles.records import dataclass, replace

UNSAID = -1
INSIDE_NODES = -1
"""The tier of what is inside nodes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PcieWays:
    """Links from each device, and to each NIC, at the PCIe switch that each hangs under (`UNSAID`: nobody said), and
    from each switch to its node's root; devices and NICs numbered through the network."""

    device_links: Integers
    device_switches: Integers
    nic_links: Integers
    nic_switches: Integers
    root_links: Integers

    def between(self, devices: Integers, nics: Integers, *, receiving: bool) -> tuple[Integers, Integers]:
        """Return the links from devices to NICs of their nodes, and which pair each is of; from NICs to devices where
        they are `receiving`."""
        said = np.flatnonzero(self.device_links[devices] != UNSAID)
        under, nic_under = self.device_switches[devices], self.nic_switches[nics]
        apart = said[under[said] != nic_under[said]]
        links = np.concatenate(
            [
                self.device_links[devices[said]],
                self.nic_links[nics[said]],
                self.root_links[under[apart]],
                self.root_links[nic_under[apart]] ^ 1,
            ]
        )
        of = np.concatenate([said, said, apart, apart])
        return of, links ^ 1 if receiving else links


def with_pcie(groups: Sequence[NodeGroup], links: Links) -> tuple[Links, PcieWays | None]:
    """Return the links of a network with the PCIe lanes of its nodes, and who hangs where; None where no group of nodes
    says. `groups` are those of all sites, in the order of the nodes."""
    if not any(group.pcie for group in groups):
        return links, None
    first_vertex, first_link = len(links.names), links.count
    names: list[str] = []
    ends: list[tuple[int, int]] = []
    rates: list[float] = []
    roots: list[int] = []
    devices = sum(group.count * group.devices for group in groups)
    table = {key: np.full(size, UNSAID) for key, size in (("device", devices), ("nic", links.nics))}
    under = {key: column.copy() for key, column in table.items()}

    def add_vertex(name: str) -> int:
        names.append(name)
        return first_vertex + len(names) - 1

    def add_cable(start: int, end: int, bytes_per_s: float) -> int:
        ends.append((start, end))
        rates.append(bytes_per_s)
        return first_link + 2 * (len(ends) - 1)

    node, first_device = 0, 0
    for group in groups:
        for _ in range(group.count):
            host = links.names[node]
            root = add_vertex(f"{host}/root") if group.pcie else UNSAID
            for number, switch in enumerate(group.pcie):
                at = add_vertex(f"{host}/pcie{number}")
                for device in switch.devices:
                    place = first_device + device
                    vertex = add_vertex(f"{host}/device{device}")
                    table["device"][place] = add_cable(vertex, at, switch.bytes_per_s)
                    under["device"][place] = len(roots)
                for nic in switch.nics:
                    place = int(links.nic_begins[node]) + nic
                    vertex = add_vertex(f"{host}/nic{nic}")
                    table["nic"][place] = add_cable(at, vertex, switch.bytes_per_s)
                    under["nic"][place] = len(roots)
                roots.append(add_cable(at, root, switch.bytes_per_s))
            node, first_device = node + 1, first_device + group.devices
    added = np.array(ends, dtype=np.int64)
    extended = replace(
        links,
        names=(*links.names, *names),
        tier_of=np.concatenate([links.tier_of, np.full(len(names), INSIDE_NODES)]),
        ends=np.concatenate([links.ends, np.stack([added, added[:, ::-1]], axis=1).reshape(-1, 2)]),
        bytes_per_s=np.concatenate([links.bytes_per_s, np.repeat(rates, 2)]),
    )
    return extended, PcieWays(
        device_links=table["device"],
        device_switches=under["device"],
        nic_links=table["nic"],
        nic_switches=under["nic"],
        root_links=np.array(roots, dtype=np.int64),
    )
