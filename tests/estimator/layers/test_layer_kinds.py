"""The registry of layer kinds: complete, at the bottom, and enough by itself to add a kind."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest

import estimator.layers
from estimator.layers.kind import Branch, BranchKind, Place
from estimator.layers.kinds import BRANCHES, KINDS
from estimator.layers.parts import linear, refuse_sizes
from estimator.layers.shards import shard_layer, split_of_shard
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work, refuse_layer
from models_zoo.layers import Attention, Experts, FeedForward, Layer, TransformerBlock
from profiles.vocabulary import Infeasible, LocalLayer
from tests.transformer_variants import DEGREES, GPT, HIDDEN, LAYERS, SEQ_LEN, shard


def test_every_kind_of_the_zoo_is_described() -> None:
    assert set(KINDS) == set(get_args(Layer))
    assert {Attention, FeedForward, Experts} <= set(BRANCHES)


def test_descriptions_import_nothing_that_prices() -> None:
    for path in Path(next(iter(estimator.layers.__path__))).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("estimator"):
                assert (node.module or "").startswith("estimator.layers"), f"{path.name} imports {node.module}"


@pytest.mark.parametrize(("tp", "sequence_parallel"), DEGREES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_zoo_layer_keeps_what_its_operators_keep(name: str, tp: int, sequence_parallel: bool) -> None:
    layer = LAYERS[name]
    piece = KINDS[type(layer)].piece(layer, split_of_shard(shard(tp, sequence_parallel)))
    assert piece.saved_bytes == sum(operator.saved_bytes for operator in piece.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """Something new in attention's place: one product of all channels, split by columns and summed."""

    columns: int


def _mix(block: TransformerBlock, spec: Mixing, split: Split, place: Place) -> Branch:
    inner = spec.columns // split.tp
    return Branch(piece=linear(f"{place.name}.mix", rows=split.rows, n=inner, k=block.hidden, split=split))


def _refuse_mix(spec: Mixing, split: Split, place: Place) -> Infeasible | None:
    return refuse_sizes(place.name, ("columns", spec.columns, "tp", split.tp))


def test_a_kind_is_added_by_its_description_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BRANCHES, Mixing, BranchKind(refuse=_refuse_mix, branch=_mix))
    mixing: Any = Mixing(columns=HIDDEN)
    block = replace(GPT, attention=mixing)
    whole, half = (shard_layer(block, shard(tp, sequence_parallel=False)) for tp in (1, 2))
    assert isinstance(whole, LocalLayer)
    assert isinstance(half, LocalLayer)
    assert [op.name for op in whole.operators if op.name.startswith("attention.mix")] == ["attention.mix"]
    # The product is split, with two all-reduces each way as around attention.
    assert (whole.parameters - half.parameters) * 2 == HIDDEN * HIDDEN + 2 * HIDDEN * 64 + 64
    assert [c.phase for c in half.collectives].count("forward") == 2
    again = layer_work(block, Split(samples=3, seq_len=SEQ_LEN, tp=2, recompute="full"))
    assert isinstance(again, Work)
    assert again.again == again.operators
    refused = refuse_layer(block, Split(samples=3, seq_len=SEQ_LEN, tp=3))
    assert refused == Infeasible(reason=f"attention: tp=3 does not divide {HIDDEN} columns", lacking="divisibility")
