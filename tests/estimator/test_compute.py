"""The operator model against rooflines worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.compute import gemm_efficiency, model_layer_time
from estimator.operators import batched_gemm, convolution, elementwise, flash_attention, gemm, grouped_gemm, lookup
from estimator.shards import shard_layer
from models_zoo.catalogue import load_model
from profiles.efficiencies import Efficiencies, load_efficiencies
from profiles.hardware import device_names, load_device
from profiles.vocabulary import Device, Infeasible, LayerTime, LocalLayer, Operator, Shard

A100 = load_device("a100-80gb")
SHARES = Efficiencies(
    architecture="made up",
    gemm_max=0.8,
    gemm_half_mn=100,
    gemm_half_k=50,
    attention_forward=0.5,
    attention_backward=0.4,
    conv=0.25,
    memory=0.5,
    kernel_s=1e-6,
    basis="for this test",
)
PEAK = 100e12
BANDWIDTH = 1e12
DEVICE = replace(A100, peak_flops_per_s=(("bf16", PEAK),), memory_bandwidth_bytes_per_s=BANDWIDTH)


def shard_of(*operators: Operator, parameters: int = 0) -> LocalLayer:
    return LocalLayer(
        operators=operators,
        collectives=(),
        parameters=parameters,
        replicated_parameters=0,
        input_bytes=0,
        output_bytes=0,
    )


def time_of(*operators: Operator, device: Device = DEVICE, parameters: int = 0) -> LayerTime:
    time = model_layer_time(
        shard_of(*operators, parameters=parameters),
        device=device,
        dtype="bf16",
        efficiencies=SHARES,
        optimizer_bytes_per_parameter=28,
    )
    assert isinstance(time, LayerTime)
    return time


def test_a_large_product_is_bound_by_arithmetic() -> None:
    m, n, k = 4096, 2048, 1024
    flops = 2 * m * n * k

    def seconds(rows: int, columns: int, inner: int) -> float:
        share = 0.8 * rows / (rows + 100) * columns / (columns + 100) * inner / (inner + 50)
        return flops / (PEAK * share)

    time = time_of(gemm("g", m=m, n=n, k=k, width=2))
    assert time.forward_s == pytest.approx(seconds(m, n, k), rel=1e-12)
    # The weight's gradient is (k, m) x (m, n), the input's (m, n) x (n, k).
    assert time.backward_s == pytest.approx(seconds(k, n, m) + seconds(m, k, n), rel=1e-12)
    assert time.provenance == "modelled"


def test_the_first_layer_has_one_product_in_backward() -> None:
    both = time_of(gemm("g", m=4096, n=2048, k=1024, width=2))
    one = time_of(gemm("g", m=4096, n=2048, k=1024, width=2, input_grad=False))
    assert one.forward_s == both.forward_s
    assert 0.4 < one.backward_s / both.backward_s < 0.6


def test_a_product_of_one_row_is_bound_by_memory() -> None:
    m, n, k = 1, 8192, 8192
    time = time_of(gemm("g", m=m, n=n, k=k, width=2))
    assert time.forward_s == pytest.approx(2 * (m * k + k * n + m * n) / (0.5 * BANDWIDTH), rel=1e-12)


def test_equal_products_fill_the_device_together() -> None:
    one, eight = gemm_efficiency(64, 64, 512, SHARES), gemm_efficiency(64, 64, 512, SHARES, 8)
    assert one < eight == gemm_efficiency(512, 512, 512, SHARES)
    grouped = grouped_gemm("g", groups=8, m=64, n=512, k=512, width=2)
    batched = batched_gemm("b", groups=8, m=64, n=512, k=512, width=2, saved_bytes=0)
    for group in (grouped, batched):
        # 64 rows beside a half size of 100 / 8 are as good as 512 beside 100.
        alike = replace(group, kind="gemm", shape=(512, 4096, 512))
        assert time_of(group).forward_s == pytest.approx(time_of(alike).forward_s, rel=1e-12)


def test_attention_executes_half_the_square_if_causal() -> None:
    shape = {"batch": 1, "heads": 16, "kv_heads": 16, "q_len": 4096, "kv_len": 4096, "qk_dim": 64, "v_dim": 64}
    full = flash_attention("a", **shape, causal=False, width=2, saved_bytes=0)
    square = 2 * 16 * 4096 * 4096 * 64
    time = time_of(full)
    assert time.forward_s == pytest.approx(2 * square / (PEAK * 0.5), rel=1e-12)
    assert time.backward_s == pytest.approx(5 * square / (PEAK * 0.4), rel=1e-12)
    half = time_of(flash_attention("a", **shape, causal=True, width=2, saved_bytes=0))
    assert half.forward_s == pytest.approx(time.forward_s / 2, rel=1e-12)


def test_convolution() -> None:
    conv = convolution(
        "c",
        batch=32,
        c_in=256,
        c_out=256,
        out_h=28,
        out_w=28,
        kernel=3,
        stride=1,
        width=2,
        input_elements=256 * 28 * 28,
    )
    flops = 2 * 32 * 28 * 28 * 256 * 256 * 9
    time = time_of(conv)
    assert time.forward_s == pytest.approx(flops / (PEAK * 0.25), rel=1e-12)
    assert time.backward_s == pytest.approx(2 * time.forward_s, rel=1e-12)


def test_memory_bound_operators_and_the_least_time_of_a_kernel() -> None:
    large = elementwise("e", elements=10**8, width=2, forward_passes=3, backward_passes=5)
    assert time_of(large).forward_s == pytest.approx(6e8 / (0.5 * BANDWIDTH), rel=1e-12)
    assert time_of(large).backward_s == pytest.approx(10e8 / (0.5 * BANDWIDTH), rel=1e-12)
    small = elementwise("e", elements=8, width=2, forward_passes=3, backward_passes=5, backward_kernels=4)
    assert (time_of(small).forward_s, time_of(small).backward_s) == (1e-6, 4e-6)
    rows = lookup("l", rows=10**6, row_elements=512, width=2)
    assert time_of(rows).forward_s == pytest.approx((2 * 1024e6 + 8e6) / (0.5 * BANDWIDTH), rel=1e-12)
    assert time_of(large, small, rows).forward_s == pytest.approx(
        sum(time_of(op).forward_s for op in (large, small, rows)), rel=1e-12
    )


def test_optimizer_step_is_memory_traffic() -> None:
    assert time_of(parameters=10**9).optimizer_s == pytest.approx(28e9 / (0.5 * BANDWIDTH), rel=1e-12)


def test_a_memory_operator_with_flops_is_refused() -> None:
    with pytest.raises(ValueError, match="kind memory with 5 FLOPs, expected 0"):
        time_of(replace(elementwise("e", elements=1, width=2, forward_passes=1, backward_passes=1), forward_flops=5))


def test_a_dtype_without_unit_is_infeasible() -> None:
    time = model_layer_time(
        shard_of(), device=load_device("v100-32gb"), dtype="bf16", efficiencies=SHARES, optimizer_bytes_per_parameter=28
    )
    assert time == Infeasible(
        reason="v100-32gb has no bf16 rate in the catalogue (it has fp32, fp16)", lacking="support"
    )


@given(
    sizes=st.tuples(*[st.integers(1, 5000)] * 3),
    more=st.tuples(*[st.integers(0, 500)] * 3),
    faster=st.tuples(*[st.floats(1, 4)] * 2),
)
def test_larger_products_take_longer_and_faster_devices_less(
    sizes: tuple[int, int, int], more: tuple[int, int, int], faster: tuple[float, float]
) -> None:
    def both(device: Device, m: int, n: int, k: int) -> tuple[float, float]:
        time = time_of(gemm("g", m=m, n=n, k=k, width=2), device=device)
        return time.forward_s, time.backward_s

    (m, n, k), (dm, dn, dk) = sizes, more
    quick = replace(
        DEVICE,
        peak_flops_per_s=(("bf16", PEAK * faster[0]),),
        memory_bandwidth_bytes_per_s=BANDWIDTH * faster[1],
    )
    for less, greater in (
        (both(DEVICE, m, n, k), both(DEVICE, m + dm, n + dn, k + dk)),
        (both(quick, m, n, k), both(DEVICE, m, n, k)),
    ):
        assert all(a <= b * (1 + 1e-12) for a, b in zip(less, greater, strict=True))


def test_every_device_of_the_catalogue_has_efficiencies_of_its_own() -> None:
    for name in device_names():
        shares = load_efficiencies(name)
        assert shares.architecture != "generic", name
        assert len(shares.basis) > 20
        for share in (shares.gemm_max, shares.attention_forward, shares.attention_backward, shares.conv, shares.memory):
            assert 0 < share <= 1, name
    assert load_efficiencies("no such device").architecture == "generic"


@pytest.mark.parametrize("name", ["gpt3-175b", "resnet-50", "moe-2.4b"])
def test_no_layer_beats_the_device(name: str) -> None:
    """Neither arithmetic nor memory above the datasheet, for real layers on real devices."""
    model = load_model(name)
    for device in map(load_device, ("v100-32gb", "a100-80gb", "h100", "b200", "mi300x")):
        for layer in dict.fromkeys(model.layers):
            local = shard_layer(layer, Shard(seq_len=model.seq_len, dtype="fp16", micro_batch_per_rank=2))
            assert isinstance(local, LocalLayer)
            time = model_layer_time(
                local,
                device=device,
                dtype="fp16",
                efficiencies=load_efficiencies(device.name),
                optimizer_bytes_per_parameter=28,
            )
            assert isinstance(time, LayerTime)
            seconds = time.forward_s + time.backward_s
            causal = sum(op.forward_flops + op.backward_flops for op in local.operators if op.kind == "attention") / 2
            flops = local.forward_flops + local.backward_flops - causal
            moved = sum(op.forward_bytes + op.backward_bytes for op in local.operators)
            peak = device.peak("fp16")
            assert peak is not None
            assert seconds >= max(flops / peak, moved / device.memory_bandwidth_bytes_per_s)
