"""The fabric as namespaces, wires, routes, rules and queues. Runs nothing."""

from __future__ import annotations

from bench.testbed.fabric.queues import queue_lines
from bench.testbed.fabric.shape import (
    BLOCK_PORTS,
    BLOCKS,
    FIRST_PORT,
    FRAME_BYTES,
    SINGLE_PORTS,
    Shape,
    host_address,
    leaf_address,
    place_address,
    spine_address,
)
from bench.testbed.layout import End, Layout, Line, Route, Space, Wire

WINDOW_BYTES = 48 << 10
"""What a connection may have on its way: some frames for each hop, so that a link that is full holds those back who
send over it, not the queue before it. With windows without end each link would be shared by itself."""

_WILLING_BYTES = 8 << 20
"""What a receiver would take: senders' windows are narrower. Data that waited while words that data has come went past
it says what had come before; where that is more than this ago, it is taken for an attack and dropped (RFC 5961)."""

_PATIENT = "rto_min 4s"
"""Nothing is lost on these wires, so nothing need be sent again: a job of a lower level may wait for seconds. (Sent
again by a probe for lost tails it would count as lost, and the window closed.)"""

_SETTINGS = (
    ("net/ipv4/tcp_rmem", f"4096 {_WILLING_BYTES} {_WILLING_BYTES}"),
    ("net/ipv4/tcp_wmem", f"4096 {WINDOW_BYTES} {WINDOW_BYTES}"),
    ("net/ipv4/tcp_early_retrans", "0"),
    ("net/ipv4/tcp_tw_reuse", "1"),
    ("net/ipv4/icmp_ratelimit", "0"),
    ("net/ipv4/icmp_msgs_per_sec", "10000"),
)
_FIRST_TABLE = 101


def host_space(host: int) -> str:
    """Return the namespace of a host."""
    return f"h{host}"


def place_space(host: int, place: int) -> str:
    """Return the namespace of a place on a host."""
    return f"h{host}p{place}"


def lay_out_fabric(shape: Shape) -> Layout:
    """Return the namespaces of hosts, places on them, leaves and spines, and all between them."""
    leaves, spines, hosts = range(shape.leaves), range(shape.spines), range(shape.hosts)
    addresses = {
        **{host_space(host): host_address(host) for host in hosts},
        **{place_space(host, place): place_address(host, place) for host in hosts for place in range(shape.places)},
        **{f"l{leaf}": leaf_address(leaf) for leaf in leaves},
        **{f"s{spine}": spine_address(spine) for spine in spines},
    }
    pairs = [(place_space(host, place), host_space(host)) for host in hosts for place in range(shape.places)]
    nics = [(host_space(host), f"l{shape.leaf_of(host)}") for host in hosts]
    cables = [(f"l{leaf}", f"s{spine}") for leaf in leaves for spine in spines]
    wires = {pair: _wire(number, *pair) for number, pair in enumerate((*pairs, *nics, *cables))}
    queues = [
        line
        for pairs_of_a_rate, rate in ((nics, shape.nic_bytes_per_s), (cables, shape.uplink_bytes_per_s))
        for pair in pairs_of_a_rate
        for end in wires[pair].ends
        for line in queue_lines(end, rate, places=shape.places, levels=shape.levels, dscps=shape.dscps)
    ]
    return Layout(
        spaces=tuple(Space(name=name, site="fabric", address=address) for name, address in addresses.items()),
        wires=tuple(wires.values()),
        routes=tuple(_routes(shape, addresses, wires)),
        seats=(),
        notes=(),
        frame_bytes=FRAME_BYTES,
        single_frames=True,
        rules=tuple(rule for leaf in leaves for rule in _rules(shape, leaf)),
        queues=tuple(queues),
        settings=_SETTINGS,
    )


def _wire(number: int, one: str, other: str) -> Wire:
    low, pair = f"10.202.{number // 128}.", number % 128 * 2
    ends = (
        End(space=one, device=f"to-{other}", address=f"{low}{pair}"),
        End(space=other, device=f"to-{one}", address=f"{low}{pair + 1}"),
    )
    return Wire(ends=ends, bandwidth_bytes_per_s=None)


def _routes(shape: Shape, addresses: dict[str, str], wires: dict[tuple[str, str], Wire]) -> list[Route]:
    """Down to whatever hangs below; up by default: from a leaf to the first spine, or the one of a rule's table."""

    def hop(space: str, to: str, target: str | None, table: int | None = None) -> Route:
        up = (space, to) in wires
        wire = wires[(space, to) if up else (to, space)]
        own, far = wire.ends if up else wire.ends[::-1]
        destination = None if target is None else addresses[target]
        options = _PATIENT if "p" in space else ""
        return Route(
            space=space, destination=destination, gateway=far.address, device=own.device, table=table, options=options
        )

    found = []
    for host in range(shape.hosts):
        here, leaf = host_space(host), f"l{shape.leaf_of(host)}"
        found.append(hop(here, leaf, None))
        below = [here]
        for place in range(shape.places):
            container = place_space(host, place)
            found += [hop(container, here, None), hop(here, container, container)]
            below.append(container)
        found += [hop(leaf, here, target) for target in below]
        found += [hop(f"s{spine}", leaf, target) for spine in range(shape.spines) for target in below]
    for leaf_number in range(shape.leaves):
        leaf = f"l{leaf_number}"
        for spine in range(shape.spines):
            found += [hop(leaf, f"s{spine}", None, _FIRST_TABLE + spine), hop(f"s{spine}", leaf, leaf)]
            found.append(hop(leaf, f"s{spine}", f"s{spine}"))
        found.append(hop(leaf, "s0", None))
    return found


def _rules(shape: Shape, leaf: int) -> list[Line]:
    """What hangs below the leaf goes there; anything else where its source port says."""
    space = f"l{leaf}"
    rules = [Line(space=space, text="rule add pref 1000 lookup main suppress_prefixlength 0")]
    for block in range(BLOCKS):
        first = FIRST_PORT + block * BLOCK_PORTS
        ports = f"{first}-{first + BLOCK_PORTS - 1}"
        table = _FIRST_TABLE + shape.spine_of_block[leaf][block]
        rules.append(Line(space=space, text=f"rule add pref {1001 + block} sport {ports} lookup {table}"))
    for port in SINGLE_PORTS:
        table = _FIRST_TABLE + shape.spine_of(leaf, port)
        rules.append(Line(space=space, text=f"rule add pref 2000 ipproto udp sport {port} lookup {table}"))
    return rules
