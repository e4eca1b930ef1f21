"""Configs of every family: parameters against transformers' own classes, published counts, and wrong input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimator.layers.graph import build_graph
from models_zoo.catalogue import load_model
from models_zoo.hugging_face import FAMILIES, LONGEST_DEFAULT_SEQ_LEN, load_config_model
from models_zoo.hugging_face.table import family_names
from models_zoo.layers import Embedding, Experts, FeedForward, TransformerBlock
from models_zoo.model import Model
from profiles.errors import InputError
from profiles.vocabulary import Shard

SMALL = {
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
}
GPT2 = {"vocab_size": 131, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
OPT = {**{k: v for k, v in SMALL.items() if k != "intermediate_size"}, "ffn_dim": 80}
FALCON = {"vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
MOE = {"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2}
LATENT = {
    **{"moe_intermediate_size": 24, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2},
    **{"kv_lora_rank": 10, "q_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8},
    **{"num_key_value_heads": 4, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
}

GLM = {"num_key_value_heads": 2, "head_dim": 16}
MAIN = {"num_nextn_predict_layers": 0}
"""Its class makes no module for further tokens, whatever the config says."""

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "llama": [
        SMALL,
        SMALL | {"num_key_value_heads": 2, "tie_word_embeddings": True},
        SMALL | {"attention_bias": True, "mlp_bias": True, "head_dim": 20},
        SMALL | {"num_key_value_heads": None, "rope_scaling": None, "hidden_act": "gelu"},
    ],
    "mistral": [
        SMALL | {"num_key_value_heads": 2},
        SMALL | {"num_key_value_heads": 4, "head_dim": 16, "sliding_window": None},
        SMALL | {"num_attention_heads": 8, "head_dim": None},
    ],
    "qwen2": [
        SMALL | {"num_key_value_heads": 2},
        SMALL | {"num_key_value_heads": 4, "tie_word_embeddings": True, "use_sliding_window": True},
        SMALL | {"num_attention_heads": 32, "hidden_size": 64},
    ],
    "qwen3": [
        SMALL | {"num_key_value_heads": 2},
        SMALL | {"num_key_value_heads": 2, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "gemma": [
        SMALL | {"num_key_value_heads": 1},
        SMALL | {"num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": False, "attention_bias": True},
    ],
    "gemma2": [
        SMALL,
        SMALL | {"head_dim": 12, "num_key_value_heads": 2, "attention_bias": True, "tie_word_embeddings": False},
    ],
    "gemma3_text": [
        SMALL,
        SMALL | {"head_dim": 12, "num_key_value_heads": 2, "sliding_window_pattern": 2},
    ],
    "phi": [
        SMALL,
        SMALL | {"num_key_value_heads": 2, "qk_layernorm": True, "partial_rotary_factor": 0.4},
        SMALL | {"tie_word_embeddings": True, "resid_pdrop": 0.1},
    ],
    "phi3": [
        SMALL | {"pad_token_id": 0},
        SMALL | {"pad_token_id": 0, "num_key_value_heads": 2, "tie_word_embeddings": True, "sliding_window": 16},
    ],
    "gpt2": [GPT2, GPT2 | {"n_inner": 100, "tie_word_embeddings": False}, SMALL | {"n_inner": None}],
    "gpt_neox": [
        SMALL,
        SMALL | {"attention_bias": False, "tie_word_embeddings": True, "rotary_pct": 0.5},
        SMALL | {"use_parallel_residual": False},
    ],
    "falcon": [
        FALCON,
        FALCON | {"multi_query": False, "bias": True, "tie_word_embeddings": False, "ffn_hidden_size": 100},
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        FALCON | {"parallel_attn": False, "alibi": True},
    ],
    "nemotron": [
        SMALL | {"num_key_value_heads": 2},
        SMALL | {"num_key_value_heads": 4, "head_dim": 16, "attention_bias": True, "mlp_bias": True},
    ],
    "opt": [
        OPT,
        OPT | {"word_embed_proj_dim": 32, "do_layer_norm_before": False},
        OPT | {"enable_bias": False, "_remove_final_layer_norm": True},
        OPT | {"tie_word_embeddings": False, "word_embed_proj_dim": 32},
    ],
    "bert": [SMALL, SMALL | {"type_vocab_size": 3, "hidden_act": "relu"}],
    "mixtral": [
        SMALL | {"num_local_experts": 4, "num_key_value_heads": 2},
        SMALL | {"num_local_experts": 3, "num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": True},
    ],
    "qwen2_moe": [
        SMALL | MOE | {"num_key_value_heads": 2, "shared_expert_intermediate_size": 40},
        SMALL | MOE | {"num_key_value_heads": 4, "decoder_sparse_step": 2, "qkv_bias": False},
        SMALL | MOE | {"num_key_value_heads": 4, "mlp_only_layers": [0, 2], "tie_word_embeddings": True},
    ],
    "qwen3_moe": [
        SMALL | MOE | {"num_key_value_heads": 4},
        SMALL | MOE | {"num_key_value_heads": 1, "decoder_sparse_step": 2, "attention_bias": True, "head_dim": 20},
        SMALL | MOE | {"mlp_only_layers": [1], "num_key_value_heads": 2, "tie_word_embeddings": True},
    ],
    "glm4_moe": [
        SMALL | LATENT | MAIN | GLM,
        SMALL | LATENT | MAIN | GLM | {"use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 0},
    ],
    "deepseek_v2": [
        SMALL | LATENT,
        SMALL | LATENT | {"q_lora_rank": None, "attention_bias": True, "first_k_dense_replace": 0},
        SMALL | LATENT | {"n_shared_experts": 1, "attention_bias": True, "moe_layer_freq": 1},
    ],
    "deepseek_v3": [
        SMALL | LATENT | MAIN,
        SMALL | LATENT | MAIN | {"q_lora_rank": None, "first_k_dense_replace": 3},
        SMALL | LATENT | MAIN | {"tie_word_embeddings": True, "attention_bias": True},
    ],
}

MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
NEXT = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10},
    **{"num_key_value_heads": 2, "head_dim": 16, "shared_expert_intermediate_size": 40, "num_hidden_layers": 4},
}
NEMOTRON = {
    **{"mamba_num_heads": 6, "mamba_head_dim": 12, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 4},
    **{"num_key_value_heads": 2, "head_dim": 16, "layers_block_type": ["mamba", "mlp", "attention"]},
    **{"n_routed_experts": 6, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40},
}
LLAMA4 = {"num_local_experts": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size_mlp": 72}
HYBRIDS: dict[str, list[dict[str, Any]]] = {
    "qwen3_next": [
        SMALL | MOE | NEXT,
        SMALL | MOE | NEXT | {"attention_bias": True, "mlp_only_layers": [1], "tie_word_embeddings": True},
        SMALL | MOE | NEXT | {"layer_types": ["full_attention", "linear_attention"] * 2, "linear_conv_kernel_dim": 3},
    ],
    "mamba2": [
        {"hidden_size": 48, "num_hidden_layers": 3, "vocab_size": 131, "num_heads": 6, "head_dim": 16, "n_groups": 2},
        {"hidden_size": 48, "num_hidden_layers": 2, "vocab_size": 131, "num_heads": 12, "head_dim": 8, "n_groups": 1}
        | {"use_conv_bias": False, "tie_word_embeddings": True, "state_size": 20, "conv_kernel": 3},
    ],
    "nemotron_h": [
        SMALL | NEMOTRON,
        SMALL | NEMOTRON | {"layers_block_type": ["mamba", "moe", "attention"], "use_conv_bias": False},
        SMALL | NEMOTRON | {"mlp_bias": True},
        SMALL | NEMOTRON | {"layers_block_type": ["mamba", "moe", "attention"], "moe_latent_size": 12},
        SMALL | NEMOTRON | {"hybrid_override_pattern": "M-M*E", "layers_block_type": None, "num_hidden_layers": 5},
    ],
    "llama4_text": [
        SMALL | LLAMA4 | {"attention_bias": True},
        SMALL | LLAMA4 | {"interleave_moe_layer_step": 2, "attention_chunk_size": 4},
    ],
    "bamba": [
        SMALL | MAMBA | {"attn_layer_indices": [1], "num_key_value_heads": 2},
        SMALL | MAMBA | {"mamba_d_head": "auto", "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ],
    "granitemoehybrid": [
        SMALL | MAMBA | {"layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 40},
        SMALL | MAMBA | {"num_local_experts": 0, "shared_intermediate_size": 40, "tie_word_embeddings": True},
    ],
}
"""Their class in transformers runs a scan that is no product, or all experts on all tokens (Llama 4): FLOPs are
compared with our own modules alone."""


def write_config(folder: Path, config: object, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def count_parameters(model: Model) -> int:
    return build_graph(model, shard=Shard(seq_len=model.seq_len), degrees=()).parameters


def blocks_of(model: Model) -> list[TransformerBlock]:
    return [layer for layer in model.layers if isinstance(layer, TransformerBlock)]


@pytest.mark.parametrize(
    ("family", "variant"), [(family, i) for family, variants in VARIANTS.items() for i in range(len(variants))]
)
def test_parameters_and_flops_equal_those_of_the_class(tmp_path: Path, family: str, variant: int) -> None:
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    config = {"model_type": family, **VARIANTS[family][variant]}
    auto = transformers.AutoModelForMaskedLM if family == "bert" else transformers.AutoModelForCausalLM
    kernels = {"attn_implementation": "eager", "experts_implementation": "eager"}
    own = transformers.AutoConfig.for_model(**config)
    reference = auto.from_config(own, **kernels)
    # 24 tokens: top-2 of 3, 4 or 6 experts fill every slot, so static capacity computes what dropless routing does.
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        reference(input_ids=torch.zeros(2, 12, dtype=torch.long), use_cache=False)

    shard = Shard(micro_batch_per_rank=2, seq_len=12, dtype="fp32", attention="math")
    model = load_config_model(write_config(tmp_path, config))
    graph = build_graph(model, shard=shard, degrees=())
    assert graph.parameters == sum(p.numel() for p in reference.parameters())  # yields a tied weight once
    assert sum(node.forward_flops for node in graph.nodes) == counter.get_total_flops()
    own.save_pretrained(tmp_path / "saved")  # every default in full, in the newest spelling
    assert load_config_model(tmp_path / "saved" / "config.json").layers == model.layers


@pytest.mark.parametrize(
    ("family", "variant"), [(family, i) for family, variants in HYBRIDS.items() for i in range(len(variants))]
)
def test_parameters_of_hybrids_equal_those_of_the_class(tmp_path: Path, family: str, variant: int) -> None:
    import torch
    import transformers

    config = {"model_type": family, **HYBRIDS[family][variant]}
    own = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        reference = transformers.AutoModelForCausalLM.from_config(own)
    model = load_config_model(write_config(tmp_path, config))
    assert count_parameters(model) == sum(p.numel() for p in reference.parameters())
    own.save_pretrained(tmp_path / "saved")
    assert load_config_model(tmp_path / "saved" / "config.json").layers == model.layers


def test_further_predicted_tokens_cost_a_block_a_join_and_three_norms(tmp_path: Path) -> None:
    """Of DeepSeek-V3's release 671 billion parameters are the main model's and 685 billion all, with the module's own
    copies of table and projection."""
    config = PUBLISHED["deepseek-v3"]["config"]
    model = load_config_model(write_config(tmp_path, config, "deepseek-v3.json"))
    plain = load_config_model(write_config(tmp_path, config | {"num_nextn_predict_layers": 0}, "plain.json"))
    hidden, block = 7168, replace(plain, layers=(plain.layers[-2],), layer_names=("block",))
    more = count_parameters(model) - count_parameters(plain)
    assert more == count_parameters(block) + 2 * hidden * hidden + 3 * hidden
    assert "with 1 multi-token prediction layer(s)" in model.source
    assert count_parameters(plain) == pytest.approx(671e9, rel=0.001)
    assert count_parameters(model) + 2 * 129280 * hidden == pytest.approx(685e9, rel=0.002)


@pytest.mark.parametrize(
    ("family", "config", "key", "expected"),
    [
        ("qwen3_next", SMALL | MOE | NEXT | {"linear_num_key_heads": 3}, "linear_num_key_heads", "a divisor of the 4"),
        ("qwen3_next", SMALL | MOE | NEXT | {"layer_types": ["mamba"]}, "layer_types", "4 entries"),
        ("qwen3_next", SMALL | MOE | NEXT | {"layer_types": ["mlp"] * 4}, "layer_types", "a list of linear_attention"),
        ("qwen3_next", SMALL | MOE | NEXT | {"hidden_act": "gelu"}, "hidden_act", "silu"),
        (
            "mamba2",
            {"hidden_size": 48, "num_hidden_layers": 3, "vocab_size": 9, "num_heads": 8},
            "num_heads",
            "fill 96",
        ),
        ("nemotron_h", SMALL | {"hybrid_override_pattern": "MX"}, "hybrid_override_pattern", "a letter M"),
        ("nemotron_h", SMALL, "hybrid_override_pattern", "a letter M"),
        ("nemotron_h", SMALL | NEMOTRON | {"num_hidden_layers": 4}, "num_hidden_layers", "3, as many"),
        ("nemotron_h", SMALL | NEMOTRON | {"use_bias": True}, "use_bias", "false"),
        (
            "nemotron_h",
            SMALL | NEMOTRON | {"layers_block_type": ["moe"] * 3, "moe_latent_size": -8},
            "moe_latent_size",
            "an integer",
        ),
        ("bamba", SMALL | MAMBA | {"num_key_value_heads": 4, "mamba_d_head": 8}, "mamba_n_heads", "heads that fill 96"),
        (
            "bamba",
            SMALL | MAMBA | {"num_key_value_heads": 4, "attn_layer_indices": [3]},
            "attn_layer_indices",
            "layers below 3",
        ),
        ("deepseek_v3", SMALL | LATENT | {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers", "an integer"),
    ],
)
def test_wrong_hybrids(tmp_path: Path, family: str, config: dict[str, Any], key: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config_model(write_config(tmp_path, {"model_type": family, **config}))
    assert caught.value.key == key
    assert expected in caught.value.expected


def test_gpt_oss_is_its_class_but_for_what_is_added_to_scores(tmp_path: Path) -> None:
    import transformers

    config = SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2, "head_dim": 16}
    reference = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model("gpt_oss", **config), attn_implementation="eager"
    )
    added = {name: p.numel() for name, p in reference.named_parameters() if re.search(r"sinks|router\.bias", name)}
    model = load_config_model(write_config(tmp_path, {"model_type": "gpt_oss", **config}))
    assert count_parameters(model) == sum(p.numel() for p in reference.parameters()) - sum(added.values())
    assert f"({sum(added.values())} parameters)" in model.source
    assert [block.self_attention.window for block in blocks_of(model)] == [128, None, 128]


def test_every_family_has_variants() -> None:
    assert (VARIANTS | HYBRIDS).keys() | {"gpt_oss", *family_names()} == FAMILIES.keys()


PUBLISHED = json.loads(Path(__file__).with_name("published_configs.json").read_text())
"""Configs as released, with the published count; tolerance 0 where the release states every parameter."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(tmp_path: Path, name: str) -> None:
    entry = PUBLISHED[name]
    main = entry["config"] | {"num_nextn_predict_layers": 0}
    model = load_config_model(write_config(tmp_path, main, f"{name}.json"))
    assert model.name == name
    assert count_parameters(model) == pytest.approx(entry["published_parameters"], rel=entry["tolerance"], abs=0)


@pytest.mark.parametrize("name", ["nemotron-h-8b", "qwen3-next-80b-a3b"])
def test_the_zoos_hybrids_are_the_released_configs(tmp_path: Path, name: str) -> None:
    released = load_config_model(write_config(tmp_path, PUBLISHED[name]["config"], f"{name}.json"))
    assert load_model(name).layers == released.layers


def test_shipped_llama_3_8b() -> None:
    import models_zoo

    path = Path(models_zoo.__path__[0]) / "configs" / "llama-3-8b.json"
    model = load_config_model(path)
    assert (model.name, model.family, model.kind, model.seq_len) == ("llama-3-8b", "llama", "config", 8192)
    assert count_parameters(model) == 8_030_261_248


def test_defaults_name_themselves(tmp_path: Path) -> None:
    long = load_config_model(
        write_config(tmp_path, {"model_type": "llama", **SMALL, "max_position_embeddings": 131072})
    )
    assert long.seq_len == LONGEST_DEFAULT_SEQ_LEN
    assert "8192 tokens per sample, of 131072 positions" in long.source
    assert load_config_model(write_config(tmp_path, {"model_type": "llama", **SMALL})).seq_len == 64
    assert long.name == tmp_path.name


def test_multimodal_wrapper_gives_its_text_part(tmp_path: Path) -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    model = load_config_model(write_config(tmp_path, config))
    assert model.family == "gemma3_text"
    assert "text part" in model.source
    assert count_parameters(model) == pytest.approx(3.88e9, rel=0.005)  # Gemma 3 report, table 1: 3209M + 675M


def test_a_config_behind_links_in_a_circle_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.symlink_to(path)
    with pytest.raises(InputError, match=r"config\.json: found an error \(Too many levels of symbolic links\)"):
        load_config_model(path)


def test_architectures_stand_in_for_an_unknown_model_type(tmp_path: Path) -> None:
    config = {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], **SMALL, **LATENT}
    assert load_config_model(write_config(tmp_path, config)).family == "deepseek_v3"
    config = {"architectures": ["GPT2LMHeadModel"], **GPT2}
    assert load_config_model(write_config(tmp_path, config)).family == "gpt2"


def test_sliding_windows(tmp_path: Path) -> None:
    def windows(family: str, **keys: Any) -> list[int | None]:
        config = {"model_type": family, **SMALL, "num_key_value_heads": 4, "head_dim": 12, **keys}
        return [block.self_attention.window for block in blocks_of(load_config_model(write_config(tmp_path, config)))]

    assert windows("llama") == [None] * 3
    assert windows("mistral") == [4096] * 3
    assert windows("mistral", sliding_window=None) == [None] * 3
    assert windows("qwen2", sliding_window=16) == [None] * 3
    assert windows("qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=1) == [None, 16, 16]
    assert windows("gemma2", sliding_window=8) == [8, None, 8]
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    assert windows("gemma3_text", sliding_window=8, layer_types=kinds) == [None, 8, None]
    assert windows("gemma3_text", sliding_window=8, sliding_window_pattern=3) == [8, 8, None]


def test_rotary_share_in_old_and_new_spelling(tmp_path: Path) -> None:
    def rotary(family: str, **keys: Any) -> int:
        model = load_config_model(write_config(tmp_path, {"model_type": family, **SMALL, **keys}))
        return blocks_of(model)[0].self_attention.rotary_dim

    assert rotary("llama") == 12
    assert rotary("phi") == 6
    assert rotary("phi", rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.25}) == 3
    assert rotary("phi3", partial_rotary_factor=0.75) == 9
    assert rotary("gpt_neox") == 3
    assert rotary("gpt_neox", rotary_pct=1.0) == 12


def test_dense_layers_among_experts(tmp_path: Path) -> None:
    config = {"model_type": "deepseek_v3", **SMALL, **LATENT, "num_hidden_layers": 6, "moe_layer_freq": 2}
    kinds = [type(b.feed_forward) for b in blocks_of(load_config_model(write_config(tmp_path, config)))]
    assert kinds == [FeedForward, FeedForward, Experts, FeedForward, Experts, FeedForward]
    config["n_routed_experts"] = None
    kinds = [type(b.feed_forward) for b in blocks_of(load_config_model(write_config(tmp_path, config)))]
    assert kinds == [FeedForward] * 6


def test_dropout_follows_the_config(tmp_path: Path) -> None:
    for share, wanted in ((0.0, False), (0.1, True)):
        config = {"model_type": "gpt2", **GPT2, "resid_pdrop": share, "embd_pdrop": share}
        model = load_config_model(write_config(tmp_path, config))
        embedding = model.layers[0]
        assert isinstance(embedding, Embedding)
        assert (embedding.dropout, blocks_of(model)[0].dropout) == (wanted, wanted)


LLAMA = {"model_type": "llama", **SMALL}


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (
            '{"model_type": "llama",\n  "hidden_size": }',
            ["line 2, column 18", "found no JSON (Expecting value)", "expected a JSON document"],
        ),
        ("[1]", ["found a JSON array", "expected a JSON object"]),
        ("[" * 100_000, ["more than 64 levels of lists and mappings"]),
        (
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            ["'mamba'", "MambaForCausalLM", "docs/models.md", "the nearest known is mamba2"],
        ),
        ({"hidden_size": 4}, ["no model_type", "llama"]),
        ({"model_type": "llama", "vocab_size": 4}, ["hidden_size: found nothing", "at least 1"]),
        ({"model_type": "llama", "architectures": 3, "vocab_size": 4}, ["architectures: found 3", "names of classes"]),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, ["hidden_size: found nothing", "an integer"]),
        ({k: v for k, v in LLAMA.items() if k != "intermediate_size"}, ["intermediate_size: found nothing"]),
        (LLAMA | {"hidden_size": None}, ["hidden_size: found null"]),
        (LLAMA | {"hidden_size": "48"}, ['hidden_size: found "48"', "an integer"]),
        (LLAMA | {"hidden_size": 48.0}, ["hidden_size: found 48.0", "an integer"]),
        (LLAMA | {"hidden_size": True}, ["hidden_size: found true", "an integer"]),
        (LLAMA | {"hidden_size": -48}, ["hidden_size: found -48", "from 1"]),
        (LLAMA | {"num_hidden_layers": 10**9}, ["num_hidden_layers: found 1000000000", "to 10000"]),
        (LLAMA | {"num_attention_heads": 5}, ["num_attention_heads: found 5", "a divisor of the hidden size 48"]),
        (LLAMA | {"num_key_value_heads": 3}, ["num_key_value_heads: found 3", "a divisor of the 4 attention heads"]),
        (LLAMA | {"hidden_act": "mish"}, ['hidden_act: found "mish"', "gelu", "silu"]),
        (LLAMA | {"attention_bias": "yes"}, ['attention_bias: found "yes"', "true or false"]),
        (LLAMA | {"rope_parameters": 3}, ["rope_parameters: found 3", "an object"]),
        (LLAMA | {"partial_rotary_factor": 1.5}, ["partial_rotary_factor: found 1.5", "0 to 1"]),
        ({"model_type": "llava", "text_config": "llama"}, ['text_config: found "llama"', "an object"]),
        ({"model_type": "llava", "text_config": LLAMA | {"vocab_size": 0}}, ["text_config.vocab_size: found 0"]),
        ({"model_type": "gpt2", **GPT2, "n_head": 5}, ["n_head: found 5", "a divisor of the hidden size 48"]),
        ({"model_type": "gpt2", **GPT2, "add_cross_attention": True}, ["add_cross_attention: found true", "false ("]),
        ({"model_type": "bert", **SMALL, "position_embedding_type": "relative_key"}, ["position_embedding_type"]),
        ({"model_type": "opt", **OPT, "layer_norm_elementwise_affine": False}, ["norm without weights"]),
        (
            {"model_type": "mixtral", **SMALL, "num_local_experts": 1, "num_key_value_heads": 4},
            ["at most 1, the number of experts"],
        ),
        ({"model_type": "qwen3_moe", **SMALL, **MOE, "mlp_only_layers": 2}, ["mlp_only_layers: found 2", "a list"]),
        ({"model_type": "gemma2", **SMALL, "layer_types": ["full_attention"]}, ["layer_types", "3 entries"]),
        (
            {"model_type": "qwen3", **SMALL, "num_key_value_heads": 4, "layer_types": ["sliding_attention"] * 3},
            ["layer_types: found sliding_attention without a window", "a size under sliding_window"],
        ),
        ({"model_type": "gpt2", **GPT2, "hidden_size": 64}, ["n_embd: found 48, expected 64, as hidden_size says"]),
        (
            LLAMA | {"architectures": ["GPT2LMHeadModel"]},
            ['architectures: found "GPT2LMHeadModel"', "classes of llama"],
        ),
    ],
)
def test_wrong_config_is_refused_with_file_and_key(tmp_path: Path, config: object, parts: list[str]) -> None:
    path = write_config(tmp_path, config)
    with pytest.raises(InputError) as caught:
        load_config_model(path)
    for part in [str(path), *parts]:
        assert part in str(caught.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="the byte order mark of UTF-16, expected text in UTF-8"):
        load_config_model(binary)
    with pytest.raises(InputError, match=r"absent\.json: found an error \(No such file"):
        load_config_model(tmp_path / "absent.json")
