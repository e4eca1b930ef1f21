"""What the links of an emulated network give, against what its cluster file asks for.

For every link between sites, with plain TCP: the rate of one flow (its fastest fifth) and of two at once, and how long
a byte takes one way; and with gloo's send_recv: the rate between 4 and 16 MiB and the time of 8 bytes, which gloo
itself makes longer (the row `in a node` has what it takes without a link). Then an all_reduce over the first link,
beside what a ring takes by the file's numbers.

python -m bench.testbed.links CLUSTER.yaml [--scale 1.0] [--links 6]
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence

from bench.testbed.layout import Wire
from bench.testbed.measure import measure_between
from bench.testbed.network import Network, emulated_network
from bench.testbed.tcp_flow import measure_flows
from estimator.host.cpu import cpu_name
from profiles.cluster_file import load_cluster

_SMALL, _MIDDLE, _LARGE = 8, 4 << 20, 16 << 20
_FLOW_S = 1.0
"""How long a TCP flow lasts at the rate asked for."""

_REPEATS = 10


def _ranks(network: Network, site: str) -> list[int]:
    return [seat.rank for seat in network.seats if seat.slot.site == site]


def _asked(wire: Wire) -> float:
    assert wire.link is not None
    return wire.bandwidth_bytes_per_s or wire.link.bandwidth_bytes_per_s


def _with_gloo(network: Network, pair: tuple[int, int]) -> tuple[float, float]:
    """Bytes/s between the larger sizes, and seconds of the smallest."""
    points = measure_between(network, pair, (_SMALL, _MIDDLE, _LARGE), "send_recv", repeats=_REPEATS)
    (_, small_s), (first, early_s), (second, late_s) = points
    return (second - first) / (late_s - early_s), small_s


def _link_rows(network: Network, wires: Sequence[Wire]) -> list[str]:
    rows = [
        "| link | Gb/s asked | TCP | two flows | gloo | ms asked | TCP | gloo |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    sites = dict.fromkeys(seat.slot.site for seat in network.seats)
    inside = next((ranks for site in sites if len(ranks := _ranks(network, site)) > 1), None)
    if inside:
        pair = inside[0], inside[1]
        (flow,) = measure_flows(network, [pair], 1 << 29)
        gloo, small_s = _with_gloo(network, pair)
        rates = f"| {flow.fastest * 8e-9:.2f} | | {gloo * 8e-9:.2f}"
        rows.append(f"| in a node | {rates} | | {flow.byte_s * 1e3:.3f} | {small_s * 1e3:.3f} |")
    for wire in wires:
        assert wire.link is not None
        one, other = (_ranks(network, site) for site in wire.link.between)
        size = int(_asked(wire) * _FLOW_S)
        (flow,) = measure_flows(network, [(one[0], other[0])], size)
        both = measure_flows(network, [(one[0], other[0]), (one[-1], other[-1])], size)
        gloo, small_s = _with_gloo(network, (one[0], other[0]))
        name = f"{'-'.join(wire.link.between)} ({one[0]}, {other[0]})"
        two = " + ".join(f"{each.whole * 8e-9:.2f}" for each in both)
        rates = f"| {_asked(wire) * 8e-9:g} | {flow.fastest * 8e-9:.2f} | {two} | {gloo * 8e-9:.2f}"
        times = f"| {wire.link.latency_s * 1e3:g} | {flow.byte_s * 1e3:.3f} | {small_s * 1e3:.3f} |"
        rows.append(f"| {name} {rates} {times}")
    return rows


def _group_rows(network: Network, wire: Wire) -> list[str]:
    """all_reduce over one link; nothing where a site has one worker."""
    assert wire.link is not None
    one, other = (_ranks(network, site)[:2] for site in wire.link.between)
    if len(one) < 2 or len(other) < 2:
        return []
    rows = [f"\n{'-'.join(wire.link.between)}, {_asked(wire) * 8e-9:g} Gb/s, two workers in each site:\n"]
    rows += ["| all_reduce of 4, bytes | ms | ring by the file's numbers, ms |", "|---:|---:|---:|"]
    sizes = (_SMALL, 1 << 20, _LARGE)
    for size, seconds in measure_between(network, (*one, *other), sizes, "all_reduce", repeats=_REPEATS):
        ring_s = 6 * (wire.link.latency_s + size / 4 / _asked(wire))
        rows.append(f"| {size} | {seconds * 1e3:.2f} | {ring_s * 1e3:.2f} |")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cluster", help="a cluster file of several sites")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every rate")
    parser.add_argument("--links", type=int, default=1000, help="measure so many of the links")
    options = parser.parse_args(arguments)
    print(f"{cpu_name()}, {os.cpu_count()} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}")
    with emulated_network(load_cluster(options.cluster), scale=options.scale) as network:
        print(f"{network.note}\n")
        between = [wire for wire in network.wires if wire.link is not None][: options.links]
        rows = _link_rows(network, between)
        if between:
            rows += _group_rows(network, between[0])
        print("\n".join(rows))


if __name__ == "__main__":
    main()
