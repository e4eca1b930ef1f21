"""The levels that a plan has: those of the fabric's map, of InfiniBand, or assumed ones."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from planner.contention.emitting.levels import MOST_LEVELS
from planner.contention.emitting.priority_map import PriorityMap, default_map, for_levels, read_lanes, read_priority_map
from planner.contention.emitting.transports import Transport, service_levels
from profiles.errors import InputError
from profiles.records import replace

UNTOLD = (
    "this network's library takes levels neither from DSCP nor from service levels, and no ports: nothing of the plan"
    " can be set, its times are what levels and paths would do (--transport says it otherwise)"
)


def levels_of_fabric(
    path: Path | None, transport: Transport, *, levels: int | None, reserved: Collection[int] | None = None
) -> PriorityMap:
    """Return the map of a plan of so many levels; `levels` None: all that the map at `path` leaves free, 8 where none
    is named.

    Raises:
        InputError: more levels than there are, reserved classes without a map, a map of DSCPs for InfiniBand or the
            other way round, or as `read_priority_map` and `read_lanes`.
    """
    if path is None:
        if reserved is not None:
            expected = "--priority-map, which says what classes there are"
            raise InputError(where="contention", key="--reserved", found="it alone", expected=expected)
        make = service_levels if transport == "infiniband" else default_map
        made = make(MOST_LEVELS if levels is None else levels)
        return replace(made, warnings=(UNTOLD,)) if transport == "other" else made
    whole = (read_lanes if transport == "infiniband" else read_priority_map)(path, reserved=reserved)
    return whole if levels is None else for_levels(whole, levels)
