"""A job's plan as DT-FM makes it (Yuan et al. 2022, as SpiderFlow compares with it in section 5.2): its pieces, one for
every stage of every replica, are dealt to sites by a genetic search for the least traffic between sites.

DT-FM fixes the degrees; here every (d, p) with d p = devices and no tensor parallelism is cut, and the estimator says
which is fastest. Layers are divided evenly over stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from estimator.pricing.build import uniform_setup
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.recipe import Recipe, Setup
from models_zoo.model import Model
from planner.many_jobs.scheduling.sites.partition import PartitionGraph
from planner.many_jobs.scheduling.sites.partition_genetic import Breeding, breed_partition
from planner.many_jobs.sites.tpa_sites import message_bytes
from planner.many_jobs.traces.assign import count_parameters
from profiles.cluster import Cluster, DeviceSlot

SMALL = 32
"""Pieces up to which the search has its larger budget."""
BUDGET, SMALL_BUDGET = Breeding(population=8, children=40), Breeding(population=24, children=200)
SAMPLES = (1, 2, 4, 8, 16, 32)
"""Samples of a micro-batch on one device that are tried."""
UNIT_BYTES = 1024.0
"""Traffic is counted in whole units of so many bytes."""


def piece_graph(replicas: int, stages: int, *, message: int, gradient: int) -> PartitionGraph:
    """Return the graph of a job's pieces, by number stage x replicas + replica: each sends `message` units to its
    replica's next stage and `gradient` to its neighbour in its stage's ring."""
    edges: dict[tuple[int, int], int] = {}
    for stage in range(stages):
        for replica in range(replicas):
            here = stage * replicas + replica
            if stage + 1 < stages:
                edges[here, here + replicas] = message
            after = stage * replicas + (replica + 1) % replicas
            if after != here:
                pair = min(here, after), max(here, after)
                edges[pair] = edges.get(pair, 0) + gradient
    return PartitionGraph(
        loads=np.ones(replicas * stages, dtype=np.int64),
        edges=np.array(list(edges), dtype=np.int64).reshape(-1, 2),
        traffic=np.array(list(edges.values()), dtype=np.int64),
    )


def deal_pieces(graph: PartitionGraph, capacities: Sequence[int], *, seed: int = 0) -> tuple[int, ...] | None:
    """Return the site of each piece, by number in `capacities`; None where these are too few. What the search leaves
    above a site's capacity moves to the first site with room."""
    if graph.nodes > sum(capacities):
        return None
    if len(capacities) == 1:
        return (0,) * graph.nodes
    breeding = SMALL_BUDGET if graph.nodes <= SMALL else BUDGET
    parts = list(breed_partition(graph, capacities, seed=seed, breeding=breeding).parts)
    room = [capacity - parts.count(site) for site, capacity in enumerate(capacities)]
    for piece, site in enumerate(parts):
        if room[site] < 0:
            other = next(number for number, left in enumerate(room) if left > 0)
            parts[piece] = other
            room[site] += 1
            room[other] -= 1
    return tuple(parts)


def genetic_setups(model: Model, recipe: Recipe, cluster: Cluster) -> Iterator[Setup]:
    """Plans on all devices of the cluster, for each grid of pieces with the ways to run it that are worth a look."""
    by_site = [[slot for slot in cluster.free_slots if slot.site == site.name] for site in cluster.sites]
    devices = len(cluster.free_slots)
    parameters = count_parameters(model.name)
    for stages in range(1, min(devices, len(model.layers)) + 1):
        replicas = devices // stages
        if devices % stages or recipe.global_batch % replicas:
            continue
        sent = message_bytes(model, recipe) / replicas
        summed = 2.0 * parameters / stages * GRAD_WIDTH[recipe.grad_dtype] * (replicas - 1) / replicas
        graph = piece_graph(
            replicas, stages, message=max(1, round(sent / UNIT_BYTES)), gradient=max(1, round(summed / UNIT_BYTES))
        )
        where = deal_pieces(graph, [len(slots) for slots in by_site])
        if where is not None:
            yield from _ways_to_run(model, recipe, cluster, _in_order(where, by_site), (replicas, stages))


def _in_order(where: Sequence[int], by_site: Sequence[Sequence[DeviceSlot]]) -> tuple[DeviceSlot, ...]:
    """A device for each piece, the next of its site."""
    left = [iter(slots) for slots in by_site]
    return tuple(next(left[site]) for site in where)


def _ways_to_run(
    model: Model, recipe: Recipe, cluster: Cluster, slots: tuple[DeviceSlot, ...], degrees: tuple[int, int]
) -> Iterator[Setup]:
    replicas, stages = degrees
    for samples in SAMPLES:
        if recipe.global_batch % (samples * replicas):
            continue
        for recompute in ("none", "full"):
            for zero in (0, 1) if replicas > 1 else (0,):
                setup = uniform_setup(
                    model,
                    cluster,
                    recipe,
                    dp=replicas,
                    pp=stages,
                    micro_batch_per_rank=samples,
                    recompute=recompute,
                    zero=zero,
                    devices=slots,
                )
                if isinstance(setup, Setup):
                    yield setup
