"""Measuring local shards and stages with torch on the CPU. Figures are checked for what must hold, never for speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from estimator.frontends.torch_module import load_module_model
from estimator.layers.shards import shard_layer
from estimator.profiling import measure_torch
from estimator.profiling.device_name import catalogue_name
from estimator.profiling.measure_torch import measure_layer
from estimator.profiling.plan import ProfileTask, plan_profile
from estimator.profiling.rates_torch import identify_device, measure_rates
from estimator.profiling.run import ensure_rate, profile_layers
from estimator.profiling.setting import Repeats, Setting, low_quantile, stage_key
from estimator.profiling.stage import StageComparison, compare_stage, profile_stage
from estimator.profiling.stage_torch import measure_stage
from models_zoo.layers import Attention, Classifier, ConvUnit, Experts, FeedForward, Layer
from models_zoo.user_code import UserFactory
from profiles.errors import InputError
from profiles.measurements import Measurement
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible, LocalLayer, Shard
from tests.profiling_models import BLOCK, EMBEDDING, HEAD, SMALL_GPT

SHORT = Repeats(warm_up=1, least=2, least_s=0.0, most=3)
SETTING = Setting(repeats=SHORT)
SHARD = Shard(seq_len=16, micro_batch_per_rank=2, dtype="fp32")
LLAMA = replace(
    BLOCK,
    attention=Attention(heads=4, kv_heads=2, head_dim=8, rotary_dim=8),
    feed_forward=FeedForward(hidden=64, gated=True, activation="silu"),
)  # with a layernorm: torch's CPU rmsnorm is no fused kernel and keeps the normalised tensor besides
MOE = replace(BLOCK, feed_forward=Experts(count=4, top_k=2, expert=FeedForward(hidden=64)))
CONV = ConvUnit(c_in=8, c_out=16, height=8, width=8, kernel=3, padding=1)
CLASSIFIER = Classifier(features=(16, 10), height=8, width=8)
CROSS = replace(BLOCK, cross_attention=replace(BLOCK.self_attention, causal=False))


@pytest.fixture(autouse=True)
def sweep_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emptying the caches is for true figures; here it only takes time."""
    monkeypatch.setattr(measure_torch, "SWEPT_BYTES", 2**12)


def task_of(layer: Layer, shard: Shard) -> ProfileTask:
    return ProfileTask(layer=layer, shard=shard, name="layer", multiplicity=1)


def local_of(layer: Layer, shard: Shard) -> LocalLayer:
    local = shard_layer(layer, shard)
    assert isinstance(local, LocalLayer)
    return local


def measure(layer: Layer, shard: Shard, setting: Setting = SETTING) -> Measurement:
    result = measure_layer(task_of(layer, shard), setting)
    assert isinstance(result, Measurement), result
    return result


@pytest.mark.parametrize(
    ("layer", "shard"),
    [
        (BLOCK, SHARD),
        (BLOCK, replace(SHARD, tp=2)),
        (BLOCK, replace(SHARD, tp=2, sequence_parallel=True)),
        (BLOCK, replace(SHARD, attention="math")),
        (BLOCK, replace(SHARD, dtype="bf16")),
        (LLAMA, replace(SHARD, tp=4)),
        (MOE, SHARD),
        (MOE, replace(SHARD, tp=2)),
        (EMBEDDING, SHARD),
        (HEAD, SHARD),
        (HEAD, replace(SHARD, tp=2)),
        (CROSS, SHARD),
        (CONV, replace(SHARD, seq_len=0)),
        (CLASSIFIER, replace(SHARD, seq_len=0)),
    ],
)
def test_a_shard_takes_time_both_ways_and_keeps_what_the_analysis_says(layer: Layer, shard: Shard) -> None:
    measured, local = measure(layer, shard), local_of(layer, shard)
    assert len(measured.forward_s) == len(measured.backward_s) == len(measured.optimizer_s) >= 2
    assert min(*measured.forward_s, *measured.backward_s, *measured.optimizer_s) > 0
    assert measured.parameters == local.parameters
    assert measured.saved_bytes == pytest.approx(local.saved_bytes, rel=0.05)


def test_memory_counts_weights_gradients_optimizer_state_and_saved_tensors() -> None:
    plain, half = measure(BLOCK, SHARD), measure(BLOCK, replace(SHARD, dtype="bf16"))
    state = 4 * (1 + 1 + 2)
    assert plain.peak_memory_bytes == pytest.approx(plain.parameters * state + plain.saved_bytes, rel=0.01)
    assert half.peak_memory_bytes == pytest.approx(half.parameters * (2 + 2 + 4 + 8) + half.saved_bytes, rel=0.01)
    sgd = measure(BLOCK, SHARD, replace(SETTING, optimizer="sgd"))
    assert sgd.peak_memory_bytes == pytest.approx(sgd.parameters * 12 + sgd.saved_bytes, rel=0.01)


def test_full_recomputation_keeps_the_input_alone_and_builds_the_rest_again() -> None:
    shard = replace(SHARD, recompute="full")
    plain, full = measure(BLOCK, SHARD), measure(BLOCK, shard)
    assert full.saved_bytes == local_of(BLOCK, shard).input_bytes < plain.saved_bytes
    assert full.peak_memory_bytes == plain.peak_memory_bytes + full.saved_bytes


def test_sixteen_bit_weights_are_trained_through_fp32_masters() -> None:
    shard = replace(SHARD, dtype="bf16")
    module, inputs = measure_torch.build_shard(BLOCK, shard, "cpu")
    before = [parameter.detach().clone() for parameter in module.parameters()]
    training = measure_torch.Training(module, inputs, shard, "sgd")
    training.forward()
    training.backward()
    gradients = [parameter.grad.float() for parameter in module.parameters()]
    training.step()
    for old, gradient, new in zip(before, gradients, module.parameters(), strict=True):
        wanted = old.float() - measure_torch.LEARNING_RATE * gradient
        assert torch.equal(new.detach(), wanted.bfloat16())


def test_threads_and_random_state_are_left_as_they_were() -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    measure(EMBEDDING, SHARD, replace(SETTING, threads=threads + 1))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_shard_that_does_not_fit_is_a_reason_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_torch, "free_host_memory_bytes", lambda: 1000)
    result = measure_layer(task_of(BLOCK, SHARD), SETTING)
    assert isinstance(result, Infeasible)
    assert result.lacking == "memory"
    assert result.lacking_bytes is not None
    assert result.lacking_bytes > local_of(BLOCK, SHARD).saved_bytes - 1000


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), "memory"),
        (NotImplementedError('"op" not implemented for Half'), "support"),
    ],
)
def test_what_torch_refuses_is_a_reason(monkeypatch: pytest.MonkeyPatch, error: Exception, lacking: str) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(measure_torch, "build_layer", refuse)
    result = measure_layer(task_of(BLOCK, SHARD), SETTING)
    assert isinstance(result, Infeasible)
    assert result.lacking == lacking
    assert str(error) in result.reason


def test_a_dtype_without_kernels_and_a_degree_that_cannot_be_had_are_reasons() -> None:
    fp8 = measure_layer(task_of(BLOCK, replace(SHARD, dtype="fp8")), SETTING)
    assert isinstance(fp8, Infeasible)
    assert "fp8" in fp8.reason
    third = measure_layer(task_of(BLOCK, replace(SHARD, tp=3)), SETTING)
    assert third == shard_layer(BLOCK, replace(SHARD, tp=3))


def test_a_device_that_torch_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"--device: found cuda:77, expected one that torch has here: cpu"):
        measure_layer(task_of(BLOCK, SHARD), replace(SETTING, device="cuda:77"))


@pytest.mark.parametrize(
    ("hardware", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA H200", "h200"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA Unheard Of 9", "unheard-of-9"),
    ],
)
def test_drivers_names_become_the_catalogues(hardware: str, name: str) -> None:
    assert catalogue_name(hardware) == name


def test_profiling_a_model_on_this_cpu_fills_the_store_and_leaves_the_devices_rates(tmp_path: Path) -> None:
    tasks = plan_profile(SMALL_GPT, degrees=[1, 2], micro_batches_per_rank=[1], dtype="fp32")
    with ProfileStore(tmp_path / "store.db") as store:
        report = profile_layers(store, tasks, SETTING, budget_s=600)
        assert (report.measured, report.reused, report.infeasible) == (6, 0, ())
        found = store.find(BLOCK, tasks[0].shard, device="cpu", optimizer="adamw")
        assert found is not None
        assert found.key.software.startswith(f"torch {torch.__version__}")
        rates = store.rates("cpu", threads=1)
        assert rates is not None
        assert min(rates.memory_bytes, rates.memory_bandwidth_bytes_per_s, dict(rates.flops_per_s)["fp32"]) > 0
        assert ensure_rate(store, SETTING, "fp32") == dict(rates.flops_per_s)["fp32"], "known, so not measured again"
        ensure_rate(store, SETTING, "bf16")
        both = store.rates("cpu", threads=1)
        assert both is not None
        assert dict(both.flops_per_s).keys() == {"fp32", "bf16"}


def test_rates_are_refused_for_a_dtype_without_a_plain_product() -> None:
    with pytest.raises(InputError, match=r"--dtype: found fp8"):
        measure_rates(SETTING, "fp8")


def test_a_stage_keeps_what_its_layers_keep_and_is_compared_with_their_sum() -> None:
    layers = SMALL_GPT.layers
    stage = measure_stage(layers, SHARD, SETTING, compiled=False)
    assert isinstance(stage, Measurement)
    alone = {layer: measure(layer, SHARD) for layer in set(layers)}
    compared = compare_stage(layers, stage, alone)
    assert stage.parameters == sum(alone[layer].parameters for layer in layers)
    assert compared.stage_saved_bytes == pytest.approx(compared.layers_saved_bytes, rel=0.02)
    assert compared.layers_forward_s == pytest.approx(sum(low_quantile(alone[layer].forward_s) for layer in layers))
    assert compared.ratio == pytest.approx(
        (compared.stage_forward_s + compared.stage_backward_s)
        / (compared.layers_forward_s + compared.layers_backward_s)
    )


def test_profiling_a_stage_measures_what_is_not_stored_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ProfileStore(tmp_path / "store.db") as store:
        first = profile_stage(store, (BLOCK, BLOCK, HEAD), SHARD, SETTING, compiled=False)
        assert isinstance(first, StageComparison)
        assert [profile.key.kind for profile in store.profiles()].count("layer") == 2
        monkeypatch.setattr(measure_torch, "build_layer", None)
        assert profile_stage(store, (BLOCK, BLOCK, HEAD), SHARD, SETTING, compiled=False) == first
        third = profile_stage(store, (BLOCK, HEAD), replace(SHARD, tp=3), SETTING, compiled=False)
        assert third == shard_layer(BLOCK, replace(SHARD, tp=3))


@pytest.mark.parametrize(
    "layers",
    [
        (BLOCK, BLOCK),
        (
            EMBEDDING,
            replace(BLOCK, attention=replace(BLOCK.self_attention, causal=False)),
            EMBEDDING,
            CROSS,
            CROSS,
            HEAD,
        ),
        (CROSS, CROSS, HEAD),
    ],
    ids=["middle", "encoder-decoder", "decoder"],
)
def test_stages_from_anywhere_in_a_model_run(layers: tuple[Layer, ...]) -> None:
    stage = measure_stage(layers, replace(SHARD, tp=2), SETTING, compiled=False)
    assert isinstance(stage, Measurement)
    assert min(*stage.forward_s, *stage.backward_s) > 0


def test_a_users_own_module_is_measured_piece_by_piece_and_as_a_whole(tmp_path: Path) -> None:
    model = load_module_model(UserFactory(reference="tests.profiling_models:residual_network"))
    tasks = plan_profile(model, degrees=[1, 2], micro_batches_per_rank=[8], dtype="fp32")
    with ProfileStore(tmp_path / "store.db") as store:
        report = profile_layers(store, tasks, SETTING)
        shard = tasks[0].shard
        alone = [store.find(layer, shard, device="cpu", optimizer="adamw") for layer in model.layers]
        whole = profile_stage(store, model.layers, shard, SETTING, compiled=False)
    # The first block hands back no gradient, so it is not like the other two.
    assert sorted(task.multiplicity for task in tasks if task.shard == shard) == [1, 1, 2]
    assert report.measured == 3
    assert {task.shard.tp for task, _ in report.infeasible} == {2}
    for layer, found in zip(model.layers, alone, strict=True):
        assert found is not None, "equal pieces share what one of them took"
        local = local_of(layer, shard)
        assert found.measurement.parameters == local.parameters
        assert found.measurement.saved_bytes == pytest.approx(local.saved_bytes, rel=0.05)
    assert isinstance(whole, StageComparison)
    assert whole.stage_saved_bytes == pytest.approx(whole.layers_saved_bytes, rel=0.05)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stage_can_be_compiled_and_has_a_key_of_its_own() -> None:
    layers = (BLOCK, HEAD)
    stage = measure_stage(layers, SHARD, SETTING, compiled=True, backend="aot_eager")
    assert isinstance(stage, Measurement), stage
    assert stage.parameters == sum(local_of(layer, SHARD).parameters for layer in layers)
    identity = identify_device(SETTING)
    keys = {stage_key(layers, SHARD, identity, optimizer="adamw", compiled=compiled) for compiled in (False, True)}
    assert {(key.kind, key.mode) for key in keys} == {("stage", "eager"), ("stage", "compiled")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_without_a_compiler_a_compiled_stage_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    torch.compiler.reset()
    monkeypatch.setattr(config.cpp, "cxx", (None, "no-such-compiler"))
    result = measure_stage((BLOCK,), SHARD, SETTING, compiled=True)
    assert isinstance(result, Infeasible)
    assert result.lacking == "support"
    assert "no-such-compiler" in result.reason
