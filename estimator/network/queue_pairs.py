"""The connections that NCCL opens for a collective: who sends how much to whom, by which NICs, from which UDP port.

A collective over several nodes has a channel for each NIC that a group has in the node where it has fewest (NCCL takes
the least of all ranks' channels: `initTransportsRank` in src/init.cc): a ring, or a double binary tree, through the
nodes in the order in which the group's ranks first sit on them, in and out of each by the NIC of that number
(`ncclTopoSearchRec` keeps to rails; src/graph in NCCL). Between a rank and a peer that it sends to directly
(send_recv, all_to_all) there is one connection. What passes inside a node, or an island of several, needs none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from estimator.communication.phases import Algorithm, PhasedOp, bytes_between, collective_phases
from estimator.network.fabric import Fabric, Seat
from estimator.network.routes import Flows
from estimator.network.traffic import Exchange
from estimator.network.wires import Floats, Integers
from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp

ALGORITHM_OF: Mapping[CollectiveOp, Algorithm] = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "ring",
    "all_to_all": "exchange",
}
FIRST_QUEUE_PAIRS = 2**16
"""Where NICs begin to number their queue pairs is drawn from so many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Connections:
    """Queue pairs of one exchange: `sizes` bytes each, from the devices `senders` to the `receivers` (numbered through
    all nodes), of `groups` (their numbers in the exchange), each one of the queue pairs of a connection,
    `connections`."""

    flows: Flows
    senders: Integers
    receivers: Integers
    sizes: Floats
    groups: Integers
    connections: Integers

    def __len__(self) -> int:
        return len(self.sizes)


def connections_of(exchange: Exchange, seats: Sequence[Seat], fabric: Fabric, *, seed: int = 0) -> Connections:
    """Return the queue pairs of one exchange of a job whose rank r sits on `seats[r]`.

    `seed` draws where NICs begin to number queue pairs, out of which source ports follow: another for another job.

    Raises:
        ValueError: a rank without a seat, a seat that there is not, a node without a NIC that has to send, or an
            algorithm that has no form of the collective.
    """
    parts: list[_Sent] = []
    for group in exchange.groups:
        if exchange.op in ("send_recv", "all_to_all"):
            parts.append(_direct(exchange, group, seats, fabric))
        else:
            parts.append(_by_channel(exchange, group, seats, fabric))
    senders, receivers, sizes = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else _NONE
    sources, destinations = fabric.nic_of_device[senders], fabric.nic_of_device[receivers]
    if (np.minimum(sources, destinations) < 0).any():
        raise ValueError("a device without a NIC that has to reach another node")
    if fabric.hands_over:
        senders, sources = _on_rail(fabric, senders, sources, destinations)
    pairs, groups = fabric.nccl.queue_pairs, np.repeat(np.arange(len(parts)), [len(part[2]) for part in parts])
    sources, destinations = np.repeat(sources, pairs), np.repeat(destinations, pairs)
    return Connections(
        flows=Flows(sources=sources, destinations=destinations, ports=source_ports(sources, destinations, seed)),
        senders=np.repeat(senders, pairs),
        receivers=np.repeat(receivers, pairs),
        sizes=np.repeat(sizes / pairs, pairs),
        groups=np.repeat(groups, pairs),
        connections=np.repeat(np.arange(len(sizes)), pairs),
    )


_Sent = tuple[Integers, Integers, Floats]
"""Devices that send, those that receive, bytes."""
_NONE: _Sent = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


def _on_rail(fabric: Fabric, senders: Integers, sources: Integers, destinations: Integers) -> tuple[Integers, Integers]:
    """The devices of the senders' nodes whose NICs are on the rails of the receivers', and these NICs; the senders
    themselves where their nodes have none."""
    begins, node_of = fabric.links.nic_begins, fabric.links.node_of_nic
    node = node_of[sources]
    nic = begins[node] + destinations - begins[node_of[destinations]]
    device_of = fabric.device_of_nic
    there = (nic < begins[node + 1]) & (nic != sources)
    there[there] = device_of[nic[there]] >= 0
    on_rail = np.where(there, nic, sources)
    return np.where(there, device_of[on_rail], senders), on_rail


def _direct(exchange: Exchange, group: Sequence[int], seats: Sequence[Seat], fabric: Fabric) -> _Sent:
    """From rank to rank, between those in different boxes."""
    boxes = fabric.box_of_node[[seats[rank].node for rank in group]]
    devices = np.array([fabric.device(seats[rank]) for rank in group])
    if exchange.op == "send_recv":
        sender, receiver, size = np.array([0]), np.array([1]), exchange.size_bytes
    else:
        turn = np.arange(len(group))
        sender, receiver = np.repeat(turn, len(group)), np.tile(turn, len(group))
        size = exchange.size_bytes / len(group)
    apart = boxes[sender] != boxes[receiver]
    sender, receiver = sender[apart], receiver[apart]
    return devices[sender], devices[receiver], np.full(len(sender), size)


def _by_channel(exchange: Exchange, group: Sequence[int], seats: Sequence[Seat], fabric: Fabric) -> _Sent:
    """Rings or trees over the boxes of a group, one for each channel."""
    inside: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for rank in group:
        device = fabric.device(seats[rank])
        inside[int(fabric.box_of_node[seats[rank].node])].setdefault(int(fabric.nic_of_device[device]), device)
    if len(inside) < 2:
        return _NONE
    channels = min(len(by_nic) for by_nic in inside.values())
    table = np.array([[by_nic[nic] for nic in sorted(by_nic)[:channels]] for by_nic in inside.values()])
    edges, share = box_edges(exchange.algorithm or ALGORITHM_OF[exchange.op], exchange.op, len(group), len(inside))
    sizes = np.repeat(share * exchange.size_bytes / channels, channels)
    return table[edges[:, 0]].ravel(), table[edges[:, 1]].ravel(), sizes


def box_edges(algorithm: Algorithm, op: CollectiveOp, ranks: int, boxes: int) -> tuple[Integers, Floats]:
    """Return which box sends to which in a collective over so many ranks, (edges, 2), and what part of its bytes.

    A ring of all ranks passes every box's border once: each step of it carries what each step inside does. A tree has
    one rank for each box, those inside are chains.
    """
    if algorithm == "ring":
        (phase,) = collective_phases(algorithm, _phased(op), ranks)
        around = np.arange(boxes)
        return np.stack([around, (around + 1) % boxes], axis=1), np.full(boxes, phase.flows[0][2] * phase.repeats)
    between = bytes_between(collective_phases(algorithm, _phased(op), boxes))
    return np.array(list(between), dtype=np.int64), np.array(list(between.values()))


def _phased(op: CollectiveOp) -> PhasedOp:
    if op == "send_recv":
        raise ValueError("send_recv has no phases; it is one message")
    return op


def source_ports(sources: Integers, destinations: Integers, seed: int) -> Integers:
    """Return the UDP source port of each queue pair, which Linux makes of the numbers of both of its ends
    (`rdma_calc_flow_label`, `rdma_flow_label_to_udp_sport` in include/rdma/ib_verbs.h).

    A NIC numbers its queue pairs in turn, in the order in which they stand here, from where the seed draws.
    """
    count = len(sources)
    ends = np.stack([sources, destinations], axis=1).ravel()
    nics, places = np.unique(ends, return_inverse=True)
    first = np.array([np.random.default_rng([seed, int(nic)]).integers(FIRST_QUEUE_PAIRS) for nic in nics], np.int64)
    order = np.argsort(places, kind="stable")
    begins = np.searchsorted(places[order], np.arange(len(nics)))
    turn = np.empty(2 * count, dtype=np.int64)
    turn[order] = np.arange(2 * count) - begins[places[order]]
    numbers = (first[places] + turn + 1).reshape(count, 2).astype(np.uint64) & np.uint64(0xFFFFFF)
    mixed: NDArray[np.uint64] = numbers[:, 0] * numbers[:, 1]
    mixed ^= mixed >> np.uint64(20)
    mixed ^= mixed >> np.uint64(40)
    label = mixed & np.uint64(0xFFFFF)
    ports: Integers = ((label & np.uint64(0x3FFF)) ^ (label >> np.uint64(14)) | np.uint64(0xC000)).astype(np.int64)
    return ports
