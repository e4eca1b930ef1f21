"""Figure 4's ends as the estimator has them, and how much placements inside one pod differ (section 4: 0.3%)."""

from __future__ import annotations

from collections.abc import Iterator

from bench.pods.jobs import dense_24b, pods_of_nodes, seconds, shuffled
from estimator.communication.collectives import time_collective
from estimator.communication.groups import describe_group
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.vocabulary import CollectiveOp

NODES, BYTES, MOST_PODS = 12, 1 << 30, 4
PAPER: dict[CollectiveOp, str] = {"all_reduce": "17%", "all_gather": "17%", "reduce_scatter": "17%"}
LEAF_NODES, POD_NODES, DRAWS = 4, 24, 20
HOP_S = 5e-7


def lines() -> Iterator[str]:
    """Return the tables' lines."""
    yield f"\nBus bandwidth lost over more pods by 1 GiB among {NODES} ranks, one a node; by messages of a pipeline\n"
    yield f"| operation | {' | '.join(f'{pods} pods' for pods in range(2, MOST_PODS + 1))} | paper, most |"
    yield f"| -- | {' | '.join(['--:'] * MOST_PODS)} |"
    cluster = load_cluster(pods_of_nodes("h800", [NODES] * MOST_PODS))
    for op, most in PAPER.items():
        lost = [1 - _seconds(cluster, op, 1) / _seconds(cluster, op, pods) for pods in range(2, MOST_PODS + 1)]
        yield f"| {op} | {' | '.join(f'{share:.1%}' for share in lost)} | {most} |"
    table = cluster.sites[0].network.levels[-1].spread
    assert table is not None
    lost = [1 - table.share(pods, message=True) for pods in range(2, MOST_PODS + 1)]
    yield f"| send_recv | {' | '.join(f'{share:.1%}' for share in lost)} | 70% |"
    yield "\nOne job inside one pod, placements drawn: the slowest over the fastest.\n"
    yield "| job | fabric of the pod | slowest over fastest | paper, most |"
    yield "| -- | -- | --: | --: |"
    for fabric, level in (
        ("leaves as wide up as down", {}),
        (f"and {HOP_S * 1e9:g} ns a hop", {"hop_latency_s": HOP_S}),
        ("leaves with half of their NICs' rate up", {"oversubscription": 2}),
    ):
        inside = pods_of_nodes("h800", (POD_NODES,), level={"leaf": {"nodes": LEAF_NODES, **level}})
        job = dense_24b().on(inside)
        times_s = [seconds(job, shuffled(job, seed)) for seed in range(DRAWS)]
        yield f"| {dense_24b().name} | {fabric} | +{max(times_s) / min(times_s) - 1:.2%} | 0.3% |"


def _seconds(cluster: Cluster, op: CollectiveOp, pods: int) -> float:
    """Seconds of a collective of one rank a node, as many in each of so many pods."""
    slots = [slot for slot in cluster.slots if slot.index == 0]
    members = [slots[pod * NODES + node] for pod in range(pods) for node in range(NODES // pods)]
    return time_collective(op, BYTES, describe_group(cluster, members)).seconds
