"""What a plan puts on the network above the nodes, as the plan file keeps it: contention adds such records up."""

from __future__ import annotations

from planner.shared.plan_parts import FileRecord, require
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkName(FileRecord):
    """The uplinks of one part of a level of a site's tree."""

    site: str
    level: str
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOnUplink(FileRecord):
    """Bytes an iteration of one axis on the uplinks of a part, out of it and into it."""

    axis: str
    up_bytes: float
    down_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkUse(FileRecord):
    """What passes the uplinks of one part an iteration, in all and by axis. `bytes_per_s` is the fuller direction's
    over the whole iteration; `capacity_bytes_per_s` what one direction carries (None: the nodes have no NICs)."""

    uplink: UplinkName
    up_bytes: float
    down_bytes: float
    bytes_per_s: float
    capacity_bytes_per_s: float | None
    axes: tuple[AxisOnUplink, ...]

    def __post_init__(self) -> None:
        figures = (self.up_bytes, self.down_bytes, self.bytes_per_s)
        require(min(figures) >= 0, f"up_bytes, down_bytes, bytes_per_s = {figures}", "none below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOnNetwork(FileRecord):
    """One axis above the nodes: in how many parts of each level, from the nodes up, one of its groups is at most (of
    `pp`: a pipeline); the share of its rate that spread tables leave it; the seconds an iteration that what it sends
    keeps the NICs of the busiest node, and the busiest uplinks, busy; and those uplinks where they take longer, so
    that they and not the NICs bind it."""

    axis: str
    parts_met: tuple[int, ...]
    reach: float
    nic_s: float
    uplink_s: float
    binds: UplinkName | None

    def __post_init__(self) -> None:
        require(min(self.parts_met, default=1) >= 1, f"parts_met={list(self.parts_met)}", "at least 1 of every level")
        figures = (self.nic_s, self.uplink_s)
        require(min(figures) >= 0, f"nic_s, uplink_s = {figures}", "none below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNetwork(FileRecord):
    """The plan above the nodes: the names of the levels, from the nodes up (of several sites with other names all,
    joined by /), every axis that sends, and every uplink that anything passes."""

    levels: tuple[str, ...]
    axes: tuple[AxisOnNetwork, ...]
    uplinks: tuple[UplinkUse, ...]

    def __post_init__(self) -> None:
        for axis in self.axes:
            require(
                len(axis.parts_met) == len(self.levels),
                f"parts_met of {axis.axis}: {list(axis.parts_met)}",
                f"one for each of the levels {', '.join(self.levels)}",
            )
