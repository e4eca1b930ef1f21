"""How two plans differ, in words."""

from __future__ import annotations

from dataclasses import replace

from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.search.differences import describe_differences
from planner.shared.plan import Plan, Sharding
from planner.shared.plan_parts import PlanRecipe
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate, request_of
from tests.planner.shared.plan_examples import example_plan


def plan_of(**options: object) -> Plan:
    settings = {"global_batch": 32, "recompute": "none", **options}
    return estimate_explicit(request_of(**settings), evaluate=fake_evaluate).plan  # type: ignore[arg-type]


def test_equal_settings_differ_in_nothing_whatever_they_take() -> None:
    plan = plan_of(tp=2)
    slower = replace(plan, assumptions=("other",), estimate=replace(plan.estimate, samples_per_s=1.0))
    assert describe_differences(plan, plan) == ()
    assert describe_differences(plan, slower) == ()


def test_each_setting_is_told_once_from_the_one_to_the_other() -> None:
    one = plan_of(tp=4, micro_batch=1, zero=0, sequence_parallel=False)
    other = plan_of(tp=2, pp=2, micro_batch=2, recompute="full", zero=1, sequence_parallel=True, schedule="gpipe")
    assert describe_differences(one, other) == (
        "tp 4 -> 2",
        "pp 1 -> 2",
        "layers of the stages 6 -> 3",
        "schedule 1f1b -> gpipe",
        "micro-batch per rank 1 -> 2",
        "micro-batches 16 -> 8",
        "recompute none -> full",
        "ZeRO 0 -> 1",
        "sequence parallelism off -> on",
    )


def test_the_order_of_the_plans_turns_the_phrases() -> None:
    one, other = (
        plan_of(tp=2, offload=("optimizer",), overlap=("dp",)),
        plan_of(tp=4, grad_dtype="bf16", overlap=("tp",)),
    )
    there, back = describe_differences(one, other), describe_differences(other, one)
    assert len(there) == len(back)
    assert "tp 2 -> 4" in there
    assert "tp 4 -> 2" in back
    assert "offload optimizer -> none" in there
    assert "gradients in fp32 -> bf16" in there
    assert "overlap dp -> tp" in there


def test_stages_that_differ_are_listed() -> None:
    plan = example_plan()
    first, second = plan.stages
    assert (first.dp, second.tp) == (2, 2)
    split = replace(first, dp=1, tp=2, sharding=Sharding(zero=0, shard=1, replicate=1))
    assert describe_differences(plan, replace(plan, stages=(split, second))) == (
        "tp 1, 2 -> 2",
        "dp 2, 1 -> 1",
        "micro-batch per rank 2, 4 -> 4",
        "ZeRO 1, 0 -> 0",
    )


def test_parts_of_stages_are_told() -> None:
    whole, half = plan_of(pp=2, recompute="full"), plan_of(pp=2, recompute="full:2")
    assert describe_differences(whole, half) == ("recompute full -> full of 2 layers",)
    plain, hsdp = plan_of(zero=3, tp=1), plan_of(hsdp=(4, 2), zero=3)
    assert describe_differences(plain, hsdp) == ("ZeRO 3 -> 3 over 4 ranks",)
    one, chunks = plan_of(pp=2), plan_of(pp=2, vpp=2)
    assert "chunks a stage 1 -> 2" in describe_differences(one, chunks)
    assert "layers of the stages 3 -> 2+1, 1+2" in describe_differences(one, chunks)


def test_uneven_shares_are_told() -> None:
    plan = plan_of(pp=1, micro_batch=2)
    stage = plan.stages[0]
    uneven = replace(plan, stages=(replace(stage, micro_batch_shares=(3, *(2,) * 6, 1)),))
    assert describe_differences(plan, uneven) == ("micro-batch per rank 2 -> 3+2+2+2+2+2+2+1",)


def test_a_cells_plan_has_the_default_recipe() -> None:
    plan = plan_of(tp=2)
    assert isinstance(plan.recipe, PlanRecipe)
    assert "gradients in fp32 -> the default" in describe_differences(plan, replace(plan, recipe=None))
