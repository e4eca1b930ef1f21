"""Who sends which part of a boundary tensor to whom: everything that is answered for arrives, once, from its holder."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.one_job.running.program import StageProgram
from planner.one_job.running.regions import Piece, Range, pieces_to_receive, pieces_to_send, region_of
from profiles.vocabulary import Degrees

Cell = tuple[int, int]
"""A sample and a place: one element of a boundary tensor."""


def stage(
    number: int,
    first_rank: int,
    tp: int,
    shares: tuple[int, ...],
    *,
    sequence_parallel: bool = False,
    dp_fastest: bool = False,
) -> StageProgram:
    dp = len(shares)
    ranks = tuple(range(first_rank, first_rank + dp * tp))
    if dp_fastest:
        ranks = tuple(ranks[t * dp + d] for d in range(dp) for t in range(tp))
    return StageProgram(
        number=number,
        chunks=((number, number + 1),),
        ranks=ranks,
        degrees=Degrees(tp=tp, dp=dp, sequence_parallel=sequence_parallel),
        shares=shares,
        zero=0,
        shard=1,
        replicate=dp,
        recompute="none",
        recompute_layers=0,
    )


@st.composite
def shares_of(draw: st.DrawFn, samples: int) -> tuple[int, ...]:
    """A micro-batch of so many samples among up to five replicas, each with one or more."""
    cuts = draw(st.lists(st.integers(1, samples - 1), max_size=4, unique=True)) if samples > 1 else []
    ends = [0, *sorted(cuts), samples]
    return tuple(end - first for first, end in pairwise(ends))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[StageProgram, StageProgram, int]:
    """Two stages, each with its own degrees, and the boundary's length. Tokens that a sequence-parallel stage splits
    are always a multiple of its tp: no layer could hold others."""
    samples = draw(st.integers(1, 8))
    degrees = [draw(st.integers(1, 5)) for _ in range(2)]
    splits = [draw(st.booleans()) for _ in range(2)]
    multiple = 1
    for tp, split in zip(degrees, splits, strict=True):
        multiple *= tp if split else 1
    length = draw(st.integers(1, 12)) * multiple
    made, first = [], 0
    for number, (tp, split) in enumerate(zip(degrees, splits, strict=True)):
        shares = draw(shares_of(samples))
        dp_fastest = draw(st.booleans())
        made.append(stage(number, first, tp, shares, sequence_parallel=split, dp_fastest=dp_fastest))
        first += len(shares) * tp
    return made[0], made[1], length


def cells(samples: Range, places: Range) -> set[Cell]:
    return set(product(range(*samples), range(*places)))


def inside(part: Range, whole: Range) -> bool:
    return whole[0] <= part[0] < part[1] <= whole[1]


@given(pairs())
def test_every_element_arrives_once_where_it_is_answered_for(case: tuple[StageProgram, StageProgram, int]) -> None:
    sender, receiver, length = case
    for rank in receiver.ranks:
        region = region_of(receiver, rank, length)
        arrived: Counter[Cell] = Counter()
        for piece in pieces_to_receive(sender, receiver, rank, length):
            arrived.update(cells(piece.samples, piece.places))
        assert arrived == Counter(cells(region.samples, region.own))


@given(pairs())
def test_what_is_sent_is_what_is_received(case: tuple[StageProgram, StageProgram, int]) -> None:
    """Piece for piece between each two ranks, and in one order: messages of a route have one tag."""
    sender, receiver, length = case
    sent = {rank: list(pieces_to_send(sender, receiver, rank, length)) for rank in sender.ranks}
    received = {rank: list(pieces_to_receive(sender, receiver, rank, length)) for rank in receiver.ranks}
    for one, other in product(sender.ranks, receiver.ranks):
        leaving = [(piece.samples, piece.places) for piece in sent[one] if piece.peer == other]
        coming = [(piece.samples, piece.places) for piece in received[other] if piece.peer == one]
        assert leaving == coming
        assert len(leaving) <= 1
    assert sum(map(len, sent.values())) == sum(map(len, received.values()))


@given(pairs())
def test_nobody_sends_what_he_does_not_hold(case: tuple[StageProgram, StageProgram, int]) -> None:
    sender, receiver, length = case
    for rank in sender.ranks:
        here = region_of(sender, rank, length)
        for piece in pieces_to_send(sender, receiver, rank, length):
            assert inside(piece.samples, here.samples)
            assert inside(piece.places, here.held)
            assert piece.peer in receiver.ranks


@given(pairs())
def test_a_stages_own_parts_cover_the_tensor(case: tuple[StageProgram, StageProgram, int]) -> None:
    """Once where tp divides the places, so that gathering them gives the whole; else each rank answers for all."""
    for one, length in ((case[0], case[2]), (case[1], case[2])):
        count = 1 if length % one.degrees.tp == 0 else one.degrees.tp
        covered: Counter[Cell] = Counter()
        for rank in one.ranks:
            region = region_of(one, rank, length)
            assert inside(region.own, region.held)
            assert region.held == (region.own if one.splits_tokens else (0, length))
            covered.update(cells(region.samples, region.own))
        samples = (0, sum(one.shares))
        assert covered == Counter(dict.fromkeys(cells(samples, (0, length)), count))


@given(pairs())
def test_a_messages_bytes_are_spread_over_the_tensor_parallel_ranks(
    case: tuple[StageProgram, StageProgram, int],
) -> None:
    """Where both degrees divide the places, no rank sends more than its part of its replica's activations."""
    sender, receiver, length = case
    if length % sender.degrees.tp or length % receiver.degrees.tp:
        return
    for rank in sender.ranks:
        region = region_of(sender, rank, length)
        total = sum(
            (piece.samples[1] - piece.samples[0]) * (piece.places[1] - piece.places[0])
            for piece in pieces_to_send(sender, receiver, rank, length)
        )
        first, end = region.samples
        assert total == (end - first) * length // sender.degrees.tp


def test_two_replicas_to_one_of_two_ranks() -> None:
    """By hand: four samples of six places from dp 2 to tp 2."""
    sender, receiver = stage(0, 0, 1, (3, 1)), stage(1, 2, 2, (4,))
    assert list(pieces_to_receive(sender, receiver, 3, 6)) == [
        Piece(peer=0, samples=(0, 3), places=(3, 6)),
        Piece(peer=1, samples=(3, 4), places=(3, 6)),
    ]
    assert list(pieces_to_send(sender, receiver, 1, 6)) == [
        Piece(peer=2, samples=(3, 4), places=(0, 3)),
        Piece(peer=3, samples=(3, 4), places=(3, 6)),
    ]


@pytest.mark.parametrize(("rank", "peer"), [(2, 0), (3, 1), (4, 0)])
def test_places_that_tp_does_not_divide_come_from_the_senders_in_turn(rank: int, peer: int) -> None:
    sender, receiver = stage(0, 0, 2, (2,)), stage(1, 2, 3, (2,))
    assert list(pieces_to_receive(sender, receiver, rank, 7)) == [Piece(peer=peer, samples=(0, 2), places=(0, 7))]
