"""Our model of what Slurm takes by itself, beside answers of a real slurmctld."""

from __future__ import annotations

import pytest

from planner.one_job.site_pods.slurm_default import nodes_by_slurm
from profiles.host_lists import expand_hosts
from profiles.network import PLAIN, FabricLevel, FabricPart, Network

LEAVES, PODS = (4, 4, 4, 3, 4, 4, 2, 4, 4, 4, 3), (4, 3, 4)
"""Nodes of each leaf, leaves of each pod."""


def _level(name: str, counts: tuple[int, ...]) -> FabricLevel:
    parts = tuple(FabricPart(name=f"{name}{number}") for number in range(len(counts)))
    return FabricLevel(
        name=name, parts=parts, part_of=tuple(part for part, count in enumerate(counts) for _ in range(count))
    )


TREE = Network(
    levels=(_level("leaf", LEAVES), _level("pod", PODS)), hosts=tuple(f"n{node:02}" for node in range(sum(LEAVES)))
)


# What `sbatch --test-only --exclusive` of Slurm 22.05.8 (select/cons_tres, topology/tree) said of these free nodes.
@pytest.mark.parametrize(
    ("free", "count", "taken"),
    [
        (
            "n[02-04],n06,n[08-09],n14,n[16-19],n[22-26],n28,n[30-35],n[37-39]",
            23,
            "n[02-04],n06,n[08-09],n14,n[16-19],n[25-26],n28,n[30-35],n[37-39]",
        ),
        (
            "n00,n[03-04],n07,n[12-13],n[15-16],n19,n22,n24,n26,n28,n[30-31],n[34-36]",
            16,
            "n00,n[03-04],n07,n[12-13],n[15-16],n24,n26,n28,n[30-31],n[34-36]",
        ),
        ("n02,n05,n10,n[12-13],n16,n[19-20],n23,n25,n[33-34],n[36-37],n39", 7, "n[19-20],n[33-34],n[36-37],n39"),
        ("n[01-04],n[06-07],n09,n[12-13],n[17-18],n21,n23,n[25-32],n34,n[37-38]", 3, "n[01-03]"),
        (
            "n[00-02],n05,n[07-08],n[10-15],n[17-19],n[21-23],n[28-33],n[36-39]",
            20,
            "n[00-02],n05,n[07-08],n[10-15],n[17-18],n[29-33],n36",
        ),
        (
            "n[00-02],n[04-05],n07,n[10-25],n27,n[29-34],n36,n[38-39]",
            23,
            "n[00-02],n[04-05],n07,n[10-22],n[29-32]",
        ),
        ("n[03-04],n08,n12,n[14-19],n21,n24,n[27-28],n[32-33],n39", 9, "n[03-04],n08,n12,n[14-18]"),
        ("n[00-03],n[07-12],n[14-15],n[22-25],n30,n33,n36,n38", 8, "n[00-03],n[08-11]"),
    ],
)
def test_it_names_the_nodes_that_slurmctld_took(free: str, count: int, taken: str) -> None:
    numbers = [TREE.hosts.index(host) for host in expand_hosts(free, "test", "free")]
    expected = [TREE.hosts.index(host) for host in expand_hosts(taken, "test", "taken")]
    assert nodes_by_slurm(TREE, numbers, count) == expected
    assert nodes_by_slurm(TREE, numbers[::-1], count) == expected


def test_without_a_tree_nodes_are_taken_by_number() -> None:
    assert nodes_by_slurm(PLAIN, [7, 3, 5], 2) == [3, 5]
    with pytest.raises(ValueError, match="4 of 3 free nodes"):
        nodes_by_slurm(PLAIN, [7, 3, 5], 4)
