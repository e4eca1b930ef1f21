"""Canonical texts, ids and the profile file's form."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given

from profiles.errors import InputError
from profiles.measurements import (
    DeviceRates,
    Profile,
    ProfileSet,
    canonical,
    device_from_rates,
)
from profiles.profile_file import parse_profile_set, profile_set_to_json
from profiles.vocabulary import Shard
from tests.profiles.profile_examples import BLOCK, KEY, MEASUREMENT, profile_sets, shards


def test_canonical_text_names_every_field_and_type() -> None:
    assert canonical(Shard()) == (
        '{"attention":"flash","dtype":"bf16","micro_batch_per_rank":1,"recompute":"none","seq_len":0,'
        '"sequence_parallel":false,"tp":1,"type":"Shard"}'
    )
    nested = json.loads(canonical(BLOCK))
    assert nested["attention"]["type"] == "Attention"
    assert nested["feed_forward"] == {
        "type": "FeedForward", "hidden": 1024, "gated": False, "activation": "gelu", "bias": False
    }  # fmt: skip


def test_canonical_refuses_what_has_no_one_text() -> None:
    for value in ({"a": 1}, [1], object(), {1}):
        with pytest.raises(TypeError, match="canonical: found"):
            canonical(value)
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))


@given(shards, shards)
def test_equal_texts_mean_equal_records(one: Shard, other: Shard) -> None:
    assert (canonical(one) == canonical(other)) == (one == other)


def test_id_is_the_start_of_the_keys_hash() -> None:
    assert KEY.id == hashlib.sha256(canonical(KEY).encode("utf-8")).hexdigest()[:12]
    assert Profile(key=KEY, measurement=MEASUREMENT).id == KEY.id


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "stage"},
        {"layers": (canonical(replace(BLOCK, hidden=512)),)},
        {"shard": replace(KEY.shard, tp=1)},
        {"shard": replace(KEY.shard, sequence_parallel=True)},
        {"shard": replace(KEY.shard, micro_batch_per_rank=1)},
        {"shard": replace(KEY.shard, seq_len=64)},
        {"shard": replace(KEY.shard, dtype="fp32")},
        {"shard": replace(KEY.shard, attention="math")},
        {"shard": replace(KEY.shard, recompute="full")},
        {"mode": "compiled"},
        {"optimizer": "sgd"},
        {"threads": 2},
        {"device": "h200"},
        {"hardware": "another"},
        {"software": "torch 2.14"},
    ],
)
def test_whatever_determines_a_figure_changes_the_id(change: dict[str, object]) -> None:
    assert replace(KEY, **change).id != KEY.id  # type: ignore[arg-type]


def test_records_refuse_what_cannot_be() -> None:
    for change in ({"kind": "model"}, {"mode": "traced"}, {"layers": ()}, {"layers": ("a", "b")}, {"threads": -1}):
        with pytest.raises(ValueError, match="measurement key"):
            replace(KEY, **change)
    for wrong in ({"forward_s": ()}, {"backward_s": (-1.0,)}, {"optimizer_s": (float("nan"),)}, {"saved_bytes": -1}):
        with pytest.raises(ValueError, match="measurement"):
            replace(MEASUREMENT, **wrong)


@given(profile_sets)
def test_file_round_trip(found: ProfileSet) -> None:
    text = profile_set_to_json(found)
    read = parse_profile_set(text, where="f.json")
    assert set(read.profiles) == set(found.profiles)
    assert set(read.rates) == set(found.rates)
    assert set(read.link_tables) == set(found.link_tables)
    reordered = ProfileSet(profiles=read.profiles[::-1], rates=read.rates[::-1], link_tables=read.link_tables[::-1])
    assert profile_set_to_json(reordered) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("profiles/1", "profiles/2", "schema: found 'cellplan.profiles/2', expected 'cellplan.profiles/1'"),
        ('"tp": 2', '"tp": "2"', r"profiles\[0\]\.key\.shard\.tp: found '2', expected a valid integer"),
        ('"tp": 2', '"tp": 0', r"profiles\[0\]\.key\.shard: .*expected tp >= 1"),
        ('"threads": 1', '"thread": 1', r"profiles\[0\]\.key\.threads: found nothing"),
        ('"threads": 1', '"threads": 1, "cores": 2', r"profiles\[0\]\.key\.cores: found an unknown key 'cores'"),
        ("[0.01, 0.011]", "[]", r"profiles\[0\]\.measurement: found .*0 forward.*expected at least one of each"),
        ("[0.01, 0.011]", "[-0.01]", r"profiles\[0\]\.measurement: .*all from 0 to 1e\+09 s"),
        ("[0.01, 0.011]", "[NaN]", "found NaN"),
        ('"eager"', '"lazy"', r"profiles\[0\]\.key\.mode: found 'lazy', expected 'eager' or 'compiled'"),
        ('"profiles": [', '"profiles": [3,', r"profiles\[0\]"),
        ('"link_tables": []}', '"link_tables": []', "no JSON"),
        ('"rates"', '"profiles"', "found the key twice"),
    ],
)
def test_wrong_profile_files(old: str, new: str, message: str) -> None:
    text = profile_set_to_json(ProfileSet(profiles=(Profile(key=KEY, measurement=MEASUREMENT),)))
    assert old in text
    with pytest.raises(InputError, match=rf"f\.json.*{message}"):
        parse_profile_set(text.replace(old, new, 1), where="f.json")


def test_rates_of_no_type_are_refused() -> None:
    rates = DeviceRates(
        device="cpu",
        hardware="x",
        software="y",
        threads=1,
        memory_bytes=2**34,
        memory_bandwidth_bytes_per_s=1e10,
        flops_per_s=(("bf16", 5e10),),
        flash_attention=True,
    )
    for change in ({"flops_per_s": (("5", 5e10),)}, {"threads": -1}):
        with pytest.raises(ValueError, match=r"device rates of cpu: .*expected rates of fp32, .*; threads >= 0"):
            replace(rates, **change)


def test_local_device_has_the_measured_rates() -> None:
    found = DeviceRates(
        device="cpu",
        hardware="Some CPU",
        software="torch 2.13",
        threads=2,
        memory_bytes=2**33,
        memory_bandwidth_bytes_per_s=1e10,
        flops_per_s=(("fp32", 9e10),),
        flash_attention=True,
    )
    device = device_from_rates(found)
    assert (device.peak("fp32"), device.peak("bf16"), device.memory_bytes) == (9e10, None, 2**33)
    assert "Some CPU" in device.source
    assert device.peak_basis == "measured"
    with pytest.raises(ValueError, match="expected all from 1 to"):
        replace(found, memory_bytes=0)
