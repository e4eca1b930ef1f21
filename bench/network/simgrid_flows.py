"""Flows over links as SimGrid plays them: links and flows in on standard input as JSON, when each flow ended out.

Run by a Python that has SimGrid's binding, which need not be this project's: nothing of this project is imported. The
network model is the fluid one without what models TCP (no latency, no factor, no window), so that shares are max-min
fair.
"""

from __future__ import annotations

import json
import sys

from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

SETTINGS = (
    "network/model:CM02",
    "network/TCP-gamma:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/weight-S:0",
    "network/crosstraffic:0",
    "surf/precision:1e-12",
    "maxmin/precision:1e-9",
)


def main() -> None:
    """Play one case."""
    case = json.load(sys.stdin)
    engine = Engine(["flows", "--log=root.thres:critical", *(f"--cfg={setting}" for setting in SETTINGS)])
    zone = NetZone.create_full_zone("zone")
    links = [zone.create_link(f"l{n}", rate).set_latency(0.0).seal() for n, rate in enumerate(case["bytes_per_s"])]
    ends: dict[int, float] = {}

    def send(flow: int, starts_s: float, size: int) -> None:
        if starts_s > 0:
            this_actor.sleep_for(starts_s)
        Mailbox.by_name(str(flow)).put("all of it", size)

    def receive(flow: int) -> None:
        Mailbox.by_name(str(flow)).get()
        ends[flow] = Engine.clock

    hosts = [[zone.create_host(f"{side}{n}", 1e9) for side in ("from", "to")] for n in range(len(case["flows"]))]
    for (sender, receiver), flow in zip(hosts, case["flows"], strict=True):
        way = [LinkInRoute(links[link]) for link in flow["way"]]
        zone.add_route(sender.netpoint, receiver.netpoint, None, None, way, False)
    zone.seal()
    for number, ((sender, receiver), flow) in enumerate(zip(hosts, case["flows"], strict=True)):
        Actor.create(f"send{number}", sender, send, number, flow["starts_s"], flow["bytes"])
        Actor.create(f"receive{number}", receiver, receive, number)
    engine.run()
    print(json.dumps([ends[flow] for flow in range(len(hosts))]))


if __name__ == "__main__":
    main()
