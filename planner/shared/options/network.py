"""The options of `network show`."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar

from planner.shared.options.record import Option
from planner.shared.options.topology import TopologyOptions
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class NetworkShowOptions(TopologyOptions):
    """The switches and cables of a cluster."""

    command: ClassVar[str] = "network show"

    cluster: Annotated[str, Option("such as h100:16x8, or a cluster file", "C")] = field(kw_only=False)
    between: Annotated[
        tuple[str, ...],
        Option("two nodes of one site, by name, or by number from 0 (default: its first and last)", "NODE,NODE"),
    ] = ()
    output: Annotated[
        Path | None, Option("write the cluster file that means this cluster", short="-o", writes="file")
    ] = None

    def check(self) -> None:
        """Raise InputError unless there are two nodes, or none are named."""
        if self.between and len(self.between) != 2:
            raise self.wrong("between", found=f"{len(self.between)} nodes", expected="two")
