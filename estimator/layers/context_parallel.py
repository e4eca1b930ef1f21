"""What context parallelism adds to an attention layer: keys and values round the ring, and what the ring keeps."""

from __future__ import annotations

from estimator.layers.parts import Piece
from estimator.layers.split import Split
from profiles.vocabulary import Collective, CollectiveOp, Phase


def context_parallel_collectives(split: Split, *, kv_heads: int, qk_dim: int, v_dim: int, queries: int = 0) -> Piece:
    """Return one layer's traffic of ring attention over the cp ranks (Liu et al. 2023; Transformer Engine's `p2p`).

    Forward, each rank's keys and values visit every other rank: cp - 1 steps of rows * kv_heads * (qk_dim + v_dim)
    elements, which is a ring all-gather of them. Backward they go round again, and their gradients with them, which is
    a reduce-scatter. The steps run beside attention's own work.

    With `queries` (this rank's query heads) also the second copy of the result that the ring keeps for backward:
    rows * queries * v_dim elements. That it is kept rests on the peaks of SMXB-0037, -0039, -0040, -0042 and -0043
    (Megatron 0.14 with Transformer Engine 2.11); elsewhere it is modelled.
    """
    if split.cp == 1:
        return Piece()
    gathered = split.samples * split.seq_len * kv_heads * (qk_dim + v_dim) * split.width

    def round_the_ring(op: CollectiveOp, name: str, phase: Phase) -> Collective:
        return Collective(op=op, bytes=gathered, phase=phase, axis="cp", ranks=split.cp, name=f"attention.{name}")

    return Piece(
        collectives=(
            round_the_ring("all_gather", "key_value", "forward"),
            round_the_ring("all_gather", "key_value", "backward"),
            round_the_ring("reduce_scatter", "key_value_gradient", "backward"),
        ),
        saved_bytes=split.rows * queries * v_dim * split.width,
    )
