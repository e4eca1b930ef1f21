"""A fabric's levels: which DSCP leads to which queue, which queues jobs may have, and which have flow control.

A level of a plan is a queue of the fabric. `read_priority_map` reads what NICs say (`mlnx_qos -i INTERFACE`) or a SONiC
switch (`config_db.json`), `read_lanes` what InfiniBand's subnet manager has (`opensm.conf`); where no map is named,
`default_map` assumes one and says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from planner.contention.emitting.levels import MOST_LEVELS, FoundLevels, MapLevel
from planner.contention.emitting.mlnx_qos import is_mlnx_qos, read_mlnx_qos
from planner.contention.emitting.opensm_file import EXPECTED, is_opensm, read_opensm
from planner.contention.emitting.sonic import read_sonic
from profiles.errors import InputError
from profiles.files import read_text
from profiles.records import dataclass, replace

CONTROL_DSCPS = (48, 56)
"""CS6 and CS7 (RFC 4594): routing protocols; NICs send their congestion notices (CNP) by CS6, too."""
MLNX_QOS, SONIC, ASSUMED = "mlnx_qos", "SONiC", "assumed"
INFINIBAND, OPENSM = "InfiniBand", "OpenSM"
"""Levels of InfiniBand, assumed and read."""


@dataclass(frozen=True, kw_only=True)
class PriorityMap:
    """The levels that jobs may have, the most urgent first, those kept for others, and those that a plan of fewer
    levels leaves as they are. `warnings` are of the fabric as it was found; `warnings_of` are of a map's choice of
    levels. The rest is as it was read: `lossless` the priorities with flow control, `ports` those of the switch, the
    traffic class of each DSCP and, of NICs, of each priority, of switches the queue of each class; `served` has the
    classes in the order in which the fabric serves them."""

    source: str
    levels: tuple[MapLevel, ...]
    reserved: tuple[MapLevel, ...] = ()
    unused: tuple[MapLevel, ...] = ()
    warnings: tuple[str, ...] = ()
    lossless: tuple[int, ...] = ()
    ports: tuple[str, ...] = ()
    class_of_dscp: tuple[tuple[int, int], ...] = ()
    class_of_priority: tuple[tuple[int, int], ...] = ()
    queue_of_class: tuple[tuple[int, int], ...] = ()
    served: tuple[int, ...] = ()

    @property
    def assumed(self) -> bool:
        """Whether nobody said what the fabric has."""
        return self.source == ASSUMED

    @property
    def is_infiniband(self) -> bool:
        """Whether levels are service levels, and classes virtual lanes; packets have no DSCP."""
        return self.source in (INFINIBAND, OPENSM)

    @property
    def others(self) -> tuple[MapLevel, ...]:
        """The queues that jobs of the plan do not have."""
        return (*self.reserved, *self.unused)


def read_priority_map(path: str | Path, *, reserved: Collection[int] | None = None) -> PriorityMap:
    """Return the levels of the fabric that the file at `path` describes: output of `mlnx_qos`, or `config_db.json`.

    `reserved`: the traffic classes that jobs must not have; None: those of DSCP 48 and 56, unless unmarked packets go
    there, too.

    Raises:
        InputError: a file of neither form or cut short, one DSCP twice, a reserved class that there is not, or reserved
            classes that leave no level.
    """
    where, text = str(path), read_text(path)
    if text.lstrip()[:1] in ("{", "["):
        return _sorted_out(read_sonic(text, where=where), source=SONIC, reserved=reserved, where=where)
    if is_mlnx_qos(text):
        return _sorted_out(read_mlnx_qos(text, where=where), source=MLNX_QOS, reserved=reserved, where=where)
    expected = "output of mlnx_qos -i INTERFACE (`Priority trust state: ...`), or SONiC's config_db.json"
    found = "OpenSM's lanes, which InfiniBand has" if is_opensm(text) else "neither"
    raise InputError(where=where, found=found, expected=expected)


def read_lanes(path: str | Path, *, reserved: Collection[int] | None = None) -> PriorityMap:
    """Return the service levels of an InfiniBand subnet whose OpenSM has the file at `path`; `reserved` are virtual
    lanes. Raise InputError for another file, QoS that is off, and as `read_priority_map`."""
    where, text = str(path), read_text(path)
    if not is_opensm(text):
        found = "a map of DSCPs" if is_mlnx_qos(text) or "DSCP_TO_TC_MAP" in text else "no line of qos"
        expected = f"{EXPECTED}: InfiniBand has service levels alone"
        raise InputError(where=where, found=found, expected=expected)
    return _sorted_out(read_opensm(text, where=where), source=OPENSM, reserved=reserved, where=where)


def default_map(levels: int) -> PriorityMap:
    """Return so many levels as fabrics commonly have them: class selectors (DSCP 8p for priority p), the highest first,
    those of routing and congestion notices last to be taken. Raise InputError for less than one or more than eight."""
    if not 1 <= levels <= MOST_LEVELS:
        expected = f"1 to {MOST_LEVELS}, as there are priorities in Ethernet"
        raise InputError(where="contention", key="--levels", found=levels, expected=expected)
    top = max(levels, MOST_LEVELS - len(CONTROL_DSCPS)) - 1
    chosen = [_assumed(priority) for priority in range(top, top - levels, -1)]
    others = [_assumed(priority) for priority in range(MOST_LEVELS - 1, top, -1)]
    used = [dscp for dscp in CONTROL_DSCPS if any(level.dscp == dscp for level in chosen)]
    beside = f"; DSCP {_listed(used)} usually carry routing and congestion notices" if used else ""
    said = (
        "no map of the fabric was named (--priority-map): DSCP 8p is taken to lead to priority p, higher ones before"
        f" lower ones, strictly{beside}"
    )
    return PriorityMap(source=ASSUMED, levels=tuple(chosen), reserved=tuple(others), warnings=(said,))


def for_levels(of: PriorityMap, levels: int) -> PriorityMap:
    """Return the map with so many levels: first those that have flow control, where some have, then the most urgent.
    Raise InputError for less than one, or more than there are."""
    if not 1 <= levels <= len(of.levels):
        kept = f", {len(of.reserved)} more are reserved" if of.reserved else ""
        expected = f"1 to {len(of.levels)}: the levels that the fabric leaves free ({of.source}{kept})"
        raise InputError(where="contention", key="--levels", found=levels, expected=expected)
    by_use = sorted(range(len(of.levels)), key=lambda number: (not of.levels[number].pfc, number))
    taken, left = (tuple(of.levels[number] for number in sorted(own)) for own in (by_use[:levels], by_use[levels:]))
    return replace(of, levels=taken, unused=(*of.unused, *left))


def warnings_of(of: PriorityMap) -> tuple[str, ...]:
    """Return what is to be known of a map's levels: found with the fabric, without flow control where others have it,
    served otherwise than strictly."""
    said = list(of.warnings)
    lossless = [number for number, level in enumerate(of.levels) if level.pfc]
    for number, level in enumerate(of.levels):
        if lossless and level.pfc is False:
            said.append(
                f"level {number} (DSCP {level.dscp}, traffic class {level.traffic_class}) has no PFC, where"
                f" {_levels(lossless)} {'has' if len(lossless) == 1 else 'have'} it: its packets are dropped where"
                " theirs wait"
            )
    for service, how in (("weighted", "by weight"), ("vendor", "in one group, as the NIC does by itself (vendor)")):
        numbers = [number for number, level in enumerate(of.levels) if level.service == service]
        if numbers and len(of.levels) > 1:
            said.append(f"{_levels(numbers)} {'is' if len(numbers) == 1 else 'are'} served {how}, not strictly in turn")
    return tuple(said)


def _assumed(priority: int) -> MapLevel:
    return MapLevel(dscp=8 * priority, traffic_class=priority, priority=priority)


def _sorted_out(
    found: FoundLevels,
    *,
    source: str,
    reserved: Collection[int] | None,
    where: str,
) -> PriorityMap:
    """The queues, the most urgent first, less those that are kept for others."""
    queues, class_of_dscp = found.queues, found.class_of_dscp
    there = {level.traffic_class for level in queues}
    if reserved is None:
        unmarked = class_of_dscp.get(0)
        kept = {class_of_dscp[dscp] for dscp in CONTROL_DSCPS if class_of_dscp.get(dscp, unmarked) != unmarked}
    else:
        kept = set(reserved)
        unknown = sorted(kept - there)
        if unknown:
            expected = f"traffic classes of {where}: {_listed(sorted(there))}"
            raise InputError(where="contention", key="--reserved", found=_listed(unknown), expected=expected)
    free = tuple(level for level in queues if level.traffic_class not in kept)
    if not free:
        said = f"all of them: {_listed(sorted(kept))}" if kept else "no queue that a DSCP leads to"
        raise InputError(where=where, key="reserved", found=said, expected="at least one traffic class left for jobs")
    others = tuple(level for level in queues if level.traffic_class in kept)
    return PriorityMap(
        source=source,
        levels=free,
        reserved=others,
        warnings=found.warnings,
        lossless=found.lossless,
        ports=found.ports,
        class_of_dscp=tuple(sorted(class_of_dscp.items())),
        class_of_priority=tuple(sorted(found.class_of_priority.items())),
        queue_of_class=tuple(sorted(found.queue_of_class.items())),
        served=tuple(level.traffic_class for level in queues),
    )


def _levels(numbers: Sequence[int]) -> str:
    return f"level {numbers[0]}" if len(numbers) == 1 else f"levels {_listed(numbers)}"


def _listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last
