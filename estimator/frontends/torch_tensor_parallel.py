"""Applies a module's own tensor-parallel plan in one process, for a group of ranks that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module

from estimator.frontends.torch_private import FakeStore
from profiles.errors import MachineError


@contextmanager
def lone_rank(degree: int) -> Iterator[DeviceMesh]:
    """A mesh of `degree` ranks of which this process is the first and only: collectives take no time and move nothing.

    MachineError where the process is already one of a group.
    """
    if dist.is_initialized():
        raise MachineError("this process is in a torch.distributed group; tracing a tensor-parallel plan needs its own")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=degree)
    try:
        yield DeviceMesh("cpu", list(range(degree)))
    finally:
        dist.destroy_process_group()


def apply_plan(module: nn.Module, plan: dict[str, Any], mesh: DeviceMesh) -> None:
    """Shards `module` in place. Submodules that shared a parameter and split it alike share it again.

    ValueError where a sharded dimension of a parameter does not divide by the ranks.
    """
    shared: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    parallelize_module(module, mesh, plan)
    for first, *others in shared.values():
        for name in others:
            _share(module, first, name)
    for name, parameter in module.named_parameters():
        for place in parameter.placements if isinstance(parameter, DTensor) else ():
            if isinstance(place, Shard) and parameter.shape[place.dim] % mesh.size():
                raise ValueError(
                    f"{name} has {parameter.shape[place.dim]} elements in dimension {place.dim}, which do not divide by"
                    f" tp = {mesh.size()}"
                )


def _share(module: nn.Module, first: str, name: str) -> None:
    parameter, other = module.get_parameter(first), module.get_parameter(name)
    if getattr(parameter, "placements", None) == getattr(other, "placements", None):
        owner, _, attribute = name.rpartition(".")
        module.get_submodule(owner).register_parameter(attribute, parameter)
