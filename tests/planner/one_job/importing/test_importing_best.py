"""A launcher's present setting beside the best plan that the launcher can run."""

from __future__ import annotations

from typing import Any

import pytest

from planner import api
from planner.cli.imported_output import print_comparison
from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.request import ExplicitRequest
from planner.one_job.importing.best import best_of_setting, search_of
from planner.one_job.importing.comparison import compare, describe_comparison
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.options.common import Tool
from planner.shared.plan import Plan
from profiles.errors import NothingFits
from tests.planner.one_job.explicit.explicit_plan_examples import request_of
from tests.planner.one_job.importing.importing_examples import SMALL_MEGATRON

TIGHT = SMALL_MEGATRON.replace("--num-layers 8 --hidden-size 512", "--num-layers 48 --hidden-size 16384")


def best_plan(request: ExplicitRequest, tool: Tool) -> Plan | None:
    return best_of_setting(tool, store=None, profiles=None)(request, evaluate_with_store)


@pytest.mark.parametrize("tool", ["megatron", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("options", [{"tp": 4, "pp": 2}, {"tp": 1, "dp": 8, "zero": 1}, {"tp": 2, "recompute": "full"}])
def test_the_best_is_no_slower_and_trains_the_same(tool: Tool, options: dict[str, Any]) -> None:
    request = request_of("gpt2-350m", "a100-80gb:1x8", global_batch=32, overlap=(), software="generic", **options)
    present = estimate_explicit(request).plan
    best = best_plan(request, tool)
    assert best is not None
    assert best.estimate.iteration_time_s <= present.estimate.iteration_time_s * (1 + 1e-9)
    assert best.provenance.optimality_proved
    assert (best.model, best.cluster, best.optimizer) == (present.model, present.cluster, present.optimizer)
    assert best.batch.global_batch == present.batch.global_batch
    assert best.recipe == present.recipe
    limits = TOOLS[tool]
    for stage in best.stages:
        assert stage.sharding.zero in (limits.zero if len(best.stages) == 1 else limits.sharded_pipelines)
        assert stage.recompute.kind in limits.recompute


def test_only_the_setting_s_own_devices_are_used() -> None:
    request = request_of("gpt2-350m", "a100-80gb:2x8", tp=2, devices=8, global_batch=32, recompute="none")
    search = search_of(request, tool="megatron", store=None, profiles=None)
    assert [len(own.space.slots) for own in search.spaces] == [8]
    best = best_plan(request, "megatron")
    assert best is not None
    assert len(best.devices) <= 8


def test_settings_are_compared_through_the_interface(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{SMALL_MEGATRON} --tensor-model-parallel-size 4"
    result = api.estimate(cluster="h100:1x8", launcher=("megatron", words))
    comparison = result["comparison"]
    assert comparison["speedup"] > 1
    assert comparison["fits"]
    assert comparison["best"]["stages"][0]["tp"] == 1
    print_comparison(comparison)
    shown = capsys.readouterr().out
    assert "  - tp 4 -> 1\n" in shown
    assert "(plans that megatron can run, trained as the present setting is)" in shown
    assert "(proved: none of them is faster)" in shown


def test_a_setting_that_does_not_fit_is_told_so_beside_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NothingFits) as caught:
        api.estimate(cluster="h100:2x8", launcher=("megatron", TIGHT))
    assert isinstance(caught.value.result, dict)
    comparison = caught.value.result["comparison"]
    assert comparison is None or not comparison["fits"]
    present = estimate_explicit(request_of("gpt-tiny", tp=2)).plan
    print_comparison(describe_comparison(compare(present, present, fits=False)))
    assert "the present setting does not fit, " in capsys.readouterr().out


def test_where_nothing_fits_there_is_no_best() -> None:
    request = request_of("gpt3-175b", "a100-80gb:1x1", tp=1, global_batch=8, recompute="none")
    assert best_plan(request, "megatron") is None
