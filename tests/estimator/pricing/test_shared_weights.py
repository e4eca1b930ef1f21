"""A module whose blocks share weights and whose head shares the embedding's table: each group counts once."""

from __future__ import annotations

import pytest

from estimator.cells.job import cell_recipe
from estimator.frontends.torch_module import load_module_model
from estimator.layers.graph import build_graph, shared_weights
from estimator.pricing.evaluate import evaluate
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup, StageSetup
from models_zoo.layers import SharedWeights
from models_zoo.model import Model
from models_zoo.user_code import UserFactory
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Shard
from tests import traced_modules as modules
from tests.cell_examples import cell_of, estimated, make_job


@pytest.fixture(scope="module")
def model() -> Model:
    return load_module_model(UserFactory(reference="tests.traced_modules:recurrent"))


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
    cluster = load_cluster("a100-80gb:2x4")
    # The table is in stages 0 and 2, the blocks' weights in all three.
    bounds = ((0, 4), (4, 7), (7, 10))
    stages = tuple(StageSetup(chunks=(span,), slots=cluster.slots[i : i + 1]) for i, span in enumerate(bounds))
    setup = Setup(
        model=model,
        cluster=cluster,
        recipe=cell_recipe(global_batch=16, seq_len=16, dtype="fp32"),
        stages=stages,
        micro_batch=4,
    )
    evaluation = evaluate(setup)
    assert isinstance(evaluation, Evaluation)
    norms = 2 * 2 * modules.HIDDEN
    held = (table + core + 3 * norms, core + 3 * norms, table + core + 2 * norms)
    assert [rank.weight_bytes for rank in evaluation.memory] == [4 * parameters for parameters in held]
    links = LinkTimes(pricing=Pricing(), cluster=cluster)
    sums_s = links.stages_sum_s(stages[::2], 4 * table) + links.stages_sum_s(stages, 4 * core)
    assert evaluation.breakdown.dp_s == pytest.approx(sums_s, rel=1e-12)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_module_of_shared_blocks_has_a_plan(stages: int, model: Model) -> None:
    job = make_job(model, global_batch=128, seq_len=16, dtype="fp32")
    assert estimated(cell_of(job, stages)).iteration_time_s > 0
