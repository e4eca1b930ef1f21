"""Reading the virtual lanes of an InfiniBand subnet from OpenSM's configuration file (opensm(8), QOS CONFIGURATION).

Its keys have a value behind white space, `(null)` where nobody set one. `qos_sl2vl` has the lane of each service level,
15 for none; `qos_vlarb_high` and `qos_vlarb_low` the weights of lanes in the arbiter's two tables, the high one served
before the low one up to `qos_high_limit`, without end at 255; `qos_ca_...`, `qos_swe_...` and others are for one kind
of port and win over these. What is not set is as opensm(8) has it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from planner.contention.emitting.levels import FoundLevels, MapLevel, Service
from profiles.errors import InputError
from profiles.files import text_lines

LANES, SERVICE_LEVELS = 15, 16
DROPPED = 15
"""The lane of service levels whose packets are dropped."""
NO_LIMIT = 255
MOST_WEIGHT = 255
KINDS = ("qos_ca_", "qos_swe_", "qos_rtr_", "qos_sw0_")
DEFAULTS: Mapping[str, str] = {
    "qos_high_limit": "0",
    "qos_vlarb_high": "0:4",
    "qos_vlarb_low": ",".join(f"{lane}:4" for lane in range(1, LANES)),
    "qos_sl2vl": ",".join(str(lane) for lane in (*range(LANES), 7)),
}
UNSET = ("(null)", "-1")
EXPECTED = "OpenSM's configuration file, with qos_sl2vl (opensm -c FILE writes one)"

_KEY = re.compile(r"(?m)^[ \t]*(?:qos[ \t]+(?:TRUE|FALSE)\b|qos_(?:sl2vl|vlarb_high|max_vls)[ \t])")


def is_opensm(text: str) -> bool:
    """Whether a text may be of this kind."""
    return _KEY.search(text) is not None


def read_opensm(text: str, *, where: str) -> FoundLevels:
    """Return the lanes that service levels lead to, the most urgent first, each by its least service level; `priority`
    is that, `traffic_class` the lane. Warned of are lines for one kind of port, and lanes that are in no table.

    Raise InputError where QoS is off, for a service level without a lane, and for numbers that there are not.
    """
    own = dict(_options(text, where))
    if own.get("qos", "FALSE").upper() != "TRUE":
        found, expected = own.get("qos", "nothing"), "TRUE: else all service levels share a lane"
        raise InputError(where=where, key="qos", found=found, expected=expected)
    lane_of = _lanes(own, where)
    high, low = (_weights(own, key, where) for key in ("qos_vlarb_high", "qos_vlarb_low"))
    limit = _number(own["qos_high_limit"], NO_LIMIT, where, "qos_high_limit")
    members: defaultdict[int, list[int]] = defaultdict(list)
    for level, lane in enumerate(lane_of):
        if lane != DROPPED:
            members[lane].append(level)
    served = [lane for lane in members if lane in high or lane in low]
    if not served:
        raise InputError(where=where, key="qos_vlarb_low", found="no lane of a service level", expected="some weight")
    order = sorted(served, key=lambda lane: (lane not in high, -high.get(lane, low.get(lane, 0)), -lane))
    levels = tuple(
        MapLevel(
            dscp=0,
            traffic_class=lane,
            priority=min(members[lane]),
            service=_service(lane, served, high, limit),
        )
        for lane in order
    )
    unserved = sorted(set(members) - set(served))
    warnings = [*_warnings(own, where)]
    if unserved:
        warnings.append(
            f"{where}: virtual lanes {', '.join(map(str, unserved))} are in no table of the arbiter: not used"
        )
    return FoundLevels(queues=levels, class_of_dscp={}, warnings=tuple(warnings), lossless=())


def _options(text: str, where: str) -> Mapping[str, str]:
    """The lines `qos...`, the last of each counts; what is unset has its default."""
    own = dict(DEFAULTS)
    for line in text_lines(text, where=where):
        words = line.split("#", 1)[0].split(None, 1)
        if len(words) == 2 and words[0].startswith("qos") and words[1].strip() not in UNSET:
            own[words[0]] = words[1].replace(" ", "").strip()
    return own


def _lanes(own: Mapping[str, str], where: str) -> list[int]:
    words = own["qos_sl2vl"].split(",")
    if len(words) != SERVICE_LEVELS:
        found, expected = f"{len(words)} lanes", "one for each of 16 service levels"
        raise InputError(where=where, key="qos_sl2vl", found=found, expected=expected)
    return [_number(word, DROPPED, where, "qos_sl2vl") for word in words]


def _weights(own: Mapping[str, str], key: str, where: str) -> dict[int, int]:
    """What each lane of a table may send in its turns, those of weight 0 left out."""
    weights: defaultdict[int, int] = defaultdict(int)
    for word in filter(None, own[key].split(",")):
        lane, colon, weight = word.partition(":")
        if not colon:
            raise InputError(where=where, key=key, found=repr(word)[:40], expected="LANE:WEIGHT")
        weights[_number(lane, LANES - 1, where, key)] += _number(weight, MOST_WEIGHT, where, key)
    return {lane: weight for lane, weight in weights.items() if weight}


def _service(lane: int, served: list[int], high: Mapping[int, int], limit: int) -> Service:
    """Strictly in turn are the only lane of the high table, where that has no limit, and the only one below it."""
    above = [other for other in served if other in high]
    alone = len(above) == 1 if lane in high else len(served) - len(above) == 1
    if len(served) == 1:
        return "strict"
    return "strict" if alone and above and limit == NO_LIMIT else "weighted"


def _warnings(own: Mapping[str, str], where: str) -> list[str]:
    differing = [
        key
        for key, value in own.items()
        for kind in KINDS
        if key.startswith(kind) and own.get("qos_" + key.removeprefix(kind), value) != value
    ]
    if not differing:
        return []
    return [f"{where}: {', '.join(differing)} say otherwise for their ports than the lines of all ports, which count"]


def _number(word: str, most: int, where: str, key: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 3 and int(word) <= most):
        raise InputError(where=where, key=key, found=repr(word)[:40], expected=f"a number from 0 to {most}")
    return int(word)
