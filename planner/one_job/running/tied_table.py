"""Who exchanges which rows of a token table that several stages hold: the first and the last layer's. No framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from models_zoo.layers import Embedding
from planner.one_job.running.program import Program, tied_tables
from planner.one_job.running.regions import Range, overlap, table_rows, within
from profiles.records import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePeer:
    """Rows of the table that this rank and another stage's rank both hold, counted from this one's first row."""

    stage: int
    rank: int
    rows: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePeers:
    """Whom a rank of stage `stage` sends its gradients to, and whose it gets; `holders` are the stages of the table."""

    stage: int
    holders: tuple[int, ...]
    sends: tuple[TablePeer, ...]
    receives: tuple[TablePeer, ...]


def table_peers(program: Program, rank: int) -> TablePeers | None:
    """Return the peers of `rank` for the token table, None where its stage alone holds it, or has no part of it."""
    tables, stage = tied_tables(program.model), program.stage_of(rank)
    holders = [other for other in program.stages if any(index in tables for index in other.layer_indices())]
    if stage not in holders or len(holders) < 2:
        return None
    embedding = program.model.layers[0]
    assert isinstance(embedding, Embedding), "what layers share is the first one's table"
    vocab = embedding.vocab
    sends, receives = [], []
    replica, tp_rank = stage.place(rank)
    rows = table_rows(stage, tp_rank, vocab)
    for other in holders:
        if other is stage:
            continue
        for peer in other.ranks:
            peer_replica, peer_tp_rank = other.place(peer)
            both = overlap(rows, table_rows(other, peer_tp_rank, vocab))
            if both is None:
                continue
            common = TablePeer(stage=other.number, rank=peer, rows=within(both, rows))
            if peer_replica == replica % other.degrees.dp:
                receives.append(common)
            if replica == peer_replica % stage.degrees.dp:
                sends.append(common)
    return TablePeers(
        stage=stage.number,
        holders=tuple(holder.number for holder in holders),
        sends=tuple(sends),
        receives=tuple(receives),
    )


def in_order(totals: Mapping[int, T]) -> Sequence[T]:
    """Return the stages' gradients in the order in which every holder adds them: all copies stay equal to the last
    bit."""
    return [totals[number] for number in sorted(totals)]
