"""Which blocks each chunk of a pipeline holds: as a layout in Megatron's words has it, else divided evenly."""

from __future__ import annotations

import re

from models_zoo.layers import Head
from models_zoo.model import Model

LAYOUT = re.compile(r"[EtmL|]+")


def blocks_by_chunk(layout: str) -> tuple[int, ...]:
    """Return the blocks of each chunk of layers under `layout`, as `--pipeline-model-parallel-layout` of Megatron Core
    takes it: E the embedding, t a block, m a module of further tokens, L the loss, `|` between chunks (chunk c of stage
    s is the (c * pp + s)-th), `*n` after a letter or a group in brackets for n times it. Where it puts what is no block
    is not told: embedding and head stand at the ends. Raise ValueError for anything else.

    >>> blocks_by_chunk("Et*4|(t*4|)*2tmL")
    (4, 4, 4, 1)
    """
    text, before = layout.replace(" ", ""), ""
    while text != before:
        before = text
        text = re.sub(r"(?:\(([EtmL|]*)\)|([EtmL|]))\*(\d+)", lambda m: (m[1] or m[2] or "") * int(m[3]), text)
    if not LAYOUT.fullmatch(text):
        raise ValueError(f"layout {layout!r}; expected E, t, m, L and |, repeated by *n, groups in brackets")
    return tuple(chunk.count("t") for chunk in text.split("|"))


def divided_blocks(model: Model, chunks: int, *, spare_first: bool, spare_last: bool) -> list[int]:
    """Return the blocks of each of so many chunks where nobody tells: as even as possible, the remainder to the middle
    chunks first, then to the first, last to the last.

    A head with modules of further tokens stands for their blocks and for one more each projection: so do the layouts
    that recipes of DeepSeek-V3 have (61 blocks over 16 chunks: four each, and one beside the head; over eight: eight
    each, and five)."""
    blocks = sum(1 for layer in model.layers if not isinstance(layer, Head)) - int(spare_first)
    head = model.layers[-1]
    beside = 0
    if spare_last and isinstance(head, Head) and head.prediction is not None and chunks > 1:
        beside = min(head.prediction.count * (len(head.prediction.blocks) + 1) + 1, -(-blocks // chunks) - 1)
    each, left = divmod(blocks + beside, chunks)
    middle = [number for number in range(chunks) if not (spare_first and not number)]
    middle = [number for number in middle if not (spare_last and number == chunks - 1)]
    order = middle + [number for number in range(chunks) if number not in middle]
    more = set(order[:left])
    counts = [each + (number in more) for number in range(chunks)]
    counts[-1] -= beside
    return counts
