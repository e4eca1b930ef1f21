"""Models from a Hugging Face `config.json`, read as plain JSON: transformers is not needed.

A family is a function from the config's keys to a `Chain` of layers; `FAMILIES` names them all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from models_zoo.hugging_face import biased, experts, gated, hybrid
from models_zoo.hugging_face.chain import Chain
from models_zoo.hugging_face.consistency import check_consistency
from models_zoo.hugging_face.described import described
from models_zoo.hugging_face.fates import NOTED, describe_fates
from models_zoo.hugging_face.keys import Keys, describe, read_object
from models_zoo.hugging_face.megatron import megatron
from models_zoo.hugging_face.refused import refusal_of
from models_zoo.hugging_face.table import family_names, family_prefix
from models_zoo.hugging_face.traits import read_traits
from models_zoo.model import Model, TokenInput, decoder_names
from profiles.errors import InputError

LONGEST_DEFAULT_SEQ_LEN = 8192
"""Tokens per sample where the user names none: many configs state positions that nobody trains from the start."""

FAMILIES: dict[str, tuple[str, Callable[[Keys], Chain]]] = {
    "llama": ("Llama", gated.llama),
    "mistral": ("Mistral", gated.mistral),
    "qwen2": ("Qwen2", gated.qwen2),
    "qwen3": ("Qwen3", gated.qwen3),
    "gemma": ("Gemma", gated.gemma),
    "gemma2": ("Gemma2", gated.gemma2),
    "gemma3_text": ("Gemma3", gated.gemma3_text),
    "phi": ("Phi", biased.phi),
    "phi3": ("Phi3", gated.phi3),
    "gpt2": ("GPT2", biased.gpt2),
    "gpt_neox": ("GPTNeoX", biased.gpt_neox),
    "falcon": ("Falcon", biased.falcon),
    "nemotron": ("Nemotron", biased.nemotron),
    "opt": ("OPT", biased.opt),
    "bert": ("Bert", biased.bert),
    "mixtral": ("Mixtral", experts.mixtral),
    "qwen2_moe": ("Qwen2Moe", experts.qwen2_moe),
    "qwen3_moe": ("Qwen3Moe", experts.qwen3_moe),
    "deepseek_v2": ("DeepseekV2", experts.deepseek_v2),
    "deepseek_v3": ("DeepseekV3", experts.deepseek_v3),
    "gpt_oss": ("GptOss", experts.gpt_oss),
    "glm4_moe": ("Glm4Moe", experts.glm4_moe),
    "llama4_text": ("Llama4", experts.llama4_text),
    "qwen3_next": ("Qwen3Next", hybrid.qwen3_next),
    "mamba2": ("Mamba2", hybrid.mamba2),
    "nemotron_h": ("NemotronH", hybrid.nemotron_h),
    "bamba": ("Bamba", hybrid.bamba),
    "granitemoehybrid": ("GraniteMoeHybrid", hybrid.granite_hybrid),
    **{name: (family_prefix(name), partial(described, name)) for name in family_names()},
}
"""By `model_type`: the prefix of its classes in `architectures`, and its reader."""

FAMILY_OF_CLASSES = {prefix: name for name, (prefix, _) in FAMILIES.items()}
"""The family by the prefix of its classes."""

LONGEST_CLASS_NAME = 200

POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
"""What configs call the tokens that positions reach."""

OWN_FAMILIES: dict[str, tuple[str, Callable[[Keys], Chain]]] = {"megatron": ("Megatron", megatron)}
"""As `FAMILIES`, without a class of transformers."""

ALIASES = {
    "gpt-sw3": "gpt2",
    "internlm3": "llama",
    "iquestcoder": "llama",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_5_moe_text": "qwen3_next",
    "glm4v_text": "glm4",
    "glm_image_text": "glm4",
}
"""Architectures whose (text) models have another family's layers."""

TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal configs keep the keys of their text model."""

TEXT_PART_OF = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
"""The family of a multimodal model's `text_config` where that does not say its `model_type`."""


def load_config_model(path: Path) -> Model:
    """The model that the `config.json` at `path` describes.

    Of a multimodal model, the text part. Tokens per sample are the config's positions, at most
    `LONGEST_DEFAULT_SEQ_LEN`. Raises InputError for a file that cannot be read, an unknown architecture, or a key that
    is missing or wrong.
    """
    values = read_object(path)
    name = path.stem if path.stem != "config" else path.resolve().parent.name or path.stem
    return config_model(values, where=str(path), name=name)


def config_model(values: Mapping[str, Any], *, where: str, name: str) -> Model:
    """As `load_config_model`, of the keys themselves; `where` stands for the file in messages."""
    keys, remarks, parts = _text_part(Keys(where=where, values=values))
    family = _family(keys)
    title, read = {**FAMILIES, **OWN_FAMILIES}[family]
    chain = read(keys)
    seq_len = min(chain.positions, LONGEST_DEFAULT_SEQ_LEN)
    if seq_len < chain.positions:
        remarks.append(f"{seq_len} tokens per sample, of {chain.positions} positions")
    if chain.remark:
        remarks.append(chain.remark)
    check_consistency(keys, chain)
    traits = read_traits(keys, family)
    notes = describe_fates(keys, dropped=any(block.dropout for block in chain.blocks))
    return Model(
        name=name,
        family=family,
        layers=(chain.embedding, *chain.blocks, chain.head),
        layer_names=decoder_names(len(chain.blocks)),
        input=TokenInput(seq_len=seq_len),
        source="; ".join([f"{title} config {Path(where).name}", *remarks]),
        kind="config",
        tokens_from=_tokens_from(keys, seq_len, chain.positions),
        notes=(*parts, *([chain.remark] if chain.remark else []), *notes),
        traits=traits,
    )


def _tokens_from(keys: Keys, seq_len: int, positions: int) -> str:
    """Whose choice the tokens of a sample are."""
    if seq_len < positions:
        return f"a default of ours: its positions reach {positions}"
    stated = any(keys.values.get(key) is not None for key in POSITIONS)
    return "the model's own" if stated else "its class's default: the config states no positions"


def _text_part(keys: Keys) -> tuple[Keys, list[str], list[str]]:
    """The keys of the text model, what to remark, and what to note: a multimodal config keeps them in a part."""
    name = next((part for part in TEXT_PARTS if keys.part(part).values), None)
    if name is None:
        return keys, [], []
    part, outer = keys.part(name), keys.get("model_type", None)
    inherited: dict[str, Any] = {"model_type": TEXT_PART_OF[outer]} if outer in TEXT_PART_OF else {}
    if "tie_word_embeddings" in keys.values:
        inherited["tie_word_embeddings"] = keys.values["tie_word_embeddings"]
    others = [key for key, value in keys.values.items() if key.endswith("_config") and key != name and value]
    beside = [key for key in others if key not in NOTED and key != "generation_config"]
    note = f"the text part alone is priced{', without ' + ', '.join(beside) if beside else ''}"
    inner, _, _ = _text_part(replace(part, values={**inherited, **part.values}))
    return inner, ["the text part alone"], [note]


def _prefix(class_name: str) -> str:
    """What a class is called before the word for what it is used for."""
    if len(class_name) > LONGEST_CLASS_NAME:
        return class_name
    return re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", class_name)


def _family(keys: Keys) -> str:
    """The family by `model_type`, else by the classes in `architectures`."""
    kind = keys.get("model_type", None)
    if not isinstance(kind, str | None):
        raise keys.wrong("model_type", describe(kind), "text")
    kind = ALIASES.get(kind, kind) if kind is not None else None
    classes = keys.get("architectures", None)
    if not (classes is None or (isinstance(classes, list) and all(isinstance(name, str) for name in classes))):
        raise keys.wrong("architectures", describe(classes), "a list of the names of classes")
    of_classes = [
        (name, FAMILY_OF_CLASSES[prefix]) for name in classes or () if (prefix := _prefix(name)) in FAMILY_OF_CLASSES
    ]
    if isinstance(kind, str) and kind in {**FAMILIES, **OWN_FAMILIES}:
        other = next((name for name, family in of_classes if family != kind), None)
        if other is not None:
            raise keys.wrong("architectures", describe(other), f"classes of {kind}, as model_type says")
        return kind
    if of_classes:
        return of_classes[0][1]
    named = [repr(kind)] * (kind is not None) + list(classes or ())[:3]
    stated = ", ".join(name if len(name) <= 60 and name.isprintable() else describe(name) for name in named)
    stated = stated or "no model_type"
    refusal = refusal_of(kind, FAMILIES) if isinstance(kind, str) else None
    if refusal is not None:
        raise InputError(
            where=keys.where,
            key=f"{keys.prefix}model_type",
            found=f"{stated}, {refusal.why}",
            expected=f"what docs/models.md lists; the nearest known is {refusal.nearest}",
        )
    raise InputError(
        where=keys.where,
        key=f"{keys.prefix}model_type",
        found=f"{stated}, an unknown architecture",
        expected=f"one of {', '.join(FAMILIES)}",
    )
