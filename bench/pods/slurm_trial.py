"""What a real slurmctld takes on drawn occupancies beside our model of it, and whether it gives the nodes we name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from bench.pods.cases import SPREAD_OF_BUSY, TABLE_1, Setting, free_nodes
from bench.pods.real_slurm import SELECTING, Controller, Slurm, controller
from planner.one_job.pods.baselines import slurm_tree
from planner.one_job.pods.records import PodRequest
from planner.one_job.site_pods.slurm_default import nodes_by_slurm
from profiles.cluster import Site
from profiles.cluster_file import load_cluster
from profiles.host_lists import fold_hosts
from profiles.network import FabricLevel, FabricPart, Network
from profiles.records import dataclass, replace

LEAF_NODES = 16
BUSY = (0.1, 0.3, 0.5)
JOBS = (12, 46, 96, 200, 368)
OCCUPANCIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The free nodes of a site (numbers), and a job of so many."""

    free: tuple[int, ...]
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Of so many occupancies, on how many slurmctld takes the nodes of our model, the pods of `slurm_tree`, and, asked
    for by name, exactly the nodes that we say."""

    asked: int
    nodes: int
    pods: int
    named: int


def trial_site(setting: Setting, seed: int, *, leaf_nodes: int = LEAF_NODES) -> Site:
    """Return a site of the setting's pods with leaves of so many nodes, the last of a pod with fewer; none of 0."""
    sizes = free_nodes(setting, 0.0, seed)
    width = len(str(setting.nodes))
    pods = FabricLevel(
        name="pod", parts=tuple(FabricPart(name=f"p{pod}") for pod in range(len(sizes))), part_of=_places(sizes)
    )
    levels: tuple[FabricLevel, ...] = (pods,)
    if leaf_nodes:
        leaves = [min(leaf_nodes, size - first) for size in sizes for first in range(0, size, leaf_nodes)]
        names = tuple(FabricPart(name=f"s{leaf}") for leaf in range(len(leaves)))
        above = _places([-(-size // leaf_nodes) for size in sizes])
        levels = (
            FabricLevel(name="leaf", parts=names, part_of=_places(leaves)),
            replace(pods, part_of=above),
        )
    hosts = tuple(f"n{node:0{width}}" for node in range(setting.nodes))
    (site,) = load_cluster(f"h800:{setting.nodes}x8").sites
    return replace(site, network=Network(levels=levels, hosts=hosts))


def _places(counts: Sequence[int]) -> tuple[int, ...]:
    return tuple(part for part, count in enumerate(counts) for _ in range(count))


def occupancies(site: Site, count: int) -> Iterator[Occupancy]:
    """Return so many drawn occupancies of a site, each pod busy by itself, with a job that the free nodes hold."""
    pods = site.network.part_of_node[-1]
    for seed in range(count):
        rng = Random(seed)
        busy = [min(1.0, max(0.0, rng.gauss(BUSY[seed % len(BUSY)], SPREAD_OF_BUSY))) for _ in range(max(pods) + 1)]
        free = tuple(node for node, pod in enumerate(pods) if rng.random() >= busy[pod])
        fitting = [nodes for nodes in JOBS if nodes <= len(free)] or [len(free)]
        yield Occupancy(free=free, nodes=rng.choice(fitting))


def agreement(running: Controller, site: Site, drawn: Sequence[Occupancy]) -> Agreement:
    """Return how often slurmctld and our model agree."""
    pods = site.network.part_of_node[-1]
    same_nodes = same_pods = named = 0
    for occupancy in drawn:
        running.set_free(occupancy.free)
        taken = running.would_take(nodes=occupancy.nodes)
        same_nodes += taken == frozenset(nodes_by_slurm(site.network, occupancy.free, occupancy.nodes))
        counts = tuple(sum(pods[node] == pod for node in occupancy.free) for pod in range(max(pods) + 1))
        request = PodRequest(rows=occupancy.nodes, columns=1, free=counts, alpha=0.0)
        ours = {pod: count for pod, count in slurm_tree(request, Random(0)) if count}
        same_pods += ours == {pod: sum(pods[node] == pod for node in taken) for pod in {pods[node] for node in taken}}
        wanted = frozenset(Random(occupancy.nodes).sample(occupancy.free, occupancy.nodes))
        hosts = fold_hosts([site.network.hosts[node] for node in sorted(wanted)])
        named += running.would_take(f"--nodelist={hosts}", nodes=occupancy.nodes) == wanted
    return Agreement(asked=len(drawn), nodes=same_nodes, pods=same_pods, named=named)


def lines(slurm: Slurm, *, count: int = OCCUPANCIES) -> Iterator[str]:
    """Return the table's lines, row by row as they are asked."""
    yield "\n| pods, nodes | leaves | select | occupancies | our model's nodes | pods of `slurm` | nodes by name |"
    yield "| -- | --: | -- | --: | --: | --: | --: |"
    for leaf_nodes in (0, LEAF_NODES):
        for selecting in SELECTING:
            site = trial_site(TABLE_1[2], 0, leaf_nodes=leaf_nodes)
            with controller(slurm, site, selecting=selecting) as running:
                result = agreement(running, site, list(occupancies(site, count)))
            cells = [f"{TABLE_1[2].pods}, {TABLE_1[2].nodes}", f"{leaf_nodes or 'none'}", selecting, f"{result.asked}"]
            yield f"| {' | '.join([*cells, *(f'{n}' for n in (result.nodes, result.pods, result.named))])} |"
