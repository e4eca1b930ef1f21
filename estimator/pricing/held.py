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
    counted = [chunk.counted for chunk in chunks]
    learning, shared = sum([each.dense_learning for each in counted]), 0
    if any(chunk.shared_parameters for chunk in chunks):
        shared = sum(chunk.shared_parameters for chunk in chunks)
        works = [work for chunk in chunks for work, _ in chunk.works]
        holders = [work for work in works if work.is_end] or works
        learning -= shared if all(work.trainable_parameters and not work.frozen for work in holders) else 0
    return (
        HeldParameters(
            held=sum([each.dense for each in counted]) - shared,
            learning=learning,
            shards=stage.sharded_over,
        ),
        HeldParameters(
            held=sum([each.experts for each in counted]),
            learning=sum([each.experts_learning for each in counted]),
            shards=expert_shards(stage),
        ),
    )


def expert_shards(stage: StageSetup) -> int:
    """Over how many ranks the state of one rank's experts is sharded."""
    if stage.zero == 0:
        return 1
    ranks = stage.dp * stage.cp * stage.tp // (stage.ep * stage.etp)
    return max(1, stage.sharded_over * ranks // (stage.dp * stage.cp))
