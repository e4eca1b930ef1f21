"""The plan of a file on its cluster's fabric, flow by flow: `estimate --plan P --network flow`."""

from __future__ import annotations

from typing import Any

from estimator.network.fabric import Seat, fabric_of
from estimator.network.missing_ways import NoWayError
from estimator.network.traffic import Traffic
from estimator.pricing.parts import PricedSetup, price_setup
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from estimator.traffic.of_plan import traffic_of
from estimator.traffic.on_fabric import alone_on_fabric, nothing_held_back, seats_on
from planner.one_job.explicit.figures import count_setup_flops
from profiles.errors import NothingFits
from profiles.records import replace

FAR_APART = 0.02
FASTER = "what hides behind compute hides by time in one, by formula in the other, and not all groups are the worst one"


def seats_of(setup: Setup) -> tuple[Seat, ...]:
    """Return where each rank of a setup sits on its cluster's fabric."""
    return seats_on(setup.cluster, [slot for stage in setup.stages for slot in stage.slots])


def free_traffic(setup: Setup, pricing: Pricing | None) -> Traffic:
    """Return what a setup that was priced sends; each exchange by itself takes what it takes where nothing above the
    nodes holds it back: that is for the fabric to do."""
    priced = price_setup(replace(setup, cluster=nothing_held_back(setup.cluster)), pricing)
    assert isinstance(priced, PricedSetup), "a setup that was priced"
    return traffic_of(priced, float(count_setup_flops(setup).model))


def describe_on_fabric(setup: Setup, pricing: Pricing | None, closed_form_s: float) -> dict[str, Any]:
    """Return what an iteration takes where its collectives are flows on the links of the cluster's fabric, beside the
    closed form's seconds, and each collective that passes between nodes. NothingFits where no way joins two nodes."""
    fabric, traffic, seats = fabric_of(setup.cluster), free_traffic(setup, pricing), seats_of(setup)
    try:
        alone = alone_on_fabric(traffic, seats, fabric)
    except NoWayError as error:
        raise NothingFits(f"the plan's ranks cannot communicate: {error}") from None
    boxes = [int(fabric.box_of_node[seat.node]) for seat in seats]
    rows = [
        {
            "axis": exchange.axis,
            "op": exchange.op,
            "size_bytes": exchange.size_bytes,
            "groups": len(exchange.groups),
            "ranks": max(len(group) for group in exchange.groups),
            "times": times,
            "free_s": exchange.together_s,
            "flow_s": seconds,
        }
        for exchange, times, seconds in alone.exchanges
        if any(len({boxes[rank] for rank in group}) > 1 for group in exchange.groups)
    ]
    return {
        "model": "collective",
        "routing": fabric.routing.kind,
        "iteration_time_s": alone.iteration_time_s,
        "closed_form_s": closed_form_s,
        "exchanges": rows,
        "provenance": "modelled",
        "notes": _notes(alone.iteration_time_s, closed_form_s, fabric.routing.kind or ""),
    }


def _notes(flow_s: float, closed_form_s: float, routing: str) -> list[str]:
    if abs(flow_s / closed_form_s - 1) <= FAR_APART:
        return []
    if flow_s < closed_form_s:
        return [f"{flow_s / closed_form_s - 1:+.1%} of the closed form: {FASTER}"]
    why = {
        "ecmp": "the closed form knows no hash: connections that share a cable are slower than it says",
        "infiniband": "the closed form knows no forwarding tables: connections to some nodes share a cable",
    }.get(routing, "the closed form takes the worst group of each axis for all of them, flows what they meet")
    return [f"{flow_s / closed_form_s - 1:+.1%} of the closed form: {why}"]
