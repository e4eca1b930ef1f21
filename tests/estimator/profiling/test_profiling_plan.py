"""Which shards are measured and in which order."""

import pytest

from estimator.profiling.cells import plan_cell_profile
from estimator.profiling.plan import ProfileTask, plan_profile
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from tests.cell_examples import make_job
from tests.profiling_models import BLOCK, EMBEDDING, HEAD, SMALL_GPT


def place(task: ProfileTask) -> tuple[int, int]:
    return task.shard.tp, task.shard.micro_batch_per_rank


def test_equal_layers_are_one_task_that_knows_how_many_it_stands_for() -> None:
    tasks = plan_profile(SMALL_GPT, degrees=[1], micro_batches_per_rank=[2], dtype="fp32")
    assert {(task.layer, task.multiplicity, task.name) for task in tasks} == {
        (EMBEDDING, 1, "embedding"),
        (BLOCK, 3, "block.0"),
        (HEAD, 1, "head"),
    }
    assert all(task.shard.seq_len == 16 and task.shard.dtype == "fp32" for task in tasks)


def test_every_degree_and_micro_batch_is_planned_once_in_whatever_order_they_are_given() -> None:
    tasks = plan_profile(SMALL_GPT, degrees=[4, 1, 2, 2], micro_batches_per_rank=[8, 2])
    keys = [(task.layer, task.shard) for task in tasks]
    assert len(keys) == len(set(keys)) == 3 * 3 * 2
    assert tasks == plan_profile(SMALL_GPT, degrees=[1, 2, 4], micro_batches_per_rank=[2, 8])


def test_the_smallest_set_that_makes_a_cell_estimable_comes_first_then_the_largest_shares() -> None:
    tasks = plan_profile(SMALL_GPT, degrees=[2, 1], micro_batches_per_rank=[4, 1])
    assert [place(task) for task in tasks[:3]] == [(1, 1)] * 3
    assert tasks[0].layer == BLOCK
    rest = [task.share for task in tasks[3:]]
    assert rest == sorted(rest, reverse=True)
    assert {task.layer for task in tasks[3:6]} == {BLOCK}, "at every other degree and micro-batch the blocks come first"


def test_shares_of_one_degree_and_micro_batch_sum_to_one_and_count_every_like_layer() -> None:
    tasks = plan_profile(SMALL_GPT, degrees=[1, 2], micro_batches_per_rank=[1, 4])
    for where in {place(task) for task in tasks}:
        assert sum(task.share for task in tasks if place(task) == where) == pytest.approx(1)
    block, head = (next(task for task in tasks if task.layer == layer) for layer in (BLOCK, HEAD))
    assert block.share / head.share == pytest.approx(3 * block.work / head.work)


def test_a_degree_that_a_layer_cannot_have_is_listed_last_with_its_reason() -> None:
    tasks = plan_profile(SMALL_GPT, degrees=[1, 3], micro_batches_per_rank=[1])
    refused = [task for task in tasks if task.infeasible]
    assert [(task.layer, task.shard.tp) for task in refused] == [(BLOCK, 3)]
    assert tasks[-1] is refused[0]
    assert refused[0].infeasible is not None
    assert refused[0].infeasible.lacking == "divisibility"
    assert "tp=3" in refused[0].infeasible.reason


def test_recomputation_adds_a_forward_pass_to_the_work() -> None:
    plain, full = (
        plan_profile(SMALL_GPT, degrees=[1], micro_batches_per_rank=[1], recompute=recompute)[0]
        for recompute in ("none", "full")
    )
    assert plain.work < full.work < 2 * plain.work


def test_sequence_parallelism_means_nothing_at_degree_one() -> None:
    tasks = plan_profile(SMALL_GPT, degrees=[1, 2], micro_batches_per_rank=[1], sequence_parallel=True)
    assert {(task.shard.tp, task.shard.sequence_parallel) for task in tasks} == {(1, False), (2, True)}


@pytest.mark.parametrize(("degrees", "micro_batches"), [([], [1]), ([1], []), ([0], [1]), ([1], [-2])])
def test_no_or_non_positive_degrees_and_micro_batches_are_refused(degrees: list[int], micro_batches: list[int]) -> None:
    with pytest.raises(InputError, match=r"profile: (degrees|micro-batches): found .*, expected one or more positive"):
        plan_profile(SMALL_GPT, degrees=degrees, micro_batches_per_rank=micro_batches)


def test_the_cells_of_one_device_type_alone() -> None:
    cluster = load_cluster("a100-80gb:1x4+a10:1x2")
    job = make_job(global_batch=16)
    tasks = {name: plan_cell_profile(job, cluster, name) for name in ("a100-80gb", "a10")}
    assert {name: max(task.shard.tp for task in found) for name, found in tasks.items()} == {"a100-80gb": 4, "a10": 2}
    assert set(tasks["a10"]) == set(plan_cell_profile(job, load_cluster("a10:1x2"), "a10"))
    with pytest.raises(InputError, match=r"--device: found cpu, expected .* a100-80gb, a10"):
        plan_cell_profile(job, cluster, "cpu")
