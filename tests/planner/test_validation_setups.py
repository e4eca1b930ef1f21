"""From a row to a plan: device, links, software, model and degrees, and what each blank becomes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.layers.graph import build_graph
from models_zoo.layers import Experts, TransformerBlock
from planner.one_job.validation.devices import cluster_of
from planner.one_job.validation.models import model_of
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.setups import setup_of
from planner.one_job.validation.software import framework_of, load_row_frameworks
from profiles.cluster import Cluster
from profiles.errors import InputError
from profiles.vocabulary import Shard
from tests.planner.run_row_examples import run_row


def _prepared(**fields: Any) -> PreparedRun:
    prepared = setup_of(run_row(**fields))
    assert isinstance(prepared, PreparedRun), prepared
    return prepared


def _reason(**fields: Any) -> str:
    skipped = setup_of(run_row(**fields))
    assert isinstance(skipped, Skipped), skipped
    return skipped.reason


# Devices and links


@pytest.mark.parametrize(
    ("words", "memory", "name"),
    [
        ("A100-SXM4", 80, "a100-80gb"),
        ("A100", 40, "a100-40gb"),
        ("A100 (NDm A100 v4)", 80, "a100-80gb"),
        ("A100-PCIe", 80, "a100-80gb-pcie"),
        ("V100-SXM2 (DGX-1)", 16, "v100-16gb"),
        ("V100", None, "v100-32gb"),
        ("H100 (DGX-H100)", 80, "h100"),
        ("H100 HBM3", 80, "h100"),
        ("H100 NVL", 94, "h100-nvl"),
        ("H100", 96, "h100-96gb"),
        ("H200-SXM", 141, "h200"),
        ("B200 (DGX-B200)", None, "b200"),
        ("GB300", None, "gb300"),
        ("NVIDIA GeForce RTX 4090", 24, "rtx-4090"),
        ("NVIDIA L40S", 48, "l40s"),
        ("NVIDIA A10G", 24, "a10"),
        ("TPU v5e", 16, "tpu-v5e"),
        ("TPU v5p", 95, "tpu-v5p"),
        ("TPU7x (Ironwood)", None, "tpu-v7x"),
        ("MI300X", 192, "mi300x"),
        ("K80", None, "k80"),
    ],
)
def test_devices_in_the_words_of_their_publishers(words: str, memory: float | None, name: str) -> None:
    cluster = cluster_of(run_row(gpu=words, gpu_mem_gb=memory), [])
    assert isinstance(cluster, Cluster)
    assert cluster.device_types == (name,)


@pytest.mark.parametrize(
    ("words", "nics", "link"),
    [
        ("4x 100Gb/s RoCE per node", 4, "roce100"),
        ("4x Omni-Path 100 (tr11 README)", 4, "omni-path100"),
        ("8x HDR IB 200Gb/s per node (paper, Selene)", 8, "ib-hdr200"),
        ("RoCE 1600 Gb/s node-node", 8, "roce200"),
        ("sim config inter_node_bandwidth 800 (Gb/s per node)", 4, "ib-hdr200"),
        ("HDR IB 200 Gb/s per GPU", 8, "ib-hdr200"),
        ("GCP A3 GPUDirect-TCPX (200Gb/s x4 class)", 4, "ethernet-200g"),
        ("2x ib-ndr400", 2, "ib-ndr400"),
        ("", 8, "ib-hdr200"),
    ],
)
def test_networks_in_the_words_of_their_publishers(words: str, nics: int, link: str) -> None:
    assumed: list[str] = []
    cluster = cluster_of(run_row(inter_node_link=words), assumed)
    assert isinstance(cluster, Cluster)
    node = cluster.sites[0].nodes[0]
    assert (node.nics, node.nic_link.name) == (nics, link)
    assert bool(words) or any(note.startswith("inter_node_link: not stated") for note in assumed)


def test_islands_and_placement() -> None:
    def node(**fields: Any) -> Any:
        cluster = cluster_of(run_row(**fields), [])
        assert isinstance(cluster, Cluster)
        return cluster.sites[0].nodes[0]

    assert node(intra_node_link="PCIe4").island_link.kind == "pcie"
    assert node(intra_node_link="NVLink3").island_link.name == "nvswitch3"
    assert node(intra_node_link="nvlink3-bridge").island_link.name == "nvlink3-bridge"
    assert node(gpus_total=4).count == 1
    assert node(gpus_per_node=None, gpus_total=24).count == 3
    assert node(inter_node_link="placement: unconsolidated", gpus_total=4).devices == 1


# Software


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"source_repo_or_paper": "mosaicml/llm-foundry"}, "llm-foundry"),
        ({"source_repo_or_paper": "VIA-Research/vTrain (MICRO24)"}, "megatron-deepspeed"),
        ({"source_repo_or_paper": "Narayanan et al. SC21; NVIDIA/Megatron-LM"}, "megatron-lm"),
        ({"source_repo_or_paper": "MooreThreads/SimuMax", "notes": "REAL Megatron-LM 0.14 run"}, "simumax"),
        (
            {"source_repo_or_paper": "bigscience-workshop/bigscience", "notes": 'section "HF + Deepspeed Zero 3"'},
            "huggingface-deepspeed",
        ),
        ({"framework": "Torch-DDP", "source_repo_or_paper": "mosaicml/llm-foundry"}, "torch-ddp"),
        ({}, "generic"),
    ],
)
def test_the_framework_is_told_by_its_column_or_its_source(fields: dict[str, Any], name: str) -> None:
    assumed: list[str] = []
    assert framework_of(run_row(**fields), assumed).name == name
    assert bool(assumed) == (name == "generic")


def test_an_unknown_framework_is_the_users_error() -> None:
    with pytest.raises(InputError, match=r"runs\.csv, line 2: framework: found 'mine', expected one of llm-foundry"):
        setup_of(run_row(framework="mine"))


def test_every_framework_says_what_it_rests_on_and_its_patterns_compile() -> None:
    for framework in load_row_frameworks().values():
        assert len(framework.basis) > 20
        assert {dtype for dtype, _ in framework.grad_dtype} >= {"fp32", "fp16", "bf16", "fp8"}
        for pattern in framework.patterns:
            assert re.compile(pattern)
            assert pattern == pattern.lower()


@pytest.mark.parametrize(
    ("fields", "dtype", "grad_dtype", "masters"),
    [
        ({"dtype": "amp_bf16"}, "bf16", "fp32", True),
        ({"dtype": "fp16 mixed", "framework": "megatron-lm"}, "fp16", "fp32", True),
        ({"dtype": "bf16 (fp32 grad accumulation)", "framework": "nemo"}, "bf16", "fp32", True),
        ({"dtype": "bf16", "optimizer_notes": "FSDP mixed precision mode PURE"}, "bf16", "bf16", False),
        ({"dtype": "MXFP8"}, "fp8", "fp32", True),
        ({"dtype": "fp8 (hybrid)"}, "fp8", "fp32", True),
        ({"dtype": "fp32"}, "fp32", "fp32", True),
        ({"dtype": "bf16", "grad_dtype": "bf16", "optimizer_masters": False}, "bf16", "bf16", False),
    ],
)
def test_precision(fields: dict[str, Any], dtype: str, grad_dtype: str, masters: bool) -> None:
    recipe = _prepared(**fields).setup.recipe
    assert (recipe.dtype, recipe.grad_dtype, recipe.software.optimizer_masters) == (dtype, grad_dtype, masters)


def test_overlap_is_the_columns_else_the_notes_else_the_frameworks() -> None:
    assert _prepared(overlap="none").setup.recipe.overlap == frozenset()
    assert _prepared(overlap="dp+tp").setup.recipe.overlap == {"dp", "tp"}
    assert _prepared(framework="megatron-bridge").setup.recipe.overlap == {"dp", "tp", "p2p"}
    assert not _prepared(framework="megatron-bridge", notes="no grad/param overlap").setup.recipe.overlap
    torch_ddp = {"framework": "megatron-lm", "notes": "scripts use --DDP-impl torch (<=18B) or local"}
    assert _prepared(params_b=18.4, **torch_ddp).setup.recipe.overlap == {"dp"}
    assert _prepared(params_b=39.1, **torch_ddp).setup.recipe.overlap == frozenset()
    with pytest.raises(InputError, match="overlap: found 'dp\\+everything'"):
        setup_of(run_row(overlap="dp+everything"))


# Models


def _parameters(**fields: Any) -> int:
    model = model_of(run_row(**fields), dropout=False, assumed=[])
    assert not isinstance(model, Skipped), model
    shard = Shard(seq_len=model.seq_len, dtype="bf16", attention="flash")
    return build_graph(model, shard=shard, degrees=()).parameters


BLANK: dict[str, Any] = dict.fromkeys(("layers", "hidden", "heads", "vocab"))


@pytest.mark.parametrize(
    ("name", "family", "published"),
    [
        ("GPT3-175B", "dense_gpt", 174.6e9),
        ("LLAMA3_70B", "llama", 70.55e9),
        ("Llama3.1-405B", "llama", 405.85e9),
        ("InternLM-7B", "llama", 7.32e9),
        ("Llama-like-80.0B", "llama", 80.0e9),
        ("Mixtral-8x7B", "moe", 46.7e9),
        ("Qwen3_235B_a22B", "moe", 235.09e9),
        ("DeepSeekV3", "moe", 671.03e9),
        ("deepseek-v2-lite", "moe", 15.7e9),
        ("Kimi_K2", "moe", 1026.4e9),
        ("gpt-oss-120b", "moe", 116.8e9),
    ],
)
def test_models_known_by_name_have_their_published_parameters(name: str, family: str, published: float) -> None:
    assert _parameters(model_name=name, model_family=family, **BLANK) == pytest.approx(published, rel=2e-3)


def test_a_rows_own_sizes_come_before_published_ones() -> None:
    model = model_of(
        run_row(model_name="deepseekv3-4layers", model_family="moe", **{**BLANK, "layers": 4}, notes="dense_layers 1"),
        dropout=False,
        assumed=[],
    )
    assert not isinstance(model, Skipped)
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    assert [isinstance(block.feed_forward, Experts) for block in blocks] == [False, True, True, True]


def test_layers_follow_from_the_parameter_count() -> None:
    prepared = _prepared(layers=None, params_b=1.316, vocab=51200)
    assert len(prepared.setup.model.layers) == 24 + 2
    assert "layers: not stated; derived from params_b, hidden and vocab" in prepared.assumptions
    assert "params_b is blank" in _reason(layers=None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": None}, "heads: not stated; of 128 each (heads)"),
        ({"vocab": None}, "vocab: not stated; 50257 (vocab)"),
        ({"dtype": ""}, "dtype: not stated; bf16, the default of generic (dtype)"),
        ({"dp": None}, "dp: not stated; gpus_total / (tp * pp * cp)"),
        ({"micro_batch": None}, "micro_batch: not stated; the most that divides the batch within 8192 tokens"),
        ({"recompute": ""}, "recompute: not stated; none (recompute)"),
        ({"gpu_mem_gb": None}, "gpu_mem_gb: not stated; a100-80gb (gpu_mem_gb)"),
        ({"global_batch": 65}, "global_batch: rounded down to whole micro-batches"),
        ({"framework": "megatron-lm"}, "zero: not stated; 0, the default of megatron-lm"),
    ],
)
def test_each_blank_is_named_with_its_default(fields: dict[str, Any], words: str) -> None:
    assert any(text.startswith(words) for text in _prepared(**fields).assumptions)


# Plans


@pytest.mark.parametrize(
    ("text", "zero", "sharded_over"),
    [
        ("ZeRO-1 over 8 ranks", 1, 8),
        ("ZeRO-1 over all DP ranks", 1, 16),
        ("ZeRO-1 (distributed optimizer)", 1, 16),
        ("FSDP_FULL_SHARD", 3, 16),
        ("FSDP_SHARD_GRAD_OP", 2, 16),
        ("Megatron-FSDP", 3, 16),
        ("none", 0, 1),
        ("2", 2, 16),
        ("ZeRO-3 + CPU offload of activations/optimizer", 3, 16),
    ],
)
def test_sharding(text: str, zero: int, sharded_over: int) -> None:
    stage = _prepared(zero_or_fsdp=text).setup.stages[0]
    assert (stage.zero, stage.sharded_over) == (zero, sharded_over)
    assert bool(stage.offload) == ("offload" in text)


def test_degrees_must_give_the_devices() -> None:
    assert _reason(tp=2, dp=4) == "tp * pp * dp * cp contradicts gpus_total"
    assert _reason(tp=3) == "gpus_total is no multiple of tp * pp * cp"
    assert _reason(tp=8, dp=2, global_batch=1, micro_batch=1) == "global_batch is smaller than dp * micro_batch"
    assert _prepared(tp=None, dp=4, pp=2).setup.stages[0].tp == 2


def test_virtual_stages_mean_the_interleaved_schedule() -> None:
    setup = _prepared(tp=8, pp=2, vpp=3).setup
    assert setup.recipe.schedule == "interleaved"
    assert len(setup.stages[0].chunks) == 3
    assert _prepared(tp=8, pp=2).setup.recipe.schedule == "1f1b"
    assert _prepared(tp=8, pp=2, schedule="zb-h1").setup.recipe.schedule == "zb-h1"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpu": "abacus"}, "no device of the catalogue"),
        ({"gpus_total": None}, "gpus_total: not stated"),
        ({"seq_len": None}, "seq_len: not stated"),
        ({"global_batch": None, "micro_batch": None}, "global_batch: not stated"),
        ({"model_family": "lstm_lm"}, "lstm_lm is no model of transformer blocks"),
        ({"layers": None, "hidden": None}, "layers and hidden"),
        ({"dtype": "int7"}, "int7 is none of"),
        ({"heads": 7}, "heads: not stated, or not a divisor of hidden"),
        ({"layers": None, "hidden": None, "model_name": "none.json"}, "model_name"),
    ],
)
def test_what_cannot_be_predicted_says_why(fields: dict[str, Any], words: str) -> None:
    assert words in _reason(**fields)


def test_accumulation_gives_the_missing_batch() -> None:
    assert _prepared(global_batch=None, notes="micro_num 4").setup.recipe.global_batch == 2 * 4 * 16
    assert _prepared(global_batch=None, grad_accum=3).setup.micro_batches == 3
    assert _prepared(micro_batch=None, grad_accum=4).setup.micro_batches == 4


@given(seconds=st.floats(1e-3, 1e4), memory=st.floats(1, 1e3))
@settings(max_examples=25, deadline=None)
def test_nothing_measured_enters_a_plan(seconds: float, memory: float) -> None:
    row = run_row(metric_name="iter_time_s", metric_value=1.0, measured_iteration_time_s=1.0)
    other = replace(row, metric_value=seconds, measured_iteration_time_s=seconds, peak_mem_gb=memory, id="y-1")
    assert setup_of(row) == setup_of(other)
