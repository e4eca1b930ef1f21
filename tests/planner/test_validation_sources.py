"""What single publishers mean by their words: racks, workers' steps, samples that a loader shortens, usual batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator.pricing.recipe import Setup
from models_zoo.layers import Head
from planner.one_job.validation.devices import cluster_of
from planner.one_job.validation.measured import IMAGES_PER_DEVICE, batch_from_tokens, time_without_model
from planner.one_job.validation.prepared import PreparedRun
from planner.one_job.validation.setups import setup_of
from profiles.cluster import Cluster, NodeGroup
from tests.planner.run_row_examples import run_row


def _setup(**fields: Any) -> Setup:
    prepared = setup_of(run_row(**fields))
    assert isinstance(prepared, PreparedRun), prepared
    return prepared.setup


def _node(**fields: Any) -> NodeGroup:
    cluster = cluster_of(run_row(**fields), [])
    assert isinstance(cluster, Cluster)
    return cluster.sites[0].nodes[0]


@pytest.mark.parametrize(
    ("devices", "island"),
    [
        (8, 72),  # one rack holds the job
        (72, 72),
        (128, 64),  # 32 trays: 16 of each rack
        (256, 64),
        (144, 72),
        (76, 4),  # 19 trays, a prime number of them
    ],
)
def test_a_job_over_racks_takes_an_equal_block_of_each(devices: int, island: int) -> None:
    assert _node(gpu="GB200", gpu_mem_gb=None, gpus_per_node=None, gpus_total=devices).island_size == island


def test_four_v100_are_joined_pair_by_pair_and_eight_in_a_cube_mesh() -> None:
    def link(per_node: int, words: str = "NVLink2") -> str:
        node = _node(gpu="V100", gpu_mem_gb=32.0, gpus_total=8, gpus_per_node=per_node, intra_node_link=words)
        return node.island_link.name

    assert link(4) == "nvlink2-quad"
    assert link(8) == "nvlink2"
    assert link(4, "PCIe3") == "pcie3-x16"


def test_steps_of_all_workers_together_are_told_from_those_of_one() -> None:
    gavel = run_row(metric_name="iter_time_s", metric_value=0.275, gpus_total=2, source_repo_or_paper="x")
    assert time_without_model(gavel)[0] == 0.275
    summed = replace(gavel, source_repo_or_paper="stanford-futuredata/gavel")
    assert time_without_model(summed)[0] == pytest.approx(0.55)
    assert time_without_model(replace(summed, gpus_total=1))[0] == 0.275


def test_a_loader_that_pads_by_length_and_a_head_of_masked_positions() -> None:
    bert = {
        "model_name": "BERT-large",
        "model_family": "bert",
        "seq_len": 512,
        "vocab": 30528,
        "hidden": 1024,
        "gpus_total": 8,
    }
    told = _setup(source_repo_or_paper="NVIDIA/DeepLearningExamples", **bert)
    other = _setup(**bert)
    assert (told.recipe.seq_len, other.recipe.seq_len) == (288, 512)
    heads = [setup.model.layers[-1] for setup in (told, other)]
    assert [head.predicted for head in heads if isinstance(head, Head)] == [43, 0]
    short = _setup(source_repo_or_paper="NVIDIA/DeepLearningExamples", **{**bert, "seq_len": 128})
    assert short.recipe.seq_len == 128


def test_what_a_framework_usually_has_fills_blanks() -> None:
    blank = {"seq_len": None, "global_batch": None, "micro_batch": None, "recompute": ""}
    setup = _setup(source_repo_or_paper="AI-Hypercomputer/maxtext", **blank)
    assert (setup.recipe.seq_len, setup.recipe.global_batch, setup.stages[0].recompute) == (2048, 4 * 16, "full")
    row = run_row(notes="logged step; 2097152 tokens per step", **blank)
    assert batch_from_tokens(row, 2048) == 1024
    assert batch_from_tokens(row, None) is None
    images = _setup(
        model_name="ResNet50v1.5",
        model_family="resnet",
        layers=None,
        hidden=None,
        notes="throughput 938 img/s total",
        **blank,
    )
    assert images.recipe.global_batch == IMAGES_PER_DEVICE * 16
    timed = run_row(notes="throughput 1000 img/s total", **blank)
    assert time_without_model(timed)[0] == pytest.approx(IMAGES_PER_DEVICE * 16 / 1000)


def test_tf32_is_a_compute_type_of_fp32_width() -> None:
    setup = _setup(dtype="tf32")
    assert setup.recipe.dtype == "tf32"
    assert setup.recipe.grad_dtype == "fp32"
