"""The form in which a kind of layer is described (`estimator.layers.kinds` lists them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimator.layers.parts import Piece
from estimator.layers.split import Split
from models_zoo.layers import TransformerBlock
from profiles.records import dataclass
from profiles.vocabulary import Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """A kind of layer. `is_end`: an embedding or a head, which recomputation never runs again."""

    refuse: Callable[[Any, Split], Infeasible | None]
    piece: Callable[[Any, Split], Piece]
    is_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One part of a block between norm and residual, and what stands around it.

    `enters` and `leaves` say which edges of the tensor-parallel region the block puts around it; `biased`: the bias of
    its last product, of the block's width, is added with the residual.
    """

    piece: Piece
    enters: bool = True
    leaves: bool = True
    biased: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in a block a branch stands: its name there, whether it attends to an encoder's output (`memory`), and
    whether an earlier branch reads the same input and keeps it (`shared_input`)."""

    name: str
    memory: bool = False
    shared_input: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchKind:
    """A kind of mixer or feed-forward inside a block, from its own specification: `refuse(spec, split, place)` says why
    it cannot be held so, `branch(block, spec, split, place)` describes it."""

    refuse: Callable[[Any, Split, Place], Infeasible | None]
    branch: Callable[[TransformerBlock, Any, Split, Place], Branch]
