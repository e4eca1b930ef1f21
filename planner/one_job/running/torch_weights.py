"""Weights, gradients and the optimizer of a rank, and how its replicas keep them alike: ZeRO 0 to 3.

ZeRO (Rajbhandari et al. 2020, section 5) over groups of `shard` ranks: 0 gradients are summed, 1 each rank updates its
shard of the weights and gathers the others' (Megatron's distributed optimizer), 2 it also keeps its shard of the
gradients alone, 3 weights too (FSDP2). Replicas of a shard sum theirs (HSDP).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from estimator.communication.worker_torch import all_gather_single, reduce_scatter_single
from planner.one_job.running.regions import length_of
from planner.one_job.running.spans import Recorder
from planner.one_job.running.tied_table import TablePeers, in_order
from planner.one_job.running.torch_groups import Grouped, Groups


def make_optimizer(name: str, weights: Sequence[Tensor], learning_rate: float) -> torch.optim.Optimizer:
    """As the profiler times it (`estimator.profiling.measure_torch.Training`)."""
    if name == "adamw":
        return torch.optim.AdamW(weights, lr=learning_rate)
    return torch.optim.SGD(weights, lr=learning_rate, momentum=0.9)


class FlatWeights:
    """Parameters of one dtype in one piece of memory, their gradients in another, ZeRO 0 to 2.

    The parameters become views of it. What the optimizer works on is fp32: the piece itself, or a copy of it.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        zero: int,
        groups: Groups,
        grad_dtype: torch.dtype,
        optimizer: str,
        learning_rate: float,
        recorder: Recorder,
    ) -> None:
        self.zero, self.groups, self.recorder = zero, groups, recorder
        self.parts = groups.shard.size() if zero else 1
        self.parameters = list(parameters)
        self._gradient_of: dict[int, Tensor] = {}
        first = parameters[0]
        size = -(-sum(p.numel() for p in parameters) // self.parts) * self.parts
        self.weights = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros(size, dtype=grad_dtype, device=first.device)
        self._take_over(parameters)
        part = size // self.parts
        index = groups.shard.rank() if zero else 0
        self.own = self.weights[index * part : (index + 1) * part]
        self.own_gradient = self.gradients if self.parts == 1 else torch.zeros_like(self.own, dtype=grad_dtype)
        self.master = self.own if self.own.dtype == torch.float32 else self.own.float()
        # One by one the weights of an unsharded step stay in a CPU's caches, and no temporary is as large as all.
        sizes = [p.numel() for p in self.parameters] if self.parts == 1 else [part]
        self.stepped = list(self.master.split(sizes))
        self.optimizer = make_optimizer(optimizer, self.stepped, learning_rate)

    def _take_over(self, parameters: Sequence[nn.Parameter]) -> None:
        place = 0
        for parameter in parameters:
            end = place + parameter.numel()
            view = self.weights[place:end].view_as(parameter)
            view.copy_(parameter.data)
            parameter.data = view
            gradient = self.gradients[place:end].view_as(parameter)
            self._gradient_of[id(parameter)] = gradient
            if gradient.dtype == parameter.dtype:
                parameter.grad = gradient
            else:
                parameter.register_post_accumulate_grad_hook(_adder(gradient))
            place = end

    def gradient_of(self, parameter: nn.Parameter) -> Tensor:
        """Where the gradients of one of the parameters add up."""
        return self._gradient_of[id(parameter)]

    def after_backward(self) -> None:
        """ZeRO 2 keeps no more than its shard of a micro-batch's gradients."""
        if self.zero == 2 and self.parts > 1:
            self._scatter(add=True)
            self.gradients.zero_()

    def reduce(self) -> None:
        """Gradients of this rank's part summed over all replicas."""
        if self.parts > 1:
            if self.zero == 1:
                self._scatter(add=False)
            if self.groups.replicate.size() > 1:
                with self._note("all_reduce", self.own_gradient, self.groups.replicate):
                    dist.all_reduce(self.own_gradient, group=self.groups.replicate)
        elif self.groups.replicas.size() > 1:
            with self._note("all_reduce", self.gradients, self.groups.replicas):
                dist.all_reduce(self.gradients, group=self.groups.replicas)

    def _scatter(self, *, add: bool) -> None:
        scattered = torch.empty_like(self.own_gradient) if add else self.own_gradient
        with self._note("reduce_scatter", self.gradients, self.groups.shard):
            reduce_scatter_single(scattered, self.gradients, group=self.groups.shard)
        if add:
            self.own_gradient.add_(scattered)

    def step(self) -> None:
        """The optimizer's step on this rank's part; gradients start from nothing again."""
        gradient = self.own_gradient.to(self.master.dtype)
        for weights, shard in zip(self.stepped, gradient.split([w.numel() for w in self.stepped]), strict=True):
            weights.grad = shard
        self.optimizer.step()
        if self.master is not self.own:
            self.own.copy_(self.master)
        self.gradients.zero_()
        if self.own_gradient is not self.gradients:
            self.own_gradient.zero_()

    def gather(self) -> None:
        """Everybody's part of the weights."""
        if self.parts > 1:
            with self._note("all_gather", self.weights, self.groups.shard):
                all_gather_single(self.weights, self.own.clone(), group=self.groups.shard)

    def _note(self, op: str, moved: Tensor, group: dist.ProcessGroup):  # type: ignore[no-untyped-def]
        return self.recorder.span("collective", op, axis="dp", ranks=group.size(), bytes=moved.nbytes)


def _adder(total: Tensor) -> Callable[[Tensor], None]:
    def add(parameter: Tensor) -> None:
        total.add_(parameter.grad)
        parameter.grad = None

    return add


class FullyShardedWeights:
    """Parameters that FSDP2 holds in shards, ZeRO 3: it gathers weights and scatters gradients as layers run. The
    optimizer works on fp32 shards."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], *, optimizer: str, learning_rate: float, recorder: Recorder
    ) -> None:
        self.parameters, self.recorder = list(parameters), recorder
        self.own = [parameter.detach().to_local() for parameter in self.parameters]
        self.masters = [shard if shard.dtype == torch.float32 else shard.float() for shard in self.own]
        self.optimizer = make_optimizer(optimizer, self.masters, learning_rate)

    def gradient_of(self, parameter: nn.Parameter) -> Tensor:
        """This rank's shard of the gradient of one of the parameters."""
        shard: Tensor = parameter.grad.to_local()
        return shard

    def after_backward(self) -> None:
        """FSDP2 has scattered the gradients already."""

    def reduce(self) -> None:
        """FSDP2 has summed them already."""

    def step(self) -> None:
        """The optimizer's step on the shards."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            gradient = parameter.grad
            master.grad = None if gradient is None else gradient.to_local().to(master.dtype)
        self.optimizer.step()
        for parameter, shard, master in zip(self.parameters, self.own, self.masters, strict=True):
            if master is not shard:
                shard.copy_(master)
            parameter.grad = None

    def gather(self) -> None:
        """FSDP2 gathers before each use."""


def shard_fully(
    chunks: Sequence[nn.ModuleList], ignored: set[nn.Parameter], groups: Groups, grad_dtype: torch.dtype
) -> None:
    """Each layer of the chunks becomes a unit of FSDP2, and each chunk their root; gradients are sums."""
    policy = MixedPrecisionPolicy(reduce_dtype=grad_dtype, cast_forward_inputs=False)
    for chunk in chunks:
        for unit in (*chunk.layers, chunk):
            fully_shard(
                unit, mesh=groups.data_mesh, reshard_after_forward=True, mp_policy=policy, ignored_params=ignored
            )
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)


class TiedTable:
    """A token table that several stages hold: their gradients are added in the stages' order."""

    def __init__(self, peers: TablePeers) -> None:
        self.peers = peers

    def add_others(self, gradient: Tensor, recorder: Recorder) -> None:
        """`gradient` (rows, columns), summed over this stage's replicas, becomes the sum over all holders."""
        peers = self.peers
        totals = {number: torch.zeros_like(gradient) for number in peers.holders if number != peers.stage}
        buffers = [gradient.new_empty((length_of(peer.rows), gradient.shape[1])) for peer in peers.receives]
        size = sum(buffer.nbytes for buffer in buffers)
        with recorder.span("collective", "send_recv", axis="tied", ranks=len(peers.holders), bytes=size):
            works = [dist.isend(gradient[slice(*peer.rows)].contiguous(), peer.rank) for peer in peers.sends]
            works += [dist.irecv(buffer, peer.rank) for buffer, peer in zip(buffers, peers.receives, strict=True)]
            for work in works:
                work.wait()
        for buffer, peer in zip(buffers, peers.receives, strict=True):
            totals[peer.stage][slice(*peer.rows)] = buffer
        totals[peers.stage] = gradient.clone()
        gradient.zero_()
        for total in in_order(totals):
            gradient.add_(total)


Weights = FlatWeights | FullyShardedWeights


class PartialGradients:
    """Gradients of weights that tensor-parallel ranks hold alike and each knows a part of: see `partial_over` in
    `models_zoo.torch_layers`. One all-reduce for each number of ranks that share."""

    def __init__(self, modules: Iterable[nn.Module], holders: Sequence[Weights], tp: Grouped) -> None:
        self.tp = tp
        self.shared: dict[int, list[Callable[[], Tensor]]] = {}
        candidates = [(holder, parameter) for holder in holders for parameter in holder.parameters]
        for part in (part for module in modules for part in module.modules()):
            ranks = getattr(part, "partial_over", 1)
            partial_weights = list(part.parameters(recurse=False)) if ranks > 1 else []
            for holder, parameter in candidates:
                if any(parameter is weight for weight in partial_weights):
                    self.shared.setdefault(ranks, []).append(partial(holder.gradient_of, parameter))

    def complete(self) -> None:
        """Sums them, once all of an iteration's are there (ZeRO 2: those of a micro-batch)."""
        for ranks, getters in sorted(self.shared.items()):
            grads = [gradient() for gradient in getters]
            total = self.tp.all_reduce(torch.cat([grad.flatten() for grad in grads]), "step", ranks)
            for grad, part in zip(grads, total.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(part.view_as(grad))
