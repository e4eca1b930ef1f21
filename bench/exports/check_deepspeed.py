"""What DeepSpeed makes of a ds_config.json, and its launcher of launch.sh and the hostfile."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("deepspeed",)


class Replicas:
    """A model-parallel unit of so many data-parallel ranks, as the pipeline engine hands one on."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        """All that the configuration asks of it."""
        return self.count


def prepare() -> list[str]:
    """Stand-ins for what the configuration does not need."""
    return install("triton", "pynvml")


def launched(folder: Path) -> int:
    """How many processes its launcher starts."""
    runner = import_module("deepspeed.launcher.runner")
    text = re.sub(r"\\\n", " ", (folder / "launch.sh").read_text(encoding="utf-8")).replace('"$@"', "")
    (line,) = [line for line in text.splitlines() if line.startswith("deepspeed ")]
    arguments = runner.parse_args(shlex.split(line)[1:])
    hosts = runner.fetch_hostfile(str(folder / arguments.hostfile)) or {"localhost": arguments.num_gpus}
    chosen = runner.parse_inclusion_exclusion(hosts, arguments.include, arguments.exclude)
    return sum(len(slots) for slots in chosen.values())


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:
    """The configuration in a process group of `world` ranks that nothing is sent over."""
    groups = import_module("torch.distributed")
    fake = import_module("torch.testing._internal.distributed.fake_pg")
    groups.init_process_group("fake", rank=0, world_size=world, store=fake.FakeStore())
    deepspeed = import_module("deepspeed")
    deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
    try:
        return _read(folder, world, dp)
    finally:
        groups.destroy_process_group()
        vars(import_module("deepspeed.comm.comm"))["cdb"] = None


def _read(folder: Path, world: int, dp: int) -> dict[str, Any]:
    file = folder / "ds_config.json"
    tp = json.loads(file.read_text(encoding="utf-8")).get("tensor_parallel", {}).get("autotp_size", 1)
    stages = (folder / "pipeline.py").is_file()
    kind = import_module("deepspeed.runtime.config").DeepSpeedConfig
    config = kind(str(file), mpu=Replicas(dp) if stages or tp > 1 else None)
    experts = config.expert_parallel_config
    if experts.enabled:
        validate = import_module("deepspeed.module_inject.auto_ep_config").validate_autoep_config
        validate(experts, world, 1, tp, 1, zero_stage=config.zero_optimization_stage)
    per_step = config.train_micro_batch_size_per_gpu * config.gradient_accumulation_steps
    return {
        "devices": launched(folder),
        "tp": config.tensor_parallel_config.autotp_size or 1,
        "dp": config.train_batch_size // per_step,
        "ep": experts.autoep_size,
        "zero": int(config.zero_optimization_stage),
        "global_batch": config.train_batch_size,
        "micro_batch_per_rank": config.train_micro_batch_size_per_gpu,
        "micro_batches": config.gradient_accumulation_steps,
    }
