"""`--topology`: the same option on every command, and part of the cluster's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import api
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.place import PlaceOptions
from planner.shared.options.search import PlanOptions
from planner.shared.options.simulate import SimulateOptions
from planner.shared.plan_file import load_plan
from profiles.errors import InputError

TREE = "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n3\nSwitchName=top Switches=a,b\n"


def test_it_becomes_part_of_the_clusters_name() -> None:
    made = (
        EstimateOptions(model="gpt-tiny", cluster="h100:3x8", topology=Path("tree.conf")),
        PlanOptions(model="gpt-tiny", cluster="h100:3x8", topology=Path("tree.conf")),
        PlaceOptions(model="gpt-tiny", cluster="h100:3x8", topology=Path("tree.conf"), devices=8),
        SimulateOptions(trace=Path("t.csv"), cluster="h100:3x8", topology=Path("tree.conf")),
    )
    assert {(options.cluster, options.topology) for options in made} == {("h100:3x8@tree.conf", None)}
    with pytest.raises(InputError, match=r"found other\.conf, expected one tree, not two"):
        EstimateOptions(model="gpt-tiny", cluster="h100:3x8@tree.conf", topology=Path("other.conf"))


def test_a_plan_keeps_the_tree_and_an_older_one_takes_it(tmp_path: Path) -> None:
    tree, plain, kept = tmp_path / "tree.conf", tmp_path / "plain.json", tmp_path / "kept.json"
    tree.write_text(TREE)
    api.estimate("gpt-tiny", dp=6, cluster="h100:3x2", output=plain)
    api.estimate("gpt-tiny", dp=6, cluster="h100:3x2", topology=tree, output=kept)
    assert load_plan(kept).cluster == f"h100:3x2@{tree}"
    answers = api.estimate(plan=plain, topology=tree), api.estimate(plan=kept), api.estimate(plan=plain)
    # Uplinks of which nothing is said change nothing.
    assert len({answer["estimate"]["iteration_time_s"] for answer in answers}) == 1
    with pytest.raises(InputError, match="expected one tree, not two"):
        api.estimate(plan=kept, topology=tree)
    tree.unlink()
    assert load_plan(kept).cluster == f"h100:3x2@{tree}"
