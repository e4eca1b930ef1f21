"""Ways that traces found, until all have been seen: the collector of coupons, whose coupons are equal ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from estimator.network.probing.hops import Trace
from profiles.errors import InputError
from profiles.records import dataclass

Switches = tuple[str, ...]
Stopped = Literal["all seen", "nothing new", "ports ran out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Which ports take which way (the switches that it passes), in the order in which ways were first seen; ways that
    no port was seen to take; traces that fit several ways. `asked` ports were looked at until it `stopped`: all ways
    were seen, or those that were not would have been by so many ports with the confidence that was asked for."""

    ports: Mapping[Switches, tuple[int, ...]]
    unseen: tuple[Switches, ...]
    unclear: tuple[Trace, ...]
    asked: int
    stopped: Stopped


def collect(
    traces: Iterable[Trace],
    ways: Mapping[Switches, float],
    names: Mapping[str, str],
    *,
    confidence: float = 0.99,
    until_all_seen: bool = True,
) -> Collected:
    """Return what traces say of the equal `ways`, each with the share of ports that a good hash gives it; no more
    traces are asked for once nothing new is to be expected, but for `until_all_seen` False. `names` are those of the
    switches by whatever hops are called.

    Raises:
        InputError: a hop that is no switch, or hops that are on none of the ways.
    """
    ports: dict[Switches, list[int]] = {}
    unclear: list[Trace] = []
    asked = 0
    stopped: Stopped = "ports ran out"
    for trace in traces:
        asked += 1
        fitting = _fitting(trace, ways, names)
        if len(fitting) > 1:
            unclear.append(trace)
        else:
            ports.setdefault(fitting[0], []).append(trace.port)
        hidden = sum((1 - share) ** (asked - len(unclear)) for way, share in ways.items() if way not in ports)
        if len(ports) == len(ways) or hidden < 1 - confidence:
            stopped = "all seen" if len(ports) == len(ways) else "nothing new"
            if until_all_seen:
                break
    return Collected(
        ports={way: tuple(own) for way, own in ports.items()},
        unseen=tuple(way for way in ways if way not in ports),
        unclear=tuple(unclear),
        asked=asked,
        stopped=stopped,
    )


def _fitting(trace: Trace, ways: Mapping[Switches, float], names: Mapping[str, str]) -> list[Switches]:
    """The ways that a trace may be of: those that pass the switches that answered, in their order. Others may be
    silent, or forward without counting the time to live."""
    seen: list[str] = []
    for hop in trace.hops:
        found = {switch for name in hop if (switch := _switch(name, names)) is not None}
        if hop and len(found) != 1:
            raise InputError(
                where=f"way of port {trace.port}",
                key="hops",
                found=f"{' '.join(hop)}, {'none' if not found else 'several'} of the cluster's switches",
                expected="switches by their names, or by addresses that fabric.routing.addresses has",
            )
        seen += found
    fitting = [way for way in ways if _is_part(seen, way)]
    if not fitting:
        raise InputError(
            where=f"way of port {trace.port}",
            key="hops",
            found=" ".join(seen),
            expected="switches on a shortest way between the two nodes in the order of the cluster's cables",
        )
    return fitting


def _switch(name: str, names: Mapping[str, str]) -> str | None:
    """The switch of that name or address, or of that name in a domain."""
    return names.get(name) or names.get(name.partition(".")[0])


def _is_part(seen: Sequence[str], way: Switches) -> bool:
    left = iter(way)
    return all(switch in left for switch in seen)


def expected_ports(shares: Iterable[float]) -> float:
    """Return how many ports it takes in the mean until every way was seen, of which each port takes one by chance:
    n H_n for n equally likely ones.

    In general the integral over t of 1 - prod(1 - exp(-p t)) (Flajolet, Gardy, Thimonier, "Birthday paradox, coupon
    collectors, caching algorithms and self-organizing search", 1992, theorem 4.1).

    >>> round(expected_ports([0.25] * 4), 6)
    8.333333
    """
    likely = np.array(list(shares))
    ends = (np.log(len(likely)) + 40) / likely.min()
    # In the square root of the time, where the fall is as smooth at either end.
    roots = np.linspace(0, np.sqrt(ends), 40_001)
    values = [1 - np.prod(-np.expm1(-likely * root**2)) for root in roots]
    step, weighted = roots[1], np.array(values) * 2 * roots
    return float(step / 3 * (weighted[0] + 4 * weighted[1::2].sum() + 2 * weighted[2:-1:2].sum() + weighted[-1]))


def likely_ports(shares: Iterable[float], confidence: float) -> int:
    """Return by how many ports all ways were seen with this confidence: the least n with the sum of (1 - p)^n, which is
    at least the chance that one is missing, below the rest."""
    likely = np.array(list(shares))
    if len(likely) == 1:
        return 1
    low, high = 0, 1
    while ((1 - likely) ** high).sum() >= 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ((1 - likely) ** middle).sum() < 1 - confidence else (middle, high)
    return high
