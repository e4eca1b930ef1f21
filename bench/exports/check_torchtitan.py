"""What torchtitan 0.3 makes of a torchtitan_plan.py; the model is built on the meta device, to count its parameters."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("torchtitan", "torch")


def prepare() -> list[str]:
    """Stand-ins for what the configuration does not need."""
    return install("wandb", "torchao", "torch_remat", "deep_ep")


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:  # noqa: ARG001
    """The configuration as `python -m torchtitan.train` parses it."""
    torch = import_module("torch")
    sys.modules.pop("torchtitan_plan", None)
    sys.path[:0] = [str(folder)]
    try:
        manager = import_module("torchtitan.config").ConfigManager()
        config = manager.parse_args(["--module", "torchtitan_plan", "--config", "plan"])
    finally:
        sys.path.remove(str(folder))
    sizes, training = config.parallelism, config.training
    dims = import_module("torchtitan.distributed").ParallelDims.from_config(sizes, world)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    parts = sizes.module_fqns_per_model_part
    return {
        "tp": dims.tp,
        "pp": dims.pp,
        "cp": dims.cp,
        "dp": dims.dp_replicate * dims.dp_shard,
        "ep": dims.ep,
        "vpp": len(parts) // dims.pp if parts else 1,
        "sequence_parallel": sizes.enable_sequence_parallel and dims.tp > 1,
        "replicate": dims.dp_replicate,
        "global_batch": training.global_batch_size,
        "blocks": len(config.model_spec.model.layers),
        "micro_batch_per_rank": sizes.pipeline_parallel_microbatch_size if dims.pp > 1 else training.local_batch_size,
        "recompute": "none" if config.activation_checkpoint is None else "full",
        "parameters": sum({id(weight): weight.numel() for weight in model.parameters()}.values()),
    }
