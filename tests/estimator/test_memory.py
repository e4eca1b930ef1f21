"""The memory model against parts counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.memory import OPTIMIZERS, Memory, estimate_memory, micro_batches_in_flight
from profiles.vocabulary import held_bytes


def memory_of(**changes: Any) -> Memory:
    settings: dict[str, Any] = {
        "parameters": 1001,
        "layer_parameters": 600,
        "saved_bytes": 50,
        "working_bytes": 7,
        "in_flight": 3,
        "dtype": "bf16",
        "optimizer": OPTIMIZERS["adamw"],
        "zero": 0,
        "dp": 4,
        "capacity_bytes": 100_000,
    }
    return estimate_memory(**(settings | changes))


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "states", "working"),
    [
        (0, 2002, 2002, 12012, 7),
        (1, 2002, 2002, 3003, 7),
        (2, 2002, 501, 3003, 7 + 1200),  # the largest layer's gradient is whole before it is sharded,
        (3, 501, 501, 3003, 7 + 2400),  # and its weights while it is worked on
    ],
)
def test_zero_shards_one_part_after_another(zero: int, weights: int, gradients: int, states: int, working: int) -> None:
    """AdamW in mixed precision takes 16 bytes a parameter: 2 + 2 + (4 + 4 + 4); shards are rounded up."""
    memory = memory_of(zero=zero)
    assert memory == Memory(
        weight_bytes=weights,
        gradient_bytes=gradients,
        optimizer_bytes=states,
        activation_bytes=150,
        working_bytes=working,
        reserve_bytes=8000,
    )
    assert memory.peak_bytes == weights + gradients + states + 150 + working


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_one_replica_has_nothing_to_shard(zero: int) -> None:
    assert memory_of(zero=zero, dp=1) == memory_of(zero=0, dp=1)


@pytest.mark.parametrize(
    ("dtype", "optimizer", "held", "states", "step"),
    [
        ("bf16", "adamw", 2, 12, 2 + 24 + 2),  # gradient; weight and two states, read and written; 16-bit weight
        ("fp16", "adamw", 2, 12, 28),
        ("fp32", "adamw", 4, 8, 4 + 24),
        ("fp8", "adamw", 2, 12, 28),  # fp8 is for the operands of products; weights and gradients stay bf16
        ("bf16", "sgd", 2, 8, 2 + 16 + 2),
        ("fp32", "sgd", 4, 4, 4 + 16),
    ],
)
def test_bytes_per_parameter(dtype: Any, optimizer: str, held: int, states: int, step: int) -> None:
    record = OPTIMIZERS[optimizer]
    assert (held_bytes(dtype), record.state_bytes(dtype), record.step_bytes(dtype)) == (held, states, step)
    memory = memory_of(dtype=dtype, optimizer=record, parameters=1000)
    assert (memory.weight_bytes, memory.gradient_bytes) == (1000 * held, 1000 * held)
    assert memory.optimizer_bytes == 1000 * states


def test_reserve_stands_apart_from_the_peak_but_has_to_fit() -> None:
    memory = memory_of()
    assert memory.lacking_bytes(memory.peak_bytes + 8000) == 0
    assert memory.lacking_bytes(memory.peak_bytes) == 8000


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "in_flight"),
    [("1f1b", 8, [4, 3, 2, 1]), ("1f1b", 2, [2, 2, 2, 1]), ("gpipe", 8, [8, 8, 8, 8])],
)
def test_micro_batches_in_flight(schedule: Any, micro_batches: int, in_flight: list[int]) -> None:
    assert in_flight == [
        micro_batches_in_flight(schedule=schedule, stage=stage, stages=4, micro_batches=micro_batches)
        for stage in range(4)
    ]
