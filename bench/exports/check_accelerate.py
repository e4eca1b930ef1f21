"""What accelerate's launcher makes of an accelerate.yaml."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = ("accelerate",)


def prepare() -> list[str]:
    """Nothing is stood in for."""
    return []


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:  # noqa: ARG001
    """The configuration through `accelerate launch` up to the environment of the processes that it would start."""
    launch = import_module("accelerate.commands.launch")
    words = ["--config_file", str(folder / "accelerate.yaml"), "--main_process_port", "29500", "x.py"]
    arguments, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args(words))
    for name in [name for name in os.environ if name.startswith(("FSDP_", "PARALLELISM_", "ACCELERATE_"))]:
        del os.environ[name]
    variables = import_module("accelerate.utils.launch").prepare_multi_gpu_env(arguments)
    os.environ |= {name: value for name, value in variables.items() if isinstance(value, str)}
    found: dict[str, Any] = {"devices": arguments.num_processes}
    if arguments.use_parallelism_config:
        sizes = import_module("accelerate.parallelism_config").ParallelismConfig()
        found |= {
            "tp": sizes.tp_size,
            "cp": sizes.cp_size,
            "dp": sizes.dp_replicate_size * sizes.dp_shard_size,
            "replicate": sizes.dp_replicate_size,
        }
    if arguments.use_fsdp:
        found["zero"] = 3 if str(arguments.fsdp_reshard_after_forward).lower() == "true" else 2
        recomputes = str(arguments.fsdp_activation_checkpointing).lower() == "true"
        found["recompute"] = "full" if recomputes else "none"
    return found
