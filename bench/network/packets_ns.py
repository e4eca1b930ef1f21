"""The same flows of packets through ns.py's static-priority servers, on simpy's clock: `pip install ns.py`.

Each link is an `SPServer`. Inside a level ns.py serves the packet that came first, so that shares there follow windows;
switches that keep a queue for each flow take turns, and that queue alone is ours.
"""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.network.packets import PacketFlow

BITS = 8.0


def why_not() -> str | None:
    """Return why ns.py cannot be run; None where it can."""
    return None if importlib.util.find_spec("ns") is not None else "ns.py is not installed (pip install ns.py)"


class _Turns:
    """What simpy's Store is to an SPServer: packets go in and out, but one flow after the other."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._queues: dict[int, deque[Any]] = {}

    def put(self, packet: Any) -> Any:
        """Queue a packet behind its own flow's."""
        self._queues.setdefault(packet.flow_id, deque()).append(packet)
        return self._env.event().succeed()

    def get(self) -> Any:
        """Take the first packet of the flow whose turn it is."""
        flow, queue = next(iter(self._queues.items()))
        packet = queue.popleft()
        del self._queues[flow]
        if queue:
            self._queues[flow] = queue
        return self._env.event().succeed(packet)


class _Hop:
    """Where a link's packets come out: at their next link, or at their end."""

    def __init__(self, flows: _Flows, link: int) -> None:
        self._flows, self._link = flows, link

    def put(self, packet: Any) -> None:
        """Pass a packet on."""
        self._flows.arrived(packet, self._link)


class _Flows:
    """Sources that keep a window of packets on their way, and links between them."""

    def __init__(self, flows: Sequence[PacketFlow], packets_per_s: Sequence[float], window: int) -> None:
        import simpy
        from ns.scheduler.sp import SPServer

        self.env = simpy.Environment()
        self._flows, self._window = flows, window
        self._left, self._unsent = [flow.packets for flow in flows], [flow.packets for flow in flows]
        self.ends_s = [0.0] * len(flows)
        # The highest number goes first in ns.py, and level 0 here.
        levels = {number: -flow.level for number, flow in enumerate(flows)}
        self._links = []
        for link, rate in enumerate(packets_per_s):
            server = SPServer(self.env, rate * BITS, levels)
            server.stores = {level: _Turns(self.env) for level in levels.values()}
            server.out = _Hop(self, link)
            self._links.append(server)
        for number in range(len(flows)):
            self.env.process(self._begin(number))

    def _begin(self, number: int) -> Any:
        flow = self._flows[number]
        yield self.env.timeout(flow.starts_s)
        self._send(number, min(flow.packets, self._window * len(flow.way)))

    def _send(self, number: int, count: int) -> None:
        from ns.packet.packet import Packet

        for _ in range(count):
            sent = self._flows[number].packets - self._unsent[number]
            self._unsent[number] -= 1
            self._links[self._flows[number].way[0]].put(Packet(self.env.now, 1.0, sent, flow_id=number))

    def arrived(self, packet: Any, link: int) -> None:
        """Take a packet from a link."""
        number = packet.flow_id
        way = self._flows[number].way
        place = way.index(link) + 1
        if place < len(way):
            self._links[way[place]].put(packet)
            return
        self._left[number] -= 1
        self.ends_s[number] = self.env.now
        self._send(number, min(self._unsent[number], 1))


def ns_ends(flows: Sequence[PacketFlow], packets_per_s: Sequence[float], *, window: int) -> list[float]:
    """Return when the last packet of each flow has arrived, in seconds, as `bench.network.packets.packet_ends`."""
    running = _Flows(flows, packets_per_s, window)
    running.env.run()
    return running.ends_s
