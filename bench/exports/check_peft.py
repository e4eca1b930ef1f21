"""What accelerate, transformers and peft make of the files that `--to peft` writes."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("accelerate", "transformers", "peft")


def prepare() -> list[str]:
    """Nothing is stood in for."""
    return install()


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:  # noqa: ARG001
    """Each file through the class that it is for; precision and DeepSpeed, which ask for a GPU, are left out."""
    transformers = import_module("transformers")
    launched = import_module("accelerate.commands.config.config_args").load_config_from_file(
        str(folder / "accelerate.yaml")
    )
    values = _json(folder / "training_args.json")
    shared = values.pop("deepspeed", None)
    zero = _json(folder / shared)["zero_optimization"]["stage"] if shared else 0
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    without_device = {"bf16": False, "fp16": False, "use_cpu": True}
    (training,) = parser.parse_dict({**values, **without_device}, allow_extra_keys=False)
    lora, bits = _json(folder / "lora_config.json"), _json(folder / "quantization_config.json")
    rank = import_module("peft").LoraConfig(**lora).r if lora else 0
    return {
        "devices": launched.num_processes,
        "zero": zero,
        "micro_batch_per_rank": training.per_device_train_batch_size,
        "micro_batches": training.gradient_accumulation_steps,
        "global_batch": training.per_device_train_batch_size * training.gradient_accumulation_steps * world,
        "recompute": "full" if training.gradient_checkpointing else "none",
        "lora_rank": rank,
        "four_bits": bool(bits) and transformers.BitsAndBytesConfig(**bits).load_in_4bit,
        "paged": "paged" in str(training.optim).lower(),
    }


def _json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
