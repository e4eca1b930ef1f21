"""What the ranks of a stage compute: the layers of its chunks as work, alike ones together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from estimator.layers.graph import repeated_parameters, shared_weights
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.recipe import Setup, StageSetup
from models_zoo.layers import Embedding, Head, Layer, TracedLayer, TransformerBlock
from models_zoo.model import Model
from profiles.cluster import DeviceSlot
from profiles.vocabulary import Device, Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWork:
    """The work of a chunk: (work, how many layers of it) pairs, what each is the work of, and the parameters that two
    of them share."""

    works: tuple[tuple[Work, int], ...]
    layers: tuple[tuple[Layer, Split], ...]
    shared_parameters: int


def split_of(setup: Setup, stage: StageSetup, layer_index: int, *, recomputed: bool) -> Split:
    """How a rank of `stage` holds layer `layer_index`."""
    recipe = setup.recipe
    frozen = recipe.frozen_layers
    return Split(
        samples=setup.samples_per_rank(stage),
        seq_len=recipe.seq_len,
        dtype=recipe.dtype,
        tp=stage.tp,
        sequence_parallel=stage.sequence_parallel and stage.tp > 1,
        cp=stage.cp,
        ep=stage.ep,
        etp=stage.etp,
        attention=recipe.attention,
        kernels=recipe.software.kernels,
        fused_cross_entropy=recipe.software.fused_cross_entropy,
        vocabulary_multiple=recipe.vocabulary_multiple,
        recompute=stage.recompute if recomputed else "none",
        capacity_factor=recipe.moe_capacity_factor,
        imbalance=recipe.moe_imbalance,
        lora_rank=recipe.lora_rank,
        frozen=recipe.lora_rank > 0 or (frozen is not None and frozen[0] <= layer_index < frozen[1]),
        passes_gradient=not (frozen is not None and frozen[0] == 0 and layer_index < frozen[1]),
    )


def stage_chunks(setup: Setup, number: int) -> tuple[ChunkWork, ...] | Infeasible:
    """The work of each chunk of stage `number`; Infeasible where a layer cannot be held so."""
    stage = setup.stages[number]
    ranks = len(stage.slots)
    if ranks % (stage.ep * stage.etp):
        return Infeasible(
            reason=f"stage {number}: ep {stage.ep} * etp {stage.etp} does not divide its {ranks} ranks",
            lacking="divisibility",
        )
    left = stage.layers if stage.recompute_layers is None else stage.recompute_layers
    chunks = []
    for first, end in stage.chunks:
        counts: Counter[tuple[Layer, Split]] = Counter()
        for layer, recomputed, index, repeats in _runs(setup, stage, first, end, left):
            counts[layer, split_of(setup, stage, index, recomputed=recomputed)] += repeats
            left -= repeats * int(recomputed)
        works = []
        for (layer, split), count in counts.items():
            work = layer_work(layer, split)
            if isinstance(work, Infeasible):
                return Infeasible(reason=f"stage {number}: {work.reason}", lacking=work.lacking)
            works.append((work, count))
        shared = shared_in_chunk(setup.model, first, end, stage.tp * setup.recipe.vocabulary_multiple, stage.tp)
        chunks.append(ChunkWork(works=tuple(works), layers=tuple(counts), shared_parameters=shared))
    return tuple(chunks)


def _runs(setup: Setup, stage: StageSetup, first: int, end: int, left: int) -> Iterator[tuple[Layer, bool, int, int]]:
    """Runs of layers [first, end) that are one layer again and again: it, whether it is recomputed as one of the `left`
    that may be, the first's index, and how many there are. Recomputation is counted in blocks; an embedding or head is
    never run again."""
    layers, frozen = setup.model.layers, setup.recipe.frozen_layers
    index = start = first
    while start < end:
        layer = layers[start]
        recomputed = stage.recompute != "none" and left > 0 and not isinstance(layer, Embedding | Head)
        most = min(end, start + left) if recomputed else end
        index = start + 1
        # A recomputed layer and the same one kept are different work, and so are frozen ones and others.
        while index < most and frozen is None and layers[index] is layer:
            index += 1
        yield layer, recomputed, start, index - start
        left -= (index - start) * int(recomputed)
        start = index


def tied_ends(model: Model) -> bool:
    """Whether the head's projection is the embedding's table."""
    return any(isinstance(layer, Head) and layer.tied for layer in model.layers)


def table_parameters(model: Model, multiple: int, tp: int) -> int:
    """A rank's share of the token table, padded to a multiple of `multiple`."""
    first = next((layer for layer in model.layers if isinstance(layer, Embedding)), None)
    if first is None:
        return 0
    padded = -(-first.vocab // multiple) * multiple
    return padded // tp * (first.factor or first.hidden)


def shared_in_chunk(model: Model, first: int, end: int, multiple: int, tp: int) -> int:
    """Parameters that layers [first, end) hold together but count each: copies of a tied table beyond the first, and
    what several layers of a traced module share."""
    if any(isinstance(layer, TracedLayer) for layer in model.layers):
        return repeated_parameters(shared_weights(model, tp), first, end)
    if not any(isinstance(layer, Head | Embedding) and layer.tied for layer in model.layers):
        return 0
    holders = sum(
        isinstance(layer, Embedding) or (isinstance(layer, Head) and layer.tied) for layer in model.layers[first:end]
    )
    return max(0, holders - 1) * table_parameters(model, multiple, tp)


def stage_device(setup: Setup, stage: StageSetup) -> Device:
    """The device that limits a stage: of several kinds the one of least FLOP/s (none counts as least), then of least
    bandwidth, with the least memory of them all."""
    sites = setup.cluster.sites
    if len(sites) == len(sites[0].nodes) == 1:
        return sites[0].nodes[0].device
    kinds = list(dict.fromkeys(setup.cluster.group_of(slot).device for slot in _one_of_each(stage)))
    slowest = min(
        kinds, key=lambda device: (device.peak(setup.recipe.dtype) or 0.0, device.memory_bandwidth_bytes_per_s)
    )
    return replace(slowest, memory_bytes=min(device.memory_bytes for device in kinds)) if kinds[1:] else slowest


def _one_of_each(stage: StageSetup) -> list[DeviceSlot]:
    """One slot of each node group that the stage has ranks in."""
    return list({(slot.site, slot.group): slot for slot in stage.slots}.values())


def boundary_bytes(setup: Setup, stage: StageSetup) -> int:
    """Bytes that one rank of `stage` hands to the next stage for a micro-batch."""
    hidden = next(
        (layer.hidden for layer in setup.model.layers if isinstance(layer, TransformerBlock | Embedding)), None
    )
    if hidden is None:
        chunk = stage.chunks[0]
        split = split_of(setup, stage, chunk[1] - 1, recomputed=False)
        work = layer_work(setup.model.layers[chunk[1] - 1], split)
        return 0 if isinstance(work, Infeasible) else work.output_bytes
    split = split_of(setup, stage, stage.chunks[0][0], recomputed=False)
    return split.local_rows * hidden * split.width
