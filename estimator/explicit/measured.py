"""Which of a plan's layers somebody has profiled."""

from __future__ import annotations

from estimator.explicit.split import Split
from estimator.explicit.stage_work import ChunkWork
from estimator.layer_times import Lookup
from profiles.vocabulary import LayerTime, Shard


def measured_times(chunk: ChunkWork, lookup: Lookup) -> tuple[LayerTime | None, ...]:
    """The profiled time of each of the chunk's works, without recomputation, or None."""
    found: list[LayerTime | None] = []
    for layer, split in chunk.layers:
        shard = profiled_shard(split)
        found.append(None if shard is None else lookup(layer, shard))
    return tuple(found)


def profiled_shard(split: Split) -> Shard | None:
    """The shard whose profile `split` can use: a plain one, neither part of a sequence nor of the experts alone, with
    all of its weights learning. None where no profile can be of it."""
    if split.cp > 1 or split.ep not in (1, split.tp) or split.frozen or split.lora_rank:
        return None
    return Shard(
        tp=split.tp,
        sequence_parallel=split.sequence_parallel,
        micro_batch_per_rank=split.samples,
        seq_len=split.seq_len,
        dtype=split.dtype,
        attention=split.attention,
    )
