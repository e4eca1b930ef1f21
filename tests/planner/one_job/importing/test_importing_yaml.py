"""llm-foundry's and nanotron's YAML files: read as they are published, and written plans read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from models_zoo.catalogue import load_model
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.tools.base.export_records import CannotExpress, ExportContext
from planner.one_job.tools.base.import_records import Imported
from planner.one_job.tools.base.shape import Job, Shape
from planner.one_job.tools.base.writing import write_plan
from planner.one_job.tools.catalogue import TOOLS
from planner.one_job.tools.llm_foundry import read_llm_foundry
from planner.one_job.tools.nanotron import balanced_blocks, read_nanotron
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from tests.planner.one_job.explicit.explicit_plan_examples import request_of
from tests.planner.one_job.importing.test_importing_round_trip import check_round_trip, plan_of

TINY_LLAMA: dict[str, Any] = {
    "general": {"project": "debug", "run": "tiny_llama_%date_%jobid", "seed": 42},
    "model": {
        "ddp_bucket_cap_mb": 25,
        "dtype": "bfloat16",
        "init_method": {"std": 0.025},
        "make_vocab_size_divisible_by": 1,
        "model_config": {
            "hidden_act": "silu",
            "hidden_size": 16,
            "intermediate_size": 64,
            "is_llama_config": True,
            "max_position_embeddings": 256,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 4,
            "pad_token_id": None,
            "rope_scaling": None,
            "tie_word_embeddings": True,
            "vocab_size": 256,
        },
    },
    "optimizer": {
        "accumulate_grad_in_fp32": True,
        "learning_rate_scheduler": {"learning_rate": 0.0003},
        "optimizer_factory": {"adam_beta1": 0.9, "name": "adamW", "torch_adam_is_fused": True},
        "zero_stage": 0,
    },
    "parallelism": {
        "dp": 2,
        "expert_parallel_size": 1,
        "pp": 2,
        "pp_engine": "1f1b",
        "tp": 2,
        "tp_linear_async_communication": True,
        "tp_mode": "REDUCE_SCATTER",
    },
    "tokens": {"batch_accumulation_per_replica": 1, "micro_batch_size": 2, "sequence_length": 256, "train_steps": 15},
}
"""nanotron, examples/config_tiny_llama.yaml, without its data and logging."""

MPT_7B: dict[str, Any] = {
    "variables": {"max_seq_len": 2048, "global_seed": 17},
    "max_seq_len": "${variables.max_seq_len}",
    "model": {
        "name": "mpt_causal_lm",
        "init_device": "meta",
        "d_model": 4096,
        "n_heads": 32,
        "n_layers": 32,
        "expansion_ratio": 4,
        "max_seq_len": "${variables.max_seq_len}",
        "vocab_size": 50368,
        "attn_config": {"attn_impl": "flash"},
    },
    "optimizer": {"name": "decoupled_adamw", "lr": 1.2e-4},
    "global_train_batch_size": 1024,
    "seed": "${variables.global_seed}",
    "device_train_microbatch_size": 8,
    "precision": "amp_bf16",
    "fsdp_config": {
        "sharding_strategy": "FULL_SHARD",
        "mixed_precision": "PURE",
        "activation_checkpointing": True,
        "activation_checkpointing_reentrant": False,
        "activation_cpu_offload": False,
        "limit_all_gathers": True,
    },
}
"""llm-foundry, scripts/train/yamls/pretrain/mpt-7b.yaml, without its data and logging."""

READERS = {"nanotron": read_nanotron, "llm-foundry": read_llm_foundry}


def read(tool: str, values: dict[str, Any], folder: Path, model: str | None = None) -> Imported:
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return READERS[tool](str(file), model=model, options=EstimateOptions())


def changed(values: dict[str, Any], section: str, **keys: Any) -> dict[str, Any]:
    return {**values, section: {**values[section], **keys}}


def test_nanotrons_example_is_read_as_it_runs(tmp_path: Path) -> None:
    imported = read("nanotron", TINY_LLAMA, tmp_path)
    wanted = {
        **{"tp": 2, "pp": 2, "dp": 2, "cp": 1, "micro_batch": 2, "global_batch": 4, "seq_len": 256, "dtype": "bf16"},
        **{"grad_dtype": "fp32", "zero": 0, "schedule": "1f1b", "sequence_parallel": True, "overlap": ("dp", "tp")},
    }
    assert {name: imported.options[name] for name in wanted} == wanted
    assert (imported.devices, imported.blocks, imported.assumptions) == (8, (2, 0), ())
    assert imported.software == {"bucket_bytes": 50 << 20}
    assert imported.model.config is not None
    slow = changed(TINY_LLAMA, "parallelism", pp_engine="afab", tp_mode="ALL_REDUCE", recompute_layer=True)
    options = read("nanotron", slow, tmp_path).options
    assert (options["schedule"], options["recompute"], options["overlap"]) == ("gpipe", "full", ("dp",))
    assert not options["sequence_parallel"]


def test_llm_foundrys_example_is_read_as_it_runs(tmp_path: Path) -> None:
    imported = read("llm-foundry", MPT_7B, tmp_path)
    wanted = {
        **{"seq_len": 2048, "global_batch": 1024, "micro_batch": 8, "dtype": "bf16", "grad_dtype": "bf16", "zero": 3},
        **{"recompute": "full", "offload": (), "attention": "flash"},
    }
    assert {name: imported.options[name] for name in wanted} == wanted
    assert imported.assumptions == ()
    assert imported.model.config is not None
    assert imported.model.config["position_embedding_type"] == "learned_absolute"
    hybrid = changed(MPT_7B, "fsdp_config", sharding_strategy="HYBRID_SHARD", data_parallel_replicate_degree=2)
    assert read("llm-foundry", hybrid, tmp_path).copies == 2
    older = changed(MPT_7B, "fsdp_config", device_mesh=[2, 4])
    assert read("llm-foundry", older, tmp_path).copies == 2
    plain = {key: value for key, value in MPT_7B.items() if key != "fsdp_config"}
    options = read("llm-foundry", {**plain, "device_train_microbatch_size": "auto"}, tmp_path).options
    assert (options["zero"], options["grad_dtype"], "micro_batch" in options) == (0, "fp32", False)


@pytest.mark.parametrize(
    ("tool", "values", "words"),
    [
        ("nanotron", changed(TINY_LLAMA, "parallelism", tp=None), r"parallelism\.tp: found null"),
        ("nanotron", changed(TINY_LLAMA, "parallelism", pp_engine="gpipe"), r"parallelism\.pp_engine: found \"gpipe\""),
        ("nanotron", changed(TINY_LLAMA, "optimizer", zero_stage=3), r"optimizer\.zero_stage: found 3"),
        ("nanotron", changed(TINY_LLAMA, "parallelism", pp=8), r"parallelism\.pp: found 8 stages of 2 blocks"),
        ("nanotron", changed(TINY_LLAMA, "model", model_config={"is_starcoder2_config": True}), "is_starcoder2_config"),
        ("llm-foundry", changed(MPT_7B, "model", name="hf_causal_lm"), r"model\.name: found \"hf_causal_lm\""),
        ("llm-foundry", changed(MPT_7B, "fsdp_config", sharding_strategy="ALL"), r"fsdp_config\.sharding_strategy"),
        ("llm-foundry", {**MPT_7B, "precision": "bf16"}, "precision: found"),
        ("llm-foundry", changed(MPT_7B, "model", expansion_ratio="four"), "expansion_ratio"),
    ],
)
def test_wrong_settings_are_named(tool: str, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        read(tool, values, tmp_path)


@pytest.mark.parametrize("tool", READERS)
def test_what_is_no_mapping_or_not_known_is_said(tool: str, tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    file.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="a mapping of settings"):
        READERS[tool](str(file), model=None, options=EstimateOptions())
    values = {"nanotron": TINY_LLAMA, "llm-foundry": MPT_7B}[tool]
    said = read(tool, {**values, "global_train_batch_sizes": 3}, tmp_path).assumptions
    assert any("global_train_batch_sizes is not understood" in sentence for sentence in said)
    assert read(tool, values, tmp_path, model="llama3-8b").model.reference == "llama3-8b"


def test_stages_are_balanced_as_nanotron_does() -> None:
    """Llama 3's head counts as 2.2 blocks: of 34.2 a half is more than 17 of them. The vocabulary is padded first."""
    job = Job(model=load_model("llama3-8b"), seq_len=8192, dtype="bf16")
    assert balanced_blocks(Shape(job=job, pp=2)) == (18, 14)
    assert balanced_blocks(Shape(job=job, pp=4)) == (9, 9, 8, 6)
    assert balanced_blocks(Shape(job=job, pp=64)) is None


@pytest.mark.parametrize(
    ("tool", "model", "cluster", "options"),
    [
        ("nanotron", "llama3-8b", "h100:2x8", {"tp": 8, "zero": 1, "sequence_parallel": True, "overlap": ("dp", "tp")}),
        ("nanotron", "llama3-8b", "h100:2x8", {"tp": 8, "overlap": ("dp",), "recompute": "full"}),
        ("nanotron", "llama2-7b", "h100:1x8", {"dp": 8, "zero": 1, "grad_dtype": "bf16", "overlap": ("dp", "tp")}),
        ("llm-foundry", "llama3-8b", "h100:2x8", {"dp": 16, "zero": 3, "recompute": "full"}),
        ("llm-foundry", "llama3-8b", "h100:2x8", {"dp": 16, "hsdp": (8, 2), "grad_dtype": "bf16"}),
        ("llm-foundry", "gpt2-1.3b", "h100:1x8", {"dp": 8, "zero": 2, "dtype": "fp16"}),
        ("llm-foundry", "gpt2-4.2b", "h100:1x8", {"dp": 8, "recompute": "full"}),
    ],
)
def test_exported_yaml_read_back_gives_the_same_plan(
    tool: Any, model: str, cluster: str, options: dict[str, Any], tmp_path: Path
) -> None:
    named = {"software": tool, "recompute": "none", "global_batch": 64, "vocab_pad": 1, **options}
    plan = plan_of(model, cluster, named)
    check_round_trip(plan, write_plan(plan, TOOLS[tool], ExportContext()), tool, tmp_path)


@pytest.mark.parametrize(
    ("tool", "model", "options", "key"),
    [
        ("nanotron", "gpt2-1.3b", {"tp": 2}, "model"),
        ("nanotron", "llama3-8b", {"pp": 2, "software": "megatron-core"}, "stages[].chunks"),
        ("nanotron", "llama3-8b", {"dp": 8, "zero": 3}, "stages[].sharding.zero"),
        ("nanotron", "llama3-8b", {"cp": 2}, "stages[].cp"),
        ("llm-foundry", "llama3-8b", {"tp": 2}, "stages[].tp"),
        ("llm-foundry", "llama3-8b", {"pp": 2}, "stages"),
        ("llm-foundry", "mixtral-8x7b", {"dp": 8}, "model"),
        ("llm-foundry", "llama3-8b", {"dp": 8, "zero": 1}, "stages[].sharding.zero"),
    ],
)
def test_what_they_cannot_run_is_refused(tool: str, model: str, options: dict[str, Any], key: str) -> None:
    request = request_of(model, "h100:1x8", **{"software": tool, **options}, recompute="none", global_batch=64)
    with pytest.raises(CannotExpress) as refused:
        write_plan(estimate_explicit(request).plan, TOOLS[tool], ExportContext())
    assert refused.value.key == key
