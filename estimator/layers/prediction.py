"""A head that predicts further tokens: for each a module of norms, a joining product, blocks, projection and loss.

DeepSeek-V3, section 2.2, equations 21 to 24. Megatron and the zoo alike keep the modules with the head.
"""

from __future__ import annotations

from functools import lru_cache

from estimator.layers.block import Branches, block_piece, refuse_block
from estimator.layers.ends import embedding_piece, head_piece, padded_vocabulary, projection_pieces, refuse_head
from estimator.layers.parts import Piece, join, memory_pass, norm, whole_linear
from estimator.layers.split import Split
from models_zoo.layers import Embedding, Head, Prediction
from profiles.records import replace
from profiles.vocabulary import Infeasible


def refuse_predicting(layer: Head, split: Split, *, branches: Branches) -> Infeasible | None:
    """As any head; and what a block of its modules cannot have."""
    blocks = layer.prediction.blocks if layer.prediction else ()
    refusals = (refuse_block(block, split, branches=branches) for block in blocks)
    return refuse_head(layer, split) or next((refused for refused in refusals if refused), None)


def predicting_piece(layer: Head, split: Split, *, branches: Branches) -> Piece:
    """The head, and the modules of its further tokens; of the weights that these use too each counts once."""
    if layer.prediction is None:
        return head_piece(layer, split)
    # Of a module its blocks alone may have experts.
    alone = replace(split, ep=1, etp=1)
    head = _head(layer, alone)
    table = 0 if layer.tied else padded_vocabulary(layer.vocab, split) // split.tp * layer.hidden
    blocks = [block_piece(block, split, branches=branches) for block in layer.prediction.blocks]
    modules: list[Piece] = []
    for number in range(layer.prediction.count):
        before, after = _around(f"prediction.{number}", layer, layer.prediction, alone)
        modules += [*before, *blocks, *after]
    everything = join((head, *modules, Piece(parameters=table)))
    return replace(everything, input_bytes=head.input_bytes, output_bytes=head.output_bytes)


@lru_cache(maxsize=1024)
def _head(layer: Head, split: Split) -> Piece:
    return head_piece(layer, split)


@lru_cache(maxsize=1024)
def _around(name: str, layer: Head, spec: Prediction, split: Split) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """What stands before a module's blocks, and after them."""
    hidden, local = layer.hidden, split.local_rows
    looked_up = embedding_piece(Embedding(vocab=layer.vocab, hidden=hidden), split)
    # In the zoo, where a rank has the whole table, the ids are the loss's own targets.
    if split.zoo and split.tp == 1:
        operators = tuple(replace(op, saved_bytes=0) for op in looked_up.operators)
        looked_up = replace(looked_up, operators=operators, saved_bytes=0)
    before = (
        replace(looked_up, parameters=0),
        # The state is the input of the norm before the last projection, which keeps it.
        _norm(f"{name}.state_norm", spec, hidden, split, input_kept=True),
        _norm(f"{name}.token_norm", spec, hidden, split),
        memory_pass(f"{name}.beside", 2 * local * hidden, split, forward=2.0, backward=2.0, backward_kernels=2),
        whole_linear(f"{name}.join", rows=local, n=hidden, k=2 * hidden, split=split),
    )
    shared = join(projection_pieces(layer, split))
    after = (
        _norm(f"{name}.norm", spec, hidden, split),
        replace(shared, parameters=0, adapter_parameters=0, replicated=()),
    )
    return before, after


def _norm(name: str, spec: Prediction, hidden: int, split: Split, *, input_kept: bool = False) -> Piece:
    first = spec.blocks[0]
    return norm(
        name,
        first.norm,
        rows=split.local_rows,
        size=hidden,
        split=split,
        gradient_ranks=split.outside_ranks,
        bias=first.norm_bias,
        input_bytes=0 if input_kept else None,
    )
