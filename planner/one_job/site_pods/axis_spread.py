"""How many pods the widest group of each axis of a plan touches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.rank_groups import GroupAxis, group_ranks
from estimator.pricing.recipe import Setup, StageSetup
from planner.one_job.site_pods.free_nodes import level_of_pods

Integers = NDArray[np.int64]

AXES: tuple[GroupAxis, ...] = ("dp", "tp", "cp", "ep")


def axis_spreads(setup: Setup) -> dict[str, int]:
    """Return the most pods that a group of each axis touches, `pp` (pipelines) among them; axes of one rank are left
    out. A site without pods is one. Where stages differ in ranks the pipelines are those in proportion."""
    numbers: dict[tuple[str, int], int] = {}
    pods = [_pods(setup, stage, numbers) for stage in setup.stages]
    spreads: dict[str, int] = {}
    for axis in AXES:
        widest = 0
        for stage, row in zip(setup.stages, pods, strict=True):
            groups = np.array(list(group_ranks(stage, axis)), np.int64)
            if groups.shape[1] > 1:
                widest = max(widest, _widest(row[groups]))
        if widest:
            spreads[axis] = widest
    if len(setup.stages) > 1:
        most = max(map(len, pods))
        chains = np.stack([row[np.arange(most) * len(row) // most] for row in pods], axis=1)
        spreads["pp"] = _widest(chains)
    return spreads


def narrow_groups_apart(setup: Setup) -> str | None:
    """Return a sentence where tensor-parallel groups that a node would hold sit on several; None where none does."""
    apart = whole = 0
    for stage in setup.stages:
        devices = min(setup.cluster.group_of(slot).devices for slot in stage.slots)
        if not 1 < stage.tp <= devices:
            continue
        for ranks in group_ranks(stage, "tp"):
            nodes = {(stage.slots[rank].site, stage.slots[rank].node) for rank in ranks}
            apart += len(nodes) > 1
            whole += 1
    if not apart:
        return None
    return (
        f"{apart} of {whole} tensor-parallel groups sit on two nodes, as free devices of nodes are no multiple of tp:"
        " over NICs in place of NVLink; another --tp, or whole nodes, would not"
    )


def _pods(setup: Setup, stage: StageSetup, numbers: dict[tuple[str, int], int]) -> Integers:
    """The pod of every rank of a stage, numbered through all sites."""
    rows = {}
    for name in {slot.site for slot in stage.slots}:
        network = setup.cluster.site(name).network
        level = level_of_pods(network)
        rows[name] = None if level is None else network.part_of_node[level]
    keys = [(slot.site, -1 if (row := rows[slot.site]) is None else row[slot.node]) for slot in stage.slots]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _widest(groups: Integers) -> int:
    """The most different values in a row."""
    ordered = np.sort(groups, axis=1)
    return int(1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1).max(initial=0))
