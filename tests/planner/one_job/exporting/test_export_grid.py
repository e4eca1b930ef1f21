"""Plans of every kind in every training framework's format: what is exported says what the plan says, what cannot be
said is refused with a key of the plan."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from bench.exports.facts import differences
from bench.exports.plans import PLANS, make_plan
from planner.one_job.exporting.formats import load_exporter
from planner.one_job.tools.base.export_records import CannotExpress, Export, ExportContext
from planner.one_job.tools.megatron.arguments import known_arguments
from planner.one_job.tools.megatron.read import read_megatron
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan import Plan
from tests.planner.one_job.exporting.export_reading import READERS, file_of
from tests.planner.shared.plan_examples import example_plan

KEY = re.compile(r"(stages(\[\d*\](\.\w+)*)?|model(\.\w+)?|schedule|optimizer|rank_axis_order|batch\.\w+|recipe\.\w+)")


@cache
def plan_of(name: str) -> Plan:
    return make_plan(name)


def export_to(format_name: str, plan: Plan) -> Export | CannotExpress:
    try:
        return load_exporter(format_name)(plan, ExportContext())
    except CannotExpress as refusal:
        return refusal


@pytest.mark.parametrize("format_name", READERS)
@pytest.mark.parametrize("name", PLANS)
def test_it_says_what_the_plan_says_or_names_a_key(name: str, format_name: str) -> None:
    plan = plan_of(name)
    found = export_to(format_name, plan)
    if isinstance(found, CannotExpress):
        assert KEY.fullmatch(found.key), found.key
        assert found.tool == format_name
        assert str(found).startswith(f"{format_name} cannot express {found.key}: found ")
    else:
        assert differences(format_name, READERS[format_name](found), plan) == []
        assert all(note and not note.endswith(".") for note in found.notes)


@pytest.mark.parametrize(
    ("format_name", "names"),
    [
        ("megatron", {"llama hsdp", "llama cp2", "llama uneven chunks", "mixtral ep4", "gshard moe", "gpt tp2 pp2"}),
        ("bridge", {"llama hsdp", "llama cp2", "llama uneven chunks", "mixtral ep4", "llama fp8"}),
        (
            "torchtitan",
            {"llama zero 3 tp2", "llama hsdp", "llama cp2", "llama pp4 zero 3", "llama gpipe", "llama pp4 zero 1"},
        ),
        ("torchtitan-toml", {"llama zero 3 tp2", "llama hsdp", "llama pp4 zero 3"}),
        ("deepspeed", {"llama zero 3", "llama pp4 zero 1", "mixtral tp2 ep4 zero 2", "vision", "bert"}),
        ("accelerate", {"llama zero 0", "llama zero 2", "llama zero 3", "llama hsdp"}),
        ("llm-foundry", {"llama zero 2", "llama zero 3", "llama hsdp", "one device"}),
        ("nanotron", {"llama zero 1", "llama zero 0"}),
        ("maxtext", {"llama zero 3", "llama cp2", "gpt gpipe", "llama gpipe", "mixtral ep8 zero 3"}),
    ],
)
def test_what_a_tool_can_run_is_exported(format_name: str, names: set[str]) -> None:
    refused = {
        name: found for name in names if isinstance(found := export_to(format_name, plan_of(name)), CannotExpress)
    }
    assert refused == {}


@pytest.mark.parametrize("format_name", READERS)
def test_stages_that_differ_are_refused_where_they_differ(format_name: str) -> None:
    """Stage 0 has dp 2, stage 1 tp 2."""
    found = export_to(format_name, example_plan())
    assert isinstance(found, CannotExpress)
    assert found.key == "stages[1].tp"
    assert (found.found, found.expected) == ("2 where stage 0 has 1", "the same in all stages")


@pytest.mark.parametrize("name", PLANS)
def test_megatron_arguments_are_documented_ones(name: str) -> None:
    """Each is in the list of Megatron-LM's arguments (commit 000c4ac24f61), with as many values as it takes."""
    found = export_to("megatron", plan_of(name))
    if isinstance(found, CannotExpress):
        return
    known = known_arguments()
    text = file_of(found, "megatron.sh")
    lines = re.findall(r"^    --([a-z0-9-]+)(.*)$", text.split("MEGATRON_ARGS=(")[1].split("\n)")[0], re.MULTILINE)
    assert lines
    for argument, values in lines:
        kind = known[argument].kind
        assert {"flags": not values, "values": len(values.split()) == 1, "lists": bool(values)}[kind], argument


@pytest.mark.parametrize("name", PLANS)
def test_megatron_arguments_read_back_as_the_plan(name: str, tmp_path: Path) -> None:
    """By `cellplan`'s own reader of Megatron's settings, which knows nothing of the exporter."""
    plan = plan_of(name)
    found = export_to("megatron", plan)
    if isinstance(found, CannotExpress):
        return
    script = tmp_path / "megatron.sh"
    script.write_text(file_of(found, "megatron.sh"), encoding="utf-8")
    read = read_megatron(str(script), model=None, options=EstimateOptions())
    stage = plan.stages[0]
    wanted = {
        "tp": stage.tp,
        "pp": len(plan.stages),
        "cp": stage.cp,
        "micro_batch": plan.batch.micro_batch // stage.dp,
        "global_batch": plan.batch.global_batch,
        "zero": stage.sharding.zero,
        "dtype": plan.model.dtype,
        "optimizer": plan.optimizer,
        "schedule": "1f1b" if len(plan.stages) == 1 else plan.schedule,
        "seq_len": plan.model.seq_len,
        "offload": stage.offload,
    }
    assert {key: read.options[key] for key in wanted} == wanted
    assert read.devices == len(plan.devices)
    assert (read.copies or 1) == (stage.sharding.replicate if stage.sharding.zero else 1)


def test_scripts_are_shell(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    for format_name in ("megatron", "deepspeed"):
        found = export_to(format_name, plan_of("llama hsdp" if format_name == "megatron" else "llama zero 3"))
        assert isinstance(found, Export)
        for one in found.files:
            if one.name.endswith(".sh"):
                file = tmp_path / one.name
                file.write_text(one.text, encoding="utf-8")
                subprocess.run([bash, "-n", str(file)], check=True)


def test_a_script_with_odd_names_stays_one_word() -> None:
    text = file_of(
        load_exporter("megatron")(plan_of("one device"), ExportContext(script="my train; rm.py")), "megatron.sh"
    )
    assert "'my train; rm.py' \"${MEGATRON_ARGS[@]}\"" in text


def test_latent_attention_and_shared_experts() -> None:
    """A model of DeepSeek's kind: Megatron's and MaxText's sizes of it."""
    plan = plan_of("latent experts")
    script = file_of(load_exporter("megatron")(plan, ExportContext()), "megatron.sh")
    for words in (
        "--multi-latent-attention",
        "--kv-lora-rank 64",
        "--q-lora-rank 96",
        "--moe-layer-freq '([0]+[1]*3)'",
        "--moe-shared-expert-intermediate-size 512",
        "--moe-ffn-hidden-size 256",
        "--ffn-hidden-size 1024",
    ):
        assert f"    {words}\n" in script
    recipe = file_of(load_exporter("bridge")(plan, ExportContext()), "bridge_recipe.py")
    assert "MLAModelProvider(" in recipe
    assert "moe_layer_freq=[0, 1, 1, 1]" in recipe
    yml = file_of(load_exporter("maxtext")(plan_of("latent experts zero 3"), ExportContext()), "maxtext.yml")
    sizes = {"decoder_block": "deepseek", "attention_type": "mla", "first_num_dense_layers": 1, "shared_experts": 2}
    assert {name: yaml.safe_load(yml)[name] for name in sizes} == sizes


def test_a_sliding_window_is_counted_as_transformer_engine_does() -> None:
    """128 tokens are this one and 127 before it."""
    script = file_of(load_exporter("megatron")(plan_of("windowed"), ExportContext()), "megatron.sh")
    assert "    --window-size 127,0\n" in script
