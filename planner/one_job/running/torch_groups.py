"""The process groups of a plan, and tensor parallelism over one of them."""

from __future__ import annotations

from dataclasses import field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from estimator.communication.worker_torch import all_gather_single, reduce_scatter_single
from planner.one_job.running.program import Program, StageProgram
from planner.one_job.running.spans import Recorder
from profiles.records import dataclass
from profiles.vocabulary import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """This rank's groups in its stage: those that share a layer (`tensor`), hold the same weights (`replicas`), shards
    of the optimizer's state or weights (`shard`), and the same shard (`replicate`)."""

    tensor: dist.ProcessGroup
    replicas: dist.ProcessGroup
    shard: dist.ProcessGroup
    replicate: dist.ProcessGroup
    data_mesh: DeviceMesh


def make_groups(program: Program, rank: int, device_type: str) -> Groups:
    """Makes the groups of all stages, which every rank has to take part in, and returns those of `rank`."""
    groups: Groups | None = None
    for stage in program.stages:
        shard = stage.shard if stage.zero else 1
        replicas, parts = stage.degrees.dp, stage.degrees.tp
        grid = torch.tensor(stage.ranks).view(replicas // shard, shard, parts)
        mesh = DeviceMesh(device_type, grid, mesh_dim_names=("replicate", "shard", "tp"))
        whole = [dist.new_group([stage.rank_at(d, t) for d in range(replicas)]) for t in range(parts)]
        if rank in stage.ranks:
            groups = Groups(
                tensor=mesh.get_group("tp"),
                replicas=whole[stage.place(rank)[1]],
                shard=mesh.get_group("shard"),
                replicate=mesh.get_group("replicate"),
                data_mesh=mesh["replicate", "shard"] if replicas > shard else mesh["shard"],
            )
    assert groups is not None, f"rank {rank} is in no stage"
    return groups


@dataclass(slots=True)
class Grouped:
    """`models_zoo.torch_layers.parallel.TensorParallel` over a process group; what it does is noted."""

    group: dist.ProcessGroup
    ranks: tuple[int, ...]
    rank: int
    recorder: Recorder
    _parts: dict[int, dist.ProcessGroup] = field(default_factory=dict)

    @property
    def degree(self) -> int:
        return len(self.ranks)

    def all_reduce(self, x: Tensor, phase: Phase, ranks: int | None = None) -> Tensor:
        group, count = (self.group, self.degree) if ranks in (None, self.degree) else (self._part(ranks), ranks)
        total = x.clone(memory_format=torch.contiguous_format)
        with self._note("all_reduce", total.nbytes, phase, count):
            dist.all_reduce(total, group=group)
        return total

    def maximum(self, x: Tensor, phase: Phase) -> Tensor:
        highest = x.clone(memory_format=torch.contiguous_format)
        with self._note("all_reduce", highest.nbytes, phase, self.degree):
            dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=self.group)
        return highest

    def all_gather(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        local = x.contiguous()
        gathered = local.new_empty((self.degree * local.shape[0], *local.shape[1:]))
        with self._note("all_gather", gathered.nbytes, phase, self.degree):
            all_gather_single(gathered, local, group=self.group)
        return gathered if dim == 0 else torch.cat(gathered.chunk(self.degree), dim)

    def reduce_scatter(self, x: Tensor, dim: int, phase: Phase) -> Tensor:
        stacked = x.contiguous() if dim == 0 else torch.cat(x.chunk(self.degree, dim))
        local = stacked.new_empty((stacked.shape[0] // self.degree, *stacked.shape[1:]))
        with self._note("reduce_scatter", stacked.nbytes, phase, self.degree):
            reduce_scatter_single(local, stacked, group=self.group)
        return local

    def _note(self, op: str, size: int, phase: Phase, ranks: int):  # type: ignore[no-untyped-def]
        return self.recorder.span("collective", op, phase=phase, axis="tp", ranks=ranks, bytes=size)

    def _part(self, ranks: int | None) -> dist.ProcessGroup:
        """The group of the `ranks` consecutive ones that this rank belongs to; its members alone make it."""
        assert ranks is not None
        if ranks not in self._parts:
            first = self.rank // ranks * ranks
            members = list(self.ranks[first : first + ranks])
            self._parts[ranks] = dist.new_group(members, use_local_synchronization=True)
        return self._parts[ranks]


def tensor_parallel(stage: StageProgram, rank: int, groups: Groups, recorder: Recorder) -> Grouped:
    """The tensor-parallel ranks of `rank`'s replica."""
    replica, index = stage.place(rank)
    ranks = tuple(stage.rank_at(replica, t) for t in range(stage.degrees.tp))
    return Grouped(group=groups.tensor, ranks=ranks, rank=index, recorder=recorder)
