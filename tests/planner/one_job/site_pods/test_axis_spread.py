"""What is said of where a plan's groups sit."""

from __future__ import annotations

from dataclasses import replace

from planner.one_job.site_pods.axis_spread import narrow_groups_apart
from tests.planner.one_job.site_pods.pod_examples import plan


def test_tensor_parallel_groups_over_two_nodes_are_told() -> None:
    setup = plan(4, tp=2, pp=1, dp=2)
    assert narrow_groups_apart(setup) is None
    (stage,) = setup.stages
    moved = replace(setup, stages=(replace(stage, slots=setup.cluster.slots[1:5]),))
    said = narrow_groups_apart(moved)
    assert said is not None
    assert said.startswith("2 of 2 tensor-parallel groups sit on two nodes")
