"""What Megatron makes of a megatron.sh.

Megatron-LM's own parser (megatron/training/arguments.py) is in no package: it is used where MEGATRON_LM names a
checkout. The real `TransformerConfig` of megatron-core gets the arguments as `core_transformer_config_from_args` hands
them on.
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.exports.shell_arguments import megatron_arguments
from bench.exports.stubs import install

PACKAGES = ("megatron-core",)

NAMES = {
    "num_experts": "num_moe_experts",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
}


def prepare() -> list[str]:
    """Stand-ins for what the configuration does not need."""
    if checkout := os.environ.get("MEGATRON_LM"):
        sys.path[:0] = [checkout]
    return install("transformer_engine", "transformer_engine_torch", "flash_attn", "nvidia_resiliency_ext")


def parse(words: list[str], world: int) -> None:
    """Megatron-LM's own parser and its checks."""
    os.environ |= {"WORLD_SIZE": str(world), "RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    arguments = import_module("megatron.training.arguments")
    sys.argv = ["pretrain_gpt.py", *words, "--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "1"]
    arguments.validate_args(arguments.parse_args())


def as_config(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments as fields."""
    torch = import_module("torch")
    functional = torch.nn.functional
    own: dict[str, Any] = {NAMES.get(name, name): value for name, value in given.items()}
    own["num_query_groups"] = given.get("num_query_groups") if given.get("group_query_attention") else None
    own["add_bias_linear"] = not given.get("disable_bias_linear", False)
    own["expert_tensor_parallel_size"] = given.get("expert_tensor_parallel_size", given["tensor_model_parallel_size"])
    own["activation_func"] = functional.silu if given.get("swiglu") else functional.gelu
    own["gated_linear_unit"] = bool(given.get("swiglu"))
    own["pipeline_dtype"] = torch.bfloat16 if given.get("bf16") else torch.float32
    return own


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:  # noqa: ARG001
    """The arguments as a `TransformerConfig` accepts them."""
    words, given = megatron_arguments((folder / "megatron.sh").read_text(encoding="utf-8"))
    if "MEGATRON_LM" in os.environ:
        parse(words, world)
    core = import_module("megatron.core.transformer")
    layouts = import_module("megatron.core.transformer.pipeline_parallel_layer_layout").PipelineParallelLayerLayout
    kind = core.MLATransformerConfig if given.get("multi_latent_attention") else core.TransformerConfig
    known = {field.name for field in fields(kind)}
    pp, vpp = given["pipeline_model_parallel_size"], 1
    if layout := given.get("pipeline_model_parallel_layout"):
        vpp = layouts.get_num_stages_from_str(layout) // pp
    elif each := given.get("num_layers_per_virtual_pipeline_stage"):
        vpp = given["num_layers"] // pp // each
    own = {name: value for name, value in as_config(given).items() if name in known}
    config = kind(**own, virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None)
    tp, cp = config.tensor_model_parallel_size, config.context_parallel_size
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": world // (tp * pp * cp),
        "ep": config.expert_model_parallel_size,
        "etp": config.expert_tensor_parallel_size,
        "vpp": vpp,
        "sequence_parallel": config.sequence_parallel,
        "blocks": config.num_layers,
        "hidden": config.hidden_size,
        "global_batch": given["global_batch_size"],
        "micro_batch_per_rank": given["micro_batch_size"],
        "sharded": bool(given.get("use_distributed_optimizer")),
        "recompute": config.recompute_granularity or "none",
    }
