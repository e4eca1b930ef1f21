"""Settings that stand beside a published row's columns: in its JSON object and in files of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.accuracy.adapters.frameworks import load_published_frameworks, release_of
from bench.accuracy.adapters.published import explicit_row, prepare, read_published
from bench.accuracy.adapters.recovered import recovered_row
from bench.accuracy.adapters.told import read_told
from models_zoo.layers import Experts, Head, TransformerBlock
from planner.one_job.validation.prepared import PreparedRun
from profiles.errors import InputError
from tests.planner.one_job.validation.run_row_examples import run_row

SERIAL, NEMO = (load_published_frameworks()[name] for name in ("megatron-lm", "nemo"))
EXTRA = '"{""cuda_graph"": ""full iteration"", ""moe-layer-freq"": ""([0]*3+[1]*12)"", ""blank"": null}"'


def _table(folder: Path, extra: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(f"id,gpu,extra\nA-1,h100,{extra}\n", encoding="utf-8")
    return path


def _row(**fields: Any) -> Any:
    return run_row(micro_batch=None, **fields)


def test_what_is_told_is_lower_case_without_blanks_and_settings_come_over_it(tmp_path: Path) -> None:
    settings = tmp_path / "settings_x.csv"
    settings.write_text("id,gpu,cuda_graph,tp\nA-1,h100,None,2\nB-1,h100,,\n", encoding="utf-8")
    told = read_told(_table(tmp_path, EXTRA), settings=(settings,))
    assert told["A-1"] == {"cuda_graph": "none", "moe_layer_freq": "([0]*3+[1]*12)", "tp": "2"}
    assert not told["B-1"]


@pytest.mark.parametrize("extra", ["[1]", "no json"])
def test_what_is_no_object_is_refused(tmp_path: Path, extra: str) -> None:
    with pytest.raises(InputError, match=r"record 1.*extra.*expected a JSON object"):
        read_told(_table(tmp_path, extra), settings=())


def test_a_table_is_read_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "settings_y.csv").write_text("id,micro_batch\nA-1,4\n", encoding="utf-8")
    (row,) = read_published(_table(tmp_path, '"{""cuda_graph"": ""layer""}"'))
    assert (row.explicit.micro_batch, row.explicit.launch, row.published.micro_batch) == (4, "graph_layers", None)


def test_blanks_are_filled_and_what_the_row_states_stands() -> None:
    told = {"micro_batch": "4", "tp": "8", "vpp": "2", "recompute": "full", "grad_reduce_dtype": "bf16"}
    row = recovered_row(_row(tp=2, recompute="none"), told, SERIAL, [])
    assert row.micro_batch == 4
    assert dict(row.degrees) == {"tp": 2, "vpp": 2}
    assert (row.recompute, row.grad_dtype) == ("none", "bf16")


def test_a_recipes_layout_is_that_of_its_own_degrees() -> None:
    assumed: list[str] = []
    told = {"pipeline_layout": "et*2|ttt|tml", "pp": "3"}
    assert recovered_row(_row(), told, SERIAL, assumed).pipeline_layout == "Et*2|ttt|tmL"
    assert not assumed
    assert not recovered_row(_row(), told | {"pp": "2"}, SERIAL, assumed).pipeline_layout
    assert "other degrees than 2 chunks" in assumed[0]


def test_a_data_parallel_degree_that_contradicts_the_devices_gives_way() -> None:
    assumed: list[str] = []
    row = recovered_row(_row(dp=2), {"dp_if_consistent": "8"}, SERIAL, assumed)
    assert row.degree("dp") == 8
    assert "another is printed" in assumed[0]


@pytest.mark.parametrize(
    ("told", "overlap"),
    [
        ({}, ""),
        ({"overlap_grad_reduce": "1", "tp_comm_overlap": "1", "overlap_p2p": "0"}, "dp+tp"),
        ({"overlap_grad_reduce": "false", "vpp": "2"}, "p2p"),
        ({"overlap_grad_reduce": "false"}, "none"),
        ({"overlap_grad_reduce": "1", "moe_a2a_overlap": "1", "overlap_p2p": "1"}, "dp+p2p+ep"),
        ({"overlap_grad_reduce": "1", "tp_comm_overlap": "1 (NeMo scripts)"}, "dp+tp"),
    ],
)
def test_overlap_is_what_is_told(told: dict[str, str], overlap: str) -> None:
    assert recovered_row(_row(), told, SERIAL, []).overlap == overlap


@pytest.mark.parametrize(
    ("modules", "feature"),
    [
        ("core_attn", "selective=core_attn"),
        ("moe_act+layernorm", "selective=layernorm+moe_act"),
        ("[mlp, attn_norm]", "selective=layernorm+mlp"),
        ("core_attn (the default)", "selective=core_attn"),
        ("", ""),
    ],
)
def test_recomputed_modules_are_a_feature(modules: str, feature: str) -> None:
    told = {"recompute": "selective", "recompute_modules": modules}
    row = recovered_row(_row(), {name: word for name, word in told.items() if word}, SERIAL, [])
    assert (row.recompute, row.features) == ("selective", feature)
    assert not recovered_row(_row(), told | {"recompute": "full"}, SERIAL, []).features


def test_experts_products_are_fused_where_the_operators_are() -> None:
    assert recovered_row(_row(), {"te_op_fuser": "1"}, SERIAL, []).features == "grouped_products=fused"
    assert not recovered_row(_row(), {"te_op_fuser": "0"}, SERIAL, []).features


@pytest.mark.parametrize(
    ("container", "release"),
    [
        ("NeMo 25.04.01", "nemo@25.04"),
        ("25.07", "nemo@25.04"),
        ("26.06", "nemo@25.09"),
        ("24.01", "nemo"),
        ("", "nemo"),
    ],
)
def test_a_container_is_of_the_last_release_before_it(container: str, release: str) -> None:
    assert release_of(NEMO, {"container": container} if container else {}) == release


def test_full_recomputation_of_some_layers() -> None:
    told = {"recompute": "full", "recompute_method": "block", "recompute_num_layers": "5"}
    row = recovered_row(_row(), told, SERIAL, [])
    assert (row.recompute, row.recompute_layers) == ("full", 5)


def test_features_are_told() -> None:
    told = {"moe_dispatcher": "flex:hybridep", "no_gradient_accumulation_fusion": "true", "cuda_graph_impl": "none"}
    row = recovered_row(_row(), told, SERIAL, [])
    assert row.features == "dispatch=hybrid; fused_accumulation=no"
    assert row.launch == "eager"
    assert recovered_row(_row(), {"cpu_offload_activation_layers": "40"}, SERIAL, []).offload == "activations"
    assert not recovered_row(_row(), {"cpu_offload_activation_layers": "0"}, SERIAL, []).offload


@pytest.mark.parametrize(
    ("told", "features"),
    [
        ({"tp_comm_overlap": "1"}, "tensor_overlap=pipelined"),
        ({"tp_comm_overlap": "false"}, "tensor_overlap=backward"),
        ({"fp8_attention": "1", "fp8_param_gather": "0"}, "fp8_attention=yes; narrow_parameters=no"),
        ({"moe_shared_expert_overlap": "1", "bf16_layers_first_last": "0+0"}, "shared_beside=yes"),
        (
            {"moe_shared_expert_overlap": "0", "bf16_layers_first_last": "2+14"},
            "wide_first=2; wide_last=14; shared_beside=no",
        ),
        ({"first_last_layers_bf16": "true"}, "wide_first=1; wide_last=1"),
        ({"precision_recipe": "fp8 per-tensor current scaling"}, "fp8_scaling=current"),
        ({"fp8_recipe": "tensorwise"}, "fp8_scaling=current"),
        ({"fp8_recipe": "delayed, history 4"}, "fp8_scaling=delayed"),
        ({"precision_recipe": "mxfp8 1x32"}, ""),
    ],
)
def test_precision_and_overlap_are_features(told: dict[str, str], features: str) -> None:
    assert recovered_row(_row(), told, SERIAL, []).features == features


def test_fp8_in_blocks_of_32_is_told_where_a_table_says_fp8_alone() -> None:
    for dtype, recipe, read in (
        ("FP8", "mxfp8 1x32", "mxfp8"),
        ("FP8", "fp8 per-tensor current scaling", "FP8"),
        ("NVFP4", "mxfp8 1x32", "NVFP4"),
    ):
        assert recovered_row(_row(dtype=dtype), {"precision_recipe": recipe}, SERIAL, []).dtype == read


def test_the_share_of_layers_that_are_offloaded_is_told() -> None:
    for pp, share in ((1, "0.250"), (2, "0.500"), (8, "1.000")):
        row = recovered_row(_row(layers=80, pp=pp), {"cpu_offload_activation_layers": "20"}, SERIAL, [])
        assert (row.offload, row.features) == ("activations", f"offloaded_share={share}")


def test_the_first_fp8_attention_is_told_by_its_round() -> None:
    for version, word in (("5.0", "first"), ("5.1", "yes")):
        row = _row(source_repo_or_paper=f"mlcommons/training_results_v{version}")
        assert recovered_row(row, {"fp8_attention": "1"}, SERIAL, []).features == f"fp8_attention={word}"


def test_what_megatron_hides_unasked_stays_hidden_where_the_option_is_off() -> None:
    told = {"overlap_grad_reduce": "1", "overlap_p2p": "0", "tp_comm_overlap": "0"}
    assert recovered_row(_row(), told, NEMO, []).overlap == "dp+tp"
    assert recovered_row(_row(), told, SERIAL, []).overlap == "dp"


def test_a_mixture_of_megatrons_options_becomes_a_model() -> None:
    told = {
        "moe_layer_freq": "([0]*3+[1]*21)",
        "moe_shared_expert_intermediate_size": "1024",
        "multi_latent_attention": "true",
        "mtp_num_layers": "1",
    }
    row = explicit_row(_row(model_family="moe", experts=8, topk=2, ffn_hidden=1024), told)
    prepared = prepare(row)
    assert isinstance(prepared, PreparedRun), prepared
    blocks = [layer for layer in prepared.setup.model.layers if isinstance(layer, TransformerBlock)]
    assert [isinstance(block.feed_forward, Experts) for block in blocks] == [False] * 3 + [True] * 21
    assert blocks[0].self_attention.latent is not None
    head = prepared.setup.model.layers[-1]
    assert isinstance(head, Head)
    assert head.prediction is not None
    assert head.prediction.count == 1


def test_every_second_block_of_llama_4_maverick_has_experts() -> None:
    row = explicit_row(_row(model_name="Llama4-Maverick-400B", model_family="moe", heads=40, layers=4, hidden=5120))
    prepared = prepare(row)
    assert isinstance(prepared, PreparedRun), prepared
    blocks = [layer for layer in prepared.setup.model.layers if isinstance(layer, TransformerBlock)]
    assert [isinstance(block.feed_forward, Experts) for block in blocks] == [False, True, False, True]
