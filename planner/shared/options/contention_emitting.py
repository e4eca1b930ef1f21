"""The options of `contention` on the fabric's levels, what is emitted, and counters that are held against the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from planner.shared.options.record import Option
from planner.shared.options.topology import TopologyOptions
from planner.shared.options.values import Values
from profiles.numerals import read_whole
from profiles.records import dataclass

TransportChoice = Literal["auto", "roce", "infiniband", "tcp"]

MOST_CLASSES = 15
"""As many as InfiniBand has virtual lanes for data; Ethernet has 8."""


def _read_classes(word: str) -> tuple[int, ...]:
    return () if word == "none" else tuple(read_whole(part) for part in word.split(","))


CLASSES = Values(
    expected="traffic classes from 0 to 14 with commas between, or none",
    read=_read_classes,
    holds=lambda classes: all(0 <= number < MOST_CLASSES for number in classes),
    schema={"items": {"type": "integer", "minimum": 0, "maximum": MOST_CLASSES - 1}},
)


@dataclass(frozen=True, kw_only=True)
class ContentionEmittingOptions(TopologyOptions):
    """What the fabric's levels are, and what is written of a plan for those who set it."""

    priority_map: Annotated[
        Path | None,
        Option(
            "the fabric's levels: output of mlnx_qos, SONiC's config_db.json, or OpenSM's opensm.conf (default: assumed"
            " ones)",
            group="settings",
        ),
    ] = None
    reserved: Annotated[
        tuple[int, ...] | None,
        Option(
            "traffic classes (InfiniBand's lanes) of the map that jobs must not have, or none (default: those of DSCP"
            " 48 and 56)",
            "LIST",
            CLASSES,
            group="settings",
        ),
    ] = None
    transport: Annotated[
        TransportChoice,
        Option("how bytes cross the network (default: as its links are called)", group="settings"),
    ] = "auto"
    nccl: Annotated[
        str | None,
        Option(
            "the release of NCCL that jobs run, such as 2.21.5 (default: 2.26 or later)", "VERSION", group="settings"
        ),
    ] = None
    emit: Annotated[
        Path | None,
        Option("write settings for jobs into a folder, which is made", "DIR", writes="folder", group="settings"),
    ] = None
    emit_map: Annotated[
        bool,
        Option(
            "beside them a map for NICs (mlnx_qos) and switches (SONiC), of InfiniBand for OpenSM", group="settings"
        ),
    ] = False
    addresses: Annotated[
        Path | None,
        Option("addresses of hosts for TCP, as /etc/hosts has them (default: the cluster file's)", group="settings"),
    ] = None
    queue_pairs: Annotated[
        bool,
        Option("play how many queue pairs stock NCCL had best, for what is written (default: yes)", group="settings"),
    ] = True
    verify: Annotated[
        tuple[Path, ...],
        Option(
            "hold counters against the plan: ethtool -S of NICs of HOST before and after (two files, or one that has"
            " both), of InfiniBand perfquery -X, or a CSV of host, priority, bytes",
            "[HOST=]FILE",
            repeated=True,
            group="settings",
        ),
    ] = ()

    def check_emitting(self) -> None:
        """Raise InputError for what only a folder of settings needs where none is written, and a third file."""
        if self.emit is None:
            for name in ("emit_map", "addresses"):
                if name in self.changed():
                    raise self.wrong(name, found="it without --emit", expected="--emit DIR")
        if len(self.verify) > 2:
            raise self.wrong("verify", found=f"{len(self.verify)} files", expected="one or two: before and after")
