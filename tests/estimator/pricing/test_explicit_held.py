"""What a rank holds and what of it learns: layers added up, shared tables once, experts by those who hold them."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.layers.split import Work
from estimator.pricing.held import HeldParameters, held_parameters
from estimator.pricing.stage_work import ChunkWork
from tests.explicit_examples import QUIET, build


def held(*works: tuple[Work, int], shared: int = 0, **degrees: Any) -> tuple[HeldParameters, HeldParameters]:
    chunk = ChunkWork(works=works, layers=(), shared_parameters=shared)
    return held_parameters([chunk], build(recipe=QUIET, **degrees).stages[0])


BLOCK = Work(
    operators=(), parameters=100, expert_parameters=40, trainable_parameters=90, trainable_expert_parameters=30
)
END = Work(operators=(), parameters=10, trainable_parameters=10, is_end=True)


def test_layers_add_up_and_shared_tables_count_once() -> None:
    dense, experts = held((BLOCK, 3), (END, 2), shared=5)
    assert (dense.held, dense.learning) == (315, 285)
    assert (experts.held, experts.learning) == (120, 90)


@pytest.mark.parametrize(
    ("degrees", "shards", "expert_shards"),
    [
        ({"dp": 8}, 1, 1),
        ({"dp": 8, "zero": 1}, 8, 8),
        ({"dp": 4, "cp": 2, "zero": 1}, 8, 8),
        ({"dp": 8, "zero": 1, "ep": 4}, 8, 2),
        ({"dp": 8, "zero": 3, "ep": 8}, 8, 1),
        ({"dp": 4, "tp": 2, "zero": 1, "ep": 4}, 4, 2),
        ({"dp": 8, "zero": 3, "shard": 2}, 2, 2),
    ],
)
def test_shards_are_of_those_who_hold_the_same(degrees: dict[str, Any], shards: int, expert_shards: int) -> None:
    dense, experts = held((BLOCK, 1), **degrees)
    assert (dense.shards, experts.shards) == (shards, expert_shards)


def test_a_shared_table_that_does_not_learn_takes_nothing_off() -> None:
    table = Work(operators=(), parameters=1000, frozen=True, is_end=True)
    adapted = Work(operators=(), parameters=110, trainable_parameters=10, frozen=True)
    dense, _ = held((table, 1), (adapted, 3), (table, 1), shared=1000)
    assert (dense.held, dense.learning) == (1330, 30)


def test_a_table_that_learns_through_one_layer_alone_learns_once() -> None:
    frozen = Work(operators=(), parameters=1000, frozen=True, is_end=True)
    head = Work(operators=(), parameters=1010, trainable_parameters=1010, is_end=True)
    dense, _ = held((frozen, 1), (head, 1), shared=1000)
    assert dense.learning == 1010
