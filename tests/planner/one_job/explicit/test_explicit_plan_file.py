"""Setup to plan to file and back; old files stay valid; what a plan cannot keep is refused."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.pricing.outcome import RankMemory, TimeBreakdown
from estimator.pricing.recipe import Recipe, Software
from planner.one_job.explicit.estimate import describe_estimated, estimate_explicit
from planner.one_job.explicit.reading import read_plan
from planner.one_job.explicit.recording import record_plan
from planner.one_job.explicit.request import ExplicitRequest
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan, parse_plan, plan_json_schema, plan_to_json, save_plan
from planner.shared.plan_parts import PlanMemory, PlanRecipe, PlanSoftware, PlanTimeBreakdown
from profiles.errors import InputError
from tests.planner.one_job.explicit.explicit_plan_examples import fake_evaluate, request_of, setup_of
from tests.planner.shared.plan_examples import example_plan
from tests.seeds import examples


def recorded(**options: Any) -> Plan:
    setup = setup_of(**options)
    return record_plan(setup, fake_evaluate(setup), reference=setup.model.name, assumptions=("one",))


def test_the_file_s_fields_are_the_records_own() -> None:
    """A field that the estimator gets must come into the file too, or a round trip loses it."""
    assert _names(PlanSoftware) == _names(Software)
    assert _names(PlanTimeBreakdown) == _names(TimeBreakdown)
    assert _names(PlanMemory) | {"stage"} == _names(RankMemory)
    at_the_top = {"global_batch", "seq_len", "dtype", "optimizer", "schedule", "attention"}
    assert _names(PlanRecipe) | at_the_top == _names(Recipe)


def _names(record: type[Any]) -> set[str]:
    return {field.name for field in fields(record)}


EVERYTHING: tuple[dict[str, Any], ...] = (
    {"dp": 8},
    {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1, "recompute": "selective", "software": "megatron-core"},
    {"tp": 2, "cp": 2, "dp": 2, "hsdp": (2, 2), "recompute": "full:2", "offload": ("optimizer", "activations")},
    {"pp": 2, "vpp": 2, "global_batch": 8, "overlap": ("dp", "p2p"), "dtype": "fp16", "grad_dtype": "fp16"},
    {"pp": 2, "schedule": "dualpipe", "global_batch": 16, "lora": 16, "optimizer": "muon"},
    {"pp": 4, "schedule": "zb-h1", "freeze": (0, 3), "attention": "math", "vocab_pad": 64},
    {"pp": 1, "dp": 8, "zero": 3, "dtype": "fp8", "optimizer": "adam8bit"},
    {"model": "moe-2.4b", "tp": 2, "dp": 4, "ep": 4, "etp": 2, "moe_capacity": 1.25, "moe_imbalance": 1.1},
    {"model": "resnet-50", "dp": 8, "dtype": "fp32", "optimizer": "sgd"},
)


@pytest.mark.parametrize("options", EVERYTHING, ids=range(len(EVERYTHING)))
def test_a_setup_comes_back_from_the_file_as_it_was(tmp_path: Path, options: dict[str, Any]) -> None:
    setup = setup_of(**options)
    plan = record_plan(setup, fake_evaluate(setup), reference=setup.model.name, assumptions=("one", "two"))
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded == plan
    request = read_plan(loaded, where="plan.json", store=None)
    assert request.setups == (setup,)
    assert request.assumptions == ("one", "two")
    jsonschema.validate(json.loads(plan_to_json(plan)), json.loads(plan_json_schema()))


def test_features_of_memory_that_an_older_file_lacks_are_those_declared_for_the_name(tmp_path: Path) -> None:
    setup = setup_of(dp=8, software="nanotron")
    plan = record_plan(setup, fake_evaluate(setup), reference=setup.model.name, assumptions=())
    written = json.loads(plan_to_json(plan))
    assert written["recipe"]["software"].pop("memory")["gradient_copy_bytes"] == 2.0
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    assert read_plan(load_plan(path), where="plan.json", store=None).setups == (setup,)


def test_a_stated_feature_stands_in_the_file_in_place_of_the_declared_one() -> None:
    declared = setup_of(dp=8, software="nanotron").recipe.software
    features = ("kernels=eager", "gradient_copy_bytes=0")
    stated = setup_of(dp=8, software="nanotron", feature=features).recipe.software
    assert stated == replace(declared, kernels="eager", memory=replace(declared.memory, gradient_copy_bytes=0.0))


@st.composite
def _options(draw: st.DrawFn) -> dict[str, Any]:
    tp, pp, cp = draw(st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 2), (4, 2, 1), (1, 4, 2)]))
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    dp = 8 // (tp * pp * cp)
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "zero": zero,
        "hsdp": draw(st.sampled_from([None, (dp * cp, 1), (1, dp * cp)])) if zero else None,
        "global_batch": 48,
        "micro_batch": draw(st.integers(1, 3)),
        "schedule": draw(st.sampled_from(["1f1b", "gpipe", "zb-h1"] + (["dualpipe"] if pp % 2 == 0 else []))),
        "recompute": draw(st.sampled_from(["none", "selective", "full", "full:1", "full:3", "full:6"])),
        "sequence_parallel": draw(st.booleans()),
        "overlap": draw(st.sampled_from([None, (), ("tp",), ("dp", "tp", "p2p")])),
        "software": draw(st.sampled_from([None, "megatron-lm", "maxtext"])),
        "feature": draw(st.sampled_from([(), ("launch=graph", "fragmentation=0.25")])),
        "freeze": draw(st.sampled_from([None, (0, 2), (2, 5)])),
        "dtype": draw(st.sampled_from(["bf16", "fp32", "fp16"])),
    }


@given(_options())
@settings(max_examples=examples(60), deadline=None)
def test_any_setup_comes_back_from_its_text(options: dict[str, Any]) -> None:
    setup = setup_of(**options)
    plan = record_plan(setup, fake_evaluate(setup), reference="gpt-tiny", assumptions=())
    again = parse_plan(plan_to_json(plan), "p.json")
    assert again == plan
    (read,) = read_plan(again, where="p.json", store=None).setups
    assert read == setup


def test_a_file_from_before_explicit_plans_is_still_one() -> None:
    value = json.loads(plan_to_json(example_plan()))
    del value["recipe"]
    del value["estimate"]["memory_interval_90_bytes"]
    for stage in value["stages"]:
        del stage["memory"]
    jsonschema.validate(value, json.loads(plan_json_schema()))
    assert parse_plan(json.dumps(value), "old.json") == example_plan()


def test_a_cell_s_plan_becomes_a_setup() -> None:
    value = json.loads(plan_to_json(example_plan()))
    plan = parse_plan(json.dumps(value), "cell.json")
    sizes = recorded(dp=8).model.sizes
    plan = replace(plan, model=replace(plan.model, sizes=sizes, seq_len=128))
    (setup,) = read_plan(plan, where="cell.json", store=None).setups
    assert [(stage.dp, stage.tp, stage.zero) for stage in setup.stages] == [(2, 1, 1), (1, 2, 0)]
    assert setup.micro_batch == 4
    assert setup.recipe.software.name == "generic"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda v: v["estimate"]["breakdown"].update(x_s=0.0), r"p\.json: estimate\.breakdown\.x_s: found an unknown"),
        (lambda v: v["estimate"]["breakdown"].update(gemm_s=9.0), "breakdown sums to"),
        (lambda v: v["stages"][0]["memory"].update(weight_bytes=1), "memory's parts sum to"),
        (lambda v: v["recipe"].update(overlap=["tp", "dp"]), "each once, in order"),
        (lambda v: v["recipe"].update(moe_imbalance=0.5), "at least 1"),
        (lambda v: v["recipe"].update(moe_imbalance=1e308), "at most 10,000"),
        (lambda v: v["recipe"].update(moe_capacity_factor=1e308), "null or from 0.001 to 10,000"),
        (lambda v: v["recipe"]["software"].update(kernels="best"), r"recipe\.software\.kernels: found 'best'"),
        (lambda v: v.update(schedule="dualpipe"), "two: its own and its mirror's"),
        (lambda v: v.update(schedule="zb"), "schedule: found 'zb'"),
    ],
)
def test_a_damaged_explicit_plan_is_refused(damage: Any, message: str) -> None:
    value = json.loads(plan_to_json(recorded(tp=2, pp=2)))
    damage(value)
    with pytest.raises(InputError, match=message):
        parse_plan(json.dumps(value), "p.json")


def test_stages_that_do_not_mirror_are_no_dualpipe() -> None:
    plan = recorded(pp=2, schedule="dualpipe", global_batch=16)
    first, second = plan.stages
    with pytest.raises(InputError, match="the mirror of"):
        replace(plan, stages=(replace(first, chunks=(first.chunks[0], first.chunks[0])), second))


def _read(plan: Plan, **where: Any) -> ExplicitRequest:
    return read_plan(plan, where="p.json", store=None, **where)


def test_another_cluster_takes_the_ranks_in_order() -> None:
    plan = recorded(tp=2, pp=2)
    request = _read(plan, cluster="h100:2x4")
    slots = [slot for stage in request.setups[0].stages for slot in stage.slots]
    assert [(slot.device, slot.node, slot.index) for slot in slots] == [
        ("h100", n, i) for n in (0, 1) for i in range(4)
    ]
    assert request.assumptions[0].startswith("ranks on the first 8 devices of h100:2x4")
    same = _read(plan, cluster="a100-80gb:4x8")
    assert not any("ranks on the first" in sentence for sentence in same.assumptions)
    with pytest.raises(
        InputError, match=r"found 4 free devices, expected at least 8 free devices for the plan of p\.json"
    ):
        _read(plan, cluster="h100:1x4")


def test_uneven_shares_are_priced_as_the_fullest_replica() -> None:
    plan = recorded(pp=2)
    first, second = plan.stages
    micro_batch = 2 * plan.batch.micro_batch
    uneven = (micro_batch - first.dp + 1, *(1,) * (first.dp - 1))
    batch = replace(plan.batch, micro_batch=micro_batch, micro_batches=plan.batch.micro_batches // 2)
    changed = replace(plan, batch=batch, stages=(replace(first, micro_batch_shares=uneven), second))
    (setup,) = _read(changed).setups
    assert setup.stages[0].shares == uneven
    assert setup.samples_per_rank(setup.stages[0]) == uneven[0]
    assert setup.samples_per_rank(setup.stages[1]) == micro_batch // second.dp


def test_what_no_setup_can_say_is_refused() -> None:
    plan = recorded(pp=2)
    first, second = plan.stages
    other = replace(plan.model, sizes=replace(plan.model.sizes, hidden=3))
    for changed, message in (
        (replace(plan, stages=(first, replace(second, offload=("weights",)))), r"stages\[1\]\.offload: found weights"),
        (replace(plan, stages=(first, replace(second, attention="math"))), "found flash and math, expected one kernel"),
        (replace(plan, optimizer="lion"), "optimizer: found 'lion'"),
        (replace(plan, model=other), "model.sizes: found hidden=3, expected 256, as gpt-tiny has now"),
    ):
        with pytest.raises(InputError, match=message):
            _read(changed)


def test_the_figures_of_an_estimate_hang_together() -> None:
    request = request_of(tp=2, pp=2, recompute="full", global_batch=16)
    value = describe_estimated(estimate_explicit(request, evaluate=fake_evaluate))["estimate"]
    assert sum(value["breakdown"].values()) == pytest.approx(value["iteration_time_s"])
    assert value["fits"]
    assert value["samples_per_s"] == 8.0
    assert value["tokens_per_s_per_device"] == 8 * 128 / 8
    assert value["causal_tflops_per_device"] < value["tflops_per_device"] < value["hardware_tflops_per_device"]
    assert value["mfu"] == pytest.approx(value["tflops_per_device"] / 312)
    assert value["peak_memory_bytes"] == max(rank["peak_bytes"] for rank in value["memory"])
    for rank in value["memory"]:
        parts = ("weight", "gradient", "optimizer", "activation", "temporary", "communication", "reserve")
        assert sum(rank[f"{part}_bytes"] for part in parts) == rank["needed_bytes"]
    assert value["guesses"][0]["share"] == 0.25


def test_what_does_not_learn_counts_no_weight_gradients() -> None:
    def tflops(**options: Any) -> float:
        found = estimate_explicit(
            request_of(dp=8, recompute="none", global_batch=64, **options), evaluate=fake_evaluate
        )
        return found.plan.estimate.tflops_per_device

    whole, adapters, head_only = tflops(), tflops(lora=8), tflops(freeze=(0, 5))
    assert 2 / 3 * whole < adapters < 0.8 * whole
    assert whole / 3 < head_only < whole


def test_a_plan_that_does_not_fit_names_rank_part_and_lack() -> None:
    def full(setup: Any) -> Any:
        return fake_evaluate(setup, activation_bytes=100 * 2**30)

    found = estimate_explicit(request_of(pp=2, recompute="none"), evaluate=full)
    assert found.shortfall is not None
    assert found.shortfall.startswith("stage 1 (ranks 4 to 7) lacks 26.8 GiB: 106.0 GiB on a device of 79.2 GiB")
    assert "100.0 GiB of it activations" in found.shortfall
    value = describe_estimated(found)["estimate"]
    assert (value["fits"], value["memory"][1]["largest_part"]) == (False, "activation")
    assert value["lacking_bytes"] == value["memory"][1]["lacking_bytes"] > 0
    # Left open, recomputation is the least that fits.
    chosen = estimate_explicit(request_of(pp=2), evaluate=full)
    assert chosen.plan.stages[0].recompute.kind == "full"
    assert chosen.shortfall is None
    assert chosen.plan.assumptions[-1] == "recomputation full: less does not fit (--recompute)"
