"""Which part of a tensor each rank holds, and who sends which part of it to whom where two stages meet. No framework.

A boundary tensor is (samples of the micro-batch, first dimension, ...). Replicas hold ranges of samples. The first
dimension (tokens, channels) is cut among a stage's tensor-parallel ranks: each sends its part alone, whether or not it
holds the rest, and a receiver that needs the whole gathers it from its own group (Narayanan et al. 2021, section 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.one_job.running.program import StageProgram
from profiles.records import dataclass

Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a boundary tensor that goes to, or comes from, the rank `peer`: samples and places in the first
    dimension, both counted over the whole micro-batch."""

    peer: int
    samples: Range
    places: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """What of a boundary tensor a rank holds, and which part of the first dimension it answers for in exchanges."""

    samples: Range
    held: Range
    own: Range


def region_of(stage: StageProgram, rank: int, length: int) -> Region:
    """Return what `rank` has of a boundary tensor with `length` places. Where tp does not divide them every rank
    answers for all of them, and nothing is gathered."""
    replica, index = stage.place(rank)
    part = length // stage.degrees.tp
    answered = (index * part, (index + 1) * part) if length % stage.degrees.tp == 0 else (0, length)
    return Region(samples=stage.samples(replica), held=answered if stage.splits_tokens else (0, length), own=answered)


def pieces_to_receive(sender: StageProgram, receiver: StageProgram, rank: int, length: int) -> Iterator[Piece]:
    """Yield the parts that `rank` of `receiver` gets, from which ranks of `sender`.

    Senders that answer for the same places (see `region_of`) are taken in turn.
    """
    wanted = region_of(receiver, rank, length)
    turn = receiver.place(rank)[1] % sender.degrees.tp
    alike = length % sender.degrees.tp != 0
    for replica in range(sender.degrees.dp):
        for index in range(sender.degrees.tp):
            if alike and index != turn:
                continue
            peer = sender.rank_at(replica, index)
            there = region_of(sender, peer, length)
            samples, places = overlap(wanted.samples, there.samples), overlap(wanted.own, there.own)
            if samples and places:
                yield Piece(peer=peer, samples=samples, places=places)


def pieces_to_send(sender: StageProgram, receiver: StageProgram, rank: int, length: int) -> Iterator[Piece]:
    """Yield the parts that `rank` of `sender` gives, to which ranks of `receiver`."""
    for peer in receiver.ranks:
        for piece in pieces_to_receive(sender, receiver, peer, length):
            if piece.peer == rank:
                yield Piece(peer=peer, samples=piece.samples, places=piece.places)


def overlap(first_range: Range, second_range: Range) -> Range | None:
    """Return what two ranges have in common, None where that is nothing."""
    first, end = max(first_range[0], second_range[0]), min(first_range[1], second_range[1])
    return (first, end) if first < end else None


def within(part: Range, whole: Range) -> Range:
    """Return `part` counted from the start of `whole`."""
    return part[0] - whole[0], part[1] - whole[0]


def length_of(part: Range) -> int:
    """Return how many places `part` has."""
    return part[1] - part[0]


def table_rows(stage: StageProgram, tp_rank: int, vocab: int) -> Range:
    """Return the rows of a table of `vocab` rows that a tensor-parallel rank holds, without padding."""
    rows = -(-vocab // stage.degrees.tp)
    return min(vocab, tp_rank * rows), min(vocab, (tp_rank + 1) * rows)
