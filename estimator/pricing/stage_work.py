"""What the ranks of a stage compute: the layers of its chunks as work, alike ones together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from estimator.layers.graph import repeated_parameters, shared_weights, table_parameters
from estimator.layers.kinds import KINDS
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.recipe import Recipe, Setup, Software, StageSetup
from estimator.pricing.wide_layers import narrow_layers
from models_zoo.layers import Experts, Layer, TransformerBlock
from models_zoo.model import Model
from profiles.cluster import DeviceSlot
from profiles.dispatchers import load_dispatcher
from profiles.records import dataclass, replace
from profiles.vocabulary import NARROW_DTYPES, Device, Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedParameters:
    """Parameters outside and inside the experts, each layer's by itself, and those of them that learn."""

    dense: int
    dense_learning: int
    experts: int
    experts_learning: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWork:
    """The work of a chunk: (work, how many layers of it) pairs, what each is the work of, and the parameters that two
    of them share. `counted`: what all layers hold together, which is asked for again and again."""

    works: tuple[tuple[Work, int], ...]
    layers: tuple[tuple[Layer, Split], ...]
    shared_parameters: int
    counted: CountedParameters = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        works = self.works
        counted = CountedParameters(
            dense=sum([work.parameters * count for work, count in works]),
            dense_learning=sum([work.trainable_parameters * count for work, count in works]),
            experts=sum([work.expert_parameters * count for work, count in works]),
            experts_learning=sum([work.trainable_expert_parameters * count for work, count in works]),
        )
        object.__setattr__(self, "counted", counted)


def split_of(setup: Setup, stage: StageSetup, layer_index: int, *, recomputed: bool) -> Split:
    """How a rank of `stage` holds layer `layer_index`."""
    recipe = setup.recipe
    layer = setup.model.layers[layer_index]
    is_frozen, passes_gradient = _learning(recipe, layer_index)
    is_wide = layer_index not in narrow_layers(setup.model, recipe)
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
        loss_in_place=recipe.software.loss_in_place,
        weighs_inside=recipe.software.weighs_inside or recipe.software.grouped_products == "fused",
        vocabulary_multiple=recipe.vocabulary_multiple,
        recompute=stage.recompute if recomputed else "none",
        recomputes_needed=recipe.software.recomputes_needed,
        fused_gate=recipe.software.fused_gate,
        fused_softmax=recipe.software.fused_softmax,
        selective=recipe.software.selective,
        fused_experts=recipe.software.grouped_products == "fused",
        stashes_experts=recipe.software.paged_stash,
        sends_once=load_dispatcher(recipe.software.dispatch).once,
        capacity_factor=recipe.moe_capacity_factor,
        imbalance=recipe.moe_imbalance,
        lora_rank=recipe.lora_rank,
        lora_targets=recipe.software.lora_targets,
        frozen_as=recipe.software.frozen_as if isinstance(layer, TransformerBlock) else "held",
        wide=is_wide,
        keeps_narrow=recipe.software.keeps_narrow and recipe.dtype in NARROW_DTYPES and not is_wide,
        narrow_activations=recipe.software.narrow_activations,
        frozen=recipe.lora_rank > 0 or is_frozen,
        passes_gradient=passes_gradient,
    )


def _learning(recipe: Recipe, layer_index: int) -> tuple[bool, bool]:
    """Whether the layer is one of those that are frozen, and whether gradients pass through it."""
    if recipe.frozen_layers is None:
        return False, True
    first, end = recipe.frozen_layers
    return first <= layer_index < end, first > 0 or layer_index >= end


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
        held: Counter[tuple[Layer, Split]] = Counter()
        for layer, recomputed, index, repeats in _runs(setup, stage, first, end, left):
            held[layer, split_of(setup, stage, index, recomputed=recomputed)] += repeats
            left -= repeats * int(recomputed)
        works = []
        for (layer, split), count in held.items():
            work = layer_work(layer, split)
            if isinstance(work, Infeasible):
                return Infeasible(reason=f"stage {number}: {work.reason}", lacking=work.lacking)
            works.append((work, count))
        shared = shared_in_chunk(setup, stage, first, end)
        chunks.append(ChunkWork(works=tuple(works), layers=tuple(held), shared_parameters=shared))
    return tuple(chunks)


def shared_in_chunk(setup: Setup, stage: StageSetup, first: int, end: int) -> int:
    """Return the parameters that layers [first, end) hold together but count each: copies beyond the first."""
    multiple = setup.recipe.vocabulary_multiple
    return repeated_parameters(shared_weights(setup.model, stage.tp, vocabulary_multiple=multiple), first, end)


def experts_a_token(model: Model, software: Software) -> int:
    """Return to how many experts a token goes at most, where the software sends it once to those in one place; else
    1."""
    if not load_dispatcher(software.dispatch).once:
        return 1
    blocks = (layer.feed_forward for layer in model.layers if isinstance(layer, TransformerBlock))
    return max((block.top_k for block in blocks if isinstance(block, Experts)), default=1)


def _runs(setup: Setup, stage: StageSetup, first: int, end: int, left: int) -> Iterator[tuple[Layer, bool, int, int]]:
    """Runs of layers [first, end) that are one layer again and again: it, whether it is recomputed as one of the `left`
    that may be, the first's index, and how many there are. Recomputation is counted in blocks; an embedding or head is
    never run again."""
    layers, frozen = setup.model.layers, setup.recipe.frozen_layers
    narrow = narrow_layers(setup.model, setup.recipe)
    index = start = first
    while start < end:
        layer = layers[start]
        recomputed = stage.recompute != "none" and left > 0 and not KINDS[type(layer)].is_end
        most = min(end, start + left) if recomputed else end
        index = start + 1
        # A recomputed layer and the same one kept are different work, and so are frozen or wide ones and others.
        while index < most and frozen is None and layers[index] is layer and (index in narrow) == (start in narrow):
            index += 1
        yield layer, recomputed, start, index - start
        left -= (index - start) * int(recomputed)
        start = index


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
    """Return the bytes that one rank of `stage` hands to the next stage for a micro-batch; 0 of the model's last layer
    alone."""
    layers = setup.model.layers
    end = next((end for _, end in stage.chunks if end < len(layers)), None)
    if end is None:
        return 0
    work = layer_work(layers[end - 1], split_of(setup, stage, end - 1, recomputed=False))
    return 0 if isinstance(work, Infeasible) else work.output_bytes


def tied_bytes(setup: Setup) -> int:
    """Return the bytes of the table's gradient that first and last stage sum, where the projection shares it."""
    if len(setup.stages) == 1 or setup.recipe.lora_rank:
        return 0
    multiple = setup.recipe.vocabulary_multiple
    size = table_parameters(setup.model, setup.stages[0].tp, vocabulary_multiple=multiple)
    return size * GRAD_WIDTH[setup.recipe.grad_dtype]
