"""Jobs: what is refused, and how many micro-batches they may use."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from estimator.cells.job import SAMPLES_PER_BATCH, TOKENS_PER_BATCH, default_global_batch
from models_zoo.catalogue import load_model
from profiles.errors import InputError
from profiles.hardware import load_device
from tests.cell_examples import make_job, tied_gpt
from tests.seeds import seeds


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"micro_batches": 0}, "job: --micro-batches: found 0, expected at least 1"),
        ({"micro_batches": -4}, "job: --micro-batches: found -4, expected at least 1"),
        (
            {"micro_batches": 7},
            "--micro-batches: found 7, which does not divide the global batch 64, expected a divisor of the global",
        ),
        ({"micro_batches": "most"}, "--micro-batches: found most, expected one of a number, crius, fit, best"),
        ({"micro_batch_per_rank": 0}, "--micro-batch: found 0, expected at least 1"),
        (
            {"micro_batches": 4, "micro_batch_per_rank": 2},
            r"found both \(4, 2\), expected one of them: the other follows from the global batch",
        ),
        ({"micro_batches": "best", "micro_batch_per_rank": 2}, r"found both \(best, 2\), expected one of them"),
        ({"schedule": "dualpipe"}, "--schedule: found dualpipe, expected one of 1f1b, gpipe"),
        ({"zero": (4,)}, r"--zero: found \(4,\), expected some of \(0, 1, 2, 3\)"),
        ({"zero": ()}, r"--zero: found \(\), expected some of"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_job(**settings)


def test_attention_kernel_follows_the_device() -> None:
    job = make_job()
    assert job.attention_on(load_device("a100-80gb")) == "flash"
    assert job.attention_on(load_device("v100-32gb")) == "math"
    assert replace(job, attention="math").attention_on(load_device("a100-80gb")) == "math"


@pytest.mark.parametrize(
    ("global_batch", "stages", "counts"),
    [
        (64, 1, (4, 8, 16, 32, 64)),
        (64, 4, (16, 32, 64)),
        (64, 3, (8, 16, 32, 64)),  # 12, 24, 48 lowered to divisors
        (60, 2, (6, 15, 30, 60)),  # 8, 16, 32
        (4, 8, (4,)),
        (1, 1, (1,)),
        (97, 1, (1, 97)),
    ],
)
def test_counts_start_at_four_per_stage_and_double(global_batch: int, stages: int, counts: tuple[int, ...]) -> None:
    for rule in ("crius", "fit"):
        job = make_job(global_batch=global_batch, micro_batches=rule)
        assert job.micro_batch_counts(devices=16, stages=stages) == counts
    best = make_job(global_batch=global_batch, micro_batches="best").micro_batch_counts(devices=16, stages=stages)
    assert set(best) >= {1, *counts}
    assert list(best) == sorted(set(best))
    assert not any(global_batch % count for count in best)


def test_counts_of_any_batch() -> None:
    rng = random.Random(0)
    for _ in seeds(200):
        batch, stages = rng.randint(1, 3000), rng.randint(1, 40)
        counts = make_job(global_batch=batch).micro_batch_counts(devices=64, stages=stages)
        assert list(counts) == sorted(set(counts))
        assert all(batch % count == 0 for count in counts)
        divisors = [n for n in range(1, batch + 1) if batch % n == 0]
        assert counts[0] == max(n for n in divisors if n <= 4 * stages)
        assert counts[-1] == batch


def test_a_large_prime_batch_takes_no_time() -> None:
    assert make_job(global_batch=1_000_003).micro_batch_counts(devices=8, stages=2) == (1, 1_000_003)


def test_a_fixed_number_and_a_fixed_micro_batch() -> None:
    assert make_job(micro_batches=2).micro_batch_counts(devices=8, stages=4) == (2,)
    per_rank = make_job(micro_batch_per_rank=2)
    assert per_rank.micro_batch_counts(devices=8, stages=2) == (64 // (2 * 4),)
    assert make_job(micro_batch_per_rank=3).micro_batch_counts(devices=8, stages=2) == ()


def test_default_batch() -> None:
    assert default_global_batch(load_model("gpt3-175b"), 2048, 1024) == (
        1536,
        "global batch 1536 samples, the catalogue's for gpt3-175b (--global-batch)",
    )
    batch, sentence = default_global_batch(replace(load_model("llama3-8b"), global_batch=None), 8192, 16)
    assert batch * 8192 == TOKENS_PER_BATCH
    assert sentence == "global batch 512 samples: 4 a device, doubled while within 4 Mi tokens (--global-batch)"
    assert default_global_batch(replace(tied_gpt(), global_batch=None), 32, 18)[0] % (4 * 18) == 0
    images, sentence = default_global_batch(replace(load_model("resnet-50"), global_batch=None), 0, 6)
    assert (images % 24, SAMPLES_PER_BATCH / 2 < images <= SAMPLES_PER_BATCH) == (0, True)
    assert "1024 samples" in sentence


def test_default_batch_gives_every_device_something() -> None:
    """Published for fewer devices than there are, or more tokens than 4 Mi."""
    for model, seq_len in (
        (load_model("gpt3-175b"), 2048),
        (replace(load_model("opt-6.7b"), global_batch=None), 10**6),
    ):
        assert default_global_batch(model, seq_len, 5000)[0] == 20_000
