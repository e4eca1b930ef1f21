"""What a plan's traffic puts on links: the bytes of its collectives, counted another way, on the way between nodes."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

from estimator.network.fabric import Seat, fabric_of
from estimator.network.traffic import Exchange, Span, Traffic
from estimator.pricing.parts import PricedSetup, price_setup
from estimator.traffic.carried import carried_by
from estimator.traffic.of_plan import traffic_of
from estimator.traffic.on_fabric import seats_on
from profiles.vocabulary import CollectiveOp
from tests.explicit_examples import Draft, drafts
from tests.network_examples import cluster_of

STEPS: dict[CollectiveOp, float] = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
SEATS = tuple(Seat(node=rank // 4, device=rank % 4) for rank in range(16))


def sent_by_hand(exchange: Exchange, group: tuple[int, ...]) -> dict[tuple[int, int], float]:
    """Bytes from rank to rank: rings pass on (n-1)/n of them once or twice, others send directly."""
    ranks, sent = len(group), defaultdict[tuple[int, int], float](float)
    if exchange.op == "send_recv":
        sent[group[0], group[1]] += exchange.size_bytes
    elif exchange.op == "all_to_all":
        for one in group:
            for other in group:
                if one != other:
                    sent[one, other] += exchange.size_bytes / ranks
    else:
        for turn, rank in enumerate(group):
            share = STEPS[exchange.op] * (ranks - 1) / ranks
            sent[rank, group[(turn + 1) % ranks]] += share * exchange.size_bytes
    return sent


def one_exchange(op: CollectiveOp, group: tuple[int, ...], times: int = 1) -> Traffic:
    exchange = Exchange(axis="dp", op=op, size_bytes=1e6, groups=(group,), alone_s=1.0, times=times)
    return Traffic(devices=16, spans=(Span(compute_s=1.0, exchanges=(exchange,), times=3),), flops=1.0)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
@pytest.mark.parametrize("group", [(0, 1), (0, 4), (0, 1, 4, 5), (1, 5, 9, 13), tuple(range(16))])
def test_bytes_of_one_collective(op: CollectiveOp, group: tuple[int, ...]) -> None:
    group = group[:2] if op == "send_recv" else group
    fabric = fabric_of(cluster_of(count=4, nodes={"devices": 4, "nics": {"count": 4, "link": "ib-ndr400"}}))
    traffic = one_exchange(op, group, times=2)
    carried = carried_by(traffic, SEATS, fabric)
    by_hand = sent_by_hand(traffic.spans[0].exchanges[0], group)
    between = [size for (one, other), size in by_hand.items() if one // 4 != other // 4]
    links = fabric.links
    out = np.isin(links.ends[:, 0], range(links.nodes))
    assert carried.links[out].sum() == pytest.approx(6 * math.fsum(between))
    assert carried.links[~out].sum() == pytest.approx(carried.links[out].sum())
    inside = [
        6 * math.fsum(size for (one, other), size in by_hand.items() if one == rank and one // 4 == other // 4)
        for rank in range(16)
    ]
    assert carried.inside == pytest.approx(inside)


@given(draft=drafts())
def test_bytes_of_a_plan(draft: Draft) -> None:
    """Rings over nodes are opened for each NIC of a group's, so that a group whose ranks come back to a node passes its
    border once: counted by node here."""
    setup = draft.setup()
    priced = price_setup(setup)
    assert isinstance(priced, PricedSetup)
    traffic = traffic_of(priced, 1.0)
    fabric = fabric_of(setup.cluster)
    seats = seats_on(setup.cluster, [slot for stage in setup.stages for slot in stage.slots])
    boxes = [int(fabric.box_of_node[seat.node]) for seat in seats]
    whole = 0.0
    for exchange, times in _counted(traffic):
        assume(exchange.algorithm is None)
        for group in exchange.groups:
            here = [boxes[rank] for rank in group]
            if exchange.op in STEPS:
                edges = len(set(here)) if len(set(here)) > 1 else 0
                whole += times * edges * STEPS[exchange.op] * (len(group) - 1) / len(group) * exchange.size_bytes
            else:
                by_hand = sent_by_hand(exchange, group)
                whole += times * sum(size for (one, other), size in by_hand.items() if boxes[one] != boxes[other])
    carried = carried_by(traffic, seats, fabric)
    out = np.isin(fabric.links.ends[:, 0], range(fabric.links.nodes))
    assert carried.links[out].sum() == pytest.approx(whole)
    twice = replace(traffic, spans=traffic.spans * 2)
    assert carried_by(twice, seats, fabric).links.sum() == pytest.approx(2 * carried.links.sum())


def _counted(traffic: Traffic) -> list[tuple[Exchange, float]]:
    found: list[tuple[Exchange, float]] = []
    waiting = [(exchange, float(span.times)) for span in traffic.spans for exchange in span.exchanges]
    while waiting:
        exchange, times = waiting.pop()
        found.append((exchange, times * exchange.times))
        waiting += [(other, times * exchange.times) for other in exchange.beside]
    return found
