"""Ways to cut a model's layers into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, combinations
from math import comb

from estimator.pricing.build import Ranges, stage_chunks
from models_zoo.layers import Embedding, Head
from models_zoo.model import Model
from profiles.vocabulary import Infeasible

FEW = 64
"""Up to so many ways to cut the layers are all tried."""
Cut = tuple[Ranges, ...]
"""Of every stage: the [first, end) ranges of its chunks."""


def cuts_of(model: Model, *, pp: int, vpp: int, weights: Sequence[float], everything: bool = False) -> tuple[Cut, ...]:
    """The ways that are searched, the even one first.

    All contiguous ones with a layer in each chunk where these are `FEW` (or `everything`). Else: the even one; those
    whose first and last chunk have fewer blocks by what embedding and head weigh, and one more or less than that, with
    the others even; and where blocks differ the one whose heaviest chunk by `weights` (a layer's each) is lightest. Of
    several chunks a stage, ends have one block fewer at most: chunks of a stage that differ much stall its ring, which
    the closed form of interleaving does not see. Empty where there are fewer layers than chunks.
    """
    embeds, heads = isinstance(model.layers[0], Embedding), isinstance(model.layers[-1], Head)
    blocks = len(model.layers) - embeds - heads
    block = sum(weights[embeds : embeds + blocks]) / blocks if blocks else 0.0
    ends = (round(weights[0] / block) if embeds and block else 0, round(weights[-1] / block) if heads and block else 0)
    # Of equal blocks between embedding and head a cut by weights is none of the others' betters.
    differ = tuple(weights) if _blocks_differ(model) else None
    return _cuts(model, pp, vpp, ends, differ, everything)


def most_apart(model: Model, *, pp: int, vpp: int, everything: bool = False) -> int | None:
    """Return of how many blocks two chunks of a stage differ at most in any of `cuts_of`; None where in any number."""
    if vpp == 1:
        return 0
    if _blocks_differ(model) or everything or comb(len(model.layers) - 1, pp * vpp - 1) <= FEW:
        return None
    # Of four chunks and more the ends have as many as an even share or one fewer, the others two fewer to one more.
    return 3


@lru_cache(maxsize=64)
def _blocks_differ(model: Model) -> bool:
    ends = isinstance(model.layers[0], Embedding) + isinstance(model.layers[-1], Head)
    return len(set(model.layers)) > ends + 1


@lru_cache(maxsize=8192)
def _cuts(
    model: Model, pp: int, vpp: int, ends: tuple[int, int], weights: tuple[float, ...] | None, everything: bool
) -> tuple[Cut, ...]:
    """`cuts_of` where embedding and head weigh as much as `ends` blocks; `weights` where blocks differ."""
    layers, chunks = len(model.layers), pp * vpp
    even = stage_chunks(model, pp=pp, vpp=vpp)
    cuts: dict[Cut, None] = {} if isinstance(even, Infeasible) else {even: None}
    if layers < chunks:
        return ()
    if everything or comb(layers - 1, chunks - 1) <= FEW:
        inner = combinations(range(1, layers), chunks - 1)
        cuts.update(dict.fromkeys(_staged((0, *edges, layers), pp, vpp) for edges in inner))
    else:
        cuts.update(
            dict.fromkeys(
                _staged(edges, pp, vpp)
                for edges in _lighter_ends(model, chunks, ends, most=1 if vpp > 1 else chunks * layers)
            )
        )
        if weights is not None:
            cuts[_staged(lightest(weights, chunks), pp, vpp)] = None
    return tuple(cuts)


def _staged(edges: Sequence[int], pp: int, vpp: int) -> Cut:
    """Chunk c of stage s is the (c * pp + s)-th."""
    return tuple(
        tuple((edges[chunk * pp + stage], edges[chunk * pp + stage + 1]) for chunk in range(vpp)) for stage in range(pp)
    )


def _lighter_ends(model: Model, chunks: int, ends: tuple[int, int], *, most: int) -> Iterator[tuple[int, ...]]:
    embeds, heads = isinstance(model.layers[0], Embedding), isinstance(model.layers[-1], Head)
    blocks = len(model.layers) - embeds - heads
    share = -(-blocks // chunks)
    firsts, lasts = (_lighter(share, min(end, most), most) for end in ends)
    for first in firsts:
        for last in [blocks - first] if chunks == 2 else lasts:
            middle = blocks - first - last
            if middle < max(0, chunks - 2) or first + embeds < 1 or last + heads < 1 or last < 0:
                continue
            each, more = divmod(middle, chunks - 2) if chunks > 2 else (0, 0)
            counts = [first + embeds, *(each + (number < more) for number in range(chunks - 2)), last + heads]
            yield tuple(accumulate(counts, initial=0))


def _lighter(share: int, end: int, most: int) -> list[int]:
    """Blocks of a chunk that also holds an end as heavy as so many blocks: as many fewer, and one more or less, but no
    more than `most`."""
    fewer = {min(most, max(0, end + more)) for more in (-1, 0, 1)}
    return [share - less for less in sorted(fewer) if share - less >= 0]


@lru_cache(maxsize=1024)
def lightest(weights: tuple[float, ...], chunks: int) -> tuple[int, ...]:
    """Edges of the contiguous chunks, none empty, whose heaviest is lightest; of equals, earlier chunks are fuller.

    >>> lightest((1, 1, 1, 3), 2)
    (0, 3, 4)
    """
    count = len(weights)
    cuts = [_best_last(weights, number)[1] for number in range(1, chunks + 1)]
    edges, end = [count], count
    for cut in reversed(cuts):
        end = cut[end]
        edges.append(end)
    return tuple(reversed(edges))


@lru_cache(maxsize=8192)
def _best_last(weights: tuple[float, ...], chunks: int) -> tuple[list[float], list[int]]:
    """By how many of the first layers are cut into so many chunks: the weight of the heaviest chunk of the best cut,
    and where its last chunk begins. Cuts into more chunks go on from it."""
    count, sums = len(weights), _sums(weights)
    row, cut = [float("inf")] * (count + 1), [0] * (count + 1)
    if not chunks:
        row[0] = 0.0
        return row, cut
    earlier, low = _best_last(weights, chunks - 1)[0], chunks - 1
    for end in range(chunks, count + 1):
        # The last chunk's weight falls with its first layer, the rest's rises: the best is where they meet, which
        # moves on with the end.
        total = sums[end]
        while low + 1 < end and earlier[low + 1] <= total - sums[low + 1]:
            low += 1
        first, heavier = low, max(earlier[low], total - sums[low])
        if low + 1 < end and earlier[low + 1] < heavier and total - sums[low + 1] < heavier:
            first, heavier = low + 1, max(earlier[low + 1], total - sums[low + 1])
        row[end], cut[end] = heavier, first
    return row, cut


@lru_cache(maxsize=64)
def _sums(weights: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(accumulate(weights, initial=0.0))
