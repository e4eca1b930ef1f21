"""Training software as declared features: the table, and features stated in place of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.pricing.recipe import Software
from estimator.pricing.software import (
    describe_framework,
    features,
    features_beyond_generic,
    load_framework,
    load_frameworks,
    overruled,
    usual_framework,
)
from profiles.errors import InputError
from profiles.hardware import device_names


def test_each_declaration_says_what_it_rests_on() -> None:
    for framework in load_frameworks().values():
        assert len(framework.basis) > 20
        assert {dtype for dtype, _ in framework.grad_dtype} >= {"fp32", "fp16", "bf16", "fp8"}
        assert bool(framework.memory_basis) == (framework.software.memory != Software(name="any").memory)
        assert describe_framework(framework)["features"] == features(framework.software)


def test_a_name_nobody_declared_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError, match="megatron-core"):
        load_framework("megatron-corps")
    assert load_framework(" Megatron-Core ").name == "megatron-core"
    assert load_framework(None).name == "generic"


def test_what_an_entry_leaves_out_is_as_the_record_has_it() -> None:
    assert replace(load_framework("gavel").software, name="any", kernels="fused") == Software(name="any")


def test_every_feature_can_be_overruled_alone() -> None:
    """Stating each feature of one software on top of another's makes them equal but for the name."""
    wanted = load_framework("megatron-deepspeed").software
    stated = tuple(f"{name}={value}" for name, value in features(wanted).items())
    usual = load_framework("torchtitan").software
    assert replace(overruled(usual, stated), name=wanted.name) == wanted
    for text in stated:
        name, _, _ = text.partition("=")
        changed = overruled(usual, (text,))
        assert features(changed) == {**features(usual), name: features(wanted)[name]}


def test_features_beyond_the_generic_software() -> None:
    assert features_beyond_generic(load_framework("generic").software) == {}
    assert features_beyond_generic(load_framework("internevo").software)["broadcast_weights"] is True


@pytest.mark.parametrize(
    "text",
    ["kernels", "kernels=", "kernels=quick", "name=me", "memory=1", "bucket_bytes=-1", "fragmentation=nan",
     "flash_generation=4", "launch_=graph", "optimizer_masters=maybe", "context_bytes=1e9"],
)  # fmt: skip
def test_a_wrong_feature_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--feature"):
        overruled(Software(name="generic"), (text,))


def test_a_release_has_what_the_one_before_it_had() -> None:
    declared = load_frameworks()
    for name, framework in declared.items():
        software, at, _ = name.partition("@")
        if at:
            assert software in declared
            assert framework.released
            assert all(brought.source and brought.release in declared for brought in framework.brings)
    early, late = load_framework("megatron-core@0.9"), load_framework("Megatron-Core@0.14")
    assert set(early.brings) < set(late.brings)
    assert (early.software.dispatch, late.software.dispatch) == ("all_to_all", "deduplicated")
    assert {brought.release for brought in late.brings} >= {"megatron-core@0.12", "megatron-core@0.14"}
    assert early.overlap == load_framework("megatron-core").overlap


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("h100", "generic"),
        ("mi300x", "generic"),
        ("a100-80gb", "generic"),
        ("v100-32gb", "generic-older"),
        ("rtx-4090", "generic-boards"),
        ("tpu-v5p", "generic-xla"),
        ("no such device", "generic"),
    ],
)
def test_what_is_taken_where_no_software_is_named(device: str, name: str) -> None:
    assert usual_framework(device).name == name


def test_every_device_on_which_something_is_usual_is_in_the_catalogue_and_has_one() -> None:
    usual = [device for framework in load_frameworks().values() for device in framework.usual_on]
    assert set(usual) <= set(device_names())
    assert len(usual) == len(set(usual))
