"""Levels on a link: `htb` with a class for each place of a job and each level, told apart by port or by DSCP.

Kernels without `sch_prio`, `ets` and `fq` still have `htb`: what the link has beyond the classes' own rates is lent to
the class with the least `prio` that asks, strictly, and among equals in turn, a frame each. A class's own rate cannot
be nothing: it is a crumb. Two connections of a class share its queue by chance (81 : 23 was seen), hence the classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def queue_lines(end: End, bytes_per_s: float, *, places: int, levels: int, dscps: Sequence[int] = ()) -> Iterator[Line]:
    """Yield the lines of `tc` for what leaves at `end`; `dscps` are those of the levels, if these go by them. Words
    that data has come go before everything: behind the data of the other direction they would slow the link down, not
    the job."""
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
            name = class_name(place, level, levels)
            port = (FIRST_PORT & 0xE000) + level * LEVEL_PORTS
            match = f"match ip sport {port} {0xE000 | 7 * LEVEL_PORTS:#06x}"
            if dscps:
                match = f"match ip dsfield {dscps[level] << 2:#04x} 0xfc"
            lines += [
                f"class add {on} parent 1:1 classid {name} htb rate {CRUMB} prio {level + 1} {lent}",
                f"qdisc add {on} parent {name} pfifo limit {_WAITING_FRAMES}",
                f"filter add {on} parent 1: protocol ip prio 2 u32 match ip src 10.204.{place}.0/24 {match}"
                f" flowid {name}",
            ]
    return (Line(space=end.space, text=text) for text in lines)


def class_name(place: int, level: int, levels: int) -> str:
    """Return what `tc` calls the class of a place's jobs of a level."""
    return f"1:{0x10 + place * levels + level:x}"
