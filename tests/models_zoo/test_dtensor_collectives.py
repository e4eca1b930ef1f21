"""The collectives of a GPT block, as estimated, against those that DTensor issues for a block written without us."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.distributed.tensor import Shard as Split
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from estimator.layers.shards import shard_layer
from profiles.vocabulary import LocalLayer, Shard
from tests.transformer_variants import GPT, HIDDEN, SEQ_LEN

TP, BATCH = 4, 3


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Four ranks of which only this one exists: collectives do nothing."""
    distributed.init_process_group("fake", rank=0, world_size=TP, store=FakeStore())
    yield init_device_mesh("cpu", (TP,))
    distributed.destroy_process_group()


class PlainAttention(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (-1, 8)).transpose(1, 2) for project in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class PlainBlock(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention = PlainAttention()
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Collectives(TorchDispatchMode):  # type: ignore[misc]
    """Counts (operation, bytes) by nccl-tests' convention: the larger of input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if function.namespace in ("_c10d_functional", "c10d") and not name.startswith(("wait", "_wrap")):
            op = name.removesuffix("_tensor").removesuffix("_into")
            self.seen[op, max(args[0].nbytes, out.nbytes)] += 1
        return out


def parallelize(mesh: DeviceMesh, *, sequence_parallel: bool) -> nn.Module:
    outside: Placement = Split(1) if sequence_parallel else Replicate()
    entry = PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),))
    plan = {
        "attention": entry,
        **{f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")},
        "attention.out": RowwiseParallel(output_layouts=outside),
        "mlp": entry,
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(output_layouts=outside),
    }
    if sequence_parallel:
        plan |= {name: SequenceParallel(use_local_output=True) for name in ("norm1", "norm2")}
    return parallelize_module(PlainBlock(), mesh, plan)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_estimated_collectives_are_those_that_dtensor_issues(mesh: DeviceMesh, sequence_parallel: bool) -> None:
    block = parallelize(mesh, sequence_parallel=sequence_parallel)
    length = SEQ_LEN // TP if sequence_parallel else SEQ_LEN
    with Collectives() as forward:
        out = block(torch.randn(BATCH, length, HIDDEN, requires_grad=True))
    with Collectives() as backward:
        out.sum().backward()
    shard = Shard(tp=TP, sequence_parallel=sequence_parallel, micro_batch_per_rank=BATCH, seq_len=SEQ_LEN, dtype="fp32")
    local = shard_layer(GPT, shard)
    assert isinstance(local, LocalLayer)
    for phase, seen in (("forward", forward.seen), ("backward", backward.seen)):
        estimated = Counter((c.op, c.bytes) for c in local.collectives if c.phase == phase)
        assert seen == estimated
        assert seen.total() == (4 if sequence_parallel else 2)
    # What DTensor leaves as a partial sum is what is summed once a step; it adds the two output biases before it
    # scatters, so that their gradients are whole, where Megatron and we add them after.
    partial = sum(p.numel() for p in block.parameters() if has_partial_gradient(p))
    late_biases = 2 * HIDDEN if sequence_parallel else 0
    step_bytes = sum(c.bytes for c in local.collectives if c.phase == "step")
    assert step_bytes == 4 * (partial + late_biases)


def has_partial_gradient(parameter: nn.Parameter) -> bool:
    return isinstance(parameter.grad, DTensor) and any(isinstance(p, Partial) for p in parameter.grad.placements)
