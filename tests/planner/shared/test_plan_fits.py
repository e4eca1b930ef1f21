"""A plan that `plan` emits fits by the finer count of an explicit plan too."""

from __future__ import annotations

import pytest

from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from planner import api
from planner.one_job.explicit.reading import read_plan
from profiles.vocabulary import DType


@pytest.mark.parametrize(
    ("model", "cluster", "dtype"),
    [
        ("llama3-8b", "a100-80gb:2x8", "bf16"),
        ("llama3-8b", "a100-40gb:2x8", "bf16"),
        ("llama3-8b", "v100-32gb:2x8", "fp16"),
        ("llama2-7b", "a100-80gb:1x8", "bf16"),
        ("gpt2-1.3b", "a100-40gb:1x8", "bf16"),
        ("gpt2-1.3b", "v100-32gb:1x4", "fp16"),
        ("gpt3-175b", "h100:8x8", "bf16"),
    ],
)
def test_what_a_cell_fits_an_explicit_plan_fits(model: str, cluster: str, dtype: DType) -> None:
    plan = api.plan(model, cluster=cluster, dtype=dtype, search="cells").plan
    found = evaluate(read_plan(plan, where="plan", store=None).setups[0])
    assert isinstance(found, Evaluation)
    assert found.out_of_memory is None
    # Nor does the Cell count much more than there is.
    held = max(stage.memory_bytes for stage in plan.stages)
    assert found.peak_memory_bytes > 0.75 * held
