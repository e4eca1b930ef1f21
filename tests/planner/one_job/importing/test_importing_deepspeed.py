"""DeepSpeed's configuration JSON read as explicit plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.one_job.tools.base.import_records import Imported
from planner.one_job.tools.deepspeed.read import read_deepspeed
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from tests.planner.one_job.importing.importing_examples import check_read_as, estimate, published

MICRO: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}


def write(folder: Path, values: Any) -> str:
    file = folder / "ds.json"
    file.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
    return str(file)


def read(folder: Path, values: Any, model: str | None = "gpt2-1.3b", **options: Any) -> Imported:
    given = EstimateOptions(**options)
    return read_deepspeed(write(folder, values), model=model, options=given)


@pytest.mark.parametrize("entry", published("deepspeed"))
def test_shipped_files_are_legal_settings(entry: dict[str, Any], tmp_path: Path) -> None:
    setting = write(tmp_path, entry["settings"])
    check_read_as(entry, estimate("deepspeed", setting, entry["cluster"], model=entry["model"]))


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({}, {"zero": 0, "tp": 1, "pp": 1, "dtype": "fp32", "overlap": (), "micro_batch": 2, "micro_batches": 4}),
        ({"bf16": {"enabled": True}}, {"dtype": "bf16", "grad_dtype": None}),
        ({"fp16": {"enabled": True}, "communication_data_type": "fp32"}, {"dtype": "fp16", "grad_dtype": "fp32"}),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "bf16"}}, {"grad_dtype": "bf16"}),
        ({"zero_optimization": {"stage": 1}}, {"zero": 1, "overlap": ()}),
        ({"zero_optimization": True}, {"zero": 1}),
        ({"zero_optimization": {"stage": 2, "overlap_comm": True}}, {"zero": 2, "overlap": ("dp",)}),
        ({"zero_optimization": {"stage": 3}}, {"zero": 3, "overlap": ("dp",)}),
        ({"zero_optimization": {"stage": 3, "overlap_comm": False}}, {"overlap": ()}),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, {"offload": ("optimizer",)}),
        ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, {"offload": ("optimizer",)}),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}, {"offload": None}),
        ({"activation_checkpointing": {"cpu_checkpointing": True}}, {"recompute": "full", "offload": ("activations",)}),
        ({"activation_checkpointing": {"partition_activations": False}}, {"recompute": None}),
        ({"optimizer": {"type": "SGD"}}, {"optimizer": "sgd"}),
        ({"tensor_parallel": {"autotp_size": 4}}, {"tp": 4}),
        ({"pipeline": {"stages": 2}}, {"pp": 2, "software": "megatron-deepspeed"}),
        ({"sequence_parallel_size": 2}, {"cp": 2}),
        ({"train_batch_size": 64}, {"global_batch": 64, "micro_batch": 2, "dp": 8}),
    ],
)
def test_keys_mean_options(values: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, {**MICRO, **values}).options
    assert {name: found.get(name) for name in options} == options


def test_two_of_the_three_batch_sizes_tell_the_third(tmp_path: Path) -> None:
    for values, batch in (
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, (64, 2, 4)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, (64, 2, 4)),
        (MICRO, (64, 2, 4)),
        ({"train_batch_size": 64}, (64, 8, 1)),
        ({"train_micro_batch_size_per_gpu": 2}, (16, 2, 1)),
        ({**MICRO, "train_batch_size": 64}, (64, 2, 4)),
    ):
        plan = estimate("deepspeed", write(tmp_path, values), model="gpt-tiny")["plan"]
        found = plan["batch"]
        assert (found["global_batch"], found["micro_batch"] // 8, found["micro_batches"]) == batch


def test_groups_of_mics_are_hsdp(tmp_path: Path) -> None:
    values = {**MICRO, "zero_optimization": {"stage": 3, "mics_shard_size": 4}}
    stage = estimate("deepspeed", write(tmp_path, values), model="gpt-tiny")["plan"]["stages"][0]
    assert stage["sharding"] == {"zero": 3, "shard": 4, "replicate": 2}


def test_degrees_come_from_beside_the_file(tmp_path: Path) -> None:
    setting = write(tmp_path, MICRO)
    plan = estimate("deepspeed", setting, model="gpt-tiny", tp=2, pp=2)["plan"]
    assert (len(plan["stages"]), plan["stages"][0]["tp"], plan["stages"][0]["dp"]) == (2, 2, 2)
    assert plan["recipe"]["software"]["name"] == "megatron-deepspeed"
    plan = estimate("deepspeed", setting, model="gpt-tiny", software="deepspeed")["plan"]
    assert plan["recipe"]["software"]["name"] == "deepspeed"


def test_what_is_not_modelled_is_told(tmp_path: Path) -> None:
    zero = {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True, "reduce_bucket_size": "auto"}
    found = read(
        tmp_path, {**MICRO, "zero_optimization": zero, "elasticity": {"enabled": True}, "zero_optimisation": {}}
    )
    assert [sentence for sentence in found.assumptions if "zero_" in sentence or "elasticity" in sentence] == [
        "zero_optimization.zero_hpz_partition_size: not modelled; weights are priced as gathered from all ranks in"
        " backward too",
        "zero_optimization.zero_quantized_weights: not modelled; weights are priced as gathered in full",
        "elasticity.enabled: not modelled; the batch is priced as the file states it",
        "zero_optimisation is not understood, and not in the estimate; the nearest known is zero_optimization",
    ]
    assert found.software == {}
    buckets = read(tmp_path, {**MICRO, "fp16": {"enabled": True}, "zero_optimization": {"reduce_bucket_size": 5e8}})
    assert buckets.software == {"bucket_bytes": 1_000_000_000}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ('{"train_batch_size": 8,\n "zero_optimization": {', "ds.json, line 2, column 24: found no JSON"),
        ('{"train_batch_size": 8', "ds.json, line 1, column 23: found no JSON"),
        ("[1]", "ds.json: found [1], expected a JSON object"),
        ("{}", "train_micro_batch_size_per_gpu: found nothing, nor train_batch_size, expected one of them"),
        ({"train_batch_size": "auto"}, 'train_batch_size: found "auto", expected a number: what the trainer would put'),
        ({**MICRO, "bf16": {"enabled": "auto"}}, 'bf16.enabled: found "auto", expected true or false: what the'),
        ({**MICRO, "zero_optimization": {"stage": "auto"}}, 'zero_optimization.stage: found "auto", expected a number'),
        ({**MICRO, "zero_optimization": {"stage": 4}}, "zero_optimization.stage: found 4, expected an integer from 0"),
        ({**MICRO, "zero_optimization": [3]}, "zero_optimization: found [3], expected an object"),
        ({**MICRO, "train_batch_size": 9}, "train_batch_size: found 9, with micro-batches of 2 and 4 steps"),
        ({**MICRO, "bf16": {"enabled": True}, "fp16": {"enabled": True}}, "bf16, fp16: found both enabled"),
        ({**MICRO, "communication_data_type": "int8"}, 'grad_accum_dtype: found "int8", expected one of fp32'),
    ],
)
def test_wrong_files_are_refused_by_key(values: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, values)
    assert message in str(caught.value)


def test_without_a_model_the_file_says_too_little(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="MODEL: found nothing, expected the model that it trains: MODEL beside"):
        read(tmp_path, MICRO, model=None)


def test_batches_that_do_not_fit_the_devices_are_told_in_deepspeeds_words(tmp_path: Path) -> None:
    setting = write(tmp_path, {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 2})
    with pytest.raises(InputError, match=r"ds\.json: train_batch_size: found 10, with dp = 8"):
        estimate("deepspeed", setting, model="gpt-tiny")
    with pytest.raises(InputError, match="= 16, expected at most 8"):
        estimate("deepspeed", write(tmp_path, {**MICRO, "train_batch_size": 128}), model="gpt-tiny")
    with pytest.raises(InputError, match=r"ds\.json: --tp, pipeline\.stages, .*= 3 on 8 devices"):
        estimate("deepspeed", write(tmp_path, MICRO), model="gpt-tiny", tp=3)
