"""Eight emulated workers: compute is slept as long as its Cells say, communication is real, over shaped links."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from bench.scheduling.live.crew import Place, Seat
from bench.testbed.measure import measure_between
from bench.testbed.network import Network
from estimator.communication.fit import make_table
from estimator.communication.groups import describe_group
from planner.many_jobs.jobs.records import Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pool_name, pools_of
from profiles.cluster import Cluster
from profiles.vocabulary import CollectiveOp, LinkTable

MODEL = Path(__file__).parents[2] / "testbed" / "model" / "config.json"
CLUSTER = Path(__file__).with_name("testbed.yaml")
MENU = (
    Workload(model=str(MODEL), global_batch=32, seq_len=128, dtype="fp32"),
    Workload(model="wide-resnet-tiny", global_batch=64, dtype="fp32"),
    Workload(model="wide-resnet-mini", global_batch=32, dtype="fp32"),
)
"""Models without weights that two stages share: sleeping stages do not sum their gradients."""

OPS: tuple[CollectiveOp, ...] = ("all_reduce", "all_gather", "send_recv")
SIZES = (1 << 12, 1 << 16, 1 << 19, 1 << 21, 1 << 23, 1 << 25)
REPEATS = 4


def testbed_tables(cluster: Cluster, network: Network) -> tuple[LinkTable, ...]:
    """What gloo does between the workers of the first site: two of a node, two of two nodes, all."""
    site = network.seats[0].slot.site
    own = [seat for seat in network.seats if seat.slot.site == site]
    nodes = defaultdict(list)
    for seat in own:
        nodes[seat.slot.node].append(seat)
    inside = next(iter(nodes.values()))[:2]
    across = [seats[0] for seats in nodes.values()][:2]
    tables = []
    for group, ops in ((inside, OPS), (across, OPS), (own, OPS[:2])):
        place = describe_group(cluster, [seat.slot for seat in group])
        for op in ops:
            points = measure_between(network, [seat.rank for seat in group], SIZES, op, repeats=REPEATS)
            tables.append(
                make_table(
                    link=place.levels[-1].link,
                    op=op,
                    ranks=place.ranks,
                    nodes=place.nodes,
                    samples={size: (seconds,) for size, seconds in points},
                    source="gloo on the emulated links",
                )
            )
    return tuple(tables)


def testbed_cells(cluster: Cluster, tables: tuple[LinkTable, ...]) -> EstimatedCells:
    """Compute by the operator model (the workers sleep as long), links as measured."""
    return EstimatedCells(cluster=cluster, pools=pools_of(cluster), link_tables_for=lambda _device: tables)


def testbed_places(cluster: Cluster, network: Network) -> dict[Seat, Place]:
    """A worker on each seat of the network."""
    places = {}
    for seat in network.seats:
        name = pool_name(cluster, cluster.site(seat.slot.site), seat.slot.group)
        places[name, seat.slot.node, seat.slot.index] = Place(prefix=seat.prefix, environment=dict(seat.environment))
    return places
