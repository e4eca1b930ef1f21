"""The tree of the network above a cluster's nodes, from a file of its own: one record for every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from planner.shared.options.record import Option, Options
from profiles.cluster_file import BESIDE, files_of, is_file
from profiles.errors import InputError
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class TopologyOptions(Options):
    """Whose cluster may have the tree of its network in a file beside it. It becomes part of the cluster's name, under
    which a plan has it too."""

    topology: Annotated[
        Path | None,
        Option(
            "the switches above the cluster's nodes: Slurm's topology.conf or topology.yaml, output of scontrol show"
            " topology, kubectl get nodes -o json (or hypernodes) or ibnetdiscover, or a CSV of host and switches (same"
            " as C@FILE)"
        ),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        cluster = getattr(self, "cluster", None)
        if self.topology is not None and cluster is not None:
            object.__setattr__(self, "cluster", beside(cluster, self.topology))
            object.__setattr__(self, "topology", None)


def beside(cluster: str, topology: Path | None) -> str:
    """Return the name of `cluster` with the tree in that file beside it. Raise InputError for a second tree."""
    if topology is None:
        return cluster
    if len(files_of(cluster)) > (1 if is_file(cluster) else 0):
        raise InputError(where=f"cluster {cluster}", key="--topology", found=topology, expected="one tree, not two")
    return f"{cluster}{BESIDE}{topology}"
