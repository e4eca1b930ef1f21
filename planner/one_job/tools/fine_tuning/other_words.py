"""LLaMA-Factory's and axolotl's keys in the words of transformers' Trainer, peft and bitsandbytes."""

from __future__ import annotations

import re
from typing import Any

from models_zoo.hugging_face.keys import Keys, describe
from planner.one_job.tools.fine_tuning.sources import FineTuning

ATTENTION = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "sdpa": "sdpa", "disabled": "eager"}
"""LLaMA-Factory's `flash_attn`."""
BLOCKS = re.compile(r"\^?model\\?\.layers\\?\.\((?P<numbers>\d+(?:\|\d+)*)\)\\?\.")
"""The names of the parameters of listed blocks, as axolotl's exports write them."""


def from_llama_factory(tuning: FineTuning) -> None:
    """Put LLaMA-Factory's keys where the Trainer's are: adapters unless it says otherwise, activations recomputed."""
    keys = Keys(where=tuning.where, values=dict(tuning.trainer))
    said = tuning.trainer
    kind = keys.word("finetuning_type", "lora", ("lora", "freeze", "full", "oft"))
    if kind in ("lora", "oft"):
        tuning.lora = {"r": keys.size("lora_rank", 8), "target_modules": keys.get("lora_target", "all")}
        if kind == "oft":
            tuning.notes.append("finetuning_type oft: not modelled; priced as LoRA of rank 8")
    elif kind == "freeze":
        tuning.learning_blocks = keys.size("freeze_trainable_layers", 2, least=-(2**20))
    bits = keys.get("quantization_bit", None)
    if bits is not None:
        tuning.bits = {"load_in_4bit": bits == 4, "load_in_8bit": bits == 8}
    said["gradient_checkpointing"] = not keys.flag("disable_gradient_checkpointing", False)
    said["max_length"] = keys.size("cutoff_len", 2048)
    said["use_liger_kernel"] = keys.flag("enable_liger_kernel", False)
    kernel = str(keys.get("flash_attn", None))
    if kernel in ATTENTION:
        said["attn_implementation"] = ATTENTION[kernel]
    note_padding(tuning, packed=keys.flag("packing", False) or keys.flag("neat_packing", False))


def from_axolotl(tuning: FineTuning) -> None:
    """Put axolotl's keys where the Trainer's are."""
    keys = Keys(where=tuning.where, values=dict(tuning.trainer))
    said = tuning.trainer
    adapter = keys.get("adapter", None)
    if adapter in ("lora", "qlora"):
        targets = "all-linear" if keys.flag("lora_target_linear", False) else keys.get("lora_target_modules", None)
        tuning.lora = {"r": keys.size("lora_r", 8), "target_modules": targets}
    elif adapter is not None:
        raise keys.wrong("adapter", describe(adapter), "lora, qlora or nothing")
    names = ("load_in_4bit", "load_in_8bit")
    tuning.bits = {name: keys.flag(name, adapter == "qlora" and name == "load_in_4bit") for name in names}
    _add_unfrozen(keys, tuning)
    tuning.model = keys.word("base_model", "") or None
    said["per_device_train_batch_size"] = keys.size("micro_batch_size", 1)
    said["optim"] = keys.get("optimizer", "adamw_torch_fused")
    said["gradient_checkpointing"] = bool(keys.get("gradient_checkpointing", False))
    said["max_length"] = keys.size("sequence_len", 512)
    for name in ("bf16", "fp16"):  # auto and full are set too
        said[name] = keys.get(name, "auto" if name == "bf16" else False) not in (None, False, "false")
    said["fp16"] = said["fp16"] and not said["bf16"]
    if keys.get("sdp_attention", None):
        said["attn_implementation"] = "sdpa"
    elif keys.get("flash_attention", None):
        said["attn_implementation"] = "flash_attention_2"
    said["torch_compile"] = keys.get("torch_compile", False) is True
    note_padding(tuning, packed=keys.flag("sample_packing", False))


def _add_unfrozen(keys: Keys, tuning: FineTuning) -> None:
    """The blocks that learn, where they are listed; other patterns are noted."""
    patterns: Any = keys.get("unfrozen_parameters", None)
    if not patterns:
        return
    texts = [text[:10_000] for text in patterns if isinstance(text, str)] if isinstance(patterns, list) else []
    listed = [match for match in map(BLOCKS.fullmatch, texts) if match is not None]
    if not listed:
        tuning.notes.append("unfrozen_parameters: not understood; all weights are priced as learning")
        return
    numbers = sorted({int(number) for match in listed for number in match["numbers"].split("|")})
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        tuning.notes.append("unfrozen_parameters: blocks apart are priced as one span")
    tuning.learning_blocks = -len(numbers) if numbers[0] == 0 else len(numbers)


def note_padding(tuning: FineTuning, *, packed: bool) -> None:
    """Say how long samples are taken to be."""
    if packed:
        tuning.notes.append("samples are packed: each is priced at its full length, attention over all of it")
    else:
        tuning.notes.append(
            "samples are priced as long as the longest: shorter ones, padded to their batch's, take less"
        )
