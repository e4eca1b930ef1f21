"""Flows as the player has them, a fluid, beside flows of packets: when each ends.

The packets' links serve one packet at a time, the least level first, inside a level one flow after the other; a
source keeps so many packets on their way that its fullest link always has one to serve, and hears of each arrival at
once. Fair turns and windows come to max-min fairness (Hahne, "Round-Robin Scheduling for Max-Min Fairness in Data
Networks", 1991). Nothing is lost and nothing marked: what congestion control adds stands in the testbed, not here.
Where ns.py is installed its servers carry the same packets, too.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque
from collections.abc import Sequence

import numpy as np

from bench.network import packets_ns
from estimator.network.player.play import Settings, play
from estimator.network.steps import Mover, Playing, Step, Transfer
from profiles.records import dataclass

WINDOWS = "2,4,8,24"
CASES, MOST_FLOWS, MOST_LINKS, LEVELS = 30, 8, 6, 4


@dataclass(frozen=True, kw_only=True)
class PacketFlow:
    """So many `packets` from `starts_s` on over the links of a way, each once."""

    way: tuple[int, ...]
    packets: int
    starts_s: float
    level: int


class _Link:
    """A link with a queue for each flow, served by level and in turns."""

    def __init__(self, packet_s: float) -> None:
        self.packet_s, self.busy = packet_s, False
        self.turns: dict[int, deque[int]] = {}
        self.waiting: dict[int, int] = {}

    def take(self, flow: int, level: int) -> None:
        """Queue a packet of a flow."""
        if not self.waiting.get(flow):
            self.turns.setdefault(level, deque()).append(flow)
        self.waiting[flow] = self.waiting.get(flow, 0) + 1

    def next_flow(self) -> int | None:
        """Take a packet out of the queue; None where there is none."""
        for level in sorted(self.turns):
            if self.turns[level]:
                flow = self.turns[level].popleft()
                self.waiting[flow] -= 1
                if self.waiting[flow]:
                    self.turns[level].append(flow)
                return flow
        return None


def packet_ends(flows: Sequence[PacketFlow], packets_per_s: Sequence[float], *, window: int) -> list[float]:
    """Return when the last packet of each flow has arrived, in seconds; `window` packets for each link of a flow's way
    are on their way."""
    links = [_Link(1.0 / rate) for rate in packets_per_s]
    left = [flow.packets for flow in flows]
    unsent = list(left)
    ends = [0.0] * len(flows)
    # When, a running number, and the packet that leaves a hop of its flow's way; hop -1: the flow begins.
    events: list[tuple[float, int, int, int]] = [(each.starts_s, n, n, -1) for n, each in enumerate(flows)]
    heapq.heapify(events)
    number = len(events)
    while events:
        now, _, flow, hop = heapq.heappop(events)
        way = flows[flow].way
        touched = []
        if hop >= 0:
            links[way[hop]].busy = False
            touched.append(way[hop])
        arrived = hop == len(way) - 1
        if arrived:
            left[flow] -= 1
            ends[flow] = now
        sends = min(unsent[flow], window * len(way) if hop < 0 else 1 if arrived else 0)
        unsent[flow] -= sends
        ahead, count = (0, sends) if hop < 0 or arrived else (hop + 1, 1)
        for _ in range(count):
            links[way[ahead]].take(flow, flows[flow].level)
        touched += [way[ahead]] if count else []
        for place in touched:
            link = links[place]
            served = None if link.busy else link.next_flow()
            if served is not None:
                link.busy = True
                number += 1
                heapq.heappush(events, (now + link.packet_s, number, served, flows[served].way.index(place)))
    return ends


def fluid_ends(flows: Sequence[PacketFlow], packets_per_s: Sequence[float]) -> list[float]:
    """Return when each flow has ended as the player plays it, in seconds."""
    jobs = []
    for flow in flows:
        most = min(packets_per_s[link] for link in flow.way)
        mover = Mover(way=tuple((link, most) for link in flow.way), seconds=flow.packets / most)
        step = Step(compute_s=0.0, transfers=(Transfer(movers=(mover,)),))
        jobs.append(Playing(steps=(step,), starts_s=flow.starts_s, iterations=1, level=flow.level))
    settings = Settings(exact=True, jitter=0.0, compiled=False)
    played = play(jobs, np.array(packets_per_s), settings=settings)
    return [job.ended_s or 0.0 for job in played.jobs]


def draw_flows(rng: random.Random) -> tuple[list[PacketFlow], list[float]]:
    """Return flows over links in a row of nodes, of more than 1,000 packets each, and packets a second of each link."""
    links = rng.randint(1, MOST_LINKS)
    flows = []
    for _ in range(rng.randint(2, MOST_FLOWS)):
        first = rng.randrange(links)
        way = tuple(range(first, rng.randint(first, links - 1) + 1))
        packets, level = rng.randint(1_001, 5_000), rng.randrange(LEVELS)
        flows.append(PacketFlow(way=way, packets=packets, starts_s=rng.choice((0.0, rng.random())), level=level))
    return flows, [rng.choice((1_000.0, 2_000.0, 4_000.0)) for _ in range(links)]


def main(argv: Sequence[str]) -> None:
    """Print how far ends are apart, beside the time from the first flow's begin, for windows of several widths."""
    parser = argparse.ArgumentParser(prog="bench.network packets", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--windows", default=WINDOWS, help="packets on their way for each link (default: %(default)s)")
    options = parser.parse_args(argv)
    cases = [draw_flows(random.Random(f"{options.seed}/{case}")) for case in range(options.cases)]
    flows = sum(len(flows) for flows, _ in cases)
    print(f"seed {options.seed}; {len(cases)} cases, {flows} flows of 1,001 to 5,000 packets, up to {LEVELS} levels\n")
    fluid = [fluid_ends(*case) for case in cases]
    reason = packets_ns.why_not()
    simulators = {"ours": packet_ends} | ({} if reason else {"ns.py": packets_ns.ns_ends})
    print("| packets on their way, a link | by | ends apart, mean | worst | within 2% |\n|---|---|---|---|---|")
    for window in map(int, options.windows.split(",")):
        for name, simulate in simulators.items():
            packets = [simulate(*case, window=window) for case in cases]
            errors = np.concatenate(
                [np.array(one) / np.array(other) - 1 for one, other in zip(fluid, packets, strict=True)]
            )
            sizes = np.abs(errors)
            worst = errors[int(sizes.argmax())]
            within = (sizes <= 0.02).mean()
            print(f"| {window} | {name} | {sizes.mean():.3%} | {worst:+.2%} | {within:.1%} |", flush=True)
    if reason:
        print(f"\n{reason}")
