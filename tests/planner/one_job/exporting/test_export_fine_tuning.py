"""Fine-tuning plans as LLaMA-Factory, axolotl and Accelerate with PEFT take them, and what these cannot run."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import api
from planner.shared.plan_file import load_plan
from profiles.errors import InputError, NothingFits

TOOLS = ("llama-factory", "axolotl", "peft")
JOB: dict[str, Any] = {"seq_len": 2048}


def settings(
    tool: str, folder: Path, *, model: str = "llama3-8b", cluster: str = "a10:1x2", **options: Any
) -> dict[str, Any]:
    """Return the files that the tool is started with, each by its name, parsed."""
    stated = JOB | {"cluster": cluster, "tool": tool, "output": folder / "plan.json"} | options
    api.plan(model, **stated)
    files = api.export(folder / "plan.json", to=tool)["files"]
    return {file["name"]: yaml.safe_load(file["text"]) for file in files}


def test_llama_factory_takes_adapters_beside_weights_in_4_bits(tmp_path: Path) -> None:
    written = settings("llama-factory", tmp_path, cluster="4090:1x1", qlora=16)
    values = written["llama_factory.yaml"]
    assert (values["finetuning_type"], values["lora_rank"], values["quantization_bit"]) == ("lora", 16, 4)
    assert (values["cutoff_len"], values["packing"]) == (2048, True)
    assert values["per_device_train_batch_size"] * values["gradient_accumulation_steps"] == 16
    assert list(written) == ["llama_factory.yaml"]


def test_axolotl_takes_adapters_on_two_devices(tmp_path: Path) -> None:
    written = settings("axolotl", tmp_path, lora=16, zero=2)
    values = written["axolotl.yaml"]
    assert (values["adapter"], values["lora_r"], "load_in_4bit" in values) == ("lora", 16, False)
    assert 2 * values["micro_batch_size"] * values["gradient_accumulation_steps"] == 16
    assert values["deepspeed"] == "ds_config.json"
    assert written["ds_config.json"]["zero_optimization"]["stage"] == 2


def test_peft_has_the_arguments_of_the_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    written = settings("peft", tmp_path, qlora=8)
    taken = {field.name for field in fields(transformers.TrainingArguments)}
    assert set(written["training_args.json"]) <= taken
    assert written["lora_config.json"]["r"] == 8
    assert written["quantization_config.json"]["bnb_4bit_compute_dtype"] == "bfloat16"
    assert written["accelerate.yaml"]["num_processes"] == 2


@pytest.mark.parametrize("tool", TOOLS)
def test_all_weights_learn_without_adapters(tool: str, tmp_path: Path) -> None:
    written = settings(tool, tmp_path, cluster="h100:1x8", global_batch=64, zero=3)
    text = json.dumps(written)
    assert '"stage": 3' in text
    assert not any(word in text for word in ("lora", "4bit", "quantization"))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"paged": True, "optimizer": "sgd"}, "recipe.software.memory.paged_states"),
        ({"lora": 8, "feature": ("frozen_as=gptq",)}, "recipe.software.frozen_as"),
        ({"lora": 8, "optimizer": "muon"}, "optimizer"),
    ],
)
def test_what_these_tools_cannot_train_is_refused_by_name(options: dict[str, Any], key: str) -> None:
    with pytest.raises(NothingFits, match=f"cannot express {key}"):
        api.plan("llama3-8b", cluster="h100:1x2", tool="peft", **JOB, **options)


@pytest.mark.parametrize(
    ("tool", "options", "key"),
    [
        ("llama-factory", {"freeze": (3, 5)}, "recipe.frozen_layers"),
        ("torchtune", {"freeze": (0, 5)}, "recipe.frozen_layers"),
        ("torchtune", {"paged": True, "fix": ("dp=2",)}, "recipe.software.memory.paged_states"),
        ("torchtune", {"lora": 8, "tp": 2}, "tp"),
        ("axolotl", {"model": "bert-large"}, "model"),
    ],
)
def test_each_says_what_it_alone_cannot_train(tool: str, options: dict[str, Any], key: str) -> None:
    model = options.get("model", "llama3-8b")
    stated: dict[str, Any] = (
        {"cluster": "h100:1x2", "tool": tool}
        | JOB
        | {name: value for name, value in options.items() if name != "model"}
    )
    with pytest.raises((NothingFits, InputError), match=key):
        api.plan(model, **stated)


def test_torchtune_takes_adapters_with_the_sizes_of_the_model(tmp_path: Path) -> None:
    values = settings("torchtune", tmp_path, cluster="4090:1x1", qlora=16)["torchtune.yaml"]
    model = values["model"]
    assert model["_component_"] == "torchtune.models.llama3.lora_llama3"
    assert (model["lora_rank"], model["quantize_base"], model["num_kv_heads"]) == (16, True, 8)
    assert (values["tokenizer"]["max_seq_len"], values["dataset"]["packed"]) == (2048, True)
    assert values["batch_size"] * values["gradient_accumulation_steps"] == 16


def test_torchtune_shares_all_weights_that_learn(tmp_path: Path) -> None:
    values = settings("torchtune", tmp_path, cluster="h100:1x8", zero=3, global_batch=64)["torchtune.yaml"]
    assert values["model"]["_component_"] == "torchtune.models.llama3.llama3"
    assert (values["fsdp_reshard_after_forward"], values["optimizer_in_bwd"]) == (True, False)


def test_state_in_memory_that_device_and_host_share_takes_none_of_the_devices(tmp_path: Path) -> None:
    stated: dict[str, Any] = {"cluster": "h100:1x1", "optimizer": "adam8bit", "recompute": "full", "no_offload": True}
    whole = api.plan("llama3.2-3b", **JOB, **stated).plan.estimate.peak_memory_bytes
    written = settings("peft", tmp_path, model="llama3.2-3b", paged=True, **stated)
    assert written["training_args.json"]["optim"] == "paged_adamw_8bit"
    paged = load_plan(tmp_path / "plan.json").estimate.peak_memory_bytes
    # Two moments of a byte each for 3.2 billion weights.
    assert paged < whole - 5 * 2**30


def test_layers_that_do_not_learn_are_said_as_each_tool_says_it(tmp_path: Path) -> None:
    stated: dict[str, Any] = {"cluster": "h100:1x1", "model": "llama3.2-1b", "freeze": (0, 13)}
    factory = settings("llama-factory", tmp_path, **stated)["llama_factory.yaml"]
    assert (factory["finetuning_type"], factory["freeze_trainable_layers"]) == ("freeze", 4)
    assert factory["freeze_extra_modules"] == "norm,lm_head"
    learning = settings("axolotl", tmp_path, **stated)["axolotl.yaml"]["unfrozen_parameters"]
    assert learning == [r"^model\.layers\.(12|13|14|15)\.", r"^model\.norm", r"^lm_head"]
    first = settings("llama-factory", tmp_path, **{**stated, "freeze": (5, 18)})["llama_factory.yaml"]
    assert (first["freeze_trainable_layers"], first["freeze_extra_modules"]) == (-4, "embed_tokens")


def test_a_plan_of_a_fine_tuning_says_who_runs_it() -> None:
    staged = api.plan("llama3-8b", cluster="a10:1x2", lora=16, seq_len=4096).plan
    assert any("none of the fine-tuning tools runs this plan" in text for text in staged.assumptions)
    alone = api.plan("llama3-8b", cluster="4090:1x1", qlora=16, **JOB).plan
    assert "tools that run this plan: llama-factory, axolotl, peft" in " ".join(alone.assumptions)
    assert not any("fine-tuning tool" in text for text in api.plan("gpt-tiny", cluster="4090:1x1").plan.assumptions)


def test_where_adapters_do_not_fit_it_says_what_to_try() -> None:
    with pytest.raises(NothingFits, match=r"--largest seq-len, micro-batch or model tells .*--qlora 16"):
        api.plan("llama3-8b", cluster="4090:1x1", lora=16)


def test_the_same_adapters_take_less_memory_beside_weights_in_4_bits() -> None:
    stated = JOB | {"cluster": "h100:1x1", "micro_batch": 1, "recompute": "none"}
    held = api.plan("llama3-8b", lora=16, **stated).plan.estimate
    narrow = api.plan("llama3-8b", qlora=16, **stated).plan.estimate
    assert narrow.peak_memory_bytes < held.peak_memory_bytes - 7 * 2**30
    assert narrow.iteration_time_s > held.iteration_time_s


def test_a_fine_tuning_has_a_batch_of_its_own() -> None:
    answer = api.estimate("llama3-8b", cluster="4090:1x1", qlora=16, **JOB)
    assert answer["plan"]["batch"]["global_batch"] == 16
    assert any("as fine-tunings have it" in text for text in answer["estimate"]["assumptions"])
    with pytest.raises(InputError, match="--qlora: found --lora too"):
        api.estimate("llama3-8b", cluster="4090:1x1", lora=8, qlora=8)


def test_the_batch_of_a_fine_tuning_is_rounded_up_to_whole_micro_batches() -> None:
    answer = api.estimate("llama3-8b", cluster="h100:1x8", lora=16, dp=8, micro_batch=4, **JOB)
    assert answer["plan"]["batch"]["global_batch"] == 32
    assert any("rounded up to 32" in text for text in answer["estimate"]["assumptions"])
