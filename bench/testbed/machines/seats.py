"""Which seats are free, and which of them every rule of placement gives a job.

Eight nodes of four; none, one, two and three of a node are held by others, each number on two of the nodes, which the
seed draws. The paper's Figure 8, which shows its own, is a picture; as there, two nodes are idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Literal

from estimator.communication.phases import Algorithm
from estimator.communication.rank_order import best_order, node_order
from estimator.communication.timed_order import fastest_orders
from estimator.communication.walking import Ground, Node, Seats
from planner.many_jobs.jobs.records import Job, NodeCounts, Workload
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.placers.records import Later, Request
from profiles.network import PLAIN
from profiles.records import dataclass

SIZE, HELD = 4, (0, 0, 1, 1, 2, 2, 3, 3)
MODELS = ("resnet-50", "vgg-16")
WORKERS = (4, 6, 8, 10, 12)
SAMPLES = 32
"""Of a worker in an iteration."""
Order = Literal["bytes", "time", "nodes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """The nodes by number, as `planner.many_jobs.placers.records.FreeNodes`. The jobs on them end in the order of the
    nodes, each hour one."""

    held: tuple[int, ...]

    @property
    def free(self) -> tuple[int, ...]:
        """Free devices of each node."""
        return tuple(SIZE - held for held in self.held)

    def last_end_s(self, node: int) -> float | None:
        """When the jobs on a node end."""
        return 3600.0 * (node + 1) if self.held[node] else None

    def ends(self, node: int) -> tuple[tuple[float, int], ...]:
        """When they end, and how many devices they hold."""
        end_s = self.last_end_s(node)
        return () if end_s is None else ((end_s, self.held[node]),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """A job: for each rank the node that it sits on."""

    model: str
    algorithm: Algorithm
    nodes: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Ranks of each of its nodes, the most first."""
        return tuple(sorted((self.nodes.count(node) for node in set(self.nodes)), reverse=True))


def occupied(seed: int) -> Occupied:
    """Return the nodes with what others hold of them."""
    held = list(HELD)
    Random(f"machines {seed}").shuffle(held)
    return Occupied(held=tuple(held))


def place(rule: str, nodes: Occupied, model: str, workers: int) -> NodeCounts:
    """Return what the rule gives the job."""
    job = Job(
        id="bench",
        submit_s=0.0,
        pool="pool",
        devices=workers,
        workload=Workload(model=model, global_batch=SAMPLES * workers, dtype="fp32"),
        iterations=1000.0,
        duration_s=7200.0,
    )
    request = Request(
        job=job, pool="pool", devices=workers, size=SIZE, now_s=0.0, predicted_end_s=7200.0, network=PLAIN
    )
    counts = make_placer(rule).place(nodes, request)
    assert not isinstance(counts, Later), "nobody may wait here"
    return counts


def seat(counts: NodeCounts, model: str, algorithm: Algorithm, *, by: Order = "bytes") -> Seated:
    """Return the job with its ranks in the order of fewest bytes between those nodes, of least time (of a vector so
    large that latencies do not count), or of the nodes."""
    sizes = tuple(count for _, count in counts)
    orders: dict[Order, Callable[[], Seats]] = {
        "nodes": lambda: node_order(sizes),
        "bytes": lambda: best_order(algorithm, sizes),
        "time": lambda: least_time_order(algorithm, sizes),
    }
    return Seated(model=model, algorithm=algorithm, nodes=tuple(counts[at][0] for at in orders[by]()))


def least_time_order(algorithm: Algorithm, sizes: Sequence[int]) -> Seats:
    """Return the order in which most NICs, one a node, are as little busy as can be; seats inside take no time."""
    ground = Ground(nodes=tuple(Node(ranks=size, bytes_per_s=1.0) for size in sizes))
    return min(fastest_orders(algorithm, "all_reduce", ground), key=lambda way: way.line[1]).seats


def seat_numbers(nodes: Sequence[int], free: Sequence[int], taken: Iterable[int] = ()) -> tuple[int, ...]:
    """Return for each rank the number of its seat, where the free seats of all nodes are numbered node by node. Raise
    ValueError where a node has too few."""
    first = [sum(free[:node]) for node in range(len(free))]
    held = set(taken)
    numbers = []
    for node in nodes:
        number = next((one for one in range(first[node], first[node] + free[node]) if one not in held), None)
        if number is None:
            raise ValueError(f"node {node} has {free[node]} free seats; expected one more")
        held.add(number)
        numbers.append(number)
    return tuple(numbers)
