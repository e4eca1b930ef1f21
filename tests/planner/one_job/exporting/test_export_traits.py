"""What a config says beside its layers goes into what is exported, or is noted; Megatron's reader has it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from models_zoo.hugging_face import config_model
from planner.cli.main import main
from planner.one_job.tools.base.decoder import Decoder, decoder_of
from planner.one_job.tools.megatron.read import read_megatron
from planner.one_job.tools.megatron.traits import norm_fields, rotary_fields, router_fields
from planner.shared.options.estimate import EstimateOptions

LLAMA = {
    **{"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"intermediate_size": 128, "max_position_embeddings": 256, "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
}
LLAMA_SCALING = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    **{"original_max_position_embeddings": 8192},
}
EXPERTS = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1}
DEEPSEEK = (
    LLAMA
    | EXPERTS
    | {
        **{"model_type": "deepseek_v3", "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8},
        **{"qk_rope_head_dim": 8, "v_head_dim": 16, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
        **{"scoring_func": "sigmoid", "norm_topk_prob": True, "first_k_dense_replace": 1},
    }
)
QWEN = LLAMA | {
    **{"model_type": "qwen3_moe", "head_dim": 16, "num_key_value_heads": 2, "moe_intermediate_size": 32},
    **{"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
}


def decoder(config: dict[str, Any]) -> Decoder:
    return decoder_of(config_model(config, where="config.json", name="it"), "megatron")


@pytest.mark.parametrize(
    ("more", "fields", "note"),
    [
        ({}, {"rotary_base": 500000}, None),
        (
            {"rope_scaling": LLAMA_SCALING},
            {"rotary_base": 500000, "use_rope_scaling": True, "rope_scaling_factor": 8.0},
            None,
        ),
        (
            {"rope_scaling": LLAMA_SCALING | {"high_freq_factor": 2.0}},
            {"rotary_base": 500000, "use_rope_scaling": True, "rope_scaling_factor": 8.0},
            "rope_scaling: high_freq_factor 2 cannot be said to Megatron, which has high_freq_factor 4",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rotary_base": 500000, "seq_len_interpolation_factor": 4},
            None,
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {"rotary_base": 500000}, "rope_scaling of type yarn"),
        ({"rope_theta": None}, {}, "the base and scaling of rotary positions are not part of a plan"),
    ],
)
def test_rotary_positions_in_megatrons_fields(more: dict[str, Any], fields: dict[str, Any], note: str | None) -> None:
    notes: list[str] = []
    assert rotary_fields(decoder(LLAMA | more), notes) == fields
    assert [sentence.startswith(note or "none") for sentence in notes] == [True] * (note is not None)


def test_yarn_of_latent_attention_and_none() -> None:
    yarn = {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0}
    fields = rotary_fields(decoder(DEEPSEEK | {"rope_scaling": yarn}), [])
    assert fields["rope_type"] == "yarn"
    assert (fields["rotary_scaling_factor"], fields["original_max_position_embeddings"]) == (40, 4096)
    assert rotary_fields(decoder(DEEPSEEK), [])["rope_type"] == "rope"
    assert norm_fields(decoder(DEEPSEEK)) == {"layernorm_epsilon": 1e-5}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (
            DEEPSEEK,
            {
                **{"moe_router_score_function": "sigmoid", "moe_router_pre_softmax": False},
                **{"moe_router_num_groups": 4, "moe_router_group_topk": 2, "moe_router_topk_scaling_factor": 2.5},
                "moe_router_enable_expert_bias": True,
            },
        ),
        (QWEN, {"moe_router_score_function": "softmax", "moe_router_pre_softmax": False}),
        (
            QWEN | {"norm_topk_prob": False},
            {"moe_router_score_function": "softmax", "moe_router_pre_softmax": True},
        ),
    ],
)
def test_routers_in_megatrons_fields(config: dict[str, Any], fields: dict[str, Any]) -> None:
    said = router_fields(decoder(config), [])
    assert {name: value for name, value in said.items() if value or name in fields} == fields


@pytest.mark.parametrize("config", [LLAMA | {"rope_scaling": LLAMA_SCALING}, DEEPSEEK, QWEN])
def test_a_megatron_script_read_back_has_it_all(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    plan, script = tmp_path / "plan.json", tmp_path / "megatron.sh"
    words = ["--cluster", "h100:1x2", "--global-batch", "8", "--fix", "pp=1", "--tool", "megatron", "-o", str(plan)]
    assert main(["plan", str(folder), *words]) == 0
    capsys.readouterr()
    assert main(["export", str(plan), "--to", "megatron"]) == 0
    script.write_text(capsys.readouterr().out)
    read = read_megatron(str(script), model=None, options=EstimateOptions())
    model = config_model(config, where="config.json", name="it")
    assert read.model.model.traits == model.traits
    assert main(["estimate", "--from", "megatron", str(script), "--cluster", "h100:1x2", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["estimate"]["iteration_time_s"]
    assert again == pytest.approx(json.loads(plan.read_text())["estimate"]["iteration_time_s"], rel=1e-9)


def test_other_tools_are_told_or_it_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"rope_scaling": LLAMA_SCALING}))
    plan = tmp_path / "plan.json"
    words = ["--cluster", "h100:1x1", "--global-batch", "4", "--fix", "zero=3", "--tool", "torchtitan", "-o", str(plan)]
    assert main(["plan", str(tmp_path), *words]) == 0
    texts, notes = {}, {}
    for tool in ("torchtitan", "maxtext", "llm-foundry"):
        capsys.readouterr()
        assert main(["export", str(plan), "--to", tool]) == 0
        texts[tool], notes[tool] = capsys.readouterr()
    assert "ROPE_THETA = 500000.0" in texts["torchtitan"]
    assert 'scaling="llama", scaling_factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0' in texts["torchtitan"]
    assert "eps=1e-05" in texts["torchtitan"]
    assert "rope_scaling" not in notes["torchtitan"]
    assert yaml.safe_load(texts["maxtext"])["rope_max_timescale"] == 500000
    assert yaml.safe_load(texts["llm-foundry"])["model"]["attn_config"]["rope_theta"] == 500000.0
    for tool in ("maxtext", "llm-foundry"):
        assert "rope_scaling of type llama3 is not in this file" in notes[tool]
