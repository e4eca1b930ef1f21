"""From options to a setup: what is derived, what is said about it, and which contradictions are refused."""

from __future__ import annotations

from typing import Any

import pytest

from estimator.pricing.recipe import Software
from planner.one_job.cells.request import check_cells
from planner.one_job.explicit.dispatch import read_any_request
from planner.one_job.explicit.estimate import estimate_explicit
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from tests.planner.one_job.explicit.explicit_plan_examples import request_of, setup_of


def test_what_nobody_said_is_derived_and_told() -> None:
    request = request_of(cluster="a100-80gb:2x8", tp=2, pp=2)
    setup = request.setups[0]
    assert [(stage.tp, stage.dp, stage.cp, stage.ep, stage.etp) for stage in setup.stages] == [(2, 4, 1, 1, 1)] * 2
    assert setup.recipe.schedule == "1f1b"
    assert setup.recipe.grad_dtype == "fp32"
    assert all(stage.sequence_parallel and stage.zero == 1 for stage in setup.stages)
    assert setup.recipe.attention == "flash"
    assert setup.micro_batches == 8
    said = " ".join(request.assumptions)
    for what in (
        "dp 4: 16 devices over tp * pp * cp = 4",
        "--software",
        "--micro-batch",
        "--global-batch",
        "--overlap",
    ):
        assert what in said


def test_recomputation_left_open_is_tried_from_none_to_full() -> None:
    stages = [setup.stages[0] for setup in request_of(dp=8, micro_batch=2, zero=1).setups]
    assert list(dict.fromkeys(stage.recompute for stage in stages)) == ["none", "selective", "full"]
    layers = [stage.recompute_layers for stage in stages if stage.recompute == "full"]
    assert layers[-1] is None
    few = [count for count in layers if count is not None]
    assert few == sorted(few)
    at_first = request_of(dp=8, global_batch=32, zero=1).setups
    tried = [(setup.micro_batch // 8, setup.stages[0].recompute) for setup in at_first]
    least, most = [(4, "none"), (2, "none"), (1, "none")], [(4, "full"), (2, "full"), (1, "full")]
    assert tried == [*least, (1, "selective"), *[(1, "full")] * len(few), *most]
    (setup,) = request_of(dp=2, pp=4, micro_batch=1, recompute="full:1", zero=1).setups
    # The first and the last stage also hold embedding and head; each of the others is all of one block.
    assert [(stage.layers, stage.recompute_layers) for stage in setup.stages] == [(2, 1), (1, None), (1, None), (2, 1)]


def test_a_named_software_brings_its_features() -> None:
    recipe = setup_of(tp=2, software="megatron-core", dtype="bf16").recipe
    assert (recipe.software.name, recipe.software.fused_cross_entropy) == ("megatron-core", True)
    assert recipe.vocabulary_multiple == 128
    assert recipe.overlap == {"dp"}
    assert recipe.software.sums_beside
    told = setup_of(tp=2, software="megatron-core", overlap=(), vocab_pad=8, grad_dtype="bf16").recipe
    assert (told.overlap, told.vocabulary_multiple, told.grad_dtype) == (frozenset(), 8, "bf16")
    assert isinstance(recipe.software, Software)


def test_chunks_of_1f1b_are_interleaved_and_hsdp_is_zero_3() -> None:
    request = request_of(pp=2, vpp=2, global_batch=8)
    assert request.setups[0].recipe.schedule == "interleaved"
    assert [len(stage.chunks) for stage in request.setups[0].stages] == [2, 2]
    (stage,) = setup_of(dp=8, hsdp=(4, 2)).stages
    assert (stage.zero, stage.shard, stage.sharded_over, stage.replicas) == (3, 4, 4, 2)
    (whole,) = setup_of(dp=8, hsdp=(8, 1), zero=2).stages
    assert (whole.zero, whole.shard, whole.sharded_over) == (2, None, 8)


def test_a_batch_that_nobody_gave_is_whole_micro_batches() -> None:
    request = request_of(tp=1, devices=6)
    assert request.setups[0].recipe.global_batch % 6 == 0
    assert any("rounded up to" in sentence for sentence in request.assumptions)
    assert setup_of(dp=4, devices=4, micro_batches=8, global_batch=64).micro_batch == 8
    assert setup_of(dp=4, devices=4, micro_batches=8, micro_batch=2).recipe.global_batch == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 3}, r"--tp, --pp, --cp: found tp \* pp \* cp = 3 on 8 devices, expected a divisor"),
        ({"tp": 0}, "--tp: found 0, expected a whole number of at least 1"),
        ({"tp": 8, "dp": 2}, r"found tp \* pp \* dp \* cp = 8 \* 1 \* 2 \* 1 = 16, expected at most 8"),
        ({"dp": 2, "devices": 4}, "= 2, expected the 4 devices"),
        ({"dp": 5}, "= 5, expected the 8 free devices, or --devices 5"),
        ({"dp": 6, "devices": 6}, "found 64, the usual one, with dp = 6, expected a multiple of 6, such as .* 66"),
        ({"tp": 2, "micro_batch": 7}, "--global-batch: found 64, the usual one, with dp = 4 and 7 samples, expected"),
        ({"pp": 2, "vpp": 2, "schedule": "1f1b"}, "2 chunks a stage under 1f1b, expected interleaved, or no --vpp"),
        ({"dp": 8, "hsdp": (4, 2), "zero": 0}, "--hsdp, --zero: found 4x2 with ZeRO 0, expected 1, 2 or 3"),
        (
            {"global_batch": 2**20 + 1},
            "--global-batch: found 1048577, expected .* at most 1,048,576 samples",
        ),
        ({"seq_len": 2**24 + 1}, "--seq-len: found 16777217, expected .* at most 16,777,216 tokens in a sample"),
        ({"dp": 8, "devices": 9}, "--devices: found 9, expected from 1 to the 8 free devices"),
        ({"tp": 8}, "--tp: found attention: tp=8 does not divide 4 heads, expected sizes that divide evenly"),
        ({"pp": 8}, "--pp, --vpp: found 4 blocks for pp"),
        ({"dp": 8, "global_batch": 12}, "--global-batch: found 12, with dp = 8 and 1 samples per rank and micro-batch"),
        ({"dp": 8, "micro_batches": 3, "global_batch": 32}, "--micro-batches: found 3, with dp = 8 and a global batch"),
        ({"dp": 8, "micro_batches": 3}, "--micro-batches: found 3 and no batch"),
        ({"dp": 8, "micro_batches": "best"}, "--micro-batches: found best, expected a number"),
        (
            {"dp": 8, "micro_batches": 2, "micro_batch": 4, "global_batch": 16},
            "--micro-batches, --micro-batch: found both",
        ),
        ({"dp": 8, "ep": 2}, "--ep: found 2, expected none: gpt-tiny has no experts"),
        ({"dp": 8, "moe_imbalance": 1.5}, "--moe-imbalance: found 1.5, expected none"),
        ({"dp": 8, "moe_capacity": 1.0}, "--moe-capacity: found 1.0, expected none: gpt-tiny has no experts"),
        ({"dp": 8, "moe_imbalance": 1e308}, "--moe-imbalance: found 1e.308, expected from 1 to 10,000"),
        ({"dp": 8, "moe_capacity": 1e308}, "--moe-capacity: found 1e.308, expected from 0.001 to 10,000"),
        ({"dp": 8, "moe_capacity": 1e-308}, "--moe-capacity: found 1e-308"),
        (
            {"dp": 8, "failure_rate": 1e308, "train_tokens": 1e9},
            "--failure-rate: found 1e.308, expected from 0 to 86,400",
        ),
        ({"dp": 8, "lora": 100_000}, "--lora: found 100000, expected at most 256: adapters narrower"),
        ({"dp": 8, "recompute": "full:99"}, "--recompute: found full:99, expected at most full:6, the model's layers"),
        ({"dp": 8, "hsdp": (4, 4)}, "--hsdp: found 4x4, expected SHARDxREPLICATE with SHARD"),
        ({"dp": 8, "software": "megatron"}, "--software: found 'megatron', expected one of "),
        ({"dp": 8, "recompute": "some"}, "--recompute: found 'some', expected auto, none, selective, full, or"),
        ({"dp": 8, "recompute": "none:3"}, "--recompute: found 'none:3'"),
        ({"pp": 2, "schedule": "interleaved"}, "--vpp: found nothing, expected at least 2 chunks"),
        ({"dp": 8, "vpp": 2}, "--vpp: found 2 with pp = 1"),
        ({"pp": 2, "vpp": 2, "schedule": "zb-h1", "global_batch": 8}, "--pp, --vpp: found vpp = 2 with schedule zb-h1"),
        ({"dp": 8, "freeze": (2, 9)}, "--freeze: found 2:9, expected FIRST:END within the model's layers 0:6"),
        ({"dp": 8, "freeze": (0, 6)}, "a layer left that learns"),
        ({"dp": 8, "freeze": (0, 2), "lora": 8}, "--freeze, --lora: found both"),
        ({"dp": 8, "stages": (2,)}, "--stages: found .*, expected none: an explicit plan"),
        ({"dp": 8, "formula": "crius"}, "--formula: found crius, expected none"),
    ],
)
def test_a_contradiction_names_option_found_and_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        request_of(**options)


def test_a_stage_on_two_kinds_of_devices_is_refused() -> None:
    with pytest.raises(InputError, match="--pp: found stage 0 on a10 and a40"):
        request_of(cluster="a40:1x2+a10:1x2", dp=4)
    setup = setup_of(cluster="a40:1x2+a10:1x2", pp=2)
    assert [stage.slots[0].device for stage in setup.stages] == ["a40", "a10"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": 8}, "--lora: found 8, expected an explicit plan, which --tp"),
        ({"train_tokens": 1e12}, "--train-tokens: found 1000000000000.0, expected an explicit plan"),
        ({"schedule": "interleaved"}, "--schedule: found interleaved, expected one of .*, or an explicit plan"),
    ],
)
def test_cells_refuse_what_only_an_explicit_plan_has(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_cells(EstimateOptions(**options))


@pytest.mark.parametrize("options", [{"schedule": "zb-h1"}, {"recompute": "selective"}, {"optimizer": "muon"}])
def test_cells_are_priced_under_what_any_plan_can_have(options: dict[str, Any]) -> None:
    check_cells(EstimateOptions(**options))


def test_a_whole_training_needs_tokens() -> None:
    with pytest.raises(InputError, match=r"--failure-rate: found 0\.1, expected --train-tokens beside it"):
        EstimateOptions(failure_rate=0.1)
    with pytest.raises(InputError, match=r"--restart-time: found -1\.0, expected seconds from 0 to 1e9"):
        EstimateOptions(restart_time=-1, train_tokens=5.0)


def test_a_plan_needs_a_model_and_a_cluster() -> None:
    with pytest.raises(InputError, match="MODEL: found nothing, expected a model and a cluster, or --plan"):
        read_any_request(EstimateOptions(cluster="a100-80gb:1x8", tp=2), store=None)


def test_a_software_alone_means_an_explicit_plan() -> None:
    assert EstimateOptions(software="torchtitan").explicit
    assert not EstimateOptions(global_batch=64).explicit


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"cluster": "h100:1x8"}, "bf16"),
        ({"cluster": "v100-32gb:1x8"}, "fp16"),
        ({"cluster": "k80:1x8"}, "fp32"),
        ({"cluster": "h100:1x8", "software": "megatron-lm"}, "fp16"),
        ({"cluster": "v100-32gb:1x8", "software": "torchtitan"}, "fp16"),
        ({"cluster": "v100-32gb:1x8", "dtype": "fp32"}, "fp32"),
    ],
)
def test_a_type_that_nobody_says_is_the_softwares_where_the_devices_have_it(
    options: dict[str, Any], dtype: str
) -> None:
    assert setup_of(**options, dp=8).recipe.dtype == dtype


@pytest.mark.parametrize(
    ("model", "cluster", "kind", "samples", "dtype", "kernels"),
    [
        ("llama3-8b", "h100:1x8", "selective", 1, "bf16", "eager"),
        ("llama3-70b", "h100:8x8", "full", 8, "bf16", "eager"),
        ("llama3-405b", "h100:64x8", "full", 2, "fp8", "fused"),
        ("llama3-405b", "a100-80gb:64x8", "full", 2, "bf16", "fused"),
    ],
)
def test_software_has_habits_by_the_size_of_the_model(
    model: str, cluster: str, kind: str, samples: int, dtype: str, kernels: str
) -> None:
    setup = request_of(model, cluster, software="torchtitan", tp=1 if model == "llama3-8b" else 8).setups[0]
    recipe = setup.recipe
    assert (setup.stages[0].recompute, setup.samples_per_rank(setup.stages[0])) == (kind, samples)
    assert (recipe.dtype, recipe.software.kernels) == (dtype, kernels)


def test_narrow_products_are_compiled_where_the_software_has_it_so() -> None:
    request = request_of(cluster="h100:1x8", software="torchtitan", dtype="fp8", dp=8)
    assert request.setups[0].recipe.software.kernels == "fused"
    assert request.often == ("kernels=fused",)
    assert any(sentence.startswith("kernels=fused, narrow_parameters=yes") for sentence in request.assumptions)


def test_where_no_software_is_named_the_least_state_that_fits_is_taken() -> None:
    said: dict[str, Any] = {"dp": 8, "recompute": "none", "micro_batch": 1}
    assert [setup.stages[0].zero for setup in request_of(**said).setups] == [1, 3]
    for options in ({"software": "megatron-core"}, {"zero": 1}, {"hsdp": (4, 2)}):
        stages = {setup.stages[0].zero for setup in request_of(**said, **options).setups}
        assert len(stages) == 1
    estimated = estimate_explicit(request_of("llama3-8b", "v100-32gb:2x8", tp=2))
    assert estimated.shortfall is None
    assert "ZeRO 3 instead: less does not fit (--zero)" in estimated.plan.assumptions


@pytest.mark.parametrize(("cluster", "launch"), [("gb200:4x4", "graph_dense"), ("h100:2x8", "eager")])
def test_software_has_habits_by_the_device(cluster: str, launch: str) -> None:
    request = request_of("llama3-8b", cluster, software="nemo", dp=16)
    assert request.setups[0].recipe.software.launch == launch
    assert any("own recipes for such models and devices" in text for text in request.assumptions) == (launch != "eager")
    stated = request_of("llama3-8b", cluster, software="nemo", dp=16, feature=("launch=eager",))
    assert stated.setups[0].recipe.software.launch == "eager"
