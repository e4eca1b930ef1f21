"""How long a rule takes to place a job: 1,000 and 10,000 nodes of 8, 80% held, jobs of 1 to 64."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

import numpy as np

from planner.many_jobs.jobs.records import Job, Workload
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.placers.records import Request
from profiles.network import PLAIN

SIZES, SHARES = (1, 2, 4, 8, 16, 32, 64), (50, 15, 12, 13, 5, 3, 2)


class Drawn:
    """Nodes with drawn free devices and ends."""

    def __init__(self, draw: Random, nodes: int, size: int) -> None:
        self.free = [0 if draw.random() < 0.6 else draw.choice((size, *range(size))) for _ in range(nodes)]
        self.size, self._ends_s = size, [draw.uniform(0, 1e5) for _ in range(nodes)]

    def last_end_s(self, node: int) -> float | None:
        """As `FreeNodes`."""
        return self._ends_s[node]

    def ends(self, node: int) -> Sequence[tuple[float, int]]:
        """As `FreeNodes`: one job on each."""
        held = self.size - self.free[node]
        return ((self._ends_s[node], held),) if held else ()


def time_rule(rule: str, nodes: int, placements: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Return the mean and the 99th percentile of the CPU seconds of a placement, shapes that a process sees for the
    first time among them."""
    draw, placer = Random(seed), make_placer(rule)
    took = []
    for number in range(placements):
        free = Drawn(draw, nodes, 8)
        devices = draw.choices(SIZES, SHARES)[0]
        job = Job(
            id=str(number),
            submit_s=0.0,
            pool="pool",
            devices=devices,
            workload=Workload(model="vgg-16", global_batch=devices),
            iterations=1.0,
            duration_s=1e4,
        )
        request = Request(job=job, pool="pool", devices=devices, size=8, now_s=0.0, predicted_end_s=1e4, network=PLAIN)
        began_s = time.process_time()
        placer.place(free, request)
        took.append(time.process_time() - began_s)
    return float(np.mean(took)), float(np.quantile(took, 0.99))
