"""From a row to a plan: device, links, software, model and degrees, and what each blank becomes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.layers.graph import build_graph
from models_zoo.layers import Experts, TransformerBlock
from models_zoo.model import Model
from planner.one_job.validation.cluster import cluster_of
from planner.one_job.validation.model import model_of
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.setups import setup_of
from profiles.cluster import Cluster, NodeGroup
from profiles.errors import InputError
from profiles.vocabulary import Shard
from tests.planner.one_job.validation.run_row_examples import run_row
from tests.seeds import examples


def _prepared(**fields: Any) -> PreparedRun:
    prepared = setup_of(run_row(**fields))
    assert isinstance(prepared, PreparedRun), prepared
    return prepared


def _reason(**fields: Any) -> str:
    skipped = setup_of(run_row(**fields))
    assert isinstance(skipped, Skipped), skipped
    return skipped.reason


# Devices and links


def _node(**fields: Any) -> NodeGroup:
    cluster = cluster_of(run_row(**fields), [])
    assert isinstance(cluster, Cluster)
    return cluster.sites[0].nodes[0]


@pytest.mark.parametrize(
    ("words", "memory", "name"),
    [
        ("A100-SXM4", 80, "a100-80gb"),
        ("A100", 40, "a100-40gb"),
        ("a100 sxm 80GB", None, "a100-80gb"),
        ("A100-PCIe", 40, "a100-40gb-pcie"),
        ("V100", 16, "v100-16gb"),
        ("V100", None, "v100-32gb"),
        ("H100", 80, "h100"),
        ("H100", 94, "h100-nvl"),
        ("b200", None, "b200"),
    ],
)
def test_devices_by_name_alias_and_memory(words: str, memory: float | None, name: str) -> None:
    cluster = cluster_of(run_row(gpu=words, gpu_mem_gb=memory), [])
    assert isinstance(cluster, Cluster)
    assert cluster.device_types == (name,)


@pytest.mark.parametrize(
    ("words", "nics", "link"),
    [
        ("4x roce100", 4, "roce100"),
        ("2 x IB-NDR400", 2, "ib-ndr400"),
        ("ib-edr100", 8, "ib-edr100"),
        ("", 8, "ib-hdr200"),
    ],
)
def test_networks_by_name(words: str, nics: int, link: str) -> None:
    assumed: list[str] = []
    cluster = cluster_of(run_row(inter_node_link=words), assumed)
    assert isinstance(cluster, Cluster)
    node = cluster.sites[0].nodes[0]
    assert (node.nics, node.nic_link.name) == (nics, link)
    assert bool(words) or any(note.startswith("inter_node_link: not stated") for note in assumed)


def test_islands() -> None:
    assert _node(intra_node_link="PCIe").island_link.kind == "pcie"
    assert _node(intra_node_link="NVLink").island_link.name == "nvswitch3"
    assert _node(intra_node_link="nvlink3-bridge").island_link.name == "nvlink3-bridge"
    assert _node(gpus_total=4).count == 1
    assert _node(gpus_per_node=None, gpus_total=24).count == 3


@pytest.mark.parametrize(
    ("devices", "island"),
    [
        (8, 72),  # one rack holds the job
        (72, 72),
        (128, 64),  # 32 trays: 16 of each rack
        (256, 64),
        (144, 72),
        (76, 72),  # 19 trays, a prime number of them: one rack whole and a tray of the next
        (104, 52),  # 26 trays: 13 of each rack
    ],
)
def test_a_job_over_racks_takes_an_equal_block_of_each(devices: int, island: int) -> None:
    assert _node(gpu="GB200", gpu_mem_gb=None, gpus_per_node=None, gpus_total=devices).island_size == island


# Software


def test_an_unknown_framework_is_the_users_error() -> None:
    with pytest.raises(InputError, match=r"runs\.csv, line 2: framework: found 'mine', expected one of llm-foundry"):
        setup_of(run_row(framework="mine"))
    assert _prepared(framework="Torch-DDP").setup.recipe.software.name == "torch-ddp"
    assert "framework: not told; generic, what is run on a100-80gb today (framework)" in _prepared().assumptions


def test_features_stand_in_place_of_the_declared_ones() -> None:
    declared = _prepared(framework="megatron-core").setup.recipe.software
    stated = _prepared(
        framework="megatron-core", features="fragmentation=0.25; kernels=fused", kernels="eager", launch="graph"
    )
    assert stated.setup.recipe.software == replace(
        declared, kernels="eager", launch="graph", memory=replace(declared.memory, fragmentation=0.25)
    )


@pytest.mark.parametrize(
    ("fields", "dtype", "grad_dtype", "masters"),
    [
        ({"dtype": "BF16"}, "bf16", "fp32", True),
        ({"dtype": "fp16", "framework": "megatron-lm"}, "fp16", "fp32", True),
        ({"dtype": "MXFP8"}, "mxfp8", "fp32", True),
        ({"dtype": "amp_bf16"}, "bf16", "fp32", True),
        ({"dtype": "fp32"}, "fp32", "fp32", True),
        ({"dtype": "bf16", "grad_dtype": "bf16", "optimizer_masters": False}, "bf16", "bf16", False),
    ],
)
def test_precision(fields: dict[str, Any], dtype: str, grad_dtype: str, masters: bool) -> None:
    recipe = _prepared(**fields).setup.recipe
    assert (recipe.dtype, recipe.grad_dtype, recipe.software.optimizer_masters) == (dtype, grad_dtype, masters)


def test_overlap_is_the_columns_else_the_frameworks() -> None:
    assert _prepared(overlap="none").setup.recipe.overlap == frozenset()
    assert _prepared(overlap="dp+tp").setup.recipe.overlap == {"dp", "tp"}
    assert _prepared(framework="megatron-bridge").setup.recipe.overlap == {"dp", "tp", "p2p"}
    assert _prepared(framework="megatron-lm", zero_or_fsdp="fsdp").setup.recipe.overlap == {"dp"}
    with pytest.raises(InputError, match="overlap: found 'dp\\+everything'"):
        setup_of(run_row(overlap="dp+everything"))


def test_tf32_is_a_compute_type_of_fp32_width() -> None:
    setup = _prepared(dtype="tf32").setup
    assert setup.recipe.dtype == "tf32"
    assert setup.recipe.grad_dtype == "fp32"


# Models


def _model(**fields: Any) -> Model:
    model = model_of(run_row(**fields), dropout=False, assumed=[])
    assert not isinstance(model, Skipped), model
    return model


def _parameters(model: Model) -> int:
    shard = Shard(seq_len=model.seq_len, dtype="bf16", attention="flash")
    return build_graph(model, shard=shard, degrees=()).parameters


def test_a_model_of_the_zoo_and_the_same_from_its_sizes() -> None:
    named = _model(model_name="llama3-8b", model_family="", layers=None, hidden=None, heads=None, vocab=None)
    sizes = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256}
    stated = _model(model_name="mine", model_family="llama", **sizes)
    assert named.seq_len == stated.seq_len == 1024
    assert _parameters(named) == _parameters(stated)
    tied = _model(model_name="mine", model_family="llama", tied_embeddings=True, **sizes)
    assert _parameters(named) - _parameters(tied) == 128256 * 4096


def test_experts_latent_attention_and_windows_from_columns() -> None:
    """DeepSeek-V2-Lite's block: its published widths, and none of what they replace."""
    row: dict[str, Any] = {
        "model_family": "moe",
        "layers": 27,
        "hidden": 2048,
        "heads": 16,
        "head_dim": 192,
        "vocab": 102400,
        "experts": 64,
        "topk": 6,
        "moe_ffn": 1408,
        "ffn_hidden": 10944,
        "shared_experts": 2,
        "dense_layers": 1,
    }
    latent = {"key_value_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
    model = _model(**row, **latent)
    assert _parameters(model) == pytest.approx(15.7e9, rel=2e-3)
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    assert [isinstance(block.feed_forward, Experts) for block in blocks] == [False] + [True] * 26
    windowed = _model(window=128, window_every=2, qk_norm="head", qkv_bias=False, embedding_norm=True)
    attention = [layer.self_attention for layer in windowed.layers if isinstance(layer, TransformerBlock)]
    assert [each.window for each in attention[:3]] == [128, None, 128]
    assert {(each.query_key_norm, each.qkv_bias) for each in attention} == {("head", False)}
    assert "nope_dim, rope_dim and value_dim" in _reason(**row, key_value_rank=512)


def test_images_of_a_stated_size() -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "vocab", "seq_len"))
    fields: dict[str, Any] = {"model_name": "ResNet-50", "model_family": "resnet", "dtype": "fp32", **blank}
    large, usual = (_prepared(image=image, **fields).setup for image in (448, None))
    assert usual.recipe.optimizer == "sgd"
    assert {setup.model.input.height for setup in (large, usual)} == {448, 224}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": None}, "heads: not stated; of 128 each (heads)"),
        ({"vocab": None}, "vocab: not stated; 50257 (vocab)"),
        ({"dtype": ""}, "dtype: not stated; bf16, the default of generic (dtype)"),
        ({"dp": None}, "dp: not stated; gpus_total / (tp * pp * cp)"),
        ({"micro_batch": None}, "micro_batch: not stated; the most that divides the batch within 8192 tokens"),
        ({"recompute": ""}, "recompute: not stated; none, or more if memory forces it (recompute)"),
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
        ("ZeRO-1", 1, 16),
        ("zero2", 2, 16),
        ("FSDP", 3, 16),
        ("FSDP_SHARD_GRAD_OP", 2, 16),
        ("none", 0, 1),
        ("DDP", 0, 1),
        ("2", 2, 16),
    ],
)
def test_sharding(text: str, zero: int, sharded_over: int) -> None:
    stage = _prepared(zero_or_fsdp=text).setup.stages[0]
    assert (stage.zero, stage.sharded_over) == (zero, sharded_over)
    over = _prepared(zero_or_fsdp=text, shard=8).setup.stages[0]
    assert over.sharded_over == min(8, sharded_over)


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
        ({"gpus_total": None}, "gpus_total: not stated"),
        ({"seq_len": None}, "seq_len: not stated"),
        ({"global_batch": None, "micro_batch": None}, "global_batch: not stated"),
        ({"model_family": "lstm_lm"}, "lstm_lm is no model of transformer blocks"),
        ({"layers": None, "hidden": None}, "layers and hidden"),
        ({"heads": 7}, "heads: not stated, or not a divisor of hidden"),
        ({"layers": None, "hidden": None, "model_name": "none.json"}, "model_name"),
    ],
)
def test_what_cannot_be_predicted_says_why(fields: dict[str, Any], words: str) -> None:
    assert words in _reason(**fields)


def test_accumulation_gives_the_missing_batch() -> None:
    assert _prepared(global_batch=None, grad_accum=4).setup.recipe.global_batch == 2 * 4 * 16
    assert _prepared(global_batch=None, grad_accum=3).setup.micro_batches == 3
    assert _prepared(micro_batch=None, grad_accum=4).setup.micro_batches == 4


@given(seconds=st.floats(1e-3, 1e4), memory=st.floats(1, 1e3))
@settings(max_examples=examples(25), deadline=None)
def test_nothing_measured_enters_a_plan(seconds: float, memory: float) -> None:
    row = run_row(metric_name="iter_time_s", metric_value=1.0)
    other = replace(row, metric_value=seconds, peak_mem_gb=memory, id="y-1")
    assert setup_of(row) == setup_of(other)
