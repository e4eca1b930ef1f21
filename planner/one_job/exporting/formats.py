"""The formats that a plan can be exported to. Only the module of the one that was asked for is imported."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from planner.one_job.tools.export_records import Exporter
from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format: the module of this package with its exporter, that function's name, and a line about it."""

    module: str
    function: str
    summary: str


FORMATS: dict[str, Format] = {
    "megatron": Format(
        module="tools.megatron.write",
        function="export_megatron",
        summary="Megatron-LM: a script that starts pretrain_gpt.py with the plan's arguments",
    ),
    "bridge": Format(
        module="tools.megatron.bridge",
        function="export_bridge",
        summary="Megatron-Bridge (NeMo): a recipe in Python",
    ),
    "torchtitan": Format(
        module="tools.torchtitan.write",
        function="export_torchtitan",
        summary="torchtitan 0.3 and later: a configuration in Python",
    ),
    "torchtitan-toml": Format(
        module="tools.torchtitan.write",
        function="export_torchtitan_toml",
        summary="torchtitan to 0.2: a TOML file",
    ),
    "deepspeed": Format(
        module="tools.deepspeed.write",
        function="export_deepspeed",
        summary="DeepSpeed: its JSON and launcher line",
    ),
    "accelerate": Format(
        module="tools.accelerate",
        function="export_accelerate",
        summary="Hugging Face Accelerate: FSDP2 or DDP as YAML",
    ),
    "device-mesh": Format(
        module="tools.device_mesh",
        function="export_device_mesh",
        summary="PyTorch: the plan's DeviceMeshes as Python that runs",
    ),
    "jax-mesh": Format(
        module="tools.jax_mesh",
        function="export_jax_mesh",
        summary="JAX: meshes and PartitionSpecs as Python that runs",
    ),
    "maxtext": Format(
        module="tools.maxtext",
        function="export_maxtext",
        summary="MaxText: its YAML, whose lines are its flags",
    ),
    "slurm": Format(
        module="launchers.slurm",
        function="export_slurm",
        summary="Slurm: a batch script with the plan's ranks in order",
    ),
    "kubernetes": Format(
        module="launchers.kubernetes",
        function="export_kubernetes",
        summary="Kubernetes: a JobSet for Kueue with a topology request",
    ),
    "ray": Format(
        module="launchers.ray",
        function="export_ray",
        summary="Ray: a placement group and the workers on it",
    ),
}


def load_exporter(name: str) -> Exporter:
    """The exporter of a format. InputError with the formats' names where there is none of that name."""
    found = FORMATS.get(name)
    if found is None:
        near = get_close_matches(name, FORMATS, n=1, cutoff=0.6)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(where="export", key="--to", found=repr(name), expected=f"one of {', '.join(FORMATS)}{meant}")
    exporter: Exporter = getattr(import_module(f"planner.one_job.{found.module}"), found.function)
    return exporter
