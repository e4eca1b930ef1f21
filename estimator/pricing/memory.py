"""What a rank of an explicit plan holds at its fullest moment, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from estimator.pricing.amounts import Amount, least, most
from estimator.pricing.held import expert_shards, held_parameters
from estimator.pricing.memory_features import (
    CHANNEL_BYTES_PER_S,
    COMMUNICATOR_BYTES_PER_CHANNEL,
    MOST_CHANNELS,
    MemoryFeatures,
)
from estimator.pricing.memory_moment import Moment, moment_of
from estimator.pricing.optimizers import GRAD_WIDTH, OPTIMIZERS
from estimator.pricing.outcome import RankMemory
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from estimator.pricing.stage_work import ChunkWork
from profiles.records import dataclass
from profiles.vocabulary import DTYPE_BYTES, FOUR_BIT_BYTES, NARROW_DTYPES, held_bytes

FIRM_SHARE = 0.25
"""Of the allocator's loose blocks, those that it cannot give back because something lives beside them (assumption)."""


def rank_memory(
    setup: Setup,
    stage_index: int,
    chunks: Sequence[ChunkWork],
    in_flight: Sequence[float],
    *,
    features: MemoryFeatures | None = None,
) -> RankMemory:
    """Bytes on a rank of stage `stage_index` whose chunks do `chunks`, each with `in_flight` micro-batches kept.

    The fullest moment is the backward pass through some layer or the head's loss; the parts are those of that moment,
    and copies that the optimizer's step makes count as reserve. Weights, gradients and optimizer state follow
    Rajbhandari et al. 2020 (sections 3.1 and 5):
    `zero` 1 shards the last, 2 also gradients, 3 also weights, over `sharded_over` ranks; experts over their own
    dp * cp * tp / (ep * etp). `features` None: those declared for the recipe's software. ValueError if the counts of
    chunks differ.
    """
    stage, recipe = setup.stages[stage_index], setup.recipe
    if len(chunks) != len(in_flight) or not chunks:
        raise ValueError(
            f"rank_memory: {len(chunks)} chunks and {len(in_flight)} in flight; expected as many, not none"
        )
    features = features or features_of(recipe)
    standing = standing_bytes(recipe, stage, holdings_of(chunks, stage), features)
    moment = moment_of(chunks, in_flight, stage, recipe, features)
    device = setup.cluster.group_of(stage.slots[0]).device
    outside = outside_bytes(setup, stage, features)
    return joined_memory(stage_index, standing, moment, outside, device.memory_bytes, features)


def joined_memory(
    stage_index: int, standing: StandingBytes, moment: Moment, outside: int, device_bytes: int, features: MemoryFeatures
) -> RankMemory:
    """Return what a rank holds that keeps `standing` and passes through `moment`, with so many bytes outside the
    allocator, on a device of so many."""
    temporary = moment.temporary_bytes + features.workspace_bytes
    reserve = reserve_bytes(
        moment.activation_bytes, temporary, standing.handed_out, standing.step, outside, device_bytes, features
    )
    firm = outside + np.rint(
        firm_bytes(
            moment.activation_bytes, temporary, standing.step, loose_bytes(moment.activation_bytes, temporary, features)
        )
    )
    return RankMemory(
        stage=stage_index,
        weight_bytes=int(standing.weights),
        gradient_bytes=int(standing.gradients),
        optimizer_bytes=int(standing.optimizer),
        activation_bytes=moment.activation_bytes,
        temporary_bytes=temporary,
        communication_bytes=int(standing.communication),
        reserve_bytes=int(reserve),
        firm_reserve_bytes=int(firm),
    )


def features_of(recipe: Recipe) -> MemoryFeatures:
    """The memory habits that are declared for the recipe's software."""
    return recipe.software.memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Parameters on a rank outside and inside the experts, and those of them that learn; those of the blocks outside
    the experts that do and do not, and experts' that do, where products may be narrow; the most of a single
    layer and of one of its matrices (a layer's experts have one together), and those of embedding and head."""

    dense: Amount
    dense_learning: Amount
    experts: Amount
    experts_learning: Amount
    matrices_learning: Amount
    matrices_frozen: Amount
    narrow_experts: Amount
    largest_layer: Amount
    largest_learning: Amount
    largest_matrix: Amount
    ends: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingBytes:
    """What a rank holds whatever the schedule does: weights, gradients, optimizer state, communication buffers; and
    copies that the optimizer's step makes."""

    weights: Amount
    gradients: Amount
    optimizer: Amount
    communication: Amount
    step: Amount

    @property
    def state(self) -> Amount:
        """Weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def handed_out(self) -> Amount:
        """What the allocator has handed out for it, step's copies apart."""
        return self.state + self.communication


def holdings_of(chunks: Sequence[ChunkWork], stage: StageSetup) -> Holdings:
    """What a rank of `stage` holds, however its state is sharded."""
    dense, experts = held_parameters(chunks, stage)
    works = [work for chunk in chunks for work, _ in chunk.works]
    inner = [(work, count) for chunk in chunks for work, count in chunk.works if not work.is_end]
    blocks = [work for work in works if not work.is_end] or works
    return Holdings(
        dense=dense.held,
        dense_learning=dense.learning,
        experts=experts.held,
        experts_learning=experts.learning,
        matrices_learning=sum(work.parameters * count for work, count in inner if not (work.frozen or work.wide)),
        matrices_frozen=sum(
            (work.parameters - work.trainable_parameters) * count for work, count in inner if work.frozen
        ),
        narrow_experts=sum(work.trainable_expert_parameters * count for work, count in inner if not work.wide),
        largest_layer=max(work.parameters + work.expert_parameters for work in blocks),
        largest_learning=max(work.trainable_parameters + work.trainable_expert_parameters for work in blocks),
        largest_matrix=max(work.largest_matrix for work in blocks),
        ends=sum(work.parameters for work in works if work.is_end),
    )


def joined_holdings(each: Sequence[Holdings]) -> Holdings:
    """Return the holdings of many as arrays."""
    return Holdings(
        **{part.name: np.array([getattr(held, part.name) for held in each], float) for part in fields(Holdings)}
    )


def standing_bytes(recipe: Recipe, stage: StageSetup, held: Holdings, features: MemoryFeatures) -> StandingBytes:
    """Bytes of weights, gradients, optimizer state and buffers for `held`, sharded as `stage` is."""
    width = held_bytes(recipe.dtype)
    masters_as_weights = features.weights_are_masters and recipe.software.optimizer_masters and stage.zero == 3
    weight_width = 4 if masters_as_weights else width
    software = recipe.software
    states = OPTIMIZERS[recipe.optimizer].state_bytes(
        recipe.dtype, masters=software.optimizer_masters, narrow_moments=software.moments == "bf16"
    )
    if masters_as_weights:
        states -= 4 if width < 4 else 0
    gradient_width: float = GRAD_WIDTH[recipe.grad_dtype]
    if gradient_width > width:
        gradient_width += features.gradient_copy_bytes
    shards = stage.sharded_over, expert_shards(stage)

    def state(per_parameter: float, *, learning: bool, sharded_from: int) -> Amount:
        over = shards if stage.zero >= sharded_from else (1, 1)
        dense, experts = (held.dense_learning, held.experts_learning) if learning else (held.dense, held.experts)
        return np.ceil(per_parameter * dense / over[0]) + np.ceil(per_parameter * experts / over[1])

    weights = state(weight_width, learning=False, sharded_from=3)
    if recipe.dtype in NARROW_DTYPES and software.keeps_narrow:
        weights = weights + _narrow_bytes(recipe, stage, held, weight_width)
    if software.frozen_as != "held":
        over = shards[0] if stage.zero == 3 else 1
        weights = weights - np.floor((weight_width - FOUR_BIT_BYTES) * held.matrices_frozen / over)
    step: Amount = 0.0
    if GRAD_WIDTH[recipe.grad_dtype] < 4:
        step = state(features.step_copy_bytes, learning=True, sharded_from=1)
    return StandingBytes(
        weights=weights,
        gradients=gradient_width * held.largest_learning
        if features.step_in_backward
        else state(gradient_width, learning=True, sharded_from=2),
        optimizer=0.0
        if "optimizer" in stage.offload or features.paged_states
        else state(states, learning=True, sharded_from=1),
        communication=_communication_bytes(held, stage, recipe, features),
        step=step,
    )


def _narrow_bytes(recipe: Recipe, stage: StageSetup, held: Holdings, wide: float) -> Amount:
    """What the narrow operands of the blocks' matrices add to weights of `wide` bytes, or save where they are all that
    is held. A type whose scales are of blocks has two copies, by rows and by columns; with one scale a tensor the
    second is the first transposed, which frozen weights make when they need it."""
    software, dtype = recipe.software, recipe.dtype
    over = (stage.sharded_over, expert_shards(stage)) if stage.zero == 3 else (1, 1)
    learning = held.matrices_learning / over[0] + held.narrow_experts / over[1]
    frozen = held.matrices_frozen / over[0] + (held.experts - held.experts_learning) / over[1]
    alone = wide if software.narrow_parameters else 0.0
    learning_copies, frozen_copies = 2, 1 if dtype == "fp8" else 2
    return np.ceil(
        learning * (learning_copies * DTYPE_BYTES[dtype] - (0.0 if dtype == "nvfp4" else alone))
        + frozen * (frozen_copies * DTYPE_BYTES[dtype] - alone)
    )


def _communication_bytes(held: Holdings, stage: StageSetup, recipe: Recipe, features: MemoryFeatures) -> Amount:
    """Buckets, and under ZeRO 3 the weights gathered for this layer and the next with one layer's whole gradients."""
    width, grads = held_bytes(recipe.dtype), GRAD_WIDTH[recipe.grad_dtype]
    total = features.bucket_copies * np.minimum(features.bucket_elements, held.dense_learning) * width
    if stage.zero < 3 or stage.sharded_over == 1:
        return total
    gathered, learning = held.largest_layer, held.largest_learning
    if features.gathers_matrices:
        # Its gradient is as wide as what was gathered.
        gathered, learning = held.largest_matrix, least(held.largest_matrix, held.largest_learning) * width / grads
    # What is held in the narrow type alone is gathered in it.
    narrow = recipe.software.narrow_parameters and recipe.dtype in NARROW_DTYPES and recipe.dtype != "nvfp4"
    total = total + 2 * gathered * (DTYPE_BYTES[recipe.dtype] if narrow else width) + learning * grads
    if features.keeps_ends_gathered:
        total = total + held.ends * width
    return total


def outside_bytes(setup: Setup, stage: StageSetup, features: MemoryFeatures, *, stages: int | None = None) -> int:
    """Context and communicators: one of all ranks, one for each axis, and between stages one for each neighbour and one
    for the two ends beside that of the whole pipeline, which has so many `stages` (None: those of `setup`)."""
    communicators = sum(degree > 1 for degree in (stage.tp, stage.cp, stage.dp, stage.ep))
    several = (len(setup.stages) if stages is None else stages) > 1
    communicators += 4 if several else 0
    communicators += 1 if several or setup.devices > 1 else 0
    group = setup.cluster.group_of(stage.slots[0])
    channels = max(2, min(MOST_CHANNELS, round(group.island_link.bandwidth_bytes_per_s / CHANNEL_BYTES_PER_S)))
    return features.context_bytes + communicators * channels * COMMUNICATOR_BYTES_PER_CHANNEL


def reserve_bytes(
    activation: Amount,
    temporary: Amount,
    standing: Amount,
    step: Amount,
    outside: Amount,
    device: Amount,
    features: MemoryFeatures,
) -> Amount:
    """Return what stands outside the allocator, or inside it without being handed out at the fullest moment.

    Loose blocks, and those of the step's copies, are given back when the device is full, all but `FIRM_SHARE` of them
    and what the step needs itself.
    """
    loose = loose_bytes(activation, temporary, features)
    firm = firm_bytes(activation, temporary, step, loose)
    room = device - standing - activation - temporary - outside
    return outside + np.rint(most(firm, least(loose + step, room)))


def loose_bytes(activation: Amount, temporary: Amount, features: MemoryFeatures) -> Amount:
    """Return the bytes of the allocator's blocks that nothing uses at the fullest moment."""
    return features.fragmentation * temporary + features.activation_fragmentation * activation


def firm_bytes(activation: Amount, temporary: Amount, step: Amount, loose: Amount) -> Amount:
    """Return the bytes of loose blocks and step's copies that a full device cannot get back."""
    return most(FIRM_SHARE * loose, step - temporary - activation)
