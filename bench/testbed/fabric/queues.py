"""Levels on a link: `htb` with a class for each place of a job and each level.

Kernels without `sch_prio`, `ets` and `fq` still have `htb`: what the link has beyond the classes' own rates is lent to
the class with the least `prio` that asks, strictly, and among equals in turn, a frame each. A class's own rate cannot
be nothing: it is a crumb. Two connections of a class share its queue by chance (81 : 23 was seen), hence the classes.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.testbed.fabric.shape import ETHERNET_BYTES, FIRST_PORT, FRAME_BYTES, LEVEL_PORTS
from bench.testbed.layout import End, Line

CRUMB = "8kbit"
_FRAME = FRAME_BYTES + ETHERNET_BYTES
_WAITING_FRAMES = 2000
"""More than the windows of all connections: nothing is dropped."""
_BURST_FRAMES = 3
_OTHERS = "1:2"
_SHORT = "match u16 0x0000 0xffc0 at 2"
"""IP packets of less than 64 bytes: words that data has come, not data."""


def queue_lines(end: End, bytes_per_s: float, *, places: int, levels: int) -> Iterator[Line]:
    """Yield the lines of `tc` for what leaves at `end`. Words that data has come go before everything: behind the data
    of the other direction they would slow the link down, not the job."""
    on = f"dev {end.device}"
    rate = round(8 * bytes_per_s)
    burst = _BURST_FRAMES * _FRAME
    lent = f"ceil {2 * rate}bit burst {_FRAME} cburst {2 * burst} quantum {_FRAME}"
    lines = [
        f"qdisc add {on} root handle 1: htb default 2",
        f"class add {on} parent 1: classid 1:1 htb rate {rate}bit ceil {rate}bit burst {burst} cburst {burst}",
        f"class add {on} parent 1:1 classid {_OTHERS} htb rate {rate // 10}bit prio 0 {lent}",
        f"filter add {on} parent 1: protocol ip prio 1 u32 {_SHORT} flowid {_OTHERS}",
    ]
    for place in range(places):
        for level in range(levels):
            name = f"1:{0x10 + place * levels + level:x}"
            port = (FIRST_PORT & 0xE000) + level * LEVEL_PORTS
            ports = f"match ip sport {port} {0xE000 | 7 * LEVEL_PORTS:#06x}"
            lines += [
                f"class add {on} parent 1:1 classid {name} htb rate {CRUMB} prio {level + 1} {lent}",
                f"qdisc add {on} parent {name} pfifo limit {_WAITING_FRAMES}",
                f"filter add {on} parent 1: protocol ip prio 2 u32 match ip src 10.204.{place}.0/24 {ports}"
                f" flowid {name}",
            ]
    return (Line(space=end.space, text=text) for text in lines)
