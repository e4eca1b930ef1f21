"""Products priced by measured times: what the tables are, what is derived from them and what they are carried to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers.operators import gemm
from estimator.pricing.operator_time import cast_seconds, time_operator
from estimator.pricing.product_time import gemm_seconds, measured_products
from profiles.efficiencies import load_operator_efficiencies
from profiles.hardware import load_device
from profiles.kernels import load_kernels
from profiles.vocabulary import DTYPE_BYTES, NARROW_DTYPES, DType, held_bytes

MEASURED: dict[str, tuple[DType, ...]] = {
    "h100": ("bf16", "fp8", "fp8_block"),
    "h200": ("bf16", "fp8", "fp8_block"),
    "b200": ("bf16", "fp8", "mxfp8", "nvfp4"),
    "b300": ("bf16", "fp8", "mxfp8", "nvfp4"),
    "gb200": ("bf16", "fp8", "mxfp8", "nvfp4"),
}


def product_s(device: str, m: int, n: int, k: int, dtype: DType = "bf16", **change: float) -> float:
    rates = replace(load_device(device), **change)  # type: ignore[arg-type]
    return gemm_seconds(m, n, k, device=rates, dtype=dtype, efficiencies=load_operator_efficiencies(device))


@pytest.mark.parametrize("device", MEASURED)
def test_a_table_says_where_it_is_from_and_is_what_a_product_takes(device: str) -> None:
    table = load_kernels("product", device)
    assert table is not None
    assert {"source", "commit", "licence", "rows", "basis"} <= set(table.about)
    assert set(table.rows) == {(dtype,) for dtype in MEASURED[device]}
    for dtype in MEASURED[device]:
        grid = table.grid(dtype)
        assert grid is not None
        assert grid.covers(8192, 5120, 8192)
        assert not grid.covers(8192, 200_000, 8192)
        assert product_s(device, 8192, 5120, 8192, dtype) == pytest.approx(grid.seconds(8192, 5120, 8192), rel=1e-12)
        peak = load_device(device).rate(dtype)
        assert 0.2 < 2 * 8192**3 / product_s(device, 8192, 8192, 8192, dtype) / peak < 0.95


@given(
    device=st.sampled_from(["h100", "b200", "gb200"]),
    sizes=st.tuples(*[st.integers(1, 20000)] * 3),
    more=st.tuples(*[st.integers(0, 40000)] * 3),
)
def test_larger_products_never_take_less(device: str, sizes: tuple[int, ...], more: tuple[int, ...]) -> None:
    m, n, k = (16 * size for size in sizes)
    dm, dn, dk = (16 * size for size in more)
    for dtype in MEASURED[device]:
        known = load_operator_efficiencies(device)
        grid = measured_products(known, dtype)
        assert grid is not None
        assert grid.seconds(m, n, k) <= grid.seconds(m + dm, n + dn, k + dk) * (1 + 1e-12)


def test_times_are_carried_over_by_what_the_model_says_of_other_rates() -> None:
    # The H800 is an H100 but for its links; the GB300 has B300's times at its own, higher peaks.
    assert product_s("h800", 8192, 8192, 8192) == product_s("h100", 8192, 8192, 8192)
    ratio = product_s("b300", 16384, 16384, 16384) / product_s("gb300", 16384, 16384, 16384)
    assert ratio == pytest.approx(2500 / 2250, rel=0.02)
    slow = product_s("h100", 16, 8192, 8192, memory_bandwidth_bytes_per_s=1e12)
    assert slow > 2 * product_s("h100", 16, 8192, 8192)


def test_gradients_are_products_of_turned_sizes() -> None:
    device, known = load_device("b200"), load_operator_efficiencies("b200")
    op = gemm("g", m=8192, n=4096, k=2048, width=2)
    backward = time_operator(op, device=device, dtype="bf16", efficiencies=known, pass_="backward")
    weight = product_s("b200", 2048, 4096, 8192) * (1 + known.gemm.weight_grad_loss)
    assert backward == pytest.approx(weight + product_s("b200", 8192, 2048, 4096), rel=1e-9)


def test_products_of_narrow_types_pay_for_their_casts() -> None:
    device, known = load_device("h100"), load_operator_efficiencies("h100")
    op = gemm("g", m=8192, n=4096, k=2048, width=2)
    cast_s = cast_seconds(8192 * 2048, device=device, dtype="fp8", efficiencies=known)
    moved = 8192 * 2048 * 4 / (device.memory_bandwidth_bytes_per_s * known.bandwidth_share)
    assert cast_s == pytest.approx(known.kernel_ramp_s + moved, rel=1e-9)
    forward = time_operator(op, device=device, dtype="fp8", efficiencies=known, pass_="forward")
    assert forward == pytest.approx(product_s("h100", 8192, 4096, 2048, "fp8") + cast_s, rel=1e-9)


def test_narrow_types_hold_their_scales_and_nothing_else() -> None:
    assert [held_bytes(dtype) for dtype in NARROW_DTYPES] == [2] * len(NARROW_DTYPES)
    assert DTYPE_BYTES["nvfp4"] < DTYPE_BYTES["fp8"] < DTYPE_BYTES["mxfp8"] < DTYPE_BYTES["bf16"]


def test_what_stands_in_is_named() -> None:
    assert "measured kernels of b300" in load_operator_efficiencies("gb300").stand_in()
    assert "forward measured, backward derived" in load_operator_efficiencies("h100").stand_in()
    assert load_operator_efficiencies("a100-80gb").stand_in() == "the operator model (ampere)"
