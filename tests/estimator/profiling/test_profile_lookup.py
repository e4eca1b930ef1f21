"""What an estimate gets out of a stored profile."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from estimator.profiling import lookup
from estimator.profiling.lookup import find_origins, lookup_in_store, to_layer_time, usable_link_tables
from models_zoo.catalogue import load_model
from profiles.measurements import Measurement, MeasurementKey, Origin, Profile, canonical
from profiles.store import ProfileStore
from profiles.vocabulary import LinkTable, Shard
from tests.seeds import seeds


def test_a_stored_profile_answers_for_its_layer_shard_device_and_optimizer_alone(tmp_path: Path) -> None:
    layer, other = load_model("gpt-tiny").layers[:2]
    shard = Shard(seq_len=128, dtype="fp32")
    key = MeasurementKey(
        layers=(canonical(layer),), shard=shard, optimizer="adamw", threads=1, device="cpu", hardware="x", software="y"
    )
    forward_s = tuple(1.0 + i / 100 for i in range(21))
    measurement = Measurement(
        forward_s=forward_s,
        backward_s=(1.0,) * 21,
        optimizer_s=(0.5, 0.7),
        saved_bytes=10,
        peak_memory_bytes=20,
        parameters=3,
    )
    with ProfileStore(tmp_path / "store") as store:
        store.put(key, measurement)
        look_up = lookup_in_store(store, device="cpu", optimizer="adamw")
        found = look_up(layer, shard)
        assert found is not None
        assert (found.provenance, found.profile_id, found.saved_bytes) == ("measured", key.id, 10)
        # Of 21 samples 1.00 ... 1.20 the 10th percentile is 1.02; the middle 90% of the sums go from 2.01 to 2.19.
        assert (found.forward_s, found.backward_s, found.optimizer_s) == (1.02, 1.0, 0.5)
        assert (found.relative_low, found.relative_high) == pytest.approx((0.01 / 2.02, 0.17 / 2.02))
        assert look_up(other, shard) is None
        assert look_up(layer, Shard(seq_len=64, dtype="fp32")) is None
        assert lookup_in_store(store, device="a40", optimizer="adamw")(layer, shard) is None
        assert lookup_in_store(store, device="cpu", optimizer="sgd")(layer, shard) is None


LAYERS = load_model("gpt-tiny").layers
SHARD = Shard(seq_len=128, dtype="fp32")
KEY = MeasurementKey(
    layers=(canonical(LAYERS[0]),), shard=SHARD, optimizer="adamw", threads=1, device="cpu", hardware="x", software="y"
)
ONCE = Measurement(forward_s=(1.0,), backward_s=(2.0,), saved_bytes=1, peak_memory_bytes=2, parameters=3)


@pytest.mark.parametrize("seed", seeds(20))
def test_the_interval_of_a_layer_holds_nine_of_ten_skewed_samples(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 60)
    forward_s, backward_s = (tuple(1 + rng.lognormvariate(-2, 1.5) for _ in range(count)) for _ in range(2))
    time = to_layer_time(Profile(key=KEY, measurement=replace(ONCE, forward_s=forward_s, backward_s=backward_s)))
    figure_s = time.forward_s + time.backward_s
    low_s, high_s = figure_s * (1 - time.relative_low - 1e-12), figure_s * (1 + time.relative_high + 1e-12)
    held = sum(low_s <= sum(both) <= high_s for both in zip(forward_s, backward_s, strict=True))
    assert held >= 0.9 * count


def test_another_cpu_is_not_this_one_and_one_origin_serves_all_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "cpu_name", lambda: "here")
    about = {"device": "cpu", "optimizer": "adamw", "dtype": "fp32", "seq_len": 128}
    with ProfileStore(tmp_path / "store") as store:
        store.put(replace(KEY, hardware="elsewhere", software="torch 9"), ONCE)
        assert find_origins(store, LAYERS, **about) == ()  # type: ignore[arg-type]
        second = canonical(LAYERS[1])
        one, two = (Origin(hardware="here", software="torch 2", threads=threads) for threads in (1, 2))
        store.put(replace(KEY, hardware="here", software="torch 2", threads=1), ONCE)
        store.put(replace(KEY, hardware="here", software="torch 2", threads=2), ONCE)
        store.put(replace(KEY, hardware="here", software="torch 2", threads=2, layers=(second,)), ONCE)
        assert find_origins(store, LAYERS, **about) == (one, two)  # type: ignore[arg-type]
        look_up = lookup_in_store(store, device="cpu", optimizer="adamw", origin=one)
        assert look_up(LAYERS[0], SHARD) is not None
        assert look_up(LAYERS[1], SHARD) is None
        store.put(replace(KEY, device="a40", hardware="NVIDIA A40", threads=0), ONCE)
        (gpu,) = find_origins(store, LAYERS, **(about | {"device": "a40"}))  # type: ignore[arg-type]
        assert gpu.hardware == "NVIDIA A40"


def test_link_tables_hold_for_this_host_or_for_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "cpu_name", lambda: "here")
    plain = LinkTable(
        link="loopback",
        op="all_reduce",
        ranks=2,
        nodes=1,
        points=((1, 1.0),),
        alpha_s=1.0,
        beta_s_per_byte=0.0,
        fit_error=0.0,
        source="made up",
    )
    here, elsewhere = (replace(plain, backend="gloo", hardware=name) for name in ("here", "elsewhere"))
    nccl = replace(plain, backend="nccl", hardware="elsewhere")
    with ProfileStore(tmp_path / "store") as store:
        for table in (plain, here, elsewhere, nccl):
            store.put_link_table(table)
        assert usable_link_tables(store, "cpu") == (here,)
        assert set(usable_link_tables(store, "a100-80gb")) == {plain, nccl}
