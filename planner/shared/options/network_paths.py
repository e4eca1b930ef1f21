"""The options of `network paths` and `network probe`: two nodes, and the ports of connections between them."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from planner.shared.options.record import Option, Options
from planner.shared.options.topology import TopologyOptions
from planner.shared.options.values import NATURAL, NIC_PAIR
from profiles.numerals import read_whole
from profiles.records import dataclass
from profiles.routing import HashName, RoutingKind

Hosts = Annotated[str, Option("the node that sends, by name, or by number from 0 through all sites", "HOST")]


@dataclass(frozen=True, kw_only=True)
class _PortOptions(Options):
    """Which NICs, and which UDP source ports."""

    nics: Annotated[tuple[int, int], Option("the NIC of the first node, and that of the second", "N,N", NIC_PAIR)] = (
        0,
        0,
    )
    ports: Annotated[
        str, Option("UDP source ports, first and last (default: %(default)s, those of RoCE)", "FIRST-LAST")
    ] = "49152-65535"

    def check(self) -> None:
        """Raise InputError unless ports are a range."""
        super().check()
        _ = self.port_range

    @property
    def port_range(self) -> tuple[int, int]:
        """The first and the last port."""
        first, _, last = self.ports.partition("-")
        try:
            ports = (read_whole(first), read_whole(last or first))
        except ValueError:
            ports = (0, 0)
        if not 1 <= ports[0] <= ports[1] <= 65535:
            raise self.wrong("ports", found=repr(self.ports), expected="FIRST-LAST from 1 to 65535")
        return ports


@dataclass(frozen=True, kw_only=True)
class NetworkPathsOptions(TopologyOptions, _PortOptions):
    """The ways between two nodes, each with its ports."""

    command: ClassVar[str] = "network paths"

    cluster: Annotated[str, Option("such as h100:16x8, or a cluster file", "C")] = field(kw_only=False)
    source: Hosts = field(kw_only=False)
    destination: Annotated[str, Option("the node that receives", "HOST")] = field(kw_only=False)
    routing: Annotated[
        RoutingKind | None,
        Option("how switches choose (default: as the cluster file says, else by its links and shape)"),
    ] = None
    hash: Annotated[
        HashName | None, Option("of ecmp: the family of the hash (default: the cluster file's, or jenkins)")
    ] = None
    seed: Annotated[int | None, Option("of ecmp: of the hash (default: the cluster file's, or 0)", "N", NATURAL)] = None
