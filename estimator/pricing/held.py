"""What a rank of a stage holds of the model, and over how many ranks its state is sharded."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.pricing.recipe import StageSetup
from estimator.pricing.stage_work import ChunkWork
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """Parameters of one rank, those of them that learn, and over how many ranks their state is sharded where it is."""

    held: int
    learning: int
    shards: int


def held_parameters(chunks: Sequence[ChunkWork], stage: StageSetup) -> tuple[HeldParameters, HeldParameters]:
    """Parameters outside and inside the experts; a table that two layers share counts once.

    Experts are sharded over the ranks that hold the same ones: dp * cp * tp / (ep * etp) of them, or that part of these
    that shares one copy (HSDP).
    """
    pairs = [pair for chunk in chunks for pair in chunk.works]
    shared = sum(chunk.shared_parameters for chunk in chunks)
    learning = sum(work.trainable_parameters * count for work, count in pairs)
    holders = [work for work, _ in pairs if work.is_end] or [work for work, _ in pairs]
    table_learns = all(work.trainable_parameters and not work.frozen for work in holders)
    return (
        HeldParameters(
            held=sum(work.parameters * count for work, count in pairs) - shared,
            learning=learning - shared if table_learns else learning,
            shards=stage.sharded_over,
        ),
        HeldParameters(
            held=sum(work.expert_parameters * count for work, count in pairs),
            learning=sum(work.trainable_expert_parameters * count for work, count in pairs),
            shards=expert_shards(stage),
        ),
    )


def expert_shards(stage: StageSetup) -> int:
    """Over how many ranks the state of one rank's experts is sharded."""
    if stage.zero == 0:
        return 1
    ranks = stage.dp * stage.cp * stage.tp // (stage.ep * stage.etp)
    return max(1, stage.sharded_over * ranks // (stage.dp * stage.cp))
