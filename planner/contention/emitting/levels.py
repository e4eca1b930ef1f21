"""A queue of a fabric that a level of a plan may be, and which packets reach it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Literal

from profiles.records import dataclass

Service = Literal["strict", "weighted", "vendor", "unsaid"]
"""How a queue is served: before those below it; by weight; as the NIC does where nobody chose (all such alike)."""

MOST_LEVELS = 8
"""Priorities of 802.1Q and of PFC, and queues of the usual NICs and switches."""
MOST_DSCP = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLevel:
    """A queue. Packets of `dscp` get the internal `traffic_class`, and are counted and paused under `priority`. `pfc`:
    whether they are lossless; None where nobody said."""

    dscp: int
    traffic_class: int
    priority: int
    pfc: bool | None = None
    service: Service = "unsaid"

    @property
    def tos(self) -> int:
        """The byte of the IP header that has the DSCP, as NCCL_IB_TC and UCX_IB_TRAFFIC_CLASS take it."""
        return 4 * self.dscp


@dataclass(frozen=True, kw_only=True)
class FoundLevels:
    """What a text says of a fabric: its queues, the most urgent first, the class of each DSCP and, of NICs, of each
    priority, the priorities with flow control, what is to be warned of, and of a switch the queue of each class and the
    ports that it is so for."""

    queues: tuple[MapLevel, ...]
    class_of_dscp: Mapping[int, int]
    warnings: tuple[str, ...]
    lossless: tuple[int, ...]
    class_of_priority: Mapping[int, int] = field(default_factory=dict)
    queue_of_class: Mapping[int, int] = field(default_factory=dict)
    ports: tuple[str, ...] = ()


def class_dscp(dscps: Collection[int], number: int) -> int:
    """Return the DSCP by which packets reach a class: its class selector, where that leads there, else the least."""
    return 8 * number if 8 * number in dscps else min(dscps)
