"""The least time of a plan on free GPUs of machines, by trying every set of them in every order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.many_jobs.placement.machines.occupied import Machine
from planner.one_job.site_pods.least_time import Evaluate
from profiles.cluster import DeviceSlot
from profiles.records import replace


def brute_least_time(setup: Setup, machines: Sequence[Machine], evaluate: Evaluate) -> float | None:
    """Return the least seconds of an iteration over every way to give a plan's ranks free GPUs; None where none fits.
    GPUs of a machine are alike, so that only the machine of each rank is tried."""
    ranks = sum(len(stage.slots) for stage in setup.stages)
    free = [machine.node for machine in machines for _ in machine.free]
    by_node = {machine.node: machine for machine in machines}
    least: float | None = None
    for nodes in sorted(set(permutations(free, ranks))):
        used = dict.fromkeys(nodes, 0)
        slots = []
        for node in nodes:
            machine = by_node[node]
            slots.append(
                DeviceSlot(
                    site=machine.site,
                    node=node,
                    index=machine.free[used[node]],
                    group=machine.group,
                    device=machine.device,
                )
            )
            used[node] += 1
        places = iter(slots)
        stages = tuple(replace(stage, slots=tuple(next(places) for _ in stage.slots)) for stage in setup.stages)
        priced = evaluate(replace(setup, stages=stages))
        if isinstance(priced, Evaluation) and priced.out_of_memory is None:
            least = priced.iteration_time_s if least is None else min(least, priced.iteration_time_s)
    return least
