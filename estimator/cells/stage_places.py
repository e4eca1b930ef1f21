"""Where a Cell's stages come to stand: the splits worth pricing, and the devices of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from estimator.cells.held_stages import StagePlace
from estimator.cells.rules import Partition
from estimator.cells.stage_pricing import StagePricing
from estimator.cells.stage_reach import add_up, find_reach, guess_in_flight, list_ways
from estimator.cells.stages import StageSplit, partition_crius, partition_exact
from profiles.cluster import DeviceSlot
from profiles.vocabulary import Infeasible


def propose_splits(
    pricing: StagePricing, devices: int, stages: int, micro_batches: int, partition: Partition
) -> Iterator[StageSplit | Infeasible]:
    """Yield splits by FLOPs of the whole layers, most promising first.

    The first of the exact partition minds no memory: where all its stages fit it is the best, and else its price says
    what is lacking. The others keep to stages that some choice can hold, as far as that can be told before the stages'
    places are known (`guess_in_flight`).
    """
    job, recipe = pricing.job, pricing.recipe
    nodes = pricing.held.graph.nodes
    flops = tuple(node.forward_flops + node.backward_flops for node in nodes)
    cuts = tuple(node.cut_bytes for node in nodes[:-1])
    if partition == "crius":
        yield partition_crius(flops, cuts, devices, stages)
        return
    micro_batch = job.global_batch // micro_batches
    ways = list_ways(pricing, devices=devices - stages + 1, micro_batch=micro_batch)
    if ways and not add_up(ways, stages=stages, devices=devices):
        yield Infeasible(
            reason=f"no {stages} of the device counts that dp or tp can have with micro-batches of {micro_batch}"
            f" samples ({', '.join(map(str, ways))}) add up to {devices}",
            lacking="divisibility",
        )
        return
    yield _unbound_split(flops, cuts, devices, stages, tuple(ways) or None)
    if stages == 1:
        return  # there is no other
    guesses = guess_in_flight(recipe.schedule, len(flops), stages=stages, micro_batches=micro_batches)
    for in_flight in guesses if ways else ():
        reach = find_reach(pricing, ways, stages=stages, micro_batch=micro_batch, in_flight=in_flight)
        split = partition_exact(flops, cuts, devices, stages, usable=reach.usable, allowed_devices=tuple(ways))
        if isinstance(split, Infeasible):
            break
        yield split


@lru_cache(maxsize=256)
def _unbound_split(
    flops: tuple[int, ...], cuts: tuple[int, ...], devices: int, stages: int, allowed_devices: tuple[int, ...] | None
) -> StageSplit | Infeasible:
    """The best split whatever the memory, the same for all micro-batches that devices can share alike."""
    return partition_exact(flops, cuts, devices, stages, allowed_devices=allowed_devices)


def place_stages(split: StageSplit, slots: Sequence[DeviceSlot], micro_batch: int) -> list[StagePlace]:
    """Return the stages on their devices, for micro-batches of so many samples. Those of more devices choose first, so
    that none of a power of two straddles nodes that it need not; equal ones follow the pipeline, and so do all of them
    where the pipeline would otherwise pass from site to site more often than it must."""
    indices = range(len(split.devices))
    by_size = _take(split, slots, sorted(indices, key=lambda index: -split.devices[index]))
    groups = min(by_size, _take(split, slots, indices), key=_site_changes)
    return places_of(split.bounds, groups, micro_batch)


def places_of(
    bounds: Sequence[tuple[int, int]], groups: Sequence[tuple[DeviceSlot, ...]], micro_batch: int
) -> list[StagePlace]:
    """Return a place for each stage: its layers [first, end) and its devices."""
    return [
        StagePlace(
            first=first,
            end=end,
            slots=groups[index],
            others=tuple(slot for other, group in enumerate(groups) if other != index for slot in group),
            index=index,
            stages=len(groups),
            micro_batch=micro_batch,
        )
        for index, (first, end) in enumerate(bounds)
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
