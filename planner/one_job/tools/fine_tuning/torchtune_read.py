"""torchtune's YAML as an explicit plan: the recipes of full fine-tuning and of adapters (torchtune 0.6)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from estimator.pricing.recipe import OptimizerName
from models_zoo.hugging_face.keys import Keys
from planner.one_job.tools.base.import_records import Imported, NamedModel, Stated, describe_model, load_named
from planner.one_job.tools.base.settings import describe_unread, load_known, read_settings
from planner.one_job.tools.fine_tuning.sources import note_padding
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from profiles.vocabulary import DType

OPTIMIZERS: dict[str, tuple[OptimizerName, bool]] = {
    "AdamW": ("adamw", False),
    "Adam": ("adamw", False),
    "PagedAdamW": ("adamw", True),
    "PagedAdamW32bit": ("adamw", True),
    "AdamW8bit": ("adam8bit", False),
    "Adam8bit": ("adam8bit", False),
    "PagedAdamW8bit": ("adam8bit", True),
    "SGD": ("sgd", False),
    "Adafactor": ("adafactor", False),
}
"""By the last word of what a recipe makes: our optimizer, and whether its state is in shared memory."""
DTYPES: dict[str, DType] = {"bf16": "bf16", "fp32": "fp32", "fp16": "fp16"}

SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "embed_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
}
"""A builder's sizes, by the keys of a config.json."""

WORDS = {
    "tp": "tensor_parallel_dim",
    "micro_batch": "batch_size",
    "micro_batches": "gradient_accumulation_steps",
    "global_batch": "gradient_accumulation_steps",
    "seq_len": "tokenizer.max_seq_len",
    "dtype": "dtype",
    "optimizer": "optimizer._component_",
    "paged": "optimizer._component_",
    "recompute": "enable_activation_checkpointing",
    "zero": "fsdp_reshard_after_forward",
    "offload": "fsdp_cpu_offload",
    "lora": "model.lora_rank",
    "qlora": "model.lora_rank",
}
"""What torchtune calls the options of `estimate`."""


def read_torchtune(settings: str, *, model: str | None, options: EstimateOptions) -> Imported:
    """Return the plan of the file at `settings`; `model` stands for a builder that is not known. Raise InputError with
    file, key, value and what was expected."""
    setting = settings.removeprefix("@")
    keys = read_settings(Path(setting))
    notes = describe_unread(keys.values, load_known("fine_tuning/torchtune.toml"))
    built = keys.part("model")
    named = load_named(model, options.user_code) if model is not None else _model(built)
    read: Stated = {
        "pp": 1,
        "tp": keys.size("tensor_parallel_dim", 1),
        "zero": 3 if keys.flag("fsdp_reshard_after_forward", True) else 2,
        "micro_batch": keys.size("batch_size"),
        "micro_batches": keys.size("gradient_accumulation_steps", 1),
        "dtype": DTYPES[keys.word("dtype", "bf16", tuple(DTYPES))],
        "recompute": "full" if keys.flag("enable_activation_checkpointing", False) else "none",
        "software": "torchtune",
        **_optimizer(keys, notes),
        **_adapters(built),
    }
    length = keys.part("tokenizer").optional_size("max_seq_len")
    if length is not None:
        read["seq_len"] = length
    if keys.flag("fsdp_cpu_offload", False):
        notes.append("fsdp_cpu_offload: the optimizer's state is priced on the host, weights on the device")
        read["offload"] = ("optimizer",)
    if keys.flag("optimizer_in_bwd", False):
        read["feature"] = ("step_in_backward=yes", *options.feature)
    note_padding(notes, packed=keys.part("dataset").flag("packed", False))
    adapted = bool(read.get("lora") or read.get("qlora"))
    features: dict[str, Any] = {"kernels": "fused" if keys.flag("compile", False) else "eager"}
    if adapted and not built.flag("apply_lora_to_mlp", False):
        features["lora_targets"] = "attention"
    return Imported(
        launcher="torchtune",
        setting=setting,
        model=named,
        options=read,
        words=WORDS,
        software=features,
        assumptions=tuple(dict.fromkeys(notes)),
    )


def _model(built: Keys) -> NamedModel:
    """The model of a builder that takes sizes, or the zoo's of a builder's name: lora_llama3_1_8b is llama3.1-8b."""
    component = built.word("_component_", "")
    name = component.rpartition(".")[2].removeprefix("q").removeprefix("lora_")
    if "num_layers" in built.values:
        return describe_model(_config(built, name), where=built.where, name=f"torchtune-{name}")
    spelled = re.sub(r"(?<=\d)_(?=\d+(_|$))", ".", name.removesuffix("_instruct")).replace("_", "-")
    try:
        return load_named(spelled)
    except InputError:
        expected = "a builder of a model that the zoo has, or MODEL beside --from"
        raise built.wrong("_component_", repr(component), expected) from None


def _config(built: Keys, name: str) -> dict[str, Any]:
    """The keys of a config.json that the sizes make."""
    sizes = {key: built.size(size) for size, key in SIZES.items()}
    tied = name.startswith("llama3_2") or built.flag("tie_word_embeddings", False)
    kind = "qwen2" if name.startswith("qwen2") else "llama"
    positions = {"max_position_embeddings": built.size("max_seq_len", 8192)}
    return {"model_type": kind, **sizes, **positions, "tie_word_embeddings": tied}


def _adapters(built: Keys) -> Stated:
    component = built.word("_component_", "").rpartition(".")[2]
    if not component.startswith(("lora_", "qlora_")):
        return {}
    narrow = component.startswith("qlora_") or built.flag("quantize_base", False)
    return {"qlora" if narrow else "lora": built.size("lora_rank", 8)}


def _optimizer(keys: Keys, notes: list[str]) -> Stated:
    name = keys.part("optimizer").word("_component_", "torch.optim.AdamW").rpartition(".")[2]
    if name not in OPTIMIZERS:
        notes.append(f"optimizer {name}: not modelled; priced as AdamW")
    optimizer, paged = OPTIMIZERS.get(name, ("adamw", False))
    return {"optimizer": optimizer, **({"paged": True} if paged else {})}
