"""A plan as a matrix of nodes, the paper's equations by name, and who talks to whom."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from estimator.pricing.recipe import ZeroStage
from planner.one_job.pods.equations import PrintedShape, dp_volume, matrix_shape, micro_batches, pp_volume
from planner.one_job.pods.matrix import JobMatrix, matrix_of
from planner.one_job.pods.records import PodRequest
from planner.one_job.pods.traffic import sent_share, stage_bytes, traffic_of
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.vocabulary import Infeasible
from tests.explicit_examples import EXPERTS, LLAMA, RECIPE, build, with_stages

NODES = load_cluster("a100-80gb:16x8")


def _matrix(setup: object) -> JobMatrix:
    matrix = matrix_of(setup)  # type: ignore[arg-type]
    assert isinstance(matrix, JobMatrix), matrix
    return matrix


def test_equation_1_gives_the_papers_example() -> None:
    assert matrix_shape(devices=96, tp=8, pp=2) == PrintedShape(dp=6, rows=6, columns=2)
    assert matrix_shape(devices=46 * 8 * 8, tp=8, pp=8) == PrintedShape(dp=46, rows=46, columns=8)
    assert matrix_shape(devices=96, tp=4, pp=2) == PrintedShape(dp=12, rows=6, columns=2)


@pytest.mark.parametrize("job", [(95, 8, 2), (96, 16, 2), (24, 4, 2), (0, 8, 1), (96, 3, 2)])
def test_equation_1_refuses_what_it_does_not_know(job: tuple[int, int, int]) -> None:
    devices, tp, pp = job
    with pytest.raises(InputError, match=r"eq\. 1"):
        matrix_shape(devices=devices, tp=tp, pp=pp)


def test_appendix_c_gives_the_papers_volumes_at_two_bytes_an_element() -> None:
    elements = dp_volume(hidden=4096, vocabulary=50257, sequence=2048, layers=32, pp=8)
    assert 2 * elements == pytest.approx(2.04e9, rel=2e-3)
    assert 2 * pp_volume(micro_batch=1, sequence=2048, hidden=4096) == pytest.approx(33.6e6, rel=2e-3)
    assert micro_batches(global_batch=96, micro_batch=2, dp=6) == 8


def test_a_plan_has_the_matrix_of_equation_1_where_it_knows_the_job() -> None:
    matrix = _matrix(build(cluster=NODES, tp=4, pp=2, dp=8))
    assert matrix.shape == (4, 2)
    assert matrix.nodes == 8
    assert matrix.nodes_a_cell == 1
    assert [column.stages for column in matrix.columns] == [(0,), (1,)]
    assert sorted(rank for column in matrix.columns for cell in column.ranks for rank in cell) == list(range(64))
    request = matrix.request((5, 9), alpha=0.3)
    assert request == PodRequest(rows=4, columns=2, free=(5, 9), alpha=0.3)


def test_tp_above_a_node_makes_cells_of_several_nodes() -> None:
    matrix = _matrix(build(cluster=load_cluster("a100-80gb:16x4"), tp=8, pp=2, dp=4))
    assert matrix.shape == (4, 2)
    assert matrix.nodes_a_cell == 2
    assert matrix.nodes == 16
    request = matrix.request((7, 20), alpha=0.5)
    assert isinstance(request, PodRequest)
    assert request.room == (3, 10)


def test_stages_smaller_than_a_node_share_a_column() -> None:
    matrix = _matrix(build(cluster=NODES, tp=4, pp=4, dp=1))
    assert matrix.shape == (1, 2)
    assert [column.stages for column in matrix.columns] == [(0, 1), (2, 3)]


def test_a_stage_that_ends_inside_a_node_is_refused_with_the_reason() -> None:
    refused = matrix_of(build(cluster=NODES, tp=4, pp=2, dp=3, recipe=replace(RECIPE, global_batch=24)))
    assert isinstance(refused, Infeasible)
    assert "12" in refused.reason


def test_uneven_stages_have_a_matrix_and_no_units() -> None:
    setup = build(cluster=NODES, tp=8, pp=2, dp=2)
    stages = setup.stages
    slots = NODES.slots[:32]
    uneven = replace(
        setup,
        stages=(
            replace(stages[0], slots=slots[:8], dp=1),
            replace(stages[1], slots=slots[8:32], dp=3),
        ),
        micro_batch=3,
        recipe=replace(setup.recipe, global_batch=24),
    )
    matrix = _matrix(uneven)
    assert [column.cells for column in matrix.columns] == [1, 3]
    refused = matrix.request((8,), alpha=0.5)
    assert isinstance(refused, Infeasible)
    assert "not alike" in refused.reason


def test_a_rack_is_a_cell_where_stages_fill_racks() -> None:
    setup = build(cluster=load_cluster("a100-80gb:16x4"), tp=4, pp=2, dp=8)
    racks = replace(
        setup.cluster,
        sites=tuple(
            replace(site, nodes=tuple(replace(group, island_size=16) for group in site.nodes))
            for site in setup.cluster.sites
        ),
    )
    matrix = _matrix(replace(setup, cluster=racks))
    assert (matrix.shape, matrix.nodes_a_cell) == ((2, 2), 4)


def test_volumes_are_the_plans_own_bytes() -> None:
    setup = build(cluster=NODES, tp=4, pp=2, dp=8)
    column = _matrix(setup).columns[0]
    weights = column.weight_bytes / 2
    assert column.dp_bytes == pytest.approx(2 * 7 / 8 * weights * 4, rel=1e-9)
    micro_batch = setup.samples_per_rank(setup.stages[0])
    message = 2 * micro_batch * RECIPE.seq_len * 512 / 4
    assert column.pp_bytes == pytest.approx(message * setup.micro_batches, rel=1e-9)


def test_interleaved_chunks_send_as_often_as_there_are_chunks() -> None:
    plain = build(cluster=NODES, tp=4, pp=2, dp=4)
    woven = build(cluster=NODES, tp=4, pp=2, dp=4, vpp=2, recipe=replace(RECIPE, schedule="interleaved"))
    sent = [[column.pp_bytes for column in _matrix(setup).columns] for setup in (plain, woven)]
    assert sum(sent[1]) == pytest.approx(3 * sum(sent[0]))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_every_rank_sends_what_its_stage_says(zero: ZeroStage) -> None:
    setup = with_stages(build(EXPERTS, cluster=NODES, tp=2, pp=2, dp=4, ep=4), lambda stage: replace(stage, zero=zero))
    traffic = traffic_of(setup)
    sent = np.bincount(traffic.sender, weights=traffic.sent_bytes, minlength=traffic.ranks)
    for number in range(2):
        wanted = sum(part.sent_bytes for part in stage_bytes(setup) if part.stage == number)
        assert sent[number * 8 : number * 8 + 8] == pytest.approx(np.full(8, wanted))


def test_pairs_that_never_talk_are_almost_all_of_them() -> None:
    dense = traffic_of(build(cluster=load_cluster("a100-80gb:256x8"), tp=8, pp=8, dp=32))
    assert dense.ranks == 2048
    assert dense.silent_share > 0.99
    text = json.loads(json.dumps(dense.as_json()))
    assert text["silent_share"] == dense.silent_share
    assert len(text["pairs"]) == len(dense.sender)
    assert (dense.sender != dense.receiver).all()


def test_one_device_talks_to_nobody() -> None:
    alone = traffic_of(build(LLAMA, tp=1, pp=1, dp=1))
    assert (alone.ranks, len(alone.sender), alone.silent_share) == (1, 0, 1.0)


def test_shares_of_collectives() -> None:
    assert sent_share("all_gather", 8) == 7 / 8
    assert sent_share("send_recv", 2) == 1
