"""The groups of every axis by the coordinates of each rank, written out; shares nothing with the package's layouts."""

from __future__ import annotations

from collections import defaultdict

from estimator.pricing.recipe import StageSetup


def brute_force_groups(stage: StageSetup, axis: str) -> set[frozenset[int]]:
    """Sets of ranks (positions in `stage.slots`) that agree in every coordinate that the axis does not run through."""
    groups: defaultdict[tuple[object, ...], set[int]] = defaultdict(set)
    for rank in range(len(stage.slots)):
        t, c, d = rank % stage.tp, rank // stage.tp % stage.cp, rank // (stage.tp * stage.cp)
        replica = c + stage.cp * d
        x, e = rank % stage.etp, rank // stage.etp % stage.ep
        z = rank // (stage.etp * stage.ep)
        held = {
            "tp": (c, d),
            "cp": (t, d),
            "dp": (t,),
            "etp": (e, z),
            "ep": (x, z),
            "expert_dp": (x, e),
            "shard": (t, replica // stage.sharded_over),
            "replicate": (t, replica % stage.sharded_over),
        }
        groups[held[axis]].add(rank)
    return {frozenset(group) for group in groups.values()}
