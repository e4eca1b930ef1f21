"""Everything that tracing a module takes from torch's private parts: a torch without them is refused at once."""

from __future__ import annotations

import torch
from torch import Tensor

from profiles.errors import InputError

try:
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensorMode,
    )
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    _next_node, _running_node = torch.autograd._get_sequence_nr, torch._C._current_autograd_node
    # Attributes of objects, looked up on their classes so that it is here that they are missed.
    _ = torch.UntypedStorage._cdata, DTensor._local_tensor, torch._C._functions.AccumulateGrad._sequence_nr
except (ImportError, AttributeError) as error:
    raise InputError(
        where="torch",
        found=f"{torch.__version__} ({error})",
        expected="2.5 to 2.13, which tracing a module needs",
    ) from error

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeStore",
    "FakeTensorMode",
    "TorchDispatchMode",
    "local_tensor",
    "next_node",
    "running_node",
    "storage_key",
    "tree_leaves",
]


def storage_key(tensor: Tensor) -> int:
    """The same for all tensors that share memory, as long as one of them lives."""
    key: int = tensor.untyped_storage()._cdata
    return key


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor; any other tensor as it is."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def next_node() -> int:
    """The number that autograd will give to the node it makes next."""
    number: int = _next_node()
    return number


def running_node() -> int:
    """The number of the node whose backward is running; -1 outside of any."""
    node = _running_node()
    return -1 if node is None else int(node._sequence_nr())
