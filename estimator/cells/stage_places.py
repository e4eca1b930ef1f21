"""Where a Cell's stages come to stand: the splits worth pricing, and the devices of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from estimator.cells.job import Job
from estimator.cells.rules import Partition
from estimator.cells.stage_options import Machine, StagePlace
from estimator.cells.stage_reach import add_up, find_reach, guess_in_flight, list_ways
from estimator.cells.stages import StageSplit, partition_crius, partition_exact
from estimator.layers.graph import build_graph
from profiles.cluster import DeviceSlot
from profiles.vocabulary import Infeasible, Shard


def propose_splits(
    job: Job, machine: Machine, devices: int, stages: int, micro_batches: int, partition: Partition
) -> Iterator[StageSplit | Infeasible]:
    """Stages by FLOPs of the whole layers, most promising first.

    The exact partition keeps to stages that some choice can hold, as far as that can be told before the stages' places
    are known (`guess_in_flight`). Last comes the one that minds no memory: its price says what is lacking.
    """
    shard = Shard(seq_len=job.seq_len, dtype=job.dtype, attention=job.attention_on(machine.device))
    graph = build_graph(job.model, shard=shard, degrees=())
    flops = [node.forward_flops + node.backward_flops for node in graph.nodes]
    cuts = [node.cut_bytes for node in graph.nodes[:-1]]
    if partition == "crius":
        yield partition_crius(flops, cuts, devices, stages)
        return
    micro_batch = job.global_batch // micro_batches
    ways = list_ways(job, machine, devices=devices - stages + 1, micro_batch=micro_batch)
    if ways and not add_up(ways, stages=stages, devices=devices):
        yield Infeasible(
            reason=f"no {stages} of the device counts that dp or tp can have with micro-batches of {micro_batch}"
            f" samples ({', '.join(map(str, ways))}) add up to {devices}",
            lacking="divisibility",
        )
        return
    for in_flight in guess_in_flight(job, stages=stages, micro_batches=micro_batches) if ways else ():
        reach = find_reach(job, machine, ways, in_flight=in_flight)
        split = partition_exact(flops, cuts, devices, stages, usable=reach.usable, allowed_devices=tuple(ways))
        if isinstance(split, Infeasible):
            break
        yield split
    yield partition_exact(flops, cuts, devices, stages, allowed_devices=tuple(ways) or None)


def place_stages(job: Job, split: StageSplit, slots: Sequence[DeviceSlot], micro_batches: int) -> list[StagePlace]:
    """The stages on their devices. Those of more devices choose first, so that none of a power of two straddles nodes
    that it need not; equal ones follow the pipeline, and so do all of them where the pipeline would otherwise pass
    from site to site more often than it must."""
    indices = range(len(split.devices))
    by_size = _take(split, slots, sorted(indices, key=lambda index: -split.devices[index]))
    groups = min(by_size, _take(split, slots, indices), key=_site_changes)
    pipeline = tuple((first, group) for (first, _), group in zip(split.bounds, groups, strict=True))
    return [
        StagePlace(
            first=first,
            layers=job.model.layers[first:end],
            slots=groups[index],
            index=index,
            stages=len(groups),
            micro_batch=job.global_batch // micro_batches,
            micro_batches=micro_batches,
            pipeline=pipeline,
        )
        for index, (first, end) in enumerate(split.bounds)
    ]


def _take(split: StageSplit, slots: Sequence[DeviceSlot], order: Sequence[int]) -> list[tuple[DeviceSlot, ...]]:
    """The stages' devices, by stage, where the stages take theirs in `order`."""
    groups: list[tuple[DeviceSlot, ...]] = [()] * len(split.devices)
    taken = 0
    for index in order:
        groups[index] = tuple(slots[taken : taken + split.devices[index]])
        taken += split.devices[index]
    return groups


def _site_changes(groups: Sequence[Sequence[DeviceSlot]]) -> int:
    """How often one passes from site to site along the pipeline, inside a stage or between two."""
    sites = [slot.site for group in groups for slot in group]
    return sum(before != after for before, after in pairwise(sites))
