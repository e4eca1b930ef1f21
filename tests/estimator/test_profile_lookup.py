"""What an estimate gets out of a stored profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator.profiling.lookup import lookup_in_store
from models_zoo.catalogue import load_model
from profiles.measurements import Measurement, MeasurementKey, canonical
from profiles.store import ProfileStore
from profiles.vocabulary import Shard


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
        # Of 21 samples 1.00 ... 1.20 the 10th percentile is 1.02; the middle 90% go from 1.01 to 1.19.
        assert (found.forward_s, found.backward_s, found.optimizer_s) == (1.02, 1.0, 0.5)
        assert found.relative_spread == pytest.approx(0.18 / 2 / 2.02)
        assert look_up(other, shard) is None
        assert look_up(layer, Shard(seq_len=64, dtype="fp32")) is None
        assert lookup_in_store(store, device="a40", optimizer="adamw")(layer, shard) is None
        assert lookup_in_store(store, device="cpu", optimizer="sgd")(layer, shard) is None
