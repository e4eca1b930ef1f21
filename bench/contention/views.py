"""What it takes to see jobs as network policies do: connections, the paths that each may take, ports that lead there.

Jobs sit on drawn hosts of a two-layer Clos, 2 to 32 hosts of 8 GPUs each, one ring over all of a job's devices. CPU
seconds of one process, the least of three.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from estimator.network.fabric import Fabric, Seat, fabric_of
from estimator.network.traffic import Exchange, Span, Traffic
from planner.contention.viewing import Sender, contenders_of, view_of
from profiles.cluster_file import load_cluster

SIZES = ((46, 256, 32, 16), (1000, 2048, 256, 16))
"""Jobs, hosts, leaves and spines."""
GPUS, LEVELS, TIMES = 8, 8, 3
COMPUTE_S, SENDS_S, RATE = 1.0, 0.4, 50e9
CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: clos
    nodes: [{{count: {hosts}, device: h100, nics: {{count: 8, link: roce400}}}}]
    fabric: {{link: roce400, topology: {{kind: clos2, leaves: {leaves}, spines: {spines}, cables: {cables}}}}}
"""


def lines(first: int) -> Iterator[str]:
    """Yield the table."""
    yield "| jobs | GPUs | connections with a choice | paths | CPU s |"
    yield "|---|---|---|---|---|"
    for jobs, hosts, leaves, spines in SIZES:
        fabric = _fabric(hosts, leaves, spines)
        drawn = _draw(jobs, hosts, first)
        least_s = float("inf")
        for _ in range(TIMES):
            began_s = time.process_time()
            senders = [
                Sender(id=f"job{number}", traffic=_traffic(seats), seats=seats, flops=1e15, seed=number)
                for number, seats in enumerate(drawn)
            ]
            view = view_of(contenders_of(senders, fabric), fabric, LEVELS)
            least_s = min(least_s, time.process_time() - began_s)
        choices = [paths for job in view.jobs for paths in job.paths if len(paths) > 1]
        yield f"| {jobs:,} | {hosts * GPUS:,} | {len(choices):,} | {sum(map(len, choices)):,} | {least_s:.2f} |"


def _fabric(hosts: int, leaves: int, spines: int) -> Fabric:
    cables = hosts * GPUS // leaves // spines
    with TemporaryDirectory() as folder:
        path = Path(folder) / "clos.yaml"
        path.write_text(CLUSTER.format(hosts=hosts, leaves=leaves, spines=spines, cables=cables), encoding="utf-8")
        return fabric_of(load_cluster(str(path)))


def _draw(jobs: int, hosts: int, seed: int) -> list[tuple[Seat, ...]]:
    """Return where jobs sit, on all hosts or nearly so."""
    rng = Random(f"views, {jobs}, {hosts}, {seed}")
    free = rng.sample(range(hosts), hosts)
    drawn = []
    for number in range(jobs):
        size = min(rng.choice((2, 2, 4, 4, 8, 16, 32)), max(len(free) - 2 * (jobs - number - 1), 2))
        nodes = [free.pop() for _ in range(min(size, len(free)))]
        drawn.append(tuple(Seat(node=node, device=device) for node in nodes for device in range(GPUS)))
    return drawn


def _traffic(seats: tuple[Seat, ...]) -> Traffic:
    ranks = len(seats)
    reduce = Exchange(
        axis="dp",
        op="all_reduce",
        size_bytes=SENDS_S * RATE * GPUS * ranks / (2 * (ranks - 1)),
        groups=(tuple(range(ranks)),),
        alone_s=SENDS_S,
    )
    return Traffic(devices=ranks, spans=(Span(compute_s=COMPUTE_S, exchanges=(reduce,), begins_s=0.5),), flops=1e15)
