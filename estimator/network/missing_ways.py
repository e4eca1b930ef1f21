"""Why no way leads from one NIC to another: the link that lacks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from estimator.network.links import Links


class NoWayError(Exception):
    """Two nodes that cannot communicate; `lacking` says what would join them."""

    def __init__(self, *, source: str, destination: str, lacking: str) -> None:
        super().__init__(f"no way from {source} to {destination}: {lacking}")
        self.source, self.destination, self.lacking = source, destination, lacking


def no_way(links: Links, source_nic: int, destination_nic: int) -> NoWayError:
    """Return what is to be raised where nothing leads from a NIC to another, naming a link that is down and would."""
    source, destination = (int(links.node_of_nic[nic]) for nic in (source_nic, destination_nic))
    reached, reaching = (
        _reached(links, nic, backward=backward) for nic, backward in ((source_nic, False), (destination_nic, True))
    )
    tails, heads = links.ends.T
    down = np.flatnonzero((links.bytes_per_s == 0) & reached[tails] & reaching[heads])
    if len(down):
        lacking = f"{links.name(int(down[0]))} is down"
    else:
        switches = [links.names[np.flatnonzero(part)[-1]] for part in (reached, reaching)]
        lacking = f"nothing joins {switches[0]} and {switches[1]}"
    nics = (nic - int(links.nic_begins[node]) for nic, node in ((source_nic, source), (destination_nic, destination)))
    first, second = (f"NIC {nic} of {links.names[node]}" for nic, node in zip(nics, (source, destination), strict=True))
    return NoWayError(source=first, destination=second, lacking=lacking)


def _reached(links: Links, nic: int, *, backward: bool) -> NDArray[np.bool_]:
    """The node of a NIC, and whatever links that are up join with it, from there on or up to there."""
    node = links.node_of_nic[nic]
    own = links.ports[links.port_begins[nic] : links.port_begins[nic + 1]] ^ (1 if backward else 0)
    first, second = (links.ends[:, 1], links.ends[:, 0]) if backward else (links.ends[:, 0], links.ends[:, 1])
    up = links.bytes_per_s > 0
    passes = links.tier_of >= 0 if links.dimensions else links.tier_of > 0
    forwards = up & passes[first] & passes[second]
    reached = np.zeros(len(links.names), dtype=bool)
    reached[second[own[up[own]]]] = True
    reached[node] |= bool(links.dimensions)
    while not reached[new := second[forwards & reached[first]]].all():
        reached[new] = True
    reached[node] = True
    return reached
