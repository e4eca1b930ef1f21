"""Ranks of the zoo's torch shards for tests: one that notes collectives, and the sum of gradients known in parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from models_zoo.torch_layers.parallel import Neutral, TensorParallel
from profiles.vocabulary import Collective, CollectiveOp, Phase


@dataclass(slots=True)
class Recording:
    """A neutral rank that notes each collective in `seen`, bytes by nccl-tests' convention."""

    degree: int
    rank: int = 0
    seen: list[Collective] = field(default_factory=list)

    def all_reduce(self, x: Tensor, phase: Phase, ranks: int | None = None) -> Tensor:
        self._note("all_reduce", x.nbytes, phase, ranks)
        return x

    def maximum(self, x: Tensor, phase: Phase) -> Tensor:
        self._note("all_reduce", x.nbytes, phase)
        return x

    def all_gather(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        self._note("all_gather", x.nbytes * self.degree, phase)
        return Neutral(self.degree, self.rank).all_gather(x, dim, phase)

    def reduce_scatter(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        self._note("reduce_scatter", x.nbytes, phase)
        return Neutral(self.degree, self.rank).reduce_scatter(x, dim, phase)

    def _note(self, op: CollectiveOp, size: int, phase: Phase, ranks: int | None = None) -> None:
        self.seen.append(Collective(op=op, bytes=size, phase=phase, ranks=ranks or self.degree))


def sum_partial_gradients(module: torch.nn.Module, tp: TensorParallel) -> None:
    """Complete the gradients of weights that several ranks hold: once an iteration, before the optimizer.

    A submodule says by `partial_over` over how many consecutive ranks those of its own parameters are to be summed.
    One all-reduce of all of them for each such number.
    """
    groups: dict[int, list[Tensor]] = {}
    for part in module.modules():
        ranks = getattr(part, "partial_over", 1)
        if ranks > 1:
            groups.setdefault(ranks, []).extend(p.grad for p in part.parameters(recurse=False))
    for ranks, grads in sorted(groups.items()):
        total = tp.all_reduce(torch.cat([g.flatten() for g in grads]), "step", ranks)
        for grad, part in zip(grads, total.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))
