"""How tools divide a model's blocks over the chunks of layers of a pipeline, and setups divided so."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from estimator.pricing.build import Ranges
from estimator.pricing.recipe import Setup
from models_zoo.layers import Embedding, Head
from models_zoo.model import Model
from planner.one_job.tools.base.shape import Shape
from profiles.records import dataclass

MOST_STAGES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How a tool divides a model over its pipeline, which no setting of it changes. `blocks` gives those of each chunk,
    None where it cannot divide them; `words` say it."""

    words: str
    blocks: Callable[[Shape], tuple[int, ...] | None]

    def cut(self, shape: Shape) -> tuple[Ranges, ...] | None:
        """Return the [first, end) ranges of each stage's chunks, None where the tool cannot divide the model."""
        blocks = self.blocks(shape)
        return None if blocks is None else cut_into(blocks, shape.job.model, shape.pp)


def inner_layers(model: Model) -> int:
    """Return how many layers a model has between its embedding and its head."""
    return len(model.layers) - isinstance(model.layers[0], Embedding) - isinstance(model.layers[-1], Head)


def cut_into(blocks: Sequence[int], model: Model, pp: int) -> tuple[Ranges, ...]:
    """Return each stage's ranges of layers: chunk c of stage s is the (c * pp + s)-th; the first has the embedding
    besides, the last the head."""
    counts = list(blocks)
    counts[0] += isinstance(model.layers[0], Embedding)
    counts[-1] += isinstance(model.layers[-1], Head)
    ranges = tuple(pairwise(accumulate(counts, initial=0)))
    return tuple(ranges[stage::pp] for stage in range(pp))


def even_blocks(
    blocks: int, *, pp: int, vpp: int, spare_first: bool = False, spare_last: bool = False
) -> tuple[int, ...] | None:
    """As many blocks for each of pp * vpp chunks, one fewer where embedding or loss count as one; None if uneven.

    Megatron-LM, megatron/core/transformer/transformer_block.py, get_num_layers_to_build.

    >>> even_blocks(126, pp=8, vpp=2, spare_first=True, spare_last=True)[:2]
    (7, 8)
    """
    each, left = divmod(blocks + spare_first + spare_last, pp * vpp)
    if left or each < 1 + (spare_first + spare_last if pp * vpp == 1 else 0):
        return None
    counts = [each] * (pp * vpp)
    counts[0] -= spare_first
    counts[-1] -= spare_last
    return tuple(counts)


def uneven_blocks(blocks: int, *, pp: int, vpp: int, first: int | None, last: int | None) -> tuple[int, ...] | None:
    """Blocks of each chunk where the first or the last stage has so many of its own; None where it does not divide.

    >>> uneven_blocks(61, pp=4, vpp=1, first=None, last=13)
    (16, 16, 16, 13)
    """
    head, tail = ([] if count is None else [count] for count in (first, last))
    middle, rest = pp - len(head) - len(tail), blocks - sum(head) - sum(tail)
    if min(middle, rest) < 0 or (rest % middle if middle else rest):
        return None
    stages = [*head, *[rest // middle] * middle, *tail] if middle else [*head, *tail]
    if any(count % vpp for count in stages):
        return None
    return tuple(count // vpp for _ in range(vpp) for count in stages)


def layout_blocks(layout: str) -> tuple[int, ...] | None:
    """Blocks of each chunk of Megatron's --pipeline-model-parallel-layout: `t` is a block, `|` ends a chunk, `(...)*n`
    repeats; None where it is no layout. `E`, `L` and `m` (embedding, loss, multi-token prediction) are no blocks.

    >>> layout_blocks("Et*2|(tt|)*2,t|L")
    (2, 2, 2, 1, 0)
    """
    text = layout.replace(",", "").replace(" ", "")
    repeated = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))\*(\d{1,4})")
    while (match := repeated.search(text)) is not None:
        text = text[: match.start()] + (match[1] or match[2] or "") * int(match[3]) + text[match.end() :]
        if len(text) > MOST_STAGES:
            return None
    if not re.fullmatch(r"[EtmL|]+", text):
        return None
    return tuple(chunk.count("t") for chunk in text.split("|"))


def weighted_blocks(blocks: int, *, chunks: int, first_less: int, last_less: int) -> tuple[int, ...] | None:
    """Blocks of each chunk as torchtitan shares them: embedding and head weigh so many blocks, what does not divide
    goes to the first chunks. torchtitan 0.2.2, distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part.

    >>> weighted_blocks(32, chunks=4, first_less=1, last_less=1)
    (8, 9, 8, 7)
    """
    if chunks == 1:
        return (blocks,)
    each, more = divmod(blocks + first_less + last_less, chunks)
    if each < max(1, first_less, last_less):
        return None
    counts = [each + (number < more) for number in range(chunks)]
    counts[0] -= first_less
    counts[-1] -= last_less
    return tuple(counts)


def with_blocks(setup: Setup, blocks: Sequence[int]) -> Setup:
    """Return `setup` with so many blocks in each chunk of layers. Raise ValueError unless `blocks` are all the model
    has, in as many chunks."""
    chunks = sum(len(stage.chunks) for stage in setup.stages)
    if len(blocks) != chunks or sum(blocks) != inner_layers(setup.model):
        raise ValueError(f"with_blocks: {tuple(blocks)} in {chunks} chunks of {len(setup.model.layers)} layers")
    cut = cut_into(blocks, setup.model, len(setup.stages))
    stages = (replace(stage, chunks=ranges) for stage, ranges in zip(setup.stages, cut, strict=True))
    return replace(setup, stages=tuple(stages))


EVEN = Division(
    words="as many blocks in each stage",
    blocks=lambda s: even_blocks(inner_layers(s.job.model), pp=s.pp, vpp=s.vpp),
)
