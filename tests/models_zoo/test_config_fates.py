"""Every key of a config is mapped, noted or refused by name, and every architecture known or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from models_zoo.catalogue import load_model, model_names
from models_zoo.hugging_face import ALIASES, FAMILIES, OWN_FAMILIES, config_model
from models_zoo.hugging_face.refused import refusal_of
from models_zoo.model import Model, RouterTraits
from profiles.errors import InputError

LLAMA = {
    **{"model_type": "llama", "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 80, "max_position_embeddings": 64},
}
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
DEEPSEEK = LLAMA | {
    **{"model_type": "deepseek_v3", "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2},
    **{"kv_lora_rank": 10, "q_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8},
    **{"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "norm_topk_prob": True},
}


def read(config: dict[str, Any]) -> Model:
    return config_model(config, where="config.json", name="it")


def test_every_architecture_of_transformers_is_known_or_refused_with_the_nearest_known() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    known = FAMILIES.keys() | ALIASES.keys()
    assert len(FAMILIES) >= 90
    for name in CONFIG_MAPPING_NAMES:
        with pytest.raises(InputError) as caught:
            read({"model_type": name})
        if name in known:
            assert caught.value.key != "model_type", name
        else:
            nearest = caught.value.expected.rpartition(" ")[2]
            assert repr(name) in str(caught.value)
            assert nearest in FAMILIES or nearest in model_names()


def test_an_architecture_that_transformers_has_not_is_one_clear_error() -> None:
    with pytest.raises(InputError, match="'nonesuch', an unknown architecture, expected one of llama, mistral"):
        read(LLAMA | {"model_type": "nonesuch"})
    assert refusal_of("nonesuch", FAMILIES) is None


def test_an_architecture_of_another_family_s_classes() -> None:
    for name, family in ALIASES.items():
        if family == "llama":
            assert read(LLAMA | {"model_type": name}).layers == read(LLAMA).layers


@pytest.mark.parametrize("name", [*FAMILIES, *OWN_FAMILIES])
def test_the_class_s_own_keys_are_all_understood(name: str) -> None:
    """Of a config as its class writes it, whose sizes are cut down to what any class accepts."""
    if name in OWN_FAMILIES:
        return
    import transformers

    written = transformers.AutoConfig.for_model(name).to_dict()
    try:
        model = read(written)
    except InputError:
        # DeepSeek-V2 and the like leave sizes open, GLM-4.5 has heads that do not divide the hidden size.
        assert name in ("deepseek_v2", "dots1", "glm4_moe")
        return
    assert not [note for note in model.notes if "not understood" in note]


@pytest.mark.parametrize(
    ("more", "note"),
    [
        ({"num_key_value_head": 2}, "not understood, taken as without effect: num_key_value_head (is it num_key_val"),
        ({"wings": 2, "tail": None}, "not understood, taken as without effect: wings, tail"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: weights are priced in the training's"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping: scores capped at 50.0"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers: 1 multi-token prediction layer(s) are not priced"),
        ({"attention_dropout": 0.1}, "attention_dropout: priced as 0"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier: other values, without effect"),
    ],
)
def test_a_key_that_makes_no_layer_is_noted(more: dict[str, Any], note: str) -> None:
    model = read(LLAMA | more)
    assert any(note in each for each in model.notes), model.notes
    assert model.layers == read(LLAMA).layers


@pytest.mark.parametrize(
    "more",
    [
        {"torch_dtype": "bfloat16", "transformers_version": "4.43.0", "use_cache": True, "bos_token_id": 1},
        {"attention_dropout": 0.0, "initializer_range": 0.02, "pretraining_tp": 1, "embedding_multiplier": 1.0},
        {"rope_theta": 500000.0, "rope_scaling": SCALING, "rms_norm_eps": 1e-5, "num_nextn_predict_layers": 0},
    ],
)
def test_bookkeeping_needs_no_note(more: dict[str, Any]) -> None:
    assert read(LLAMA | more).notes == ()


def test_what_launchers_are_told_is_read_in_both_spellings() -> None:
    older = read(LLAMA | {"rope_theta": 500000, "rope_scaling": SCALING, "rms_norm_eps": 1e-5}).traits
    newer = read(LLAMA | {"rope_parameters": {"rope_theta": 500000.0, **SCALING}, "rms_norm_eps": 1e-5}).traits
    assert older == newer
    assert (older.rope_base, older.norm_eps, older.router) == (500000.0, 1e-5, None)
    assert dict(older.rope_scaling) == {**SCALING, "original_max_position_embeddings": 8192.0}
    assert read(LLAMA).traits.rope_base is None
    linear = read(LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}}).traits
    assert dict(linear.rope_scaling) == {"rope_type": "linear", "factor": 4.0}


def test_a_router_is_read() -> None:
    assert read(DEEPSEEK).traits.router == RouterTraits(
        score="sigmoid", groups=4, chosen_groups=2, normalizes=True, scale=2.5, balancing_bias=True
    )
    softmax = read(DEEPSEEK | {"scoring_func": "softmax", "norm_topk_prob": False, "n_group": 1}).traits.router
    assert softmax is not None
    assert (softmax.score, softmax.normalizes, softmax.groups, softmax.chosen_groups) == ("softmax", False, None, None)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_theta": True}}, "rope_parameters.rope_theta"),
    ],
)
def test_wrong_traits_are_refused_by_name(more: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as caught:
        read(LLAMA | more)
    assert caught.value.key == key


def test_whose_choice_the_tokens_are() -> None:
    assert read(LLAMA).tokens_from == "the model's own"
    assert read(LLAMA | {"max_position_embeddings": 131072}).tokens_from == (
        "a default of ours: its positions reach 131072"
    )
    without = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    assert read(without).tokens_from == "its class's default: the config states no positions"
    assert load_model("llama3-8b").tokens_from == "as the catalogue has it"
    assert load_model("resnet-50").tokens_from == ""


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"text_config": LLAMA, "vision_config": {"hidden_size": 4}}, ", without vision_config"),
        ({"llm_config": LLAMA, "vision_config": {"hidden_size": 4}}, ", without vision_config"),
        ({"language_config": LLAMA}, ""),
        ({"thinker_config": {"text_config": LLAMA}, "talker_config": {"a": 1}}, ", without talker_config"),
    ],
)
def test_of_a_multimodal_config_the_text_part_is_read_and_the_rest_named(config: dict[str, Any], note: str) -> None:
    model = read({"model_type": "some_stack", **config})
    assert model.layers == read(LLAMA).layers
    assert model.notes == (f"the text part alone is priced{note}",)
    with pytest.raises(InputError, match=r"text_config\.model_type: found 'clip_text_model'"):
        read({"model_type": "clip", "text_config": {"model_type": "clip_text_model", "hidden_size": 4}})
