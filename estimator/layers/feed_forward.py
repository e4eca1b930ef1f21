"""The dense feed-forward inside the tensor-parallel region: columns of the first product(s), rows of the last."""

from __future__ import annotations

from estimator.layers.kind import Branch, BranchKind, Place
from estimator.layers.parts import Piece, activation_pass, gradient_sum, join, linear, refuse_sizes
from estimator.layers.split import Split
from models_zoo.layers import FeedForward, TransformerBlock
from profiles.vocabulary import Infeasible


def feed_forward_piece(name: str, spec: FeedForward, hidden: int, split: Split, *, keeps_input: bool = True) -> Piece:
    """Products around the activation, gate and up as one product (in the zoo as two).

    `keeps_input` False where another branch keeps the tensor that both read. The last product's bias is the block's.
    """
    inner, rows = spec.hidden // split.tp, split.rows
    columns = 2 if spec.gated else 1
    products = ("gate", "up") if spec.gated and split.zoo else ("up",)
    first = [
        linear(
            f"{name}.{part}",
            rows=rows,
            n=inner * columns // len(products),
            k=hidden,
            split=split,
            bias=spec.bias,
            saves_input=keeps_input and number == 0,
            input_outside=True,
        )
        for number, part in enumerate(products)
    ]
    return join(
        (
            *first,
            gradient_sum(f"{name}.input", rows * hidden, split, consumers=len(products)),
            activation_pass(f"{name}.activation", spec, rows * inner, split),
            linear(f"{name}.down", rows=rows, n=hidden, k=inner, split=split, bias=spec.bias and split.bias_in_product),
        )
    )


def _branch(block: TransformerBlock, spec: FeedForward, split: Split, place: Place) -> Branch:
    piece = feed_forward_piece(
        place.name, spec, block.hidden, split, keeps_input=not (place.shared_input and split.zoo)
    )
    return Branch(piece=piece, biased=spec.bias and not split.bias_in_product)


def _refuse(spec: FeedForward, split: Split, _place: Place) -> Infeasible | None:
    return refuse_sizes("feed-forward", ("columns", spec.hidden, "tp", split.tp))


FEED_FORWARD = BranchKind(refuse=_refuse, branch=_branch)
