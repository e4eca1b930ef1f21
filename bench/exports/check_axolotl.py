"""What axolotl's schema makes of an axolotl.yaml."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("axolotl", "transformers")
ABSENT = ("trl", "datasets", "addict", "deepspeed", "posthog", "lm_eval", "art", "fire", "xformers", "mistral_common")


def prepare() -> list[str]:
    """Data, kernels and reinforcement learning are stood in for."""
    return install(*ABSENT)


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:
    """The file through its pydantic models, of whose keys none may be unknown."""
    schema = import_module("axolotl.utils.schemas.config").AxolotlInputConfig
    values = import_module("yaml").safe_load((folder / "axolotl.yaml").read_text(encoding="utf-8"))
    unknown = [key for key in values if key not in schema.model_fields]
    if unknown:
        return {"error": f"unknown keys {unknown}"}
    config = schema.model_validate(values)
    shared = config.deepspeed
    zero = json.loads((folder / shared).read_text(encoding="utf-8"))["zero_optimization"]["stage"] if shared else 0
    return {
        "devices": world,
        "zero": zero,
        "micro_batch_per_rank": config.micro_batch_size,
        "micro_batches": config.gradient_accumulation_steps,
        "global_batch": config.micro_batch_size * config.gradient_accumulation_steps * dp,
        "recompute": "full" if config.gradient_checkpointing else "none",
        "seq_len": config.sequence_len,
        "lora_rank": config.lora_r or 0,
        "four_bits": bool(config.load_in_4bit),
        "frozen": bool(config.unfrozen_parameters),
        "paged": "paged" in str(config.optimizer),
    }
