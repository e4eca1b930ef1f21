"""The options of `network paths` and `network probe`: two nodes, and the ports of connections between them."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar

from planner.shared.options.record import Option, Options
from planner.shared.options.topology import TopologyOptions
from planner.shared.options.values import NATURAL, NIC_PAIR, PATIENCE, POSITIVE_INT, SHARE, UDP_PORT
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


@dataclass(frozen=True, kw_only=True)
class NetworkProbeOptions(TopologyOptions, _PortOptions):
    """Which ports take which way, found by sending."""

    command: ClassVar[str] = "network probe"

    cluster: Annotated[str, Option("such as h100:16x8, or a cluster file", "C")] = field(kw_only=False)
    destination: Annotated[str, Option("the node that packets go to", "HOST")] = field(kw_only=False)
    source: Annotated[str | None, Option("the node that they come from (default: this machine's name)", "HOST")] = None
    read: Annotated[
        tuple[str, ...],
        Option(
            "send nothing: read what mtr --json or traceroute printed, with the source port, or after the commands that"
            " say it",
            "[PORT=]FILE",
            repeated=True,
        ),
    ] = ()
    address: Annotated[
        str | None, Option("of the node that packets go to (default: as the cluster file says, else its name's)", "IP")
    ] = None
    source_address: Annotated[
        str | None, Option("of this machine's, which says the NIC (default: as its routes say)", "IP")
    ] = None
    destination_port: Annotated[
        int, Option("UDP port that packets go to (default: RoCE's %(default)s)", "N", UDP_PORT)
    ] = 4791
    most: Annotated[int, Option("ports to try at most (default: %(default)s)", "N", POSITIVE_INT)] = 1024
    confidence: Annotated[
        float, Option("that no way is missed when it stops without all (default: %(default)s)", "SHARE", SHARE)
    ] = 0.99
    wait_s: Annotated[float, Option("seconds to wait for an answer (default: %(default)s)", "S", PATIENCE)] = 1.0
    output: Annotated[
        Path | None, Option("write the cluster file that knows these ways", short="-o", writes="file")
    ] = None
