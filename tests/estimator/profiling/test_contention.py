"""Busy workers slow each other down: how it is recorded, applied, measured once, and kept apart from figures of one."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.host.worker_processes import pinned_cores
from estimator.pricing.layer_times import nothing_measured, slowed
from estimator.profiling import contention
from estimator.profiling.contention import ensure_contention
from estimator.profiling.lookup import lookup_in_store
from estimator.profiling.rates_torch import identify_device
from estimator.profiling.setting import Setting
from models_zoo.layers import Layer
from profiles.errors import InputError
from profiles.hardware import load_device
from profiles.measurements import (
    DeviceRates,
    MeasurementKey,
    ProfileSet,
    canonical,
    device_from_rates,
)
from profiles.profile_file import parse_profile_set, profile_set_to_json
from profiles.store import ProfileStore
from profiles.vocabulary import Device, LayerTime, Shard
from tests.profiles.profile_examples import BLOCK, KEY, MEASUREMENT

SHARD = KEY.shard
RATES = DeviceRates(
    device="cpu",
    hardware="some CPU",
    software="torch 2.13.0+cpu, python 3.11.7",
    threads=1,
    memory_bytes=2**32,
    memory_bandwidth_bytes_per_s=1e10,
    flops_per_s=(("bf16", 1e10), ("fp32", 5e10)),
    flash_attention=True,
    contention=((2, 1.5), (4, 2.5)),
)
DEVICE = device_from_rates(RATES)
TIME = LayerTime(
    forward_s=1.0,
    backward_s=2.0,
    optimizer_s=0.5,
    provenance="measured",
    saved_bytes=10,
    peak_memory_bytes=20,
    relative_low=0.1,
    relative_high=0.2,
    profile_id="id",
)


# What is known of a device


@pytest.mark.parametrize(("workers", "slowdown"), [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.5), (5, 2.5), (100, 2.5)])
def test_the_slowdown_is_on_a_line_between_measured_counts(workers: int, slowdown: float) -> None:
    assert DEVICE.slowdown(workers) == slowdown
    assert replace(DEVICE, contention=()).slowdown(workers) == 1.0


def test_between_one_worker_and_the_first_measured_count_it_grows() -> None:
    device = replace(DEVICE, contention=((5, 3.0),))
    assert [device.slowdown(workers) for workers in range(1, 7)] == [1.0, 1.5, 2.0, 2.5, 3.0, 3.0]


@given(
    st.lists(st.tuples(st.integers(2, 64), st.floats(1, 100)), max_size=5, unique_by=lambda pair: pair[0]).map(sorted)
)
def test_it_passes_through_what_was_measured_and_stays_between(known: list[tuple[int, float]]) -> None:
    device = replace(DEVICE, contention=tuple(known))
    for workers, slowdown in known:
        assert device.slowdown(workers) == pytest.approx(slowdown)
    for (fewer, low), (more, high) in pairwise([(1, 1.0), *known]):
        for workers in range(fewer, more + 1):
            assert min(low, high) - 1e-9 <= device.slowdown(workers) <= max(low, high) + 1e-9


def test_a_device_among_busy_ones_computes_and_copies_slower_and_is_else_the_same() -> None:
    slower = DEVICE.among(2)
    assert slower.rate("fp32") == 5e10 / 1.5
    assert slower.rate("bf16") == 1e10 / 1.5
    assert slower.memory_bandwidth_bytes_per_s == 1e10 / 1.5
    assert (
        replace(
            slower,
            peak_flops_per_s=DEVICE.peak_flops_per_s,
            memory_bandwidth_bytes_per_s=DEVICE.memory_bandwidth_bytes_per_s,
        )
        == DEVICE
    )
    assert DEVICE.among(1) is DEVICE
    gpu = load_device("a100-80gb")
    assert gpu.among(8) is gpu


@pytest.mark.parametrize(
    "wrong",
    [((1, 1.2),), ((0, 1.2),), ((4, 1.2), (2, 1.1)), ((2, 1.2), (2, 1.3)), ((2, 0.9),), ((2, 1.5), (3, 0.5))],
)
def test_contention_that_cannot_be_is_refused(wrong: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"device rates of cpu: contention .*; expected \(workers, slowdown\)"):
        replace(RATES, contention=wrong)


def test_a_slowdown_may_fall_with_more_workers_and_be_none() -> None:
    """The clock of two busy cores may be as high as that of one; noise may put three below two."""
    assert replace(RATES, contention=((2, 1.0), (3, 1.4), (4, 1.3))).contention[2] == (4, 1.3)


def test_contention_survives_the_store_and_the_file_of_profiles(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "store") as store:
        store.put_rates(RATES)
        assert store.rates("cpu") == RATES
    text = profile_set_to_json(ProfileSet(rates=(RATES,)))
    assert parse_profile_set(text, where="file").rates == (RATES,)
    older = json.loads(text)
    del older["rates"][0]["contention"]
    assert parse_profile_set(json.dumps(older), where="file").rates == (replace(RATES, contention=()),)


# Layer times among busy workers


def _finds(time: LayerTime | None, device: Device, workers: int) -> LayerTime | None:
    def look_up(_layer: Layer, _shard: Shard) -> LayerTime | None:
        return time

    return slowed(look_up, device, workers)(BLOCK, SHARD)


def test_times_of_one_worker_grow_by_the_slowdown() -> None:
    assert _finds(TIME, DEVICE, 2) == replace(TIME, forward_s=1.5, backward_s=3.0, optimizer_s=0.75)
    assert _finds(TIME, DEVICE, 1) == TIME


@pytest.mark.parametrize("workers", [2, 3, 4, 9])
def test_times_measured_with_as_many_workers_stand(workers: int) -> None:
    measured = replace(TIME, workers=workers)
    assert _finds(measured, DEVICE, workers) is measured


def test_times_measured_with_other_workers_are_scaled_from_theirs() -> None:
    found = _finds(replace(TIME, workers=2), DEVICE, 4)
    assert found is not None
    assert (found.forward_s, found.backward_s) == pytest.approx((2.5 / 1.5, 2 * 2.5 / 1.5))
    back = _finds(replace(TIME, workers=4), DEVICE, 1)
    assert back is not None
    assert back.forward_s == pytest.approx(1 / 2.5)


def test_without_measured_contention_nothing_changes() -> None:
    quiet = replace(DEVICE, contention=())
    assert slowed(nothing_measured, quiet, 8) is nothing_measured
    assert _finds(TIME, quiet, 8) is TIME
    assert _finds(None, DEVICE, 2) is None


# Profiles by workers

OLD_KEY = MeasurementKey(
    layers=('{"type":"Embedding"}',),
    shard=Shard(tp=2, micro_batch_per_rank=4, seq_len=128, dtype="fp32"),
    optimizer="adamw",
    threads=1,
    device="cpu",
    hardware="Some CPU @ 2.0 GHz",
    software="torch 2.13.0+cpu, python 3.11.7",
)


def test_a_profile_of_one_worker_keeps_the_id_that_it_had_before_there_were_several() -> None:
    assert OLD_KEY.id == "eaf54235fe1e"
    assert "workers" not in canonical(OLD_KEY)
    assert replace(OLD_KEY, workers=2).id != OLD_KEY.id
    assert '"workers":2' in canonical(replace(OLD_KEY, workers=2))
    with pytest.raises(ValueError, match="workers=0; expected at least 1"):
        replace(OLD_KEY, workers=0)


def test_profiles_are_found_by_the_workers_that_they_were_measured_with(tmp_path: Path) -> None:
    alone, busy = replace(MEASUREMENT, parameters=1), replace(MEASUREMENT, parameters=2)
    about = {"device": "cpu", "optimizer": "adamw"}
    with ProfileStore(tmp_path / "store") as store:
        store.put(replace(KEY, workers=2), busy)
        assert store.find(BLOCK, SHARD, **about) is None  # type: ignore[arg-type]
        store.put(KEY, alone)
        for workers, expected in ((1, alone), (2, busy)):
            found = store.find(BLOCK, SHARD, **about, workers=workers)  # type: ignore[arg-type]
            assert found is not None
            assert (found.measurement, found.key.workers) == (expected, workers)
        assert store.find(BLOCK, SHARD, **about, workers=3) is None  # type: ignore[arg-type]
        assert (store.get(KEY), store.get(replace(KEY, workers=2))) == (alone, busy)
        text = profile_set_to_json(store.contents())
    assert {one.key.workers for one in parse_profile_set(text, where="file").profiles} == {1, 2}


def test_a_lookup_prefers_as_many_workers_and_takes_those_of_one_instead(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "store") as store:
        store.put(KEY, MEASUREMENT)
        store.put(replace(KEY, workers=2), replace(MEASUREMENT, forward_s=(9.0,)))
        for workers, expected in ((1, (1, 0.01)), (2, (2, 9.0)), (4, (1, 0.01))):
            found = lookup_in_store(store, device="cpu", optimizer="adamw", workers=workers)(BLOCK, SHARD)
            assert found is not None
            assert (found.workers, found.forward_s) == expected


# Measured once


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str]]:
    """What was asked of `measure_contention`, which says 1.25 of two and 1.5 of three."""
    asked: list[tuple[int, int, str]] = []

    def measure(workers: int, *, threads: int, dtype: str, framework: str) -> float:
        assert framework == "torch"
        asked.append((workers, threads, dtype))
        return 0.75 + workers / 4

    monkeypatch.setattr(contention, "measure_contention", measure)
    return asked


def _own_rates(threads: int = 1) -> DeviceRates:
    own = identify_device(Setting(threads=threads))
    return replace(RATES, hardware=own.hardware, software=own.software, threads=own.threads, contention=())


def test_contention_is_measured_once_and_stored_with_the_rates(
    tmp_path: Path, measured: list[tuple[int, int, str]]
) -> None:
    with ProfileStore(tmp_path / "store") as store:
        store.put_rates(_own_rates())
        store.put_rates(_own_rates(threads=2))
        setting = Setting()
        assert ensure_contention(store, setting, 3, "fp32") == 1.5
        assert ensure_contention(store, setting, 2, "fp32") == 1.25
        assert ensure_contention(store, setting, 3, "bf16") == 1.5
        assert measured == [(3, 1, "fp32"), (2, 1, "fp32")]
        known = store.rates("cpu", threads=1)
        assert known == replace(_own_rates(), contention=((2, 1.25), (3, 1.5)))
        assert store.rates("cpu", threads=2) == _own_rates(threads=2)
        assert ensure_contention(store, Setting(threads=2), 2, "fp32") == 1.25
        assert measured[2:] == [(2, 2, "fp32")]


def test_one_worker_has_no_neighbours(tmp_path: Path, measured: list[tuple[int, int, str]]) -> None:
    with ProfileStore(tmp_path / "store") as store:
        assert ensure_contention(store, Setting(), 1, "fp32") == 1.0
        assert (measured, store.rates("cpu")) == ([], None)


def test_one_worker_cannot_be_measured_against_itself() -> None:
    with pytest.raises(InputError, match="contention: workers: found 1, expected at least 2"):
        contention.measure_contention(1)


@pytest.mark.parametrize(
    ("workers", "threads", "expected"),
    [
        (2, 1, [(3,), (5,)]),
        (2, 2, [(3, 5), (7, 9)]),
        (4, 1, [(3,), (5,), (7,), (9,)]),
        (5, 1, None),
        (3, 2, None),
    ],
)
def test_each_worker_has_cores_of_its_own_or_all_have_any(
    monkeypatch: pytest.MonkeyPatch, workers: int, threads: int, expected: list[tuple[int, ...]] | None
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {9, 3, 7, 5}, raising=False)
    assert pinned_cores(workers, threads) == expected
