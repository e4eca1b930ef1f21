"""What publishers tell of memory, and of runs of Megatron-LM all of whose arguments are told."""

from __future__ import annotations

from typing import Any

import pytest

from bench.accuracy.adapters.published import explicit_row, prepare
from planner.one_job.validation.columns import RunRow
from planner.one_job.validation.measured import measured_of
from planner.one_job.validation.prepared import PreparedRun
from tests.planner.one_job.validation.run_row_examples import run_row

GPT = {"model_family": "gpt", "vocab": 50257, "flash_attn": True, "framework": "megatron-core"}


def told(words: dict[str, str], **fields: Any) -> RunRow:
    return explicit_row(run_row(**fields), words)


def prepared(row: RunRow) -> PreparedRun:
    run = prepare(row)
    assert isinstance(run, PreparedRun), run
    return run


def test_arguments_that_are_not_given_have_megatrons_defaults() -> None:
    row = told({"transformer_impl": "transformer_engine"}, **GPT)
    recipe = prepared(row).setup.recipe
    assert (row.dropout, row.model_family, row.memory_stage) == (True, "gpt", "last")
    assert (recipe.attention, recipe.software.fused_cross_entropy, recipe.software.loss_in_place) == (
        "flash",
        False,
        True,
    )
    assert measured_of(row).of_last_stage
    assert not told({"transformer_impl": "transformer_engine", "attention_dropout": "0.0"}, **GPT).dropout
    assert prepared(told({"transformer_impl": "local"}, **GPT)).setup.recipe.attention == "math"


def test_what_arguments_say_of_the_host() -> None:
    """Whose modules, deterministic algorithms, experts one by one, and overlap where nothing is asked for."""
    engine = told({"transformer_impl": "transformer_engine", "deterministic_mode": "true"}, **GPT)
    software = prepared(engine).setup.recipe.software
    assert (software.modules, software.deterministic, engine.overlap) == ("transformer_engine", True, "none")
    mixture = {**GPT, "experts": 8, "topk": 2}
    local = prepared(told({"transformer_impl": "local"}, **mixture)).setup.recipe.software
    assert (local.modules, local.grouped_products) == ("megatron_core", "sequential")
    grouped = {"transformer_impl": "local", "moe_grouped_gemm": "true"}
    assert prepared(told(grouped, **mixture)).setup.recipe.software.grouped_products == "streams"


@pytest.mark.parametrize(
    ("words", "launch"),
    [
        ({"cuda_graph_impl": "none"}, "eager"),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "attn+moe_router+moe_preprocess"},
            "graph_dense",
        ),
        (
            {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": "[moe_router moe_preprocess]"},
            "graph_router",
        ),
        ({"cuda_graph_impl": "local (enable_cuda_graph=true)", "cuda_graph_scope": "per layer"}, "graph_layers"),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, "graph"),
        ({"compile": "true"}, "compiled"),
        ({"micro_batch": "4"}, ""),
    ],
)
def test_how_kernels_are_launched(words: dict[str, str], launch: str) -> None:
    assert told(words, **GPT).launch == launch


def test_graphs_and_offload_that_are_told_otherwise() -> None:
    adapters = {**GPT, "model_name": "Llama2-70B LoRA r16 (MLPerf)", "gpu": "GB200"}
    assert told({"lora": "rank 16"}, **adapters).launch == "graph_layers"
    assert told({"lora": "rank 16"}, **{**adapters, "gpu": "H200"}).launch == ""
    assert told({"fine_grained_activation_offloading": "true"}, **GPT).offload == "activations"


def test_fused_losses_differ_by_their_implementation() -> None:
    words = {"transformer_impl": "transformer_engine", "cross_entropy_loss_fusion": "true"}
    native = prepared(told(words, **GPT)).setup.recipe.software
    assert (native.fused_cross_entropy, native.loss_in_place) == (False, False)
    engine = prepared(told({**words, "cross_entropy_fusion_impl": "te"}, **GPT)).setup.recipe.software
    assert engine.fused_cross_entropy


@pytest.mark.parametrize(
    ("words", "features"),
    [
        ({"exp_avg_dtype": "bfloat16"}, {"moments": "bf16"}),
        ({"fp8_param_gather": "1"}, {"narrow_parameters": True}),
        ({"fp8_param_gather": "false"}, {"narrow_parameters": False}),
        ({"lora": "rank 16, attention qkv and projection"}, {"lora_targets": "attention", "narrow_activations": True}),
    ],
)
def test_how_weights_and_moments_are_held(words: dict[str, str], features: dict[str, object]) -> None:
    software = prepared(told(words, **GPT)).setup.recipe.software
    assert {name: getattr(software, name) for name in features} == features


def test_the_rank_of_adapters_is_read_from_the_words() -> None:
    setup = prepared(told({}, optimizer_notes="LoRA r64 on c_attn, c_proj, w1, w2", **GPT)).setup
    assert setup.recipe.lora_rank == 64


def test_qwens_tables_are_of_decimal_gigabytes() -> None:
    row = explicit_row(run_row(source_repo_or_paper="QwenLM/Qwen", peak_mem_gb=10.0, gpus_total=1))
    assert measured_of(row).memory_bytes == 10e9


@pytest.mark.parametrize(
    ("technique", "fused", "step", "offload"),
    [
        ("+ compile", False, False, ""),
        ("+ chunked cross entropy", True, False, ""),
        ("+ activation offloading", True, True, "activations"),
        ("lora", True, False, "activations"),
    ],
)
def test_techniques_come_on_top_of_those_before_them(technique: str, fused: bool, step: bool, offload: str) -> None:
    row = told({"technique": technique}, framework="torchtune", tp=1)
    software = prepared(row).setup.recipe.software
    assert (software.fused_cross_entropy, software.memory.step_in_backward, row.offload) == (fused, step, offload)


def test_a_paged_optimizer_with_its_step_in_backward_holds_neither_states_nor_gradients() -> None:
    words = "8-bit paged AdamW, step fused into backward"
    memory = prepared(
        told({"compile": "true"}, optimizer_notes=words, framework="torchtune", tp=1)
    ).setup.recipe.software
    assert (memory.memory.paged_states, memory.memory.step_in_backward, memory.fused_cross_entropy) == (
        True,
        True,
        True,
    )
