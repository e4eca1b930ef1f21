"""Which of a plan's layers somebody has profiled."""

from __future__ import annotations

from estimator.layers.split import Split
from estimator.pricing.layer_times import Lookup
from estimator.pricing.stage_work import ChunkWork
from models_zoo.layers import Layer, experts_of
from profiles.vocabulary import LayerTime, Shard


def measured_times(chunk: ChunkWork, lookup: Lookup) -> tuple[LayerTime | None, ...]:
    """The profiled time of each of the chunk's works, without recomputation, or None."""
    found: list[LayerTime | None] = []
    for layer, split in chunk.layers:
        shard = profiled_shard(layer, split)
        found.append(None if shard is None else lookup(layer, shard))
    return tuple(found)


def profiled_shard(layer: Layer, split: Split) -> Shard | None:
    """The shard whose profile `layer` under `split` can use, None where no profile can be of it.

    A profile is of a whole sequence with all weights learning; of a layer with experts it is of those that tp ranks
    share, evenly visited.
    """
    if split.cp > 1 or split.frozen or split.lora_rank or split.wide:
        return None
    for experts in experts_of(layer):
        shared = (split.ep, split.etp, split.imbalance) == (split.tp, 1, 1.0)
        if not shared or split.capacity_factor not in (None, experts.capacity_factor):
            return None
    return Shard(
        tp=split.tp,
        sequence_parallel=split.sequence_parallel,
        micro_batch_per_rank=split.samples,
        seq_len=split.seq_len,
        dtype=split.dtype,
        attention=split.attention,
    )
