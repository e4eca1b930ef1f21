"""What LLaMA-Factory's parser of arguments makes of a llama_factory.yaml."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("llamafactory", "transformers", "peft")


def prepare() -> list[str]:
    """Data and reinforcement learning are stood in for; any release of transformers will do for its arguments."""
    os.environ["DISABLE_VERSION_CHECK"] = "1"
    return install("trl", "datasets", "omegaconf", "fire", "av", "librosa")


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:
    """The arguments of each of its records; precision and DeepSpeed, which ask for a GPU, are left out."""
    arguments = [
        getattr(import_module(f"llamafactory.hparams.{module}"), name)
        for module, name in (
            ("model_args", "ModelArguments"),
            ("data_args", "DataArguments"),
            ("finetuning_args", "FinetuningArguments"),
        )
    ]
    transformers = import_module("transformers")
    values = import_module("yaml").safe_load((folder / "llama_factory.yaml").read_text(encoding="utf-8"))
    shared = values.pop("deepspeed", None)
    zero = json.loads((folder / shared).read_text(encoding="utf-8"))["zero_optimization"]["stage"] if shared else 0
    parser = transformers.HfArgumentParser((*arguments, transformers.TrainingArguments))
    without_device = {"bf16": False, "fp16": False, "use_cpu": True}
    model, data, tuning, training = parser.parse_dict({**values, **without_device}, allow_extra_keys=False)
    frozen = tuning.finetuning_type == "freeze"
    return {
        "devices": world,
        "zero": zero,
        "micro_batch_per_rank": training.per_device_train_batch_size,
        "micro_batches": training.gradient_accumulation_steps,
        "global_batch": training.per_device_train_batch_size * training.gradient_accumulation_steps * dp,
        "recompute": "none" if model.disable_gradient_checkpointing else "full",
        "seq_len": data.cutoff_len + data.packing,  # it packs to one token fewer
        "lora_rank": tuning.lora_rank if tuning.finetuning_type == "lora" else 0,
        "four_bits": model.quantization_bit == 4,
        "frozen": frozen,
        "paged": "paged" in str(training.optim).lower(),
    }
