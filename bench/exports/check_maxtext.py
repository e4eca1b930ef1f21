"""What MaxText makes of a maxtext.yml."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("maxtext", "jax")

ABSENT = "google tensorflow orbax etils pathwaysutils transformers cloud_tpu_diagnostics ml_goodput_measurement psutil"


def prepare() -> list[str]:
    """Stand-ins for what the configuration does not need."""
    return install(*ABSENT.split())


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:  # noqa: ARG001
    """The configuration as MaxText's trainer reads it, with the plan's number of devices and no bucket to write to."""
    words = [
        "x",
        str(folder / "maxtext.yml"),
        f"base_output_directory={folder}",
        "enable_checkpointing=false",
        "skip_jax_distributed_system=true",
        "internal_compile=true",
        f"internal_compile_num_devices={world}",
    ]
    config = import_module("maxtext.configs.pyconfig").initialize(words)
    axes = dict(zip(config.mesh_axes, config.ici_parallelism, strict=True))
    tp = axes["tensor"] * axes["tensor_sequence"]
    steps = config.num_pipeline_microbatches if axes["stage"] > 1 else config.gradient_accumulation_steps
    sharded = axes["fsdp"] * axes["expert"] > 1
    dp_found = axes["data"] * axes["fsdp"] * axes["expert"]
    return {
        "tp": tp,
        "pp": axes["stage"],
        "cp": axes["context"],
        "dp": dp_found,
        "ep": axes["expert"],
        "sequence_parallel": axes["tensor_sequence"] > 1,
        "replicate": 1 if config.shard_optimizer_over_data else axes["data"],
        "zero": 3 if sharded else int(config.shard_optimizer_over_data),
        "blocks": config.num_decoder_layers,
        "hidden": config.emb_dim,
        "global_batch": config.global_batch_size_to_train_on,
        "micro_batches": steps,
        "micro_batch_per_rank": config.global_batch_size_to_train_on // steps // dp_found,
    }
