"""How bytes of a cluster's jobs cross its network, which says what of a packet a level is told by."""

from __future__ import annotations

from typing import Literal

from planner.contention.emitting.levels import MOST_LEVELS, MapLevel
from planner.contention.emitting.priority_map import INFINIBAND, PriorityMap, default_map
from profiles.cluster import Cluster, Site
from profiles.errors import InputError
from profiles.records import replace

Transport = Literal["roce", "infiniband", "tcp", "other"]
"""`other`: a network whose library takes its classes from neither (EFA, Slingshot, TPU and Gaudi links)."""

TRANSPORTS: tuple[Transport, ...] = ("roce", "infiniband", "tcp")
NAMES = {"roce": "RoCE", "infiniband": INFINIBAND, "tcp": "TCP", "other": "another network"}
STRICT = 2
"""So many levels InfiniBand's arbiter serves strictly in turn."""
NOT_DSCP = ("efa", "slingshot", "omni-path")


def transport_of(cluster: Cluster) -> Transport:
    """Return what the links of a cluster's fabric are: RoCE by their names, InfiniBand by their kind, other Ethernet
    carries TCP. Of sites that differ the first counts."""
    return _transport_of_site(cluster.sites[0])


def _transport_of_site(site: Site) -> Transport:
    link = site.fabric_link
    if link.name.startswith(NOT_DSCP):
        return "other"
    if link.kind == "infiniband":
        return "infiniband"
    if link.kind != "ethernet" or link.name.startswith("gaudi"):
        return "other"
    return "roce" if "roce" in link.name else "tcp"


def other_sites(cluster: Cluster, transport: Transport) -> dict[str, Transport]:
    """Return the sites whose network is of another kind, by name; none where even the first is, since then the user
    says what all are."""
    own = {site.name: _transport_of_site(site) for site in cluster.sites}
    if own[cluster.sites[0].name] != transport:
        return {}
    return {name: kind for name, kind in own.items() if kind != transport}


def service_levels(levels: int) -> PriorityMap:
    """Return so many levels of InfiniBand: service level `levels` - 1 for the most urgent, 0, which all else has, for
    the last. One is served before all others; of more than two the rest go by weight. Raise InputError for less than
    one or more than eight, as there are virtual lanes for data."""
    if not 1 <= levels <= MOST_LEVELS:
        expected = f"1 to {MOST_LEVELS}, as there are virtual lanes for data"
        raise InputError(where="contention", key="--levels", found=levels, expected=expected)
    chosen = tuple(
        MapLevel(
            dscp=0,
            traffic_class=number,
            priority=number,
            service="strict" if number == levels - 1 or levels <= STRICT else "weighted",
        )
        for number in range(levels - 1, -1, -1)
    )
    said = (
        f"InfiniBand has no DSCP and no source ports: jobs are told service levels alone, {levels - 1} for the most"
        " urgent; the subnet manager must lead each to a virtual lane of its own (--emit-map writes lines for OpenSM)"
    )
    if levels > STRICT:
        said += f"; its arbiter serves {STRICT} levels strictly in turn, the plan's times are of {levels} that are"
    return replace(default_map(levels), source=INFINIBAND, levels=chosen, reserved=(), warnings=(said,))
