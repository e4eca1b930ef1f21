"""Settings of fine-tunings read as explicit plans: accelerate's, the Trainer's, LLaMA-Factory's, axolotl's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from planner import api
from planner.one_job.tools.base.import_records import Imported
from planner.one_job.tools.fine_tuning.read import read_accelerate, read_axolotl, read_llama_factory, read_trainer
from planner.shared.options.common import Launcher, Tool
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan_file import load_plan
from profiles.errors import InputError
from tests.planner.one_job.importing.importing_examples import estimate

FSDP = {"distributed_type": "FSDP", "num_processes": 8, "mixed_precision": "bf16"}
LORA = {"r": 16, "target_modules": "all-linear"}

SCRIPT = """
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

MODEL, LENGTH = "meta-llama/Llama-3.1-8B", 1024
BASE = "llama3.1-8b"
open("ran", "w")
PATTERN = "\\d+"
bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(BASE, quantization_config=bits, attn_implementation="eager")
tokenizer = AutoTokenizer.from_pretrained("other")
arguments = SFTConfig(
    per_device_train_batch_size=4, gradient_accumulation_steps=2, gradient_checkpointing=True, bf16=True,
    optim="paged_adamw_8bit", max_length=512, learning_rate=2e-4, save_steps=10 * 5,
)
trainer = SFTTrainer(model=model, args=arguments, peft_config=LoraConfig(r=64, target_modules="all-linear"))
"""


def read(folder: Path, values: Any, *, launcher: str = "trainer", model: str | None = "llama3-8b") -> Imported:
    """What is read of settings in a file."""
    file = folder / "settings.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    readers = {"trainer": read_trainer, "accelerate": read_accelerate, "axolotl": read_axolotl}
    reader = readers.get(launcher, read_llama_factory)
    return reader(str(file), model=model, options=EstimateOptions())


def check(imported: Imported, expected: dict[str, Any]) -> None:
    assert {name: imported.options.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"micro_batch": 8, "micro_batches": 1, "zero": 0, "recompute": "none", "optimizer": "adamw"}),
        ({"bf16": True, "gradient_checkpointing": True}, {"dtype": "bf16", "recompute": "full"}),
        ({"fp16": True, "optim": "adamw_bnb_8bit"}, {"dtype": "fp16", "optimizer": "adam8bit", "paged": None}),
        ({"optim": "paged_adamw_32bit"}, {"optimizer": "adamw", "paged": True}),
        ({"fsdp": "full_shard auto_wrap"}, {"zero": 3, "software": "torch-fsdp"}),
        ({"fsdp": ["shard_grad_op", "offload"]}, {"zero": 2, "offload": ("optimizer",)}),
        ({"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": True}}, {"recompute": "full"}),
        ({"fsdp": "full_shard", "fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": True},
         {"recompute": "full", "checkpoints": None}),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, {"zero": 2, "overlap": ()}),
        ({"deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}},
         {"zero": 3, "overlap": ("dp",), "offload": ("optimizer",)}),
        ({"use_peft": True, "lora_r": 8, "load_in_4bit": True, "max_length": 512}, {"qlora": 8, "seq_len": 512}),
    ],
)  # fmt: skip
def test_arguments_of_the_trainer(values: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    check(read(tmp_path, values), expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (FSDP, {"zero": 3, "dtype": "bf16", "micro_batch": None}),
        ({**FSDP, "fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, {"zero": 2}),
        ({**FSDP, "fsdp_config": {"fsdp_sharding_strategy": 2}}, {"zero": 2}),
        ({**FSDP, "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}}, {"zero": 2}),
        ({**FSDP, "fsdp_config": {"fsdp_activation_checkpointing": True}}, {"recompute": "full"}),
        ({**FSDP, "parallelism_config": {"parallelism_config_tp_size": 2}}, {"tp": 2}),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "fp16"}, {"zero": 0, "dtype": "fp16"}),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, "gradient_accumulation_steps": 4}},
            {"zero": 3, "micro_batches": 4, "offload": None},
        ),
    ],
)
def test_configurations_of_accelerate(values: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    imported = read(tmp_path, values, launcher="accelerate")
    check(imported, expected)
    assert imported.devices == values.get("num_processes")


def test_shards_inside_nodes_are_as_many_as_a_nodes_processes(tmp_path: Path) -> None:
    hybrid = {**FSDP, "num_machines": 2, "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"}}
    assert read(tmp_path, hybrid, launcher="accelerate").shard == 4
    with pytest.raises(InputError, match="fsdp_sharding_strategy"):
        read(tmp_path, {**hybrid, "num_machines": 3}, launcher="accelerate")


def test_a_script_is_read_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT, encoding="utf-8")
    imported = read_trainer("train.py", model=None, options=EstimateOptions())
    check(imported, {"qlora": 64, "micro_batch": 4, "micro_batches": 2, "paged": True, "seq_len": 512})
    check(imported, {"attention": "math", "recompute": "full", "dtype": "bf16"})
    assert imported.model.reference == "llama3.1-8b"
    assert any("save_steps is computed" in note for note in imported.assumptions)
    assert not Path("ran").exists()


def test_a_command_line_names_its_processes_and_its_files(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: bf16\n", encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text(
        "accelerate launch --config_file acc.yaml --num_processes 4 train.py --model_name_or_path llama3-8b \\\n"
        "  --per_device_train_batch_size 2 --gradient_checkpointing --block_size 1024 --output_dir $OUT\n",
        encoding="utf-8",
    )
    imported = read_trainer(str(script), model=None, options=EstimateOptions())
    check(imported, {"micro_batch": 2, "dtype": "bf16", "recompute": "full", "seq_len": 1024})
    assert imported.devices == 4
    assert any("output_dir is $OUT" in note for note in imported.assumptions)
    torchrun = "torchrun --nproc_per_node=8 --nnodes=2 train.py --bf16 true --deepspeed ''"
    assert read_trainer(torchrun, model="llama3-8b", options=EstimateOptions()).devices == 16


@pytest.mark.parametrize(
    ("launcher", "values", "message"),
    [
        ("trainer", {"bf16": True, "fp16": True}, "bf16, fp16: found both"),
        ("trainer", {"per_device_train_batch_size": "two"}, "per_device_train_batch_size"),
        ("trainer", [1], "a JSON object"),
        ("accelerate", {**FSDP, "fsdp_config": {"fsdp_sharding_strategy": "SOME"}}, "fsdp_sharding_strategy"),
        ("axolotl", {"base_model": "llama3-8b", "adapter": "ia3"}, "adapter"),
        ("llama-factory", {"finetuning_type": "freeze", "freeze_trainable_layers": 99}, "below 32 blocks"),
    ],
)
def test_what_is_wrong_is_said_by_its_key(launcher: str, values: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, values, launcher=launcher)


@pytest.mark.parametrize("text", ["def f(:", "(" * 5000, "-" * 100_000 + "1", "x = 1"])
def test_a_script_without_settings_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"train\.py"):
        read_trainer(str(file), model="llama3-8b", options=EstimateOptions())


def test_what_is_not_priced_is_noted(tmp_path: Path) -> None:
    values = {"optim": "lion_8bit", "neftune_noise_alpha": 5, "per_device_train_batchsize": 2}
    notes = read(tmp_path, values).assumptions
    for words in (
        "optim lion_8bit: not modelled",
        "noise is not priced",
        "the nearest known is per_device_train_batch",
    ):
        assert any(words in note for note in notes), (words, notes)


ROUND_TRIPS: list[tuple[Launcher, dict[str, Any]]] = [
    ("peft", {"lora": 16, "cluster": "l40s:1x2", "zero": 2}),
    ("trainer", {"qlora": 16, "cluster": "4090:1x1", "paged": True, "optimizer": "adam8bit"}),
    ("accelerate", {"cluster": "h100:1x8", "zero": 3, "recompute": "full", "software": "torch-fsdp"}),
    ("llama-factory", {"qlora": 8, "cluster": "4090:1x1"}),
    ("llama-factory", {"freeze": (0, 25), "cluster": "h100:1x2", "zero": 1}),
    ("axolotl", {"lora": 16, "cluster": "l40s:1x2", "feature": ("lora_targets=attention",)}),
    ("axolotl", {"freeze": (9, 34), "cluster": "h100:1x2", "zero": 2}),
]


@pytest.mark.parametrize(("launcher", "options"), ROUND_TRIPS)
def test_what_is_exported_reads_back_with_the_same_time(
    launcher: Launcher, options: dict[str, Any], tmp_path: Path
) -> None:
    tool = "peft" if launcher == "trainer" else launcher
    stated: dict[str, Any] = {"global_batch": 16, "micro_batch": 1, "recompute": "none", "seq_len": 2048} | options
    api.plan("llama3-8b", tool=cast(Tool, tool), output=tmp_path / "plan.json", no_offload=True, **stated)
    plan = load_plan(tmp_path / "plan.json")
    exported = api.export(tmp_path / "plan.json", to=tool, output=tmp_path / "out")
    names = [file["name"] for file in exported["files"]]
    file = tmp_path / "out" / ("training_args.json" if "training_args.json" in names else names[0])
    if len(names) == 1:
        file = tmp_path / "out"
        file = file.rename(tmp_path / names[0])
    beside: dict[str, Any] = {"seq_len": 2048} if tool in ("peft", "accelerate") else {}
    if tool == "accelerate":
        beside |= {"micro_batch": 1, "global_batch": 16}
    result = estimate(launcher, str(file), stated["cluster"], model="llama3-8b", **beside)
    again = result["plan"]["estimate"]
    assert again["iteration_time_s"] == pytest.approx(plan.estimate.iteration_time_s, rel=1e-12)
    assert again["peak_memory_bytes"] == plan.estimate.peak_memory_bytes
