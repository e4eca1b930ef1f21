"""What an estimate had no measurement for: how many seconds rest on it, and what makes a guess go away."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup, StageSetup
from models_zoo.layers import Head, Layer
from profiles.cluster_file import load_cluster
from profiles.vocabulary import LayerTime, LinkTable, Shard
from tests.explicit_examples import (
    EXPERTS,
    GPT,
    LLAMA,
    QUIET,
    RECIPE,
    Draft,
    build,
    drafts,
    evaluated,
)
from tests.seeds import examples


def profiled(_layer: Layer, _shard: Shard) -> LayerTime:
    """Everything is measured."""
    return LayerTime(forward_s=0.01, backward_s=0.02, optimizer_s=0.0, provenance="measured")


def tables_for(link: str, ranks: int, nodes: int = 1) -> list[LinkTable]:
    """Every collective is measured there."""
    return [
        LinkTable(
            link=link,
            op=op,
            ranks=2 if op == "send_recv" else ranks,
            nodes=nodes,
            points=((1, 1e-5), (10**12, 10.0)),
            alpha_s=1e-5,
            beta_s_per_byte=1e-11,
            fit_error=0.0,
            source="test",
        )
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    ]


def words(found: Evaluation) -> str:
    return "\n".join(guess.what for guess in found.guesses)


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(draft=drafts())
def test_guesses_rest_on_parts_of_the_iteration_largest_first(draft: Draft) -> None:
    found = evaluated(draft.setup())
    seconds = [guess.seconds for guess in found.guesses]
    assert seconds == sorted(seconds, reverse=True)
    assert min(seconds) > 0
    assert math.fsum(seconds) <= found.iteration_time_s * (1 + 1e-9)


def test_a_layer_of_two_chunks_is_listed_once() -> None:
    found = evaluated(build(recipe=replace(QUIET, schedule="interleaved"), pp=2, vpp=2))
    assert len({guess.what for guess in found.guesses}) == len(found.guesses)


def test_a_layer_recomputed_in_part_is_listed_once() -> None:
    found = evaluated(build(recipe=QUIET, recompute="full", recompute_layers=1))
    assert len({guess.what for guess in found.guesses}) == len(found.guesses)


def test_launches_are_guessed_once() -> None:
    found = evaluated(build(GPT, recipe=replace(RECIPE, global_batch=1)))
    assert found.breakdown.launch_s > 0.1 * found.iteration_time_s
    assert math.fsum(guess.seconds for guess in found.guesses) <= found.iteration_time_s


def test_layers_share_the_compute_of_the_limiting_stage() -> None:
    found = evaluated(build(recipe=QUIET))
    layers = [guess for guess in found.guesses if "no profile" in guess.what]
    parts = found.breakdown
    assert math.fsum(guess.seconds for guess in layers) == pytest.approx(
        parts.gemm_s + parts.attention_s + parts.memory_bound_s
    )
    assert [guess.what.split()[0] for guess in layers] == ["TransformerBlock", "Head", "Embedding"]
    assert all("cellplan profile" in guess.remedy and "a100-80gb" in guess.remedy for guess in layers)


def test_profiled_layers_are_no_guesses() -> None:
    def ends(layer: Layer, shard: Shard) -> LayerTime | None:
        return profiled(layer, shard) if isinstance(layer, Head) else None

    setup = build(recipe=RECIPE)
    assert "Head" in words(evaluated(setup))
    assert "Head" not in words(evaluated(setup, lookup=ends))
    assert "TransformerBlock" in words(evaluated(setup, lookup=ends))
    assert evaluated(setup, lookup=profiled).guesses == ()


@pytest.mark.parametrize(
    ("degrees", "name", "link", "ranks"),
    [
        ({"tp": 8}, "tensor-parallel", "nvswitch3", 8),
        ({"cp": 4}, "context-parallel", "nvswitch3", 4),
        ({"dp": 8}, "data-parallel", "nvswitch3", 8),
        ({"dp": 8, "zero": 3}, "data-parallel", "nvswitch3", 8),
        ({"dp": 8, "ep": 8}, "expert-parallel", "nvswitch3", 8),
    ],
)
def test_measured_collectives_are_no_guesses(degrees: dict[str, Any], name: str, link: str, ranks: int) -> None:
    setup = build(EXPERTS if "ep" in degrees else LLAMA, recipe=QUIET, **degrees)
    before = evaluated(setup)
    guess = next(one for one in before.guesses if one.what.startswith(name))
    assert f"--link {link} --ranks {ranks}" in guess.remedy
    parts = {"tensor": "tp_s", "context": "cp_s", "data": "dp_s", "expert": "ep_s"}
    assert guess.seconds == getattr(before.breakdown, parts[name.split("-")[0]])
    assert name not in words(evaluated(setup, link_tables=tables_for(link, ranks)))


def test_measured_messages_are_no_guesses() -> None:
    setup = build(recipe=QUIET, pp=2)
    assert "messages between stages over nvswitch3" in words(evaluated(setup))
    assert "messages" not in words(evaluated(setup, link_tables=tables_for("nvswitch3", 2)))


def test_the_replicas_sums_are_a_guess_of_their_own() -> None:
    setup = build(recipe=QUIET, dp=16, zero=1, shard=8)
    assert "data-parallel" in words(evaluated(setup, link_tables=tables_for("nvswitch3", 8)))


def test_the_limiting_stages_collectives_are_guessed() -> None:
    cluster = load_cluster("a100-80gb:1x4+v100-32gb:1x4")
    stages = (
        StageSetup(chunks=((0, 5),), slots=cluster.slots[:4], dp=4),
        StageSetup(chunks=((5, 10),), slots=cluster.slots[4:], tp=4),
    )
    recipe = replace(QUIET, dtype="fp16")
    found = evaluated(Setup(model=LLAMA, cluster=cluster, recipe=recipe, stages=stages, micro_batch=4))
    assert found.breakdown.tp_s > 0
    assert "tensor-parallel" in words(found)


def test_launches_and_offloading_are_guesses() -> None:
    found = evaluated(build(recipe=replace(RECIPE, global_batch=8), offload=frozenset({"optimizer"})))
    seconds = {guess.what.split(":")[0]: guess.seconds for guess in found.guesses}
    assert seconds["the host's launching of kernels"] == found.breakdown.launch_s
    assert seconds["state in host memory"] == found.breakdown.offload_s


def test_what_is_carried_over_is_said() -> None:
    found = evaluated(build(cluster=load_cluster("a40:1x8"), recipe=QUIET, dp=8))
    assert "carried over from" in words(found)
