"""The plan file: round trip, bytes, schema, and what wrong files and contradictory plans are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from planner.shared.plan import Plan, PlanBatch, PlanStage, RecomputeRule, Sharding
from planner.shared.plan_file import (
    load_plan,
    parse_plan,
    plan_json_schema,
    plan_of_values,
    plan_to_json,
    plan_to_values,
    save_plan,
)
from profiles.errors import InputError
from tests.planner.shared.plan_examples import example_plan, example_stage


def test_a_saved_plan_is_loaded_as_the_same_record(tmp_path: Path) -> None:
    plan = example_plan()
    save_plan(plan, tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded == plan
    assert hash(loaded) == hash(plan)
    assert plan_to_json(loaded).encode() == (tmp_path / "plan.json").read_bytes()


def test_the_values_are_those_of_the_text_and_make_the_same_record() -> None:
    values = plan_to_values(example_plan())
    assert values == json.loads(plan_to_json(example_plan()))
    assert plan_of_values(values) == example_plan()


def test_the_text_is_plain_json_with_keys_as_declared_and_a_final_newline() -> None:
    text = plan_to_json(example_plan())
    assert text.endswith("}\n")
    value = json.loads(text)
    assert list(value)[:4] == ["schema", "model", "cluster", "batch"]
    assert value["stages"][0]["communication_s"] == 1 / 3
    assert max(len(line) for line in text.splitlines()) <= 120


def test_the_published_schema_is_the_records_own_and_accepts_the_example() -> None:
    published = files("planner.shared").joinpath("schemas/plan.schema.json").read_text(encoding="utf-8")
    assert published == plan_json_schema(), "regenerate planner/shared/schemas/plan.schema.json from plan_json_schema()"
    schema = json.loads(published)
    jsonschema.Draft202012Validator.check_schema(schema)
    value = json.loads(plan_to_json(example_plan()))
    jsonschema.validate(value, schema)
    value["stages"][0]["dpp"] = 1
    with pytest.raises(jsonschema.ValidationError, match="dpp"):
        jsonschema.validate(value, schema)


def _without(value: dict[str, Any], key: str) -> None:
    del value[key]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda v: v.update(schema="cellplan.plan/2"),
            "p.json: schema: found 'cellplan.plan/2', expected 'cellplan.plan/1'",
        ),
        (lambda v: _without(v, "schema"), "p.json: schema: found nothing, expected 'cellplan.plan/1'"),
        (lambda v: v["stages"][1].update(dp="2"), "p.json: stages[1].dp: found '2', expected a valid integer"),
        (lambda v: v["stages"][1].update(dp=True), "p.json: stages[1].dp: found True, expected a valid integer"),
        (
            lambda v: v["stages"][0].update(dpp=2),
            "p.json: stages[0].dpp: found an unknown key 'dpp', expected only the keys",
        ),
        (
            lambda v: v["estimate"]["breakdown"].update(x=2),
            "p.json: estimate.breakdown.x: found an unknown key",
        ),
        (lambda v: v["model"]["sizes"].pop("layers"), "p.json: model.sizes.layers: found nothing"),
        (
            lambda v: v["stages"][1].update(dp=2),
            "p.json: stages[1]: found dp=2, tp=2, cp=1 and 2 ranks, expected dp * tp",
        ),
        (
            lambda v: v["batch"].update(micro_batch=5),
            "p.json: batch: found global_batch=32, micro_batch=5, micro_batches=8",
        ),
        (lambda v: v["devices"].pop(), "p.json: found stages use ranks 0, 1, 2, 3, expected each of the 3 devices"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_key(damage: Callable[[Any], None], message: str) -> None:
    value = json.loads(plan_to_json(example_plan()))
    damage(value)
    with pytest.raises(InputError) as caught:
        parse_plan(json.dumps(value), "p.json")
    assert message in str(caught.value)


def test_text_that_is_no_json_or_names_a_key_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"p\.json, line 1, column 2"):
        parse_plan("{", "p.json")
    with pytest.raises(InputError, match="found the key twice"):
        parse_plan('{"schema": "cellplan.plan/1", "schema": "cellplan.plan/1"}', "p.json")
    with pytest.raises(InputError, match="a mapping"):
        parse_plan("[]", "p.json")
    with pytest.raises(InputError, match="No such file"):
        load_plan(tmp_path / "missing.json")


def _with_stages(*stages: PlanStage) -> Plan:
    return replace(example_plan(), stages=stages)


FIRST, SECOND = example_plan().stages


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _with_stages(), "each of the 4 devices"),
        (lambda: _with_stages(FIRST, replace(SECOND, chunks=((5, 6),))), "contiguous ranges from 0 to the model's 6"),
        (lambda: _with_stages(FIRST, replace(SECOND, chunks=((4, 5), (5, 6)))), r"\[1, 2\] chunks"),
        (lambda: _with_stages(FIRST, replace(SECOND, ranks=(1, 3))), "ranks 0, 1, 1, 3"),
        (lambda: _with_stages(FIRST, replace(SECOND, device="v100-32gb")), "v100-32gb and ranks on a100-80gb"),
        (lambda: _with_stages(FIRST, replace(SECOND, memory_bytes=7 * 2**30)), "the fullest stage's"),
        (lambda: replace(SECOND, recompute=RecomputeRule(kind="full", layers=3)), "at most the stage's 2 layers"),
        (lambda: replace(FIRST, sharding=Sharding(zero=3, shard=2, replicate=2)), r"shard \* replicate = dp \* cp"),
        (lambda: Sharding(zero=0, shard=2, replicate=1), "shard 1 under zero 0"),
        (lambda: replace(FIRST, ep=4), "ep=4, etp=1 and 2 ranks"),
        (lambda: _with_stages(replace(FIRST, micro_batch_shares=(3, 2)), SECOND), "sum to batch.micro_batch=4"),
        (
            lambda: replace(example_plan(), batch=PlanBatch(global_batch=15, micro_batch=5, micro_batches=3)),
            r"stages\[0\].dp=2 and batch.micro_batch=5",
        ),
        (lambda: replace(example_plan(), rank_axis_order=("tp", "dp", "pp")), "tp, cp, dp and pp in some order"),
        (lambda: replace(example_plan(), devices=example_plan().devices[::-1]), "in order"),
        (lambda: replace(example_plan().estimate, iteration_time_s=1.6), "breakdown sums to 1.5"),
        (lambda: replace(example_plan().estimate, interval_90_s=(2.0, 1.0)), "0 <= low <= high"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_uneven_shares_and_interleaved_chunks_are_legal() -> None:
    uneven = replace(
        example_plan(),
        batch=PlanBatch(global_batch=15, micro_batch=5, micro_batches=3),
        stages=(replace(FIRST, micro_batch_shares=(3, 2)), SECOND),
    )
    interleaved = _with_stages(
        replace(FIRST, chunks=((0, 2), (3, 5))),
        replace(example_stage(2, 6, (2, 3), dp=1, tp=2), chunks=((2, 3), (5, 6))),
    )
    for plan in (uneven, interleaved):
        assert parse_plan(plan_to_json(plan), "here") == plan


def test_an_older_file_has_a_reason_for_no_interval() -> None:
    value = json.loads(plan_to_json(example_plan()))
    value["estimate"]["interval_90_reason"] = None
    assert parse_plan(json.dumps(value), "old.json") == example_plan()
    value["estimate"]["interval_90_reason"] = "none"
    with pytest.raises(InputError, match="interval_90_reason"):
        parse_plan(json.dumps(value), "old.json")


def test_the_breakdown_of_an_older_cells_plan_is_refused_by_its_key() -> None:
    value = json.loads(plan_to_json(example_plan()))
    value["estimate"]["breakdown"] = {"compute_s": 1.0, "blocking_collectives_s": 0.5}
    with pytest.raises(
        InputError, match=r"old\.json: estimate\.breakdown\.blocking_collectives_s: found the breakdown"
    ):
        parse_plan(json.dumps(value), "old.json")


@pytest.mark.parametrize("plan", [example_plan(), replace(example_plan(), recipe=None)])
def test_the_text_holds_what_pydantic_reads(plan: Plan) -> None:
    """One writes the records by their fields, the other reads them: the same keys and values, but no name of a host
    that has none, and nothing of a network that is not there."""
    dumped = TypeAdapter(Plan).dump_python(plan, mode="json")
    assert dumped.pop("network") is None
    assert {device.pop("host") for device in dumped["devices"]} == {None}
    assert repr(json.loads(plan_to_json(plan))) == repr(dumped)
