"""Watches a torch module train one step on fake tensors: every operator call, what it moves, keeps and communicates.

Nothing is computed and no memory is taken. Each call of the forward pass is kept together with what autograd runs for
it in backward: autograd numbers its nodes in the order in which they are made, a node is made just before its operator
is called, and backward says which node it is at.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.utils.flop_counter import flop_registry

from estimator.frontends.sizes import Size
from estimator.frontends.torch_private import (
    FakeTensorMode,
    TorchDispatchMode,
    local_tensor,
    next_node,
    running_node,
    storage_key,
    tree_leaves,
)
from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp, OperatorKind, Phase

aten = torch.ops.aten

_FLOPS: Mapping[Any, Callable[..., int]] = {
    **flop_registry,
    # The registry has every fused attention but the CPU's, which runs here in the others' place.
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}
_CONVOLUTIONS = {aten.convolution, aten._convolution, aten.cudnn_convolution, aten.convolution_overrideable}
_LOOKUPS = {aten.embedding, aten.index, aten.index_select, aten.gather}
_ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
_COLLECTIVES: Mapping[str, CollectiveOp] = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}


@dataclass(slots=True)
class Work:
    """FLOPs, memory traffic and kernels of one pass."""

    flops: int = 0
    traffic: Size = field(default_factory=Size)
    kernels: int = 0

    def add(self, other: Work) -> None:
        self.flops += other.flops
        self.traffic += other.traffic
        self.kernels += other.kernels


@dataclass(slots=True, kw_only=True)
class Call:
    """One operator call of the forward pass, with its share of backward.

    `place` is the call of the layer-like submodule that it happened in, such as `blocks.3`, or `blocks.3@1` for that
    submodule's second call; `>blocks.3` is what follows it outside of all of them, and `>` what comes first.
    """

    place: str
    name: str
    kind: OperatorKind
    shape: tuple[int, ...]
    node: int
    reads: tuple[Tensor, ...]
    makes: tuple[Tensor, ...]
    forward: Work
    backward: Work = field(default_factory=Work)
    collectives: list[tuple[CollectiveOp, Size, Phase]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A parameter: its name, how many elements this rank holds, and whether every rank holds the same."""

    name: str
    count: int
    dimensions: int
    replicated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A module's step. `saved` pairs each tensor kept for backward with its call's index; `parameters` and `resident`
    (buffers as well) go by `storage_key`. Tensors are this rank's local ones."""

    calls: tuple[Call, ...]
    saved: tuple[tuple[int, Tensor], ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: Mapping[int, Held]
    resident: frozenset[int]
    dtype: torch.dtype


def size_of(tensor: Tensor, dtype: torch.dtype, bytes_: int | None = None) -> Size:
    """What `tensor` takes, broadcast elements counted once; or `bytes_` of its dtype. `dtype` is the module's own."""
    if bytes_ is None:
        bytes_ = min(tensor.nbytes, tensor.untyped_storage().nbytes())
    return Size(elements=bytes_ // tensor.element_size()) if tensor.dtype == dtype else Size(fixed_bytes=bytes_)


def own_dtype(module: nn.Module) -> torch.dtype:
    """The floating dtype that most of the module's parameters have; torch's default if it has none."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in module.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] += parameter.numel()
    return max(counts, key=lambda dtype: counts[dtype]) if counts else torch.get_default_dtype()


def trace_step(module: nn.Module, inputs: tuple[Tensor, ...], mode: FakeTensorMode, units: frozenset[str]) -> Trace:
    """One forward and backward pass of `module`, whose tensors are of `mode`.

    Backward starts at the scalar output that needs a gradient, a loss, or else at all outputs that need one. ValueError
    where none does. Fused attention stands for torch's attention function, with dropout too. What torch raises passes.
    """
    recorder = _Recorder(own_dtype(module), units)
    with torch.enable_grad(), mode, _gpu_kernels(), recorder.watching(module):
        with recorder, torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda kept: kept):
            result = module(*inputs)
        outputs = tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        wanted = [out for out in outputs if out.requires_grad]
        if not wanted:
            raise ValueError("no output of the module needs a gradient")
        roots = [out for out in wanted if out.dim() == 0][:1] or wanted
        gradients = [torch.ones_like(root) for root in roots]
        with recorder:
            recorder.phase = "backward"
            torch.autograd.backward(roots, gradients)
        module.zero_grad(set_to_none=True)
    parameters = {
        storage_key(local_tensor(p)): Held(
            name=name,
            count=local_tensor(p).numel(),
            dimensions=p.dim(),
            replicated=not isinstance(p, DTensor) or all(isinstance(place, Replicate) for place in p.placements),
        )
        for name, p in module.named_parameters()
    }
    buffers = {storage_key(local_tensor(buffer)) for buffer in module.buffers()}
    return Trace(
        calls=recorder.joined(),
        saved=tuple((recorder.owner(node), tensor) for node, tensor in recorder.saved),
        inputs=inputs,
        outputs=tuple(map(local_tensor, outputs)),
        parameters=parameters,
        resident=frozenset(parameters) | buffers,
        dtype=recorder.dtype,
    )


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Takes notes of all operator calls below autograd and below distributed tensors."""

    def __init__(self, dtype: torch.dtype, units: frozenset[str]) -> None:
        super().__init__()
        self.dtype = dtype
        self.phase: Phase = "forward"
        self.calls: list[Call] = []
        self.saved: list[tuple[int, Tensor]] = []
        self._later: list[tuple[int, Call]] = []
        self._units = units
        self._entered: Counter[str] = Counter()
        self._inside = [""]
        self._place = ">"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it will call operators on its local tensors, which come by here
        made = func(*args, **(kwargs or {}))
        if func.namespace != "prim":
            self._note(func, args, kwargs or {}, made)
        return made

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> None:
        reads, makes = _tensors((args, kwargs)), _tensors(made)
        flops = _FLOPS[func._overloadpacket](*args, **kwargs, out_val=made) if func._overloadpacket in _FLOPS else 0
        kind, shape = _kind_and_shape(func, args, kwargs, makes, flops)
        call = Call(
            place=self._place,
            name=".".join(filter(None, (self._label(), func._overloadpacket.__name__))),
            kind=kind,
            shape=shape,
            node=next_node(),
            reads=reads,
            makes=makes,
            forward=Work(flops, *self._traffic(func, reads, makes)),
        )
        if collective := _COLLECTIVES.get(func._overloadpacket.__name__) if "c10d" in func.namespace else None:
            whole = max((*reads, *makes), key=lambda tensor: tensor.nbytes)
            call.collectives.append((collective, size_of(whole, self.dtype), self.phase))
        if self.phase == "forward":
            self.calls.append(call)
            return
        # A gradient that somebody holds is copied, not taken over; so nothing of backward may be held.
        call.reads = call.makes = ()
        self._later.append((running_node(), call))

    def _traffic(self, func: Any, reads: tuple[Tensor, ...], makes: tuple[Tensor, ...]) -> tuple[Size, int]:
        """Bytes read and written, and kernels: none for a view, an allocation or a collective."""
        storages_read = {storage_key(tensor) for tensor in reads}
        viewed = not func._schema.is_mutable and all(storage_key(tensor) in storages_read for tensor in makes)
        if viewed or func._overloadpacket in _ALLOCATIONS or "c10d" in func.namespace:
            return Size(), 0
        if func._overloadpacket in _LOOKUPS:
            reads = (makes[0], *reads[1:])
        return sum((size_of(tensor, self.dtype) for tensor in (*reads, *makes)), Size()), 1

    def keep(self, tensor: Tensor) -> Tensor:
        """Called by autograd for each tensor that the node made last keeps."""
        local = local_tensor(tensor)
        self.saved.append((next_node() - 1, local))
        return tensor

    def owner(self, node: int) -> int:
        """Index of the call that autograd's `node` belongs to: the first after the node was made, unless a product is
        called before the next node is (a distributed product first divides its bias by the ranks)."""
        first = min(bisect_left(self.calls, node + 1, key=lambda call: call.node), len(self.calls) - 1)
        end = bisect_right(self.calls, self.calls[first].node, key=lambda call: call.node)
        return next((i for i in range(first, end) if self.calls[i].forward.flops), first)

    def joined(self) -> tuple[Call, ...]:
        """The calls of forward, each with what backward did for it; a gradient's last addition goes with what it
        follows."""
        at = len(self.calls) - 1
        for node, later in self._later:
            if 0 <= node <= self.calls[-1].node:
                at = self.owner(node)
            call = self.calls[at]
            call.backward.add(later.forward)
            call.collectives += later.collectives
            if later.forward.flops and not call.forward.flops and call.kind in ("memory", "gather"):
                call.kind, call.shape = later.kind, later.shape
        return tuple(self.calls)

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Follows which submodule is being called."""
        handles = []
        for name, part in module.named_modules():
            handles.append(part.register_forward_pre_hook(self._enter(name), prepend=True))
            handles.append(part.register_forward_hook(self._leave(name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            self._inside.append(name)
            if name in self._units:
                again = self._entered[name]
                self._entered[name] += 1
                self._place = f"{name}@{again}" if again else name

        return hook

    def _leave(self, name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            self._inside.pop()
            if name in self._units:
                self._place = f">{self._place}"

        return hook

    def _label(self) -> str:
        """The submodule that is being called, within its unit if it has one."""
        inside, unit = self._inside[-1], self._place.split("@")[0]
        return inside.removeprefix(unit).removeprefix(".") if inside.startswith(unit) else inside


def _tensors(nested: Any) -> tuple[Tensor, ...]:
    by_id = {id(leaf): leaf for leaf in tree_leaves(nested) if isinstance(leaf, Tensor)}
    return tuple(by_id.values())


def _kind_and_shape(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], makes: tuple[Tensor, ...], flops: int
) -> tuple[OperatorKind, tuple[int, ...]]:
    """As `Operator.shape` has them; the contracted size of a product follows from its FLOPs."""
    packet = func._overloadpacket
    if packet is aten.embedding:
        return "gather", (args[1].numel(), args[0].shape[-1])
    if not flops:
        return "memory", (sum(tensor.numel() for tensor in makes),)
    if packet in _CONVOLUTIONS:
        x, weight, stride = args[0], args[1], args[3]
        first, *more = makes[0].shape[2:]
        sizes = (first, prod(more), weight.shape[2], prod(weight.shape[3:]))
        return "conv", (x.shape[0], x.shape[1], makes[0].shape[1], *sizes, stride[0])
    if "attention" in packet.__name__ and "backward" not in packet.__name__:
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        (batch, heads, q_len, qk_dim), (_, kv_heads, kv_len, _) = named["query"].shape, named["key"].shape
        v_dim, causal = named["value"].shape[-1], bool(named.get("is_causal"))
        return "attention", (batch, heads, kv_heads, q_len, kv_len, qk_dim, v_dim, int(causal))
    *groups, m, n = makes[0].shape
    k = flops // (2 * makes[0].numel())
    return ("batched_gemm", (prod(groups), m, n, k)) if groups else ("gemm", (m, n, k))


@contextmanager
def _gpu_kernels() -> Iterator[None]:
    """Lets a CPU's fake tensors run what a GPU runs where torch has less for a CPU.

    Fused attention does dropout and keeps no mask; dropout keeps a mask of one byte an element. RMSNorm is one kernel,
    for which LayerNorm stands: it moves as much and keeps one more figure a row.
    """
    attention, dropout, rms_norm = F.scaled_dot_product_attention, F.dropout, F.rms_norm

    def fused(query: Tensor, key: Tensor, value: Tensor, *args: Any, **named: Any) -> Tensor:
        named |= dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False))
        return attention(query, key, value, **named | {"dropout_p": 0.0})

    def masked(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        del inplace
        return torch.native_dropout(input, p, True)[0] if training and p > 0 else input

    def normed(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        return F.layer_norm(input, normalized_shape, weight, None, 1e-5 if eps is None else eps)

    F.scaled_dot_product_attention, F.dropout, F.rms_norm = fused, masked, normed
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.dropout, F.rms_norm = attention, dropout, rms_norm
