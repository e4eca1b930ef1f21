"""How long a rule takes to place a job: 1,000 and 10,000 nodes of 8, 80% held, jobs of 1 to 64.

A rule that asks what the network has left (`titan share=0.1`) is told of VGG-16 in bf16, drawn seconds of an
iteration, a NIC of 100 Gb/s a node, less of it the more of the node is held, and racks of 32 nodes at 2:1, of whose
uplinks a drawn part is left. What it takes to say so is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

import numpy as np

from planner.many_jobs.jobs.records import Job, Workload
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.placers.records import Available, Budget, Request
from planner.many_jobs.simulation.seat_costs import known_parameters
from profiles.network import PLAIN

MODEL = "vgg-16"
NIC_BYTES_PER_S, RACK, OVERSUBSCRIBED = 12.5e9, 32, 2.0
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


def draw_budget(draw: Random, free: Drawn) -> Budget:
    """Return what a job asks of the network, and what those that run have left of it."""
    nodes, parameters = len(free.free), known_parameters(MODEL)
    assert parameters is not None, "a model of the zoo"
    nics = [NIC_BYTES_PER_S * (1 - draw.random() * (1 - count / free.size)) for count in free.free]
    racks = -(-nodes // RACK)
    uplinks = [RACK * NIC_BYTES_PER_S / OVERSUBSCRIBED * draw.random() for _ in range(racks)]
    available = Available(nics_bytes_per_s=nics, uplinks=[([node // RACK for node in range(nodes)], uplinks)])
    return Budget(gradient_bytes=2.0 * parameters, iteration_s=draw.uniform(0.1, 3.0), available=available)


def rule_with_options(word: str) -> tuple[str, dict[str, object]]:
    """Return the name of a rule and its options.

    >>> rule_with_options("titan share=0.1 reading=pairs")
    ('titan', {'share': 0.1, 'reading': 'pairs'})
    """
    name, *pairs = word.split()
    options: dict[str, object] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        options[key] = float(value) if value.replace(".", "", 1).isdigit() else value
    return name, options


def time_rule(rule: str, nodes: int, placements: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Return the mean and the 99th percentile of the CPU seconds of a placement, shapes that a process sees for the
    first time among them."""
    name, options = rule_with_options(rule)
    draw, draw_left, placer = Random(seed), Random(seed), make_placer(name, **options)
    took = []
    for number in range(placements):
        free = Drawn(draw, nodes, 8)
        devices = draw.choices(SIZES, SHARES)[0]
        job = Job(
            id=str(number),
            submit_s=0.0,
            pool="pool",
            devices=devices,
            workload=Workload(model=MODEL, global_batch=devices),
            iterations=1.0,
            duration_s=1e4,
        )
        left = draw_budget(draw_left, free)
        request = Request(
            job=job,
            pool="pool",
            devices=devices,
            size=8,
            now_s=0.0,
            predicted_end_s=1e4,
            network=PLAIN,
            budget=lambda left=left: left,  # type: ignore[misc]
        )
        began_s = time.process_time()
        placer.place(free, request)
        took.append(time.process_time() - began_s)
    return float(np.mean(took)), float(np.quantile(took, 0.99))
