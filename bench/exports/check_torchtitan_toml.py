"""What torchtitan 0.2 makes of a torchtitan.toml."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("torchtitan",)


def prepare() -> list[str]:
    """Stand-ins for what the configuration does not need."""
    return install("wandb", "torchao", "datasets")


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:  # noqa: ARG001
    """The configuration as `python -m torchtitan.train` parses it."""
    manager = import_module("torchtitan.config").ConfigManager()
    config = manager.parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    sizes, training = config.parallelism, config.training
    dims = import_module("torchtitan.distributed").ParallelDims(
        dp_replicate=sizes.data_parallel_replicate_degree,
        dp_shard=sizes.data_parallel_shard_degree,
        cp=sizes.context_parallel_degree,
        tp=sizes.tensor_parallel_degree,
        pp=sizes.pipeline_parallel_degree,
        ep=sizes.expert_parallel_degree,
        etp=sizes.expert_tensor_parallel_degree,
        world_size=world,
    )
    spec = import_module("torchtitan.protocols.train_spec").get_train_spec(config.model.name)
    flavor = spec.model_args[config.model.flavor]
    parts = sizes.module_fqns_per_model_part
    return {
        "tp": dims.tp,
        "pp": dims.pp,
        "cp": dims.cp,
        "dp": dims.dp_replicate * dims.dp_shard,
        "ep": dims.ep,
        "vpp": len(parts) // dims.pp if parts else 1,
        "replicate": dims.dp_replicate,
        "blocks": flavor.n_layers,
        "hidden": flavor.dim,
        "global_batch": training.global_batch_size,
        "micro_batch_per_rank": sizes.pipeline_parallel_microbatch_size if dims.pp > 1 else training.local_batch_size,
        "recompute": config.activation_checkpoint.mode,
    }
