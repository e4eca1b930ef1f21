"""A module whose blocks share weights and whose head shares the embedding's table: each group counts once."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.cells.stage_options import Parallelism, StageOption, StagePlace, estimate_option
from estimator.communication.collectives import describe_group, time_collective
from estimator.frontends.torch_module import load_module_model
from estimator.layers.graph import build_graph, shared_weights
from models_zoo.layers import SharedWeights
from models_zoo.model import Model
from profiles.vocabulary import Shard
from tests import traced_modules as modules
from tests.cell_examples import cell_of, estimated, make_job, make_test_machine


@pytest.fixture(scope="module")
def model() -> Model:
    return load_module_model("tests.traced_modules:recurrent")


def test_each_group_of_shared_weights_counts_once_a_stage(model: Model) -> None:
    module, _ = modules.recurrent()
    block = module.blocks[0]
    table = modules.VOCAB * modules.HIDDEN
    core = sum(p.numel() for part in (block.attention, block.up, block.down) for p in part.parameters())
    assert shared_weights(model, 1) == (
        SharedWeights(parameters=table, holders=(0, 9)),
        SharedWeights(parameters=core, holders=tuple(range(1, 9))),
    )
    assert build_graph(model, shard=Shard(dtype="fp32")).parameters == sum(p.numel() for p in module.parameters())
    job = make_job(model, global_batch=16, seq_len=16, dtype="fp32")
    machine = make_test_machine(job)
    slots = machine.cluster.slots

    def option(first: int, end: int, index: int, pipeline: tuple[tuple[int, Any], ...]) -> StageOption:
        place = StagePlace(
            first=first,
            layers=model.layers[first:end],
            slots=slots[index : index + 1],
            index=index,
            stages=3,
            micro_batch=4,
            micro_batches=4,
            pipeline=pipeline,
        )
        found = estimate_option(job, machine, place, Parallelism(dp=1, tp=1))
        assert isinstance(found, StageOption)
        return found

    # The table is in stages 0 and 2, the blocks' weights in all three.
    bounds = ((0, 4), (4, 7), (7, 10))
    pipeline = tuple((first, slots[i : i + 1]) for i, (first, _) in enumerate(bounds))
    norms = 2 * 2 * modules.HIDDEN
    held = (table + core + 3 * norms, core + 3 * norms, table + core + 2 * norms)
    for index, ((first, end), parameters) in enumerate(zip(bounds, held, strict=True)):
        assert option(first, end, index, pipeline).memory.weight_bytes == 4 * parameters
        sizes = [4 * core] if index == 1 else [4 * table, 4 * core]
        holders = {4 * table: slots[0:3:2], 4 * core: slots[:3]}
        expected = sum(
            time_collective("all_reduce", size, describe_group(machine.cluster, holders[size])).seconds
            for size in sizes
        )
        assert option(first, end, index, pipeline).gradient_sync_step_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_module_of_shared_blocks_has_a_plan(stages: int, model: Model) -> None:
    job = make_job(model, global_batch=128, seq_len=16, dtype="fp32")
    assert estimated(cell_of(job, stages)).iteration_time_s > 0
