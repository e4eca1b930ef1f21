"""Service levels as lines for OpenSM's configuration file (opensm(8), section QOS CONFIGURATION). Text alone.

InfiniBand's arbiter knows two tables of virtual lanes (IBA 7.6.9): the high one is served before the low one, without
end where its limit is 255, and inside a table lanes take turns by weight, in units of 64 bytes. So one level can be
served before all others; those below it can but be weighed against each other. A packet of 4 KiB takes 64 units, which
weights are to be multiples of (OpenSM's page on the management of QoS): there are three to choose from.
"""

from __future__ import annotations

from planner.contention.emitting.priority_map import PriorityMap

SERVICE_LEVELS = 16
NO_LIMIT = 255
PACKET = 64
"""The weight of a packet of 4 KiB."""
MOST_PACKETS = 3
"""A weight is 255 at most."""


def opensm_lines(of: PriorityMap) -> str:
    """Return the lines of opensm.conf: a virtual lane for each level, the most urgent before all others, the others by
    weights that fall from 192 to 64; service levels of no level share the lane of the last one."""
    lanes = [level.priority for level in of.levels]
    lane_of = [str(number if number in lanes else lanes[-1]) for number in range(SERVICE_LEVELS)]
    urgent, *others = lanes
    low = [f"{lane}:{weight}" for lane, weight in zip(others, weights(len(others)), strict=True)]
    lines = [
        "# Levels of a cellplan plan for the subnet manager: these lines in place of those of opensm.conf that have",
        "# the same keys, before jobs start. Lines of qos_ca_, qos_swe_, qos_rtr_ and qos_sw0_ would win over them.",
        "# OpenSM reads them with its next heavy sweep (SIGHUP). To undo: the lines that were there before.",
        "# Routing engines that take service levels themselves (dfsssp, lash, nue, torus-2QoS) leave none for jobs.",
        f"# Ports must have {len(lanes)} virtual lanes: OperVLs of `smpquery portinfo`, max_op_vls of opensm.conf.",
        *(
            f"# level {number}: service level {level.priority}, virtual lane {level.priority}"
            for number, level in enumerate(of.levels)
        ),
        "qos TRUE",
        f"qos_max_vls {len(lanes)}",
        f"qos_high_limit {NO_LIMIT}",
        f"qos_vlarb_high {urgent}:{MOST_PACKETS * PACKET}",
        f"qos_vlarb_low {','.join(low) or f'{urgent}:{PACKET}'}",
        f"qos_sl2vl {','.join(lane_of)}",
    ]
    return "\n".join(lines) + "\n"


def weights(lanes: int) -> list[int]:
    """Return the weights of so many lanes of one table, the most urgent first, as they fall in whole packets.

    >>> weights(3)
    [192, 128, 64]
    >>> weights(7)
    [192, 192, 128, 128, 128, 64, 64]
    """
    steps = max(lanes - 1, 1)
    return [PACKET * round(MOST_PACKETS - (MOST_PACKETS - 1) * number / steps) for number in range(lanes)]
