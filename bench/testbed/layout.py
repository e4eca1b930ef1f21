"""What an emulated network consists of: namespaces, wires between them, addresses and routes. Runs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from estimator.communication.groups import nic_bytes_per_s
from profiles.cluster import Cluster, DeviceSlot, Site, SiteLink
from profiles.errors import InputError

FASTEST_SHAPED_BYTES_PER_S = 3.75e9
"""Beyond 30 Gb/s a link is left as fast as the machine: no token bucket would be reached."""

LEAST_HELD_S = 5e-5
"""A shorter latency is left to the machine: its own timers are late by as much."""

OWN_LATENCY_S = 1.5e-5
"""One way over a wire that nobody slows, measured with TCP; a frame is held for what is left of the latency asked."""

_SMALLEST_FRAME_BYTES, _LARGEST_FRAME_BYTES, _LARGEST_SEGMENT_BYTES = 9_000, 65_000, 65_536

_BURST_S = 2.5e-4
"""With less than a fifth of a millisecond of tokens, late timers lose rate (10 Gb/s: 9.2 with 0.11 ms, 10.0 with 0.25
ms)."""

_FRAMES_IN_BURST = 3
_MOST_SITES, _MOST_NODES = 200, 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A namespace: a node of a site, whose processes have `address`, or (None) what joins a site's nodes: the switch of
    a part of its network, or that above all."""

    name: str
    site: str
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a wire enters a namespace."""

    space: str
    device: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Joins two namespaces. Either direction carries `bandwidth_bytes_per_s` of its own (None: what the machine can)
    and holds every frame for `hold_s`. `link` is None inside a site; `uplink` is whose uplinks it stands for there,
    None for a node's NICs."""

    ends: tuple[End, End]
    bandwidth_bytes_per_s: float | None
    hold_s: float = 0.0
    link: SiteLink | None = None
    uplink: str | None = None

    def burst_bytes(self, frame_bytes: int) -> int:
        """What passes at full speed after a pause: a quarter of a millisecond's worth, but at least three frames. (A
        bucket that one frame fills loses the tokens that come while a late timer waits: 0.93 of 1 Gb/s.)"""
        return max(_FRAMES_IN_BURST * (frame_bytes + 50), math.ceil((self.bandwidth_bytes_per_s or 0.0) * _BURST_S))

    def segment_bytes(self, frame_bytes: int) -> int:
        """The largest segment that TCP may hand to the device. What is larger than the burst, `tc` cuts into frames;
        what is not must fit in twice, or it fills the bucket as well."""
        burst = self.burst_bytes(frame_bytes)
        if self.bandwidth_bytes_per_s is None or burst < _LARGEST_SEGMENT_BYTES:
            return _LARGEST_SEGMENT_BYTES
        return min(burst // 2, _LARGEST_SEGMENT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """From `space`, `destination` (None: whatever has no route of its own) is reached by way of `gateway`. `table`:
    only for what a rule sends there. `options` are those of `ip route` besides."""

    space: str
    destination: str | None
    gateway: str
    device: str
    table: int | None = None
    options: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What `ip` or `tc` is told in a namespace beyond its wires and routes."""

    space: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`seats` are the free devices in the cluster's order, each with its namespace and address; `notes` what of the
    cluster is not emulated. `frame_bytes` is the MTU of all wires: as large as a third of the slowest one's burst,
    since a busy machine carries more bytes in larger frames. `single_frames`: no segment is larger than a frame.
    `rules` (of `ip`) and `queues` (of `tc`) come when all wires stand; `settings` of every namespace go before those
    that all layouts have."""

    spaces: tuple[Space, ...]
    wires: tuple[Wire, ...]
    routes: tuple[Route, ...]
    seats: tuple[tuple[DeviceSlot, str, str], ...]
    notes: tuple[str, ...]
    frame_bytes: int
    single_frames: bool = False
    rules: tuple[Line, ...] = ()
    queues: tuple[Line, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


def lay_out(cluster: Cluster, *, scale: float = 1.0) -> Layout:
    """The network of `cluster`, every rate times `scale`.

    A node is a namespace: its workers talk over its loopback device. Sites of several nodes, or of one whose NICs are
    thinner than its links together, have one more, which every node's NICs lead to; where the site's network has
    levels, each part of them is one, and its uplinks a wire to the part above, at last to that one.

    Raises:
        InputError: two sites that no links join, not even by way of others; more sites or nodes than addresses.
    """
    if not 0 < scale < math.inf:
        raise InputError(where=cluster.text, key="scale", found=scale, expected="more than 0")
    _check_sizes(cluster)
    names = [site.name for site in cluster.sites]
    spaces: list[Space] = []
    wires: list[Wire] = []
    gates: dict[str, str] = {}
    above: dict[str, str] = {}
    for number, site in enumerate(cluster.sites):
        nodes = _nodes(cluster, site.name)
        own = [
            Space(name=f"s{number}n{n}", site=site.name, address=f"10.201.{number}.{n + 1}") for n in range(len(nodes))
        ]
        spaces += own
        gates[site.name] = own[0].name
        if len(own) > 1 or _nics_are_thin(cluster, site.name, nodes[0]):
            gates[site.name] = f"s{number}"
            spaces.append(Space(name=gates[site.name], site=site.name, address=None))
            rates = [nic_bytes_per_s(cluster, node) for node in nodes]
            switches, uplinks = _tree(site, gates[site.name], rates)
            spaces += switches
            lowest = site.network.levels[0].part_of if switches else ()
            for space, node, rate in zip(own, nodes, rates, strict=True):
                to = switches[lowest[node.node]].name if switches else gates[site.name]
                above[space.name] = to
                wires.append(_wire(len(wires), (space.name, "nic"), (to, f"n{node.node}"), _shaped(rate * scale)))
            for child, uplink in uplinks.items():
                above[child] = uplink.parent
                wires.append(
                    _wire(
                        len(wires),
                        (child, "uplink"),
                        (uplink.parent, f"c{uplink.number}"),
                        _shaped(uplink.bytes_per_s * scale),
                        hold_s=_hold_s(uplink.hop_latency_s),
                        uplink=uplink.name,
                    )
                )
    for link in cluster.site_links:
        one, other = link.between
        devices = f"to{names.index(other)}", f"to{names.index(one)}"
        wires.append(
            _wire(
                len(wires),
                (gates[one], devices[0]),
                (gates[other], devices[1]),
                _shaped(link.bandwidth_bytes_per_s * scale),
                hold_s=_hold_s(link.latency_s),
                link=link,
            )
        )
    address_of = {space.name: space.address for space in spaces}
    seats = [(slot, f"s{names.index(slot.site)}n{slot.node}") for slot in cluster.free_slots]
    return Layout(
        spaces=tuple(spaces),
        wires=tuple(wires),
        routes=tuple(_routes(cluster, spaces, wires, gates, above)),
        seats=tuple((slot, space, address_of[space] or "") for slot, space in seats),
        notes=tuple(_notes(cluster, wires, scale)),
        frame_bytes=_frame_bytes(wires),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uplink:
    """Of the `number`-th part of a level, to the namespace `parent`."""

    name: str
    number: int
    parent: str
    bytes_per_s: float
    hop_latency_s: float


def _tree(site: Site, gate: str, node_rates: Sequence[float]) -> tuple[list[Space], dict[str, _Uplink]]:
    """A namespace for every part of the site's network, those of the lowest level first, and the uplinks of each, whose
    nodes send at these rates; the highest ones lead to `gate`."""
    spaces: list[Space] = []
    uplinks: dict[str, _Uplink] = {}
    levels, rows = site.network.levels, site.network.part_of_node
    for depth, (level, row) in enumerate(zip(levels, rows, strict=True)):
        below = [0.0] * len(level.parts)
        for place, rate in zip(row, node_rates, strict=True):
            below[place] += rate
        for number, part in enumerate(level.parts):
            name = f"{gate}l{depth}p{number}"
            spaces.append(Space(name=name, site=site.name, address=None))
            parent = f"{gate}l{depth + 1}p{levels[depth + 1].part_of[number]}" if depth + 1 < len(levels) else gate
            uplinks[name] = _Uplink(
                name=f"{level.name} {part.name}",
                number=number,
                parent=parent,
                bytes_per_s=below[number] / part.oversubscription,
                hop_latency_s=level.hop_latency_s,
            )
    return spaces, uplinks


def _check_sizes(cluster: Cluster) -> None:
    for key, found, most in (
        ("sites", len(cluster.sites), _MOST_SITES),
        ("nodes", max(sum(group.count for group in site.nodes) for site in cluster.sites), _MOST_NODES),
    ):
        if found > most:
            raise InputError(
                where=cluster.text, key=key, found=found, expected=f"at most {most} in an emulated network"
            )


def _nodes(cluster: Cluster, site: str) -> list[DeviceSlot]:
    """The first device of each of a site's nodes."""
    return [slot for slot in cluster.slots if slot.site == site and slot.index == 0]


def _nics_are_thin(cluster: Cluster, site: str, node: DeviceSlot) -> bool:
    links = sum(link.bandwidth_bytes_per_s for link in cluster.site_links if site in link.between)
    nics = nic_bytes_per_s(cluster, node)
    return 0 < nics < links and nics <= FASTEST_SHAPED_BYTES_PER_S


def _shaped(bandwidth_bytes_per_s: float) -> float | None:
    return bandwidth_bytes_per_s if 0 < bandwidth_bytes_per_s <= FASTEST_SHAPED_BYTES_PER_S else None


def _frame_bytes(wires: Sequence[Wire]) -> int:
    rates = [wire.bandwidth_bytes_per_s for wire in wires if wire.bandwidth_bytes_per_s is not None]
    fitting = int(min(rates) * _BURST_S / _FRAMES_IN_BURST) - 50 if rates else _LARGEST_FRAME_BYTES
    return min(max(fitting, _SMALLEST_FRAME_BYTES), _LARGEST_FRAME_BYTES)


def _hold_s(latency_s: float) -> float:
    return latency_s - OWN_LATENCY_S if latency_s >= LEAST_HELD_S else 0.0


def _wire(
    number: int,
    one: tuple[str, str],
    other: tuple[str, str],
    bandwidth_bytes_per_s: float | None,
    *,
    hold_s: float = 0.0,
    link: SiteLink | None = None,
    uplink: str | None = None,
) -> Wire:
    """The wire with the `number`-th pair of addresses. Up to 19,900 links of 200 sites fit."""
    low = f"10.{202 + number // 32_768}.{number // 128 % 256}."
    pair = number % 128 * 2
    first = End(space=one[0], device=one[1], address=f"{low}{pair}")
    second = End(space=other[0], device=other[1], address=f"{low}{pair + 1}")
    return Wire(
        ends=(first, second), bandwidth_bytes_per_s=bandwidth_bytes_per_s, hold_s=hold_s, link=link, uplink=uplink
    )


# Routes


def _routes(
    cluster: Cluster, spaces: Sequence[Space], wires: Sequence[Wire], gates: dict[str, str], above: dict[str, str]
) -> list[Route]:
    """Down to each node below, up for whatever else; a gate has the way to every node. `above` are the namespaces that
    nodes and switches hang under."""
    next_site = _next_sites(cluster)
    routes = []
    far_end = {
        (wire.ends[i].space, wire.ends[1 - i].space): (wire.ends[i], wire.ends[1 - i]) for wire in wires for i in (0, 1)
    }
    down: dict[str, dict[str, str]] = {}
    for target in spaces:
        here = target.name
        while target.address is not None and here in above:
            down.setdefault(above[here], {})[target.name] = here
            here = above[here]
    for space in spaces:
        for target in spaces:
            if target.address is None or target is space:
                continue
            hop = down.get(space.name, {}).get(target.name)
            if hop is None and space.name == gates[space.site] and target.site != space.site:
                hop = gates[next_site[space.site, target.site]]
            if hop is not None:
                own, far = far_end[space.name, hop]
                routes.append(
                    Route(space=space.name, destination=target.address, gateway=far.address, device=own.device)
                )
        if space.name in above:
            own, far = far_end[space.name, above[space.name]]
            routes.append(Route(space=space.name, destination=None, gateway=far.address, device=own.device))
    return routes


def _next_sites(cluster: Cluster) -> dict[tuple[str, str], str]:
    """The next site on the way from one to another: their own link where there is one, else by way of the fewest
    sites, and of those ways the widest. Every hop comes nearer, so no frame goes in circles."""
    names = [site.name for site in cluster.sites]
    width: dict[str, dict[str, float]] = {name: {} for name in names}
    for link in cluster.site_links:
        one, other = link.between
        width[one][other] = width[other][one] = link.bandwidth_bytes_per_s
    chosen: dict[tuple[str, str], str] = {}
    for target in names:
        reached = {target: math.inf}
        edge = [target]
        while edge:
            found: dict[str, float] = {}
            for near in edge:
                for name, wide in width[near].items():
                    through = min(wide, reached[near])
                    if name not in reached and through > found.get(name, 0.0):
                        found[name] = through
                        chosen[name, target] = near
            reached |= found
            edge = list(found)
        for name in names:
            if name not in reached:
                raise InputError(
                    where=cluster.text,
                    key="links_between_sites",
                    found=f"no way between {name} and {target}",
                    expected="links that join all sites: every worker connects to every other",
                )
    return chosen


def _notes(cluster: Cluster, wires: Sequence[Wire], scale: float) -> list[str]:
    """What is not as the cluster says, in sentences."""
    notes = ["inside a node: the loopback device at its own speed, whatever the island and host links"]
    if scale != 1:
        notes.append(f"every rate times {scale:g}")
    unlimited = [wire for wire in wires if wire.bandwidth_bytes_per_s is None]
    inside = [wire for wire in unlimited if wire.link is None and wire.uplink is None]
    uplinks = [wire for wire in unlimited if wire.uplink is not None]
    between = [wire for wire in unlimited if wire.link is not None]
    for unshaped, what in ((inside, "nodes' NICs"), (uplinks, "uplinks"), (between, "links between sites")):
        if unshaped:
            limit = FASTEST_SHAPED_BYTES_PER_S * 8e-9
            notes.append(f"{len(unshaped)} {what} above {limit:g} Gb/s: as fast as the machine")
    quick = [link for link in cluster.site_links if link.latency_s < LEAST_HELD_S]
    if quick:
        notes.append(f"{len(quick)} links with less than {LEAST_HELD_S * 1e6:g} us: the machine's own latency")
    if any(level.spread for site in cluster.sites for level in site.network.levels):
        notes.append("spread tables are not emulated: each uplink is one wire, on which no flows meet by chance")
    linked = {frozenset(link.between) for link in cluster.site_links}
    pairs = len(cluster.sites) * (len(cluster.sites) - 1) // 2
    if len(linked) < pairs:
        notes.append(f"{pairs - len(linked)} pairs of sites without a link: by way of the fewest, then widest, others")
    return notes
