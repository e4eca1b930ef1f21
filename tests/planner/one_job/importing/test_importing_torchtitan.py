"""torchtitan's TOML files read as explicit plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimator.layers.graph import build_graph
from models_zoo.catalogue import load_model
from models_zoo.hugging_face import config_model
from planner.one_job.tools.base.import_records import Imported
from planner.one_job.tools.base.pipeline import weighted_blocks
from planner.one_job.tools.base.settings import load_data
from planner.one_job.tools.torchtitan.read import read_torchtitan
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from profiles.vocabulary import Shard
from tests.planner.one_job.importing.importing_examples import check_read_as, estimate, published, to_toml


def read(folder: Path, text: str, model: str | None = None) -> Imported:
    file = folder / "train.toml"
    file.write_text(text, encoding="utf-8")
    return read_torchtitan(str(file), model=model, options=EstimateOptions())


def llama(folder: Path, parallelism: str = "", rest: str = "") -> Imported:
    return read(folder, f'[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\n{parallelism}\n{rest}')


@pytest.mark.parametrize("entry", published("torchtitan"))
def test_shipped_files_are_legal_settings_of_the_published_size(entry: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text(to_toml(entry["settings"]), encoding="utf-8")
    check_read_as(entry, estimate("torchtitan", str(file), entry["cluster"]))


@pytest.mark.parametrize(
    ("name", "flavor", "billions"),
    [
        ("qwen3", "0.6B", 0.596),
        ("qwen3", "1.7B", 1.72),
        ("qwen3", "4B", 4.02),
        ("qwen3", "8B", 8.19),
        ("qwen3", "14B", 14.8),
        ("qwen3", "32B", 32.8),
        ("qwen3", "30B-A3B", 30.5),
        ("qwen3", "235B-A22B", 235.1),
        ("deepseek_v3", "16B", 15.7),
        ("deepseek_v3", "236B", 235.7),
        ("deepseek_v3", "671B", 671.0),
    ],
)
def test_flavors_have_the_parameters_of_their_releases(name: str, flavor: str, billions: float, tmp_path: Path) -> None:
    found = read(tmp_path, f'[model]\nname = "{name}"\nflavor = "{flavor}"\n')
    assert found.model.config is not None
    model = config_model(found.model.config, where="x", name="x")
    graph = build_graph(model, shard=Shard(seq_len=model.seq_len), degrees=())
    assert graph.parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_every_flavor_is_a_zoo_model_or_describes_one(tmp_path: Path) -> None:
    for name, flavors in load_data("torchtitan/models.toml").items():
        for flavor, entry in flavors.items():
            found = read(tmp_path, f'[model]\nname = "{name}"\nflavor = "{flavor}"\n')
            if "zoo" in entry:
                assert load_model(str(found.model.reference)).name == entry["zoo"]
            else:
                assert found.model.config is not None
    assert llama(tmp_path).model.reference == "llama3-8b"
    assert read(tmp_path, '[model]\nname = "llama3"\nflavor = "8B_flex"\n').model.reference == "llama3-8b"


@pytest.mark.parametrize(
    ("parallelism", "rest", "options"),
    [
        ("", "", {"tp": 1, "pp": 1, "cp": 1, "zero": 3, "micro_batch": 8, "micro_batches": 1, "seq_len": 2048}),
        ("data_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8", "", {"zero": 0, "dp": 8}),
        ("data_parallel_shard_degree = 4\ndata_parallel_replicate_degree = 2", "", {"zero": 3, "dp": 8}),
        ("data_parallel_shard_degree = 1\ncontext_parallel_degree = 2", "", {"zero": 3, "cp": 2, "dp": 1}),
        ('fsdp_reshard_after_forward = "never"', "", {"zero": 2}),
        ("pipeline_parallel_degree = 2", "", {"zero": 1, "schedule": "1f1b", "micro_batch": 1, "micro_batches": 8}),
        ('pipeline_parallel_degree = 2\nfsdp_reshard_after_forward = "always"', "", {"zero": 3}),
        (
            'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"',
            "",
            {"schedule": "interleaved", "vpp": 2},
        ),
        (
            'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"\n'
            "pipeline_parallel_layers_per_stage = 3",
            "",
            {"schedule": "interleaved", "vpp": 6},
        ),
        ('pipeline_parallel_degree = 2\npipeline_parallel_schedule = "ZBVZeroBubble"', "", {"schedule": "zb-h1"}),
        ("", "[training]\nlocal_batch_size = 2\nglobal_batch_size = 64", {"micro_batch": 2, "global_batch": 64}),
        ("", '[training]\nmixed_precision_param = "float32"', {"dtype": "fp32", "grad_dtype": "fp32"}),
        ("", '[training]\ndtype = "bfloat16"', {"dtype": "bf16", "grad_dtype": "bf16"}),
        ("", '[activation_checkpoint]\nmode = "none"', {"recompute": "none"}),
        ("", '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "2"', {"recompute": "full:16"}),
        ("", "", {"recompute": "full:16"}),
        ("", '[optimizer]\nname = "Muon"', {"optimizer": "muon"}),
        ("", "[training]\nenable_cpu_offload = true", {"offload": ("optimizer",)}),
        ("tensor_parallel_degree = 2\nenable_async_tensor_parallel = true", "", {"overlap": ("dp", "tp")}),
    ],
)
def test_keys_mean_options(parallelism: str, rest: str, options: dict[str, Any], tmp_path: Path) -> None:
    found = llama(tmp_path, parallelism, rest).options
    assert {name: found.get(name) for name in options} == options


def test_what_is_priced_as_something_else_is_told(tmp_path: Path) -> None:
    for parallelism, rest, words in (
        ('fsdp_reshard_after_forward = "never"', "", "priced as ZeRO 2"),
        ("pipeline_parallel_degree = 2", "", "priced as ZeRO 1"),
        ('pipeline_parallel_degree = 2\npipeline_parallel_schedule = "DualPipeV"', "", "priced as DualPipe"),
        ("pipeline_parallel_degree = 2", "[training]\nglobal_batch_size = 64", "filled once an iteration"),
        ("", '[activation_checkpoint]\nmode = "memory_budget"', "priced as selective recomputation"),
        ("", '[model.extra]\nx = 1\n[optimizer]\nname = "Lion"', "optimizer.name Lion: not modelled"),
        ("", "[training]\nenable_cpu_offload = true", "weights on the device"),
        ('context_parallel_rotate_method = "alltoall"', "", "context_parallel_rotate_method: not modelled"),
        ("tensor_paralel_degree = 2", "", "nearest known is parallelism.tensor_parallel_degree"),
    ):
        found = llama(tmp_path, parallelism, rest)
        assert any(words in sentence for sentence in found.assumptions), (words, found.assumptions)
    assert llama(tmp_path, 'context_parallel_rotate_method = "allgather"').assumptions == ()


def test_what_is_low_precision_or_compiled(tmp_path: Path) -> None:
    head = '[model]\nname = "llama3"\nflavor = "8B"\n'
    for converters in ('"float8"', '["quantize.linear.float8"]', '["quantize.linear.mx"]'):
        assert read(tmp_path, f"{head}converters = {converters}\n").options["dtype"] == "fp8"
    assert read(tmp_path, f"{head}[float8]\nenable_float8_linear = true\n").options["dtype"] == "fp8"
    assert read(tmp_path, f"{head}[float8]\nenable_fsdp_float8_all_gather = true\n").options["dtype"] == "bf16"
    plain, compiled = ({"kernels": kernels, "narrow_parameters": False} for kernels in ("eager", "fused"))
    assert read(tmp_path, f"{head}[compile]\nenable = true\n").software == compiled
    assert read(tmp_path, f'{head}[compile]\nenable = true\ncomponents = ["loss"]\n').software == plain
    assert read(tmp_path, f"{head}[training]\ncompile = true\n").software == compiled
    pure = read(tmp_path, f'{head}[training]\ndtype = "bfloat16"\n').software
    assert pure == {**plain, "optimizer_masters": False}
    for section in ("float8", "quantize.linear.float8"):
        gathered = read(tmp_path, f"{head}[{section}]\nenable_fsdp_float8_all_gather = true\n").software
        assert gathered == {**plain, "narrow_parameters": True}


def test_blocks_are_shared_as_torchtitan_shares_them(tmp_path: Path) -> None:
    assert llama(tmp_path, "pipeline_parallel_degree = 4").blocks == (8, 9, 8, 7)
    fewer = "pipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 2"
    assert llama(tmp_path, f"pipeline_parallel_degree = 4\n{fewer}").blocks == (9, 9, 8, 6)
    parts = [[f"layers.{number}" for number in range(first, first + 16)] for first in (0, 16)]
    assert llama(tmp_path, f"pipeline_parallel_degree = 2\nmodule_fqns_per_model_part = {parts}").blocks == (16, 16)
    assert weighted_blocks(4, chunks=8, first_less=1, last_less=1) is None
    assert weighted_blocks(4, chunks=1, first_less=1, last_less=1) == (4,)


def test_experts_are_shared(tmp_path: Path) -> None:
    head = '[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[parallelism]\n'
    assert read(tmp_path, f"{head}tensor_parallel_degree = 2").options["etp"] == 2
    found = read(tmp_path, f'{head}expert_parallel_degree = 8\nexpert_parallel_comm_backend = "deepep"')
    assert (found.options["ep"], found.options["etp"]) == (8, 1)
    assert found.software["dispatch"] == "deduplicated"


def test_replicas_are_hsdp(tmp_path: Path) -> None:
    found = llama(tmp_path, "data_parallel_replicate_degree = 2")
    result = estimate("torchtitan", found.setting, "h100:1x8")
    assert result["plan"]["stages"][0]["sharding"] == {"zero": 3, "shard": 4, "replicate": 2}
    with pytest.raises(InputError, match="data_parallel_replicate_degree: found 3, of 8 data-parallel"):
        estimate("torchtitan", llama(tmp_path, "data_parallel_replicate_degree = 3").setting, "h100:1x8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model\n", "train.toml, line 1, column 7: found no TOML (Expected ']' at the end of a table declaration)"),
        ('[model]\nname = "llama3"\nflavor = \n', "train.toml, line 3, column 10: found no TOML (Invalid value)"),
        ("[model]\nname = 'x", "train.toml, end of document: found no TOML"),
        ('model = "llama3"\n', 'train.toml: model: found "llama3", expected an object'),
        ('[model]\nflavor = "9B"\n', "model.flavor: found llama3 9B, expected one of llama3 8B, llama3 70B"),
        ('[model]\nname = "flux"\n', "found flux debugmodel, expected one of"),
        ("[parallelism]\ntensor_parallel_degree = 0\n", "parallelism.tensor_parallel_degree: found 0, expected"),
        ('[parallelism]\ntensor_parallel_degree = "8"\n', 'tensor_parallel_degree: found "8", expected an integer'),
        (
            "[parallelism]\ndata_parallel_shard_degree = 0\n",
            "data_parallel_shard_degree: found 0, expected at least 1, or -1",
        ),
        (
            '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "Z"\n',
            "pipeline_parallel_schedule: found 'Z', expected one of 1F1B, GPipe",
        ),
        ('[activation_checkpoint]\nmode = "some"\n', 'activation_checkpoint.mode: found "some", expected one of none'),
        ('[activation_checkpoint]\nselective_ac_option = "x"\n', "selective_ac_option: found 'x', expected op, or"),
        (
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 3\n",
            "training.local_batch_size: found 8, in micro-batches of 3",
        ),
        (
            '[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"\n'
            "pipeline_parallel_layers_per_stage = 2\n",
            "pipeline_parallel_layers_per_stage: found 4 chunks of layers over 4 stages",
        ),
    ],
)
def test_wrong_files_are_refused_with_their_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "train.toml" in str(caught.value)


def test_a_model_beside_the_file_takes_the_flavors_place(tmp_path: Path) -> None:
    found = read(tmp_path, '[model]\nname = "mine"\nflavor = "1T"\n', model="gpt-tiny")
    assert (found.model.reference, found.model.config) == ("gpt-tiny", None)


def test_degrees_that_do_not_go_together_are_told_in_torchtitans_words(tmp_path: Path) -> None:
    setting = llama(tmp_path, "tensor_parallel_degree = 3").setting
    with pytest.raises(InputError, match=r"train\.toml: parallelism\.tensor_parallel_degree, .*= 3 on 8 devices"):
        estimate("torchtitan", setting, "h100:1x8")
    setting = llama(tmp_path, "data_parallel_shard_degree = 4\ntensor_parallel_degree = 4").setting
    with pytest.raises(InputError, match="= 16, expected at most 8"):
        estimate("torchtitan", setting, "h100:1x8")
