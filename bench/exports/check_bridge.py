"""What megatron-bridge makes of a bridge_recipe.py."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("megatron-bridge", "megatron-core")

ABSENT = (
    "transformer_engine transformer_engine_torch flash_attn nvidia_resiliency_ext mamba_ssm causal_conv1d fla wandb"
    " mlflow datasets timm open_clip qwen_vl_utils modelopt multi_storage_client nvtx tensorstore zarr torchvision"
    " nemo_run comet_ml soundfile peft"
)


def prepare() -> list[str]:
    """Stand-ins for what the configuration does not need."""
    return install(*ABSENT.split())


def load_file(path: Path) -> ModuleType:
    """A Python file as a module, read anew."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:  # noqa: ARG001
    """The recipe's `config()`, finalised and validated by Bridge itself."""
    os.environ |= {"WORLD_SIZE": str(world), "RANK": "0"}
    config = load_file(folder / "bridge_recipe.py").config()
    import_module("megatron.bridge.training.config").runtime_config_update(config)
    model, layout = config.model, config.model.pipeline_model_parallel_layout
    vpp = model.virtual_pipeline_model_parallel_size
    return {
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "dp": config.data_parallel_size,
        "ep": model.expert_model_parallel_size,
        "etp": model.expert_tensor_parallel_size,
        "vpp": vpp or (layout.virtual_pipeline_model_parallel_size if layout else 1),
        "sequence_parallel": model.sequence_parallel,
        "blocks": model.num_layers,
        "hidden": model.hidden_size,
        "global_batch": config.train.global_batch_size,
        "micro_batch_per_rank": config.train.micro_batch_size,
        "sharded": config.ddp.use_distributed_optimizer,
        "recompute": model.recompute_granularity or "none",
    }
