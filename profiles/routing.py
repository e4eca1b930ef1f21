"""How a fabric chooses among the ways between two NICs, and the ways that somebody knows: what a cluster file says of
it. What follows from it is `estimator.network.routes`."""

from __future__ import annotations

from typing import Literal, get_args

from profiles.errors import InputError
from profiles.records import dataclass

RoutingKind = Literal["ecmp", "spray", "infiniband", "dimension-order"]
HashName = Literal["jenkins", "crc16", "crc32", "xor-fold", "toeplitz"]

ROUTING_KINDS: tuple[RoutingKind, ...] = get_args(RoutingKind)
HASH_NAMES: tuple[HashName, ...] = get_args(HashName)


@dataclass(frozen=True, kw_only=True)
class KnownPath:
    """The way of connections from a NIC of one host to a NIC of another whose UDP source ports are among `ports`
    (first, last): the names of the switches that it passes. It comes before whatever a hash says."""

    source: str
    destination: str
    source_nic: int = 0
    destination_nic: int = 0
    ports: tuple[tuple[int, int], ...]
    through: tuple[str, ...]

    def __post_init__(self) -> None:
        where = f"way from {self.source} to {self.destination}"
        if self.source == self.destination:
            raise InputError(where=where, key="to", found=f"{self.source} twice", expected="two hosts")
        for first, last in self.ports:
            if not 1 <= first <= last <= 65535:
                found, expected = f"{first}-{last}", "ports from 1 to 65535, the lower one first"
                raise InputError(where=where, key="ports", found=found, expected=expected)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a fabric chooses among equal ways; of `kind` None, as its links and its shape do by themselves.

    `ecmp`: every switch by itself, by a hash of addresses, protocol and ports; a vendor's hash is not published, so
    that a family and a `seed` are a guess. `spray`: every packet anew, in equal shares over all. `infiniband`: by
    destination alone, up and then down, as a subnet manager spreads destinations over the ways up. `dimension-order`:
    in a torus, along one dimension after the other. `paths` come before all of that; `addresses` are what hosts and
    switches answer under, (address, name).
    """

    kind: RoutingKind | None = None
    hash: HashName = "jenkins"
    seed: int = 0
    paths: tuple[KnownPath, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
