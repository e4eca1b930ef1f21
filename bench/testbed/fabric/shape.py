"""The emulated fabric: hosts under leaves under spines, containers on the hosts, and which ports take which spine.

A host, a leaf and a spine are a namespace each; so is every place of a job on a host, like a container, so that a
packet's source address names its job. Over veth pairs the kernel's own multipath routes by the hash of the sending
socket: a source port decides nothing, and a time-out moves the flow. So each leaf has rules by source port
(`ip rule ... sport`), drawn as a hash might: blocks of 256 ports, each to a spine by chance. All of a block's ports
share a way; 32 of them each are for one level, by which the links' queues tell packets apart (`queues`). Some further
ports have a rule each, as they would with a hash, for whoever looks for ways.
"""

from __future__ import annotations

import random
from functools import cached_property

from profiles.errors import InputError
from profiles.records import dataclass

FIRST_PORT, BLOCK_PORTS, BLOCKS = 0xC000, 0x100, 32
LEVEL_PORTS, MOST_LEVELS = 0x20, 7
SINGLE_PORTS = range(60_000, 60_064)
"""UDP ports, each of which goes to a spine by chance."""

FRAME_BYTES = 3000
"""The MTU. A smaller one has hosts forward more packets, a larger one keeps each hop waiting for its end longer."""

_HEADER_BYTES, ETHERNET_BYTES, _ACK_BYTES = 52, 14, 66
"""Of IP and TCP with time stamps; what queues count besides; a word that two frames have come."""

PAYLOAD = (FRAME_BYTES - _HEADER_BYTES) / (FRAME_BYTES + ETHERNET_BYTES)
ACKNOWLEDGED = _ACK_BYTES / 2 / (FRAME_BYTES + ETHERNET_BYTES)
"""What part of a link's bytes jobs send; and what comes back for a byte, the other way."""

_MOST_HOSTS, _MOST_SWITCHES, _MOST_PLACES = 64, 16, 32


@dataclass(frozen=True, kw_only=True)
class Shape:
    """`nic_bytes_per_s` of each host and `uplink_bytes_per_s` of each leaf to each spine, in each direction;
    `oversubscription` follows from them. `places`: how many jobs a host can have part in. `levels`: how many there are.
    `seed` draws which ports take which spine. `dscps`: by which DSCP the links' queues tell the levels apart, the first
    level's first; without any they go by port."""

    hosts: int = 8
    leaves: int = 2
    spines: int = 2
    places: int = 5
    levels: int = 5
    nic_bytes_per_s: float = 1e7
    uplink_bytes_per_s: float = 1e7
    seed: int = 0
    dscps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for key, most in (
            ("hosts", _MOST_HOSTS),
            ("leaves", min(_MOST_SWITCHES, self.hosts)),
            ("spines", min(_MOST_SWITCHES, BLOCKS)),
            ("places", _MOST_PLACES),
            ("levels", MOST_LEVELS),
        ):
            if not 1 <= getattr(self, key) <= most:
                _refuse(key, getattr(self, key), f"1 to {most}")
        if self.dscps and len(set(self.dscps) & set(range(64))) < self.levels:
            _refuse("dscps", self.dscps, f"one of 0 to 63 for each of {self.levels} levels")
        if self.hosts % self.leaves:
            _refuse("hosts", self.hosts, f"a multiple of the {self.leaves} leaves")
        if not 0 < min(self.nic_bytes_per_s, self.uplink_bytes_per_s) < float("inf"):
            _refuse("rates", (self.nic_bytes_per_s, self.uplink_bytes_per_s), "more than 0")

    @property
    def hosts_per_leaf(self) -> int:
        return self.hosts // self.leaves

    def leaf_of(self, host: int) -> int:
        """Return the number of the leaf that a host hangs under."""
        return host // self.hosts_per_leaf

    @cached_property
    def spine_of_block(self) -> tuple[tuple[int, ...], ...]:
        """Of each leaf, the spine that each block of ports goes to: every spine has as many blocks as any other, give
        or take one, in an order by chance. All leaves have the same where there is one spine."""
        rng = random.Random(f"fabric {self.seed}")
        found = []
        for _ in range(self.leaves):
            spines = [block % self.spines for block in range(BLOCKS)]
            rng.shuffle(spines)
            found.append(tuple(spines))
        return tuple(found)

    @cached_property
    def spine_of_single(self) -> tuple[tuple[int, ...], ...]:
        """Of each leaf, the spine that each of the single ports goes to."""
        rng = random.Random(f"single ports {self.seed}")
        return tuple(tuple(rng.randrange(self.spines) for _ in SINGLE_PORTS) for _ in range(self.leaves))

    def spine_of(self, leaf: int, port: int) -> int:
        """Return the spine to which a leaf sends what comes from a port; of ports without a rule the first."""
        block, _ = divmod(port - FIRST_PORT, BLOCK_PORTS)
        if port in SINGLE_PORTS:
            return self.spine_of_single[leaf][port - SINGLE_PORTS.start]
        return self.spine_of_block[leaf][block] if 0 <= block < BLOCKS else 0

    def blocks_to(self, leaf: int, spine: int) -> tuple[int, ...]:
        """Return the blocks of ports that a leaf sends to a spine."""
        return tuple(block for block, to in enumerate(self.spine_of_block[leaf]) if to == spine)

    def way(self, source: int, target: int, spine: int) -> tuple[tuple[str, str], ...]:
        """Return the links from a host to another, from -> to; by the spine where their leaves differ, none on one
        host."""
        if source == target:
            return ()
        here, there = leaf_name(self.leaf_of(source)), leaf_name(self.leaf_of(target))
        across = () if here == there else ((here, spine_name(spine)), (spine_name(spine), there))
        return ((host_name(source), here), *across, (there, host_name(target)))


def host_name(host: int) -> str:
    """Return what a cluster file calls a host."""
    return f"node{host}"


def leaf_name(leaf: int) -> str:
    """Return what a cluster file calls a leaf."""
    return f"leaf{leaf}"


def spine_name(spine: int) -> str:
    """Return what a cluster file calls a spine."""
    return f"spine{spine}"


def host_address(host: int) -> str:
    """Return the address of a host itself."""
    return f"10.203.0.{host + 1}"


def leaf_address(leaf: int) -> str:
    """Return the address by which a leaf answers a probe."""
    return f"10.203.1.{leaf + 1}"


def spine_address(spine: int) -> str:
    """Return the address by which a spine answers a probe."""
    return f"10.203.2.{spine + 1}"


def place_address(host: int, place: int) -> str:
    """Return the address of a place on a host: its third part names the place."""
    return f"10.204.{place}.{host + 1}"


def _refuse(key: str, found: object, expected: str) -> None:
    raise InputError(where="fabric", key=key, found=found, expected=expected)
