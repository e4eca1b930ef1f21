"""Every family of the table against its class in transformers: parameters of the class's own default (built on the meta
device), parameters and FLOPs of small configs with odd sizes, and the config as the class writes it."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.layers.graph import build_graph
from models_zoo.hugging_face import ALIASES, config_model
from models_zoo.hugging_face.table import Family, family_names, read_family
from models_zoo.model import Model
from profiles.vocabulary import Shard

TOKENS = (2, 12)
"""24 tokens: two of six experts fill every slot, so static capacity computes what dropless routing does."""

SIZES: tuple[dict[str, int], ...] = (
    {
        **{"vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4},
        **{"intermediate_size": 80, "max_position_embeddings": 64, "num_key_value_heads": 2, "head_dim": 12},
    },
    {
        **{"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8},
        **{"intermediate_size": 56, "max_position_embeddings": 34, "num_key_value_heads": 1, "head_dim": 20},
    },
)
LATENT: tuple[dict[str, int], ...] = (
    {"q_lora_rank": 14, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8},
    {"q_lora_rank": 9, "kv_lora_rank": 7, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6, "v_head_dim": 5},
)
NO_DEFAULT_MODEL = {
    "ministral": "its default has no head dimension",
    "hunyuan_v1_dense": "its default has no head dimension",
    "hunyuan_v1_moe": "its default has no head dimension",
    "dots1": "its default has no experts",
}
"""Families whose class in transformers cannot be built of its own default."""

AS_ITS_CLASS_CAN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "helium": ({}, {"head_dim": 8}),
    "stablelm": ({"partial_rotary_factor": 0.5}, {}),
    "gpt_neo": ({"attention_types": [[["global"], 4]]}, {"attention_types": [[["local"], 3]]}),
}
"""What else a class needs to run: whole heads, even rotating dimensions, as many kinds as layers."""


def small_config(name: str, number: int) -> dict[str, Any]:
    """Return a config of few and odd sizes; the second also turns every flag of the family round."""
    import transformers

    family = read_family(name)
    has = transformers.AutoConfig.for_model(name).to_dict()
    wanted: dict[str, Any] = dict(SIZES[number])
    if family.rotary_dim_key is not None:
        wanted[family.rotary_dim_key] = (4, 6)[number]
    if family.latent:
        wanted = {key: value for key, value in wanted.items() if key != "head_dim"} | LATENT[number]
        wanted["num_key_value_heads"] = wanted["num_attention_heads"]
    if number:
        wanted |= {key: not family.defaults[key] for key in flags_of(family)}
    wanted |= expert_sizes(family, number)
    config = {"model_type": name, "pad_token_id": 0}
    for key, value in wanted.items():
        spelled = next((each for each in (key, *family.spelling.get(key, ())) if each in has), None)
        if spelled is not None:
            config[spelled] = value
    return config | AS_ITS_CLASS_CAN.get(name, ({}, {}))[number]


def flags_of(family: Family) -> set[str]:
    """Return the keys of the family's flags that its class has a default of."""
    stated = (
        *(family.qkv_bias, family.output_bias, family.feed_forward_bias, family.head_bias, family.parallel),
        *(family.query_key_norm_flag, family.one_key_value_head, family.sandwich_flag, "tie_word_embeddings"),
    )
    return {each for each in stated if isinstance(each, str) and each in family.defaults and each not in family.only}


def expert_sizes(family: Family, number: int) -> dict[str, Any]:
    """Return sizes of the family's experts."""
    names = family.experts
    if names is None:
        return {}
    shared = {names.shared_hidden: (40, 0)[number], names.shared_count: (2, 1)[number], names.first_dense: number}
    steps = {names.every: 1 + number, names.dense_layers: [1][:number]}
    sizes = {names.count: 6, names.top_k: 2, names.hidden: (24, 40)[number], **shared, **steps}
    return {key: value for key, value in sizes.items() if key is not None}


def reference_of(config: dict[str, Any], device: str) -> Any:
    """Return transformers' own model of `config`: for masked language modelling where it has that."""
    import torch
    import transformers

    own = transformers.AutoConfig.for_model(**config)
    masked = type(own) in transformers.AutoModelForMaskedLM._model_mapping
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    with torch.device(device):
        return auto.from_config(own, attn_implementation="eager", experts_implementation="eager").eval()


def count_parameters(model: Model) -> int:
    return build_graph(model, shard=Shard(seq_len=model.seq_len), degrees=()).parameters


@pytest.mark.parametrize("name", family_names())
def test_parameters_and_flops_are_those_of_the_class(name: str) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    for number in range(len(SIZES)):
        config = small_config(name, number)
        reference = reference_of(config, "cpu")
        model = config_model(config, where="config.json", name=name)
        shard = Shard(micro_batch_per_rank=TOKENS[0], seq_len=TOKENS[1], dtype="fp32", attention="math")
        graph = build_graph(model, shard=shard, degrees=())
        assert graph.parameters == sum(p.numel() for p in reference.parameters())
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            reference(input_ids=torch.zeros(TOKENS, dtype=torch.long), use_cache=False)
        assert sum(node.forward_flops for node in graph.nodes) == counter.get_total_flops()
        written = config_model(reference.config.to_dict(), where="config.json", name=name)
        assert written.layers == model.layers


@pytest.mark.parametrize("name", [name for name in family_names() if name not in NO_DEFAULT_MODEL])
def test_parameters_of_the_default_are_those_of_the_class(name: str) -> None:
    reference = reference_of({"model_type": name}, "meta")
    model = config_model(reference.config.to_dict(), where="config.json", name=name)
    assert count_parameters(model) == sum(p.numel() for p in reference.parameters())


@pytest.mark.parametrize("name", [name for name in ALIASES if name.endswith("_text")])
def test_text_models_of_stacks_have_the_layers_of_their_family(name: str) -> None:
    import torch
    import transformers

    own = transformers.AutoConfig.for_model(name, num_hidden_layers=4)
    with torch.device("meta"):
        reference = transformers.AutoModel.from_config(own, attn_implementation="eager")
    tied = own.to_dict() | {"tie_word_embeddings": True}
    assert count_parameters(config_model(tied, where="config.json", name=name)) == sum(
        p.numel() for p in reference.parameters()
    )
