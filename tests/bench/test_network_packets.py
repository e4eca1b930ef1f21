"""The packet simulator of `bench.network`: one link by hand, and the player's fluid beside it."""

from __future__ import annotations

from random import Random

import pytest

from bench.network import packets_ns
from bench.network.packets import PacketFlow, draw_flows, fluid_ends, packet_ends


def test_two_flows_take_turns_and_levels_go_first() -> None:
    """The first of two has its first packet on the link before the other comes, and then its turn."""
    flows = [PacketFlow(way=(0,), packets=10, starts_s=0.0, level=level) for level in (0, 0)]
    assert packet_ends(flows, [10.0], window=4) == pytest.approx([1.8, 2.0])
    first, last = (PacketFlow(way=(0,), packets=10, starts_s=0.0, level=level) for level in (0, 1))
    assert packet_ends([last, first], [10.0], window=4) == pytest.approx([2.0, 1.1])


@pytest.mark.parametrize("seed", range(3))
def test_a_fluid_ends_as_packets_do(seed: int) -> None:
    flows, rates = draw_flows(Random(f"0/{seed}"))
    assert fluid_ends(flows, rates) == pytest.approx(packet_ends(flows, rates, window=4), rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_ns_py_serves_as_ours(seed: int) -> None:
    reason = packets_ns.why_not()
    if reason:
        pytest.skip(reason)
    flows, rates = draw_flows(Random(f"0/{seed}"))
    assert packets_ns.ns_ends(flows, rates, window=4) == pytest.approx(packet_ends(flows, rates, window=4), rel=1e-3)
