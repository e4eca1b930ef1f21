"""Configs whose keys contradict each other, or that hold what no model has: one message with file, key and value."""

from __future__ import annotations

from typing import Any

import pytest

from models_zoo.hugging_face import config_model
from profiles.errors import InputError

LLAMA = {
    "model_type": "llama",
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
}
DEEPSEEK = {
    **{key: value for key, value in LLAMA.items() if key != "num_key_value_heads"},
    **{"model_type": "deepseek_v3", "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2},
    **{"moe_intermediate_size": 24, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1},
}
QWEN = LLAMA | {"model_type": "qwen2", "use_sliding_window": False}
MOE = LLAMA | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        config_model(values, where="config.json", name="model")
    return str(caught.value)


@pytest.mark.parametrize(
    ("base", "key", "value", "expected"),
    [
        (LLAMA, "layer_types", ["full_attention"] * 2, "found 2 entries, expected 3 entries, one for each layer"),
        (LLAMA, "layer_types", "full_attention", "3 entries"),
        (LLAMA, "layer_types", ["full_attention", "sideways", "conv"], 'found "sideways", expected entries of'),
        (LLAMA, "layer_types", [[]] * 3, "3 entries"),
        (LLAMA, "no_rope_layers", [1, 0], "3 entries"),
        (LLAMA, "sliding_window", -4, "from 0"),
        (LLAMA, "sliding_window", 4.5, "an integer"),
        (QWEN, "sliding_window", -1, "from 0"),
        (QWEN, "max_window_layers", "all", "an integer"),
        (LLAMA, "head_dim", 15, "an even number: rotary positions turn pairs"),
        (
            LLAMA,
            "head_dim",
            4096,
            "found 4096, expected at most 1024 dimensions of a head",
        ),
        (DEEPSEEK, "num_key_value_heads", 3, "a divisor of the 4 attention heads"),
        (DEEPSEEK, "first_k_dense_replace", 4, "at most 3, the number of layers"),
        (DEEPSEEK, "num_nextn_predict_layers", 4, "at most 3, the number of layers"),
        (DEEPSEEK, "n_group", 3, "a divisor of the 8 experts"),
        (DEEPSEEK, "topk_group", 5, "at most 4, the number of groups"),
        (DEEPSEEK | {"num_experts_per_tok": 5}, "topk_group", 2, "found 2 of 4 groups, which have 4 experts"),
        (DEEPSEEK, "num_experts_per_tok", 9, "at most 8, the number of experts"),
        (DEEPSEEK, "routed_scaling_factor", -1, "a number of at least 0"),
        (DEEPSEEK, "scoring_func", 5, "text"),
        (MOE, "mlp_only_layers", [0, 3], "found 3, expected numbers of layers, from 0 to 2"),
        (MOE, "norm_topk_prob", "yes", "true or false"),
        (
            LLAMA,
            "quantization_config",
            {"quant_method": "shrink"},
            'quant_method: found "shrink", expected one of aqlm',
        ),
        (LLAMA, "quantization_config", {"quant_method": 8}, "quant_method: found 8"),
        (LLAMA, "quantization_config", ["fp8"], "an object"),
        (
            LLAMA,
            "quantization_config",
            {"quant_method": "gptq", "bits": -4},
            "bits: found -4, expected a number above 0",
        ),
        (LLAMA, "quantization_config", {"quant_method": "gptq", "bits": 99}, "bits: found 99.0, expected at most 32"),
        (LLAMA, "torch_dtype", "float17", 'found "float17", expected one of auto'),
        (LLAMA, "dtype", 16, "found 16, expected one of auto"),
        (LLAMA, "rope_scaling", "linear", "an object"),
        (LLAMA, "rope_scaling", {"type": "twist", "factor": 2.0}, 'type: found "twist", expected one of axial'),
        (LLAMA, "rope_scaling", {"type": "linear"}, "factor: found nothing, expected a number above 0, which linear"),
        (LLAMA, "rope_scaling", {"type": "linear", "factor": 0}, "factor: found 0, expected a number above 0"),
        (LLAMA, "rope_scaling", LLAMA3 | {"high_freq_factor": 0.5}, "high_freq_factor: found 0.5, expected more than"),
        (LLAMA, "rope_scaling", {"type": "longrope", "short_factor": [1.0] * 5}, "found 5 numbers, expected 6 numbers"),
        (LLAMA, "rope_scaling", {"type": "longrope", "long_factor": [1.0] * 5 + [-1]}, "a list of numbers above 0"),
        (
            LLAMA,
            "rope_parameters",
            {"full_attention": {"rope_type": "twist"}},
            'full_attention.rope_type: found "twist"',
        ),
        (LLAMA, "rope_theta", 0, "a number above 0"),
        (LLAMA, "rope_theta", 1e300, "found 1e+300, expected a number of at most 1e+30"),
        (LLAMA, "attention_dropout", 1.5, "a number from 0 to 1"),
        (LLAMA, "initializer_range", "small", "a number of at least 0"),
        (LLAMA, "use_cache", "yes", "true or false"),
        (LLAMA, "model_type", 5, "text"),
        (LLAMA, "model_type", ["llama"], "text"),
    ],
)
def test_a_contradiction_is_one_message(base: dict[str, Any], key: str, value: Any, expected: str) -> None:
    message = refusal(base | {key: value})
    assert message.startswith(f"config.json: {key}")
    assert expected in message


@pytest.mark.parametrize("base", [LLAMA, QWEN, DEEPSEEK, MOE])
def test_what_published_configs_say_is_no_contradiction(base: dict[str, Any]) -> None:
    beside = {
        **{
            "sliding_window": None,
            "max_window_layers": 70,
            "layer_types": None,
            "head_dim": None,
            "rope_scaling": None,
        },
        **{"torch_dtype": "bfloat16", "attention_dropout": 0.0, "rope_theta": 2804339835.0, "mlp_only_layers": []},
        **{
            "quantization_config": {"quant_method": "exl3", "bits": 2.6},
            "pad_token_id": -1,
            "initializer_range": 0.006,
        },
    }
    plain = config_model(base, where="config.json", name="model")
    assert config_model(base | beside, where="config.json", name="model").layers == plain.layers
    older = {"rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1, 1]}}
    assert config_model(base | older, where="config.json", name="model").layers == plain.layers


def test_names_without_end_are_not_repeated() -> None:
    long = "For" + "A" * 10**5
    assert len(refusal({"model_type": long, "architectures": [long] * 9})) < 3000
    noted = config_model(LLAMA | {long: 1, "line\nbreak": 2}, where="config.json", name="model").notes
    assert [note for note in noted if "not understood" in note] == [
        'keys not understood, taken as without effect: a JSON string, "line\\nbreak"'
    ]


def test_a_value_that_fills_screens_is_told_by_its_beginning() -> None:
    error = InputError(where="here", found="x" * 10**6, expected="less")
    assert len(str(error)) < 1100
    assert str(error).endswith("x... (1,000,000 characters), expected less")
    assert error.found == "x" * 10**6
