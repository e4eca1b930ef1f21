"""What publishers of runs mean by their words, as explicit columns, and the table that comes of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.accuracy.adapters.__main__ import main
from bench.accuracy.adapters.frameworks import framework_of, load_published_frameworks
from bench.accuracy.adapters.measured import convention_of, stated_time_s
from bench.accuracy.adapters.published import explicit_row, prepare, read_published, write_table
from bench.accuracy.adapters.settings import IMAGES_PER_DEVICE, batch_from_tokens
from estimator.layers.graph import build_graph
from estimator.pricing.recipe import Setup
from estimator.pricing.software import load_frameworks
from models_zoo.layers import Experts, Head, TransformerBlock
from models_zoo.model import Model
from planner.one_job.validation.cluster import cluster_of
from planner.one_job.validation.columns import RunRow
from planner.one_job.validation.measured import measured_of, measured_time_s
from planner.one_job.validation.model import model_of
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.rows import parse_table
from profiles.cluster import Cluster, NodeGroup
from profiles.vocabulary import Shard
from tests.planner.one_job.validation.run_row_examples import run_row

DATA = Path(__file__).resolve().parents[2] / "../shared/data/train_runs.csv"
needs_data = pytest.mark.skipif(not DATA.is_file(), reason="the published runs lie beside the repository, not in it")


def _explicit(**fields: Any) -> RunRow:
    return explicit_row(run_row(**fields))


def _prepared(**fields: Any) -> PreparedRun:
    prepared = prepare(_explicit(**fields))
    assert isinstance(prepared, PreparedRun), prepared
    return prepared


def _setup(**fields: Any) -> Setup:
    return _prepared(**fields).setup


def _reason(**fields: Any) -> str:
    skipped = prepare(_explicit(**fields))
    assert isinstance(skipped, Skipped), skipped
    return skipped.reason


def _cluster(**fields: Any) -> Cluster:
    cluster = cluster_of(_explicit(**fields), [])
    assert isinstance(cluster, Cluster)
    return cluster


def _node(**fields: Any) -> NodeGroup:
    return _cluster(**fields).sites[0].nodes[0]


def _model(**fields: Any) -> Model:
    model = model_of(_explicit(**fields), dropout=False, assumed=[])
    assert not isinstance(model, Skipped), model
    return model


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
        ("MI350X", None, "mi350x"),
        ("Gaudi2", None, "gaudi2"),
        ("Trainium2", None, "trainium2"),
        ("RTX A6000", 48, "rtx-a6000"),
        ("RTX 6000 Ada", 48, "rtx-6000-ada"),
        ("Quadro RTX 8000", 48, "rtx-8000"),
    ],
)
def test_devices_in_the_words_of_their_publishers(words: str, memory: float | None, name: str) -> None:
    assert _cluster(gpu=words, gpu_mem_gb=memory).device_types == (name,)


@pytest.mark.parametrize(
    ("words", "nics", "link"),
    [
        ("4x 100Gb/s RoCE per node", 4, "roce100"),
        ("4x Omni-Path 100 (tr11 README)", 4, "omni-path100"),
        ("8x HDR IB 200Gb/s per node (paper, Selene)", 8, "ib-hdr200"),
        ("RoCE 1600 Gb/s node-node", 8, "roce200"),
        ("sim config inter_node_bandwidth 800 (Gb/s per node)", 4, "ib-hdr200"),
        ("HDR IB 200 Gb/s per GPU", 8, "ib-hdr200"),
        ("GCP A3 GPUDirect-TCPX (200Gb/s x4 class)", 4, "tcpx200"),
        ("8x 200 Gb/s Ethernet (TCPXO)", 8, "tcpxo200"),
        ("Storage 1x 100Gb/s, Compute: 8x 400Gb/s", 8, "ib-ndr400"),
        ("Compute: 8x 400Gb/s RoCE; Storage: 2x 200Gb/s", 8, "roce400"),
        ("4x XDR IB 800G", 4, "ib-xdr800"),
        ("8x NDR IB", 8, "ib-ndr400"),
        ("800 Gb/s a node", 4, "ib-hdr200"),
        ("2x ib-ndr400", 2, "ib-ndr400"),
        ("", 8, "ib-hdr200"),
    ],
)
def test_networks_in_the_words_of_their_publishers(words: str, nics: int, link: str) -> None:
    node = _node(inter_node_link=words)
    assert (node.nics, node.nic_link.name) == (nics, link)


def test_islands_and_placement_in_the_words_of_their_publishers() -> None:
    assert _node(intra_node_link="PCIe4").island_link.kind == "pcie"
    assert _node(intra_node_link="NVLink3").island_link.name == "nvswitch3"
    assert _node(intra_node_link="nvlink3-bridge").island_link.name == "nvlink3-bridge"
    assert _node(inter_node_link="placement: unconsolidated", gpus_total=4).devices == 1


def test_four_v100_are_joined_pair_by_pair_and_eight_in_a_cube_mesh() -> None:
    def link(per_node: int, words: str = "NVLink2") -> str:
        node = _node(gpu="V100", gpu_mem_gb=32.0, gpus_total=8, gpus_per_node=per_node, intra_node_link=words)
        return node.island_link.name

    assert link(4) == "nvlink2-quad"
    assert link(8) == "nvlink2"
    assert link(4, "PCIe3") == "pcie3-x16"


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
            "huggingface-deepspeed@0.3",
        ),
        ({"notes": 'section "HF + Deepspeed Zero 3"'}, "huggingface-deepspeed"),
        ({"framework": "Torch-DDP", "source_repo_or_paper": "mosaicml/llm-foundry"}, "torch-ddp"),
        ({}, "generic"),
    ],
)
def test_the_framework_is_told_by_its_column_or_its_source(fields: dict[str, Any], name: str) -> None:
    assert framework_of(run_row(**fields)).declared.name == name


def test_every_pattern_compiles_and_every_framework_is_declared() -> None:
    published = load_published_frameworks()
    assert {name for name in published if "@" not in name} == {
        name for name in load_frameworks() if "@" not in name and not name.startswith("generic")
    }
    assert published.keys() <= load_frameworks().keys()
    for framework in load_published_frameworks().values():
        assert framework.patterns
        assert bool(framework.basis) == bool(
            framework.seq_len
            or framework.fed_lengths
            or framework.predicts_masked_only
            or not framework.tensor_parallel
        )
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


@pytest.mark.parametrize(
    ("words", "dtype", "held"), [("bf16 (nf4 base)", "bf16", "nf4"), ("fp16 (int4 GPTQ base)", "fp16", "gptq")]
)
def test_adapters_over_four_bits(words: str, dtype: str, held: str) -> None:
    recipe = _setup(dtype=words, lora_rank=16).recipe
    assert (recipe.dtype, recipe.software.frozen_as) == (dtype, held)


def test_overlap_in_the_words_of_the_notes() -> None:
    assert not _setup(framework="megatron-bridge", notes="no grad/param overlap").recipe.overlap
    torch_ddp = {"framework": "megatron-lm", "notes": "scripts use --DDP-impl torch (<=18B) or local"}
    assert _setup(params_b=18.4, **torch_ddp).recipe.overlap == {"dp"}
    assert _setup(params_b=39.1, **torch_ddp).recipe.overlap == frozenset()
    assert _setup(framework="torchtitan", notes="FSDP + async TP").recipe.overlap == {"dp", "tp"}


# Models


def _parameters(**fields: Any) -> int:
    model = _model(**fields)
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
    model = _model(
        model_name="deepseekv3-4layers", model_family="moe", **{**BLANK, "layers": 4}, notes="dense_layers 1"
    )
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    assert [isinstance(block.feed_forward, Experts) for block in blocks] == [False, True, True, True]


def test_layers_follow_from_the_parameter_count() -> None:
    row = _explicit(layers=None, params_b=1.316, vocab=51200)
    assert row.layers == 24
    assert "layers: not stated; derived from params_b, hidden and vocab" in row.notes
    assert "layers and hidden: not stated" in _reason(layers=None)


@pytest.mark.parametrize(
    ("text", "zero", "sharded_over"),
    [
        ("ZeRO-1 over 8 ranks", 1, 8),
        ("ZeRO-1 over all DP ranks", 1, 16),
        ("ZeRO-1 (distributed optimizer)", 1, 16),
        ("FSDP_FULL_SHARD", 3, 16),
        ("HSDP (shard 8 inside a node)", 3, 8),
        ("FSDP 8 x 2 replicas (HSDP)", 3, 8),
        ("FSDP_HYBRID_SHARD", 3, 8),
        ("FSDP_SHARD_GRAD_OP", 2, 16),
        ("Megatron-FSDP", 3, 16),
        ("none", 0, 1),
        ("2", 2, 16),
        ("ZeRO-3 + CPU offload of activations/optimizer", 3, 16),
    ],
)
def test_sharding_in_the_words_of_its_publishers(text: str, zero: int, sharded_over: int) -> None:
    stage = _setup(zero_or_fsdp=text).stages[0]
    assert (stage.zero, stage.sharded_over) == (zero, sharded_over)
    assert bool(stage.offload) == ("offload" in text)


def test_accumulation_in_the_notes_gives_the_missing_batch() -> None:
    assert _setup(global_batch=None, notes="micro_num 4").recipe.global_batch == 2 * 4 * 16


def test_further_settings_in_words() -> None:
    setup = _setup(optimizer_notes="LAMB", notes="LoRA; tokendrop; Opt Offl=Y; torch.compile", framework="nnscaler")
    assert (setup.recipe.optimizer, setup.recipe.lora_rank, setup.recipe.moe_capacity_factor) == ("adamw", 16, 1.0)
    assert setup.stages[0].offload == {"optimizer"}
    assert setup.recipe.software.kernels == "fused"
    alone = _setup(framework="huggingface-deepspeed", tp=4)
    assert alone.stages[0].tp == 1


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
    assert stated_time_s(timed) == pytest.approx(IMAGES_PER_DEVICE * 16 / 1000)


# What was measured


def test_steps_of_all_workers_together_are_told_from_those_of_one() -> None:
    gavel = run_row(metric_name="iter_time_s", metric_value=0.275, gpus_total=2, source_repo_or_paper="x")
    assert stated_time_s(gavel) == 0.275
    summed = replace(gavel, source_repo_or_paper="stanford-futuredata/gavel")
    assert stated_time_s(summed) == pytest.approx(0.55)
    assert stated_time_s(replace(summed, gpus_total=1)) == 0.275


def test_a_time_about_which_its_own_iterations_scatter_is_left_out() -> None:
    for fastest, steady in ((1.3134, False), (1.8, True)):
        notes = f"median of 46 logged iterations from step 5 on: 1.9239 s (min {fastest}); max allocated 3.864 GiB"
        explicit = _explicit(metric_name="iter_time_s", metric_value=1.92385, peak_mem_gb=3.864, notes=notes)
        assert explicit.iter_time_s == (1.92385 if steady else None)
        assert ("not steady" in explicit.notes) != steady
        assert explicit.peak_mem_gb == 3.864


def test_the_notes_tell_hardware_flops() -> None:
    assert convention_of(run_row(notes="HARDWARE FLOPs incl. recompute")) == "hardware"
    assert convention_of(run_row(source_repo_or_paper="NVIDIA-NeMo/Megatron-Bridge")) == "causal"
    assert convention_of(run_row()) == "model"


def test_memory_by_its_source() -> None:
    def measured(**fields: Any) -> tuple[str, float | None]:
        figures = measured_of(_explicit(peak_mem_gb=40.0, **fields))
        return figures.memory_kind, figures.memory_bytes

    assert measured() == ("reserved", 40_000 * 2**20)
    assert measured(notes="peak_mem = max allocated GiB (reserved 41 GiB)") == ("allocated", 40 * 2**30)
    assert measured(memory_kind="allocated", memory_unit="GiB") == ("allocated", 40 * 2**30)
    assert measured(source_repo_or_paper="pytorch/torchtitan") == ("reserved", 40 * 2**30)
    assert measured_of(_explicit(notes="OUT OF MEMORY; x")).out_of_memory


# The explicit table


def test_the_explicit_table_says_all_that_its_rows_do() -> None:
    rows = [_explicit(), _explicit(id="x-2", dtype="amp_bf16", seq_parallel=True, moe_capacity_factor=1.25)]
    back = parse_table(write_table(rows), name="runs.csv").rows
    assert [replace(row, where="") for row in back] == [replace(row, where="") for row in rows]


def test_the_command_writes_it(tmp_path: Path) -> None:
    path, out = tmp_path / "runs.csv", tmp_path / "explicit.csv"
    path.write_text("id,gpu,gpu_mem_gb,dtype\na,A100 (NDm A100 v4),40,amp_bf16\n", encoding="utf-8")
    assert main([str(path), "-o", str(out)]) == 0
    (row,) = parse_table(out.read_text(encoding="utf-8"), name="explicit.csv").rows
    assert (row.gpu, row.gpu_mem_gb, row.dtype) == ("a100-80gb", 40, "bf16")
    assert main([str(tmp_path / "none.csv"), "-o", str(out)]) == 2


# The published runs


@needs_data
def test_all_published_runs_are_prepared_or_refused_with_a_reason() -> None:
    rows = read_published(DATA)
    outcomes = [(row.published, prepare(row.explicit)) for row in rows]
    skipped = Counter(row.source for row, outcome in outcomes if isinstance(outcome, Skipped))
    assert len(rows) - sum(skipped.values()) >= 1340
    assert not set(skipped) & {"VTS", "VTM", "BSA", "MPT", "IEVO", "SMXB", "KORT", "SC21", "NTRN", "SMXA"}
    assert all(outcome.reason for _, outcome in outcomes if isinstance(outcome, Skipped))
    for row, outcome in outcomes:
        if isinstance(outcome, PreparedRun):
            assert outcome.setup.devices == row.gpus_total
            assert row.micro_batch is None or outcome.setup.micro_batch == row.micro_batch * outcome.setup.stages[0].dp


@needs_data
def test_published_runs_have_the_parameters_that_their_authors_count() -> None:
    """llm-foundry counts every parameter, so its models must come out exactly."""
    rows = [run.explicit for run in read_published(DATA) if run.published.source == "MPT"]
    for row in {(row.model_name, row.seq_len): row for row in rows}.values():
        assert row.params_b is not None
        outcome = prepare(row)
        assert isinstance(outcome, PreparedRun)
        shard = Shard(seq_len=outcome.setup.model.seq_len, dtype="bf16", attention="flash")
        counted = build_graph(outcome.setup.model, shard=shard, degrees=()).parameters
        assert counted == pytest.approx(row.params_b * 1e9, rel=1e-5)


@needs_data
def test_times_from_tflops_agree_with_those_that_the_table_derives() -> None:
    compared = 0
    for run in read_published(DATA):
        row = run.published
        if row.metric_name != "tflops_per_gpu" or row.derived_iter_time_s is None:
            continue
        explicit = explicit_row(replace(row, derived_iter_time_s=None))
        outcome = prepare(explicit)
        if isinstance(outcome, PreparedRun):
            compared += 1
            assert measured_time_s(explicit, outcome.setup) == pytest.approx(row.derived_iter_time_s, rel=1e-4)
    assert compared


def test_public_recipe_fills_what_a_run_on_tpus_leaves_blank_and_stated_settings_stand() -> None:
    told = {"gpu": "TPU v5p", "gpus_total": 512, "model_name": "GPT3-175B (MLPerf)", "framework": "maxtext"}
    sizes = {
        "layers": 96,
        "hidden": 12288,
        "heads": 96,
        "vocab": 51200,
        "seq_len": 2048,
        "dtype": "",
        "micro_batch": None,
    }
    row = _explicit(**told, **sizes, global_batch=2048)
    assert (row.dtype, row.degree("tp"), row.shard, row.recompute, row.grad_accum) == ("int8", 8, 64, "full", 1)
    stated = _explicit(**told, **sizes, tp=4)
    assert stated.degree("tp") == 4
    half = _explicit(**{**told, "gpus_total": 1024}, **sizes)
    assert half.recompute_layers == 48
    tpus = {"gpu": "TPU v5e", "gpus_total": 1024, "framework": "maxtext", "notes": "4x v5e-256"}
    slices = _explicit(**tpus, model_name="MaxText-32B", micro_batch=None, global_batch=None)
    assert (slices.global_batch, slices.shard) == (4096, 256)


@pytest.mark.parametrize("name", ["LM", "Transformer", "TransformerXL-large", "DeepSeekV4 Flash", "CycleGAN"])
def test_models_that_are_none_of_ours_are_refused_by_name(name: str) -> None:
    assert _reason(model_name=name, layers=None, hidden=None).startswith("refused by name: ")
