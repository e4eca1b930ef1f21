"""An estimate of one plan takes what nobody says as `plan` does: asked with a plan's degrees it gives that plan."""

from __future__ import annotations

from typing import Any

import pytest

from planner import api
from planner.shared.options.choices import DEFAULTS, off_defaults
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.place import PlaceOptions
from planner.shared.options.record import entries
from planner.shared.options.search import PlanOptions
from planner.shared.plan import Plan
from profiles.cluster_file import load_cluster
from profiles.errors import InputError, NothingFits

KINDS = (EstimateOptions, PlanOptions, PlaceOptions)
CASES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("gpt-tiny", "a100-80gb:1x4", {}),
    ("gpt-tiny", "h100:1x6", {"global_batch": 10}),
    ("gpt2-1.3b", "v100-32gb:2x4", {}),
    ("gpt2-1.3b", "v100-32gb:1x4", {"zero": 0, "recompute": "full"}),
    ("gpt2-1.3b", "a10:2x4", {"global_batch": 64, "optimizer": "sgd"}),
    ("gpt2-1.3b", "a10:2x4", {"global_batch": 64, "sequence_parallel": False, "micro_batch": 2}),
    ("gpt2-1.3b", "a40:1x1+a10:1x1", {"global_batch": 16, "dp": 2}),
    ("gpt2-1.3b", "a10:1x3", {"dp": 3}),
    ("bert-2.6b", "a40:2x4", {}),
    ("wide-resnet-2b", "a40:1x4", {}),
    ("moe-2.4b", "a100-80gb:1x4", {"global_batch": 16}),
    ("llama3-8b", "h100:2x8", {"lora": 16, "global_batch": 64}),
    ("llama3-8b", "h100:1x8", {"global_batch": 64, "software": "torchtitan"}),
)


def degrees_of(plan: Plan, cluster: str) -> dict[str, Any]:
    """The shortest options that say a plan's degrees: those of 1 and the dp that is left need not be said."""
    stage = plan.stages[0]
    sizes = {"tp": stage.tp, "pp": len(plan.stages), "cp": stage.cp, "ep": stage.ep, "vpp": len(stage.chunks)}
    said = {name: size for name, size in sizes.items() if size > 1}
    if len(plan.devices) < len(load_cluster(cluster).free_slots):
        said["devices"] = len(plan.devices)
    return said if {*said} - {"devices"} else {**said, "tp": 1}


@pytest.mark.parametrize(("model", "cluster", "options"), CASES)
def test_a_plan_s_own_degrees_give_that_plan_s_time(model: str, cluster: str, options: dict[str, Any]) -> None:
    plan = api.plan(model, cluster=cluster, **options).plan
    estimate = api.estimate(model, cluster=cluster, **{**options, **degrees_of(plan, cluster)})["estimate"]
    assert estimate["iteration_time_s"] == pytest.approx(plan.estimate.iteration_time_s, rel=1e-9)
    assert estimate["peak_memory_bytes"] <= load_cluster(cluster).sites[0].nodes[0].device.memory_bytes


def test_tp_is_estimated_with_sequence_parallelism_and_as_plan_has_it() -> None:
    asked: dict[str, Any] = {"global_batch": 64, "pp": 1, "cp": 1, "ep": 1}
    result = api.estimate("llama3-8b", cluster="h100:1x8", tp=8, global_batch=64)
    assert all(stage["sequence_parallel"] for stage in result["plan"]["stages"])
    planned = api.plan("llama3-8b", cluster="h100:1x8", tp=8, **asked).plan
    assert result["estimate"]["iteration_time_s"] == pytest.approx(planned.estimate.iteration_time_s, rel=1e-9)
    without = api.estimate("llama3-8b", cluster="h100:1x8", tp=8, global_batch=64, sequence_parallel=False)
    assert without["estimate"]["iteration_time_s"] > result["estimate"]["iteration_time_s"]
    assert not any(stage["sequence_parallel"] for stage in without["plan"]["stages"])
    (said,) = [text for text in without["estimate"]["assumptions"] if text.startswith("off the defaults")]
    assert "--no-sequence-parallel (default: on wherever tp > 1" in said


def test_a_degree_of_plan_is_taken_as_fixed() -> None:
    named = api.plan("gpt-tiny", cluster="a100-80gb:1x4", tp=2, pp=2, global_batch=16).plan
    fixed = api.plan("gpt-tiny", cluster="a100-80gb:1x4", fix=("tp=2", "pp=2"), global_batch=16).plan
    assert (named.stages, named.estimate) == (fixed.stages, fixed.estimate)
    assert (named.stages[0].tp, len(named.stages)) == (2, 2)
    with pytest.raises(InputError, match=r"--tp, --fix: found 2 and 4, expected one of them"):
        api.plan("gpt-tiny", cluster="a100-80gb:1x4", tp=2, fix=("tp=4",))


def test_a_word_on_sequence_parallelism_holds_in_the_space() -> None:
    none = api.plan("gpt-tiny", cluster="a100-80gb:1x4", tp=2, sequence_parallel=False).plan
    assert not any(stage.sequence_parallel for stage in none.stages)
    with pytest.raises(NothingFits, match="your word on sequence parallelism"):
        api.plan("gpt-tiny", cluster="a100-80gb:1x4", tp=2, seq_len=63, sequence_parallel=True)


def test_where_no_plan_of_the_space_fits_the_figures_are_told_all_the_same() -> None:
    with pytest.raises(NothingFits) as caught:
        api.estimate("llama3-8b", cluster="t4:1x2", tp=2, global_batch=2)
    assert isinstance(caught.value.result, dict)
    assert caught.value.result["estimate"]["lacking_bytes"] > 0


def test_one_record_of_defaults_serves_all_commands() -> None:
    for kind in KINDS:
        shared = [name for name in DEFAULTS if name in entries(kind)]
        assert {"micro_batch", "recompute", "zero", "sequence_parallel", "schedule", "overlap"} <= set(shared)
        for name in ("micro_batch", "micro_batches", "recompute", "zero", "sequence_parallel", "schedule"):
            assert f"(default: {DEFAULTS[name]})" in entries(kind)[name].help
    for name in ("micro_batch", "micro_batches", "recompute", "zero", "sequence_parallel", "tp", "vpp", "overlap"):
        same = [(entry.hint, entry.option, entry.default) for entry in (entries(kind)[name] for kind in KINDS)]
        assert same[0] == same[1] == same[2]
    options = PlanOptions("gpt-tiny", cluster="a100-80gb:1x4", zero=1, overlap=(), no_offload=True)
    assert off_defaults(options) == (
        "--overlap none (default: the software's)",
        "--zero 1 (default: open: the fastest that fits)",
        "--no-offload (default: the optimizer's state in host memory where that is fastest)",
    )
    assert off_defaults(PlanOptions("gpt-tiny", cluster="a100-80gb:1x4")) == ()
