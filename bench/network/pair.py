"""Crux's measured pair: GPT on 64 GPUs and BERT on 16 under the same two leaves, over many hashes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from estimator.network.connections import playing_of
from estimator.network.fabric import Fabric, Seat, fabric_of
from estimator.network.player.play import Settings, play
from estimator.network.steps import Playing
from estimator.network.traffic import Exchange, Span, Traffic
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.records import replace
from profiles.wiring import Clos

CLUSTER = Path(__file__).with_name("pair.yaml")
PAPER_ALONE_S, PAPER_SLOWER = 1.53, 1.70 / 1.53 - 1
GBITS = (10, 25, 50, 100, 200)
"""Of a NIC: what the paper does not say."""
BERT_COMPUTE_S = 0.5
"""Of an iteration of BERT; ours."""

GPT_PARAMETERS = 24 * 12 * 1024**2 + (51_200 + 2_048) * 1_024
"""Of GPT-3's blocks, vocabulary and positions, with the layers and the width of the paper's footnote."""
BERT_PARAMETERS = 340_000_000
"""BERT-large's; which of the two the paper does not say."""
GRADIENT_BYTES = 4

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What came of all hashes: how much longer an iteration is beside the other job than alone, on the same hash.
    `alone_s` of GPT and the share of it in which it communicates are of one without contention of its own."""

    alone_s: float
    communication: float
    gpt_longer: Floats
    bert_longer: Floats


def play_pairs(gbit: float, hashes: int) -> Pair:
    """Return what came of so many seeds of the hash, with NICs and cables of so many Gbit/s."""
    fabric = fabric_of(_thinned(load_cluster(str(CLUSTER)), gbit))
    gpt_seats, bert_seats = _seats(range(4), 8) + _seats(range(6, 10), 8), _seats((4, 5, 10, 11), 4)
    sent_s = _ring_s(fabric, GPT_PARAMETERS, gpt_seats, nics=4)
    gpt = _traffic(GPT_PARAMETERS, 64, max(PAPER_ALONE_S - sent_s, 0.0), sent_s)
    bert_sent_s = _ring_s(fabric, BERT_PARAMETERS, bert_seats, nics=2)
    bert = _traffic(BERT_PARAMETERS, 16, BERT_COMPUTE_S, bert_sent_s)
    longer = np.empty((hashes, 2))
    for seed in range(hashes):
        playings = [
            playing_of(gpt, gpt_seats, fabric, seed=2 * seed),
            playing_of(bert, bert_seats, fabric, seed=2 * seed + 1),
        ]
        longer[seed] = _beside(playings, fabric, seed)
    alone_s = max(PAPER_ALONE_S, sent_s)
    return Pair(alone_s=alone_s, communication=sent_s / alone_s, gpt_longer=longer[:, 0], bert_longer=longer[:, 1])


def _beside(playings: list[Playing], fabric: Fabric, seed: int) -> list[float]:
    """How much longer each takes beside the other."""
    rates, settings = fabric.links.bytes_per_s, Settings(seed=seed)
    together = play(playings, rates, settings=settings).jobs
    alone = [play([each], rates, settings=settings).jobs[0].seconds for each in playings]
    return [job.seconds / own_s - 1 for job, own_s in zip(together, alone, strict=True)]


def _seats(nodes: range | tuple[int, ...], devices: int) -> tuple[Seat, ...]:
    return tuple(Seat(node=node, device=device) for node in nodes for device in range(devices))


def _ring_s(fabric: Fabric, parameters: int, seats: tuple[Seat, ...], *, nics: int) -> float:
    """Seconds of a ring over all ranks at the rate that training reaches of the NICs that it has in each node."""
    rate = nics * float(fabric.links.bytes_per_s[(fabric.links.ends < fabric.links.nodes).any(axis=1)].max())
    return 2 * (len(seats) - 1) / len(seats) * parameters * GRADIENT_BYTES / rate


def _traffic(parameters: int, ranks: int, compute_s: float, sent_s: float) -> Traffic:
    """Compute, then one all-reduce of the gradients; the work is that of the compute, whatever its unit."""
    reduce = Exchange(
        axis="dp",
        op="all_reduce",
        size_bytes=float(parameters * GRADIENT_BYTES),
        groups=(tuple(range(ranks)),),
        alone_s=sent_s,
    )
    span = Span(compute_s=compute_s, exchanges=(reduce,), begins_s=compute_s)
    return Traffic(devices=ranks, spans=(span,), flops=ranks * compute_s)


def _thinned(cluster: Cluster, gbit: float) -> Cluster:
    """The cluster with all of its cables at so many Gbit/s."""
    (site,) = cluster.sites
    (group,) = site.nodes
    rate = gbit * 1e9 / 8
    share = rate / site.fabric_link.bandwidth_bytes_per_s
    wiring = site.network.wiring
    assert isinstance(wiring, Clos)
    thin = replace(
        wiring,
        leaf_bytes_per_s=wiring.leaf_bytes_per_s * share,
        top_bytes_per_s=wiring.top_bytes_per_s * share,
    )
    network = replace(site.network, wiring=thin)
    nodes = (replace(group, nic_link=replace(group.nic_link, bandwidth_bytes_per_s=rate)),)
    link = replace(site.fabric_link, bandwidth_bytes_per_s=rate)
    return replace(cluster, sites=(replace(site, nodes=nodes, fabric_link=link, network=network),))
