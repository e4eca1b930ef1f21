"""What holds of the evaluation of every legal plan: sums, and that more of anything is never slower."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from hypothesis import assume, given, settings

from models_zoo.model import Model
from profiles.cluster_file import load_cluster
from tests.explicit_examples import (
    Draft,
    assert_never_faster,
    build,
    drafts,
    evaluated,
    faster_hardware,
    on_device,
    with_recipe,
    with_stages,
)
from tests.seeds import examples
from tests.zoo_families import gpt, llama, mixtral

many = settings(max_examples=examples(150), deadline=None, derandomize=True)


def hides_twice(draft: Draft) -> bool:
    """Whether copies to the host and sharded weights hide behind the same work (a test in test_explicit_evaluate)."""
    return "activations" in draft.degrees["offload"] and draft.degrees["zero"] == 3


def puts_off(draft: Draft) -> bool:
    """Whether a schedule puts off weight gradients beside which something is waited for: launches, copies, messages.
    What is put off is told from the device's seconds alone (as above)."""
    waits = (
        draft.recipe.software.launch == "eager",
        "activations" in draft.degrees["offload"],
        draft.degrees["zero"] == 3,
        "tp" in draft.recipe.overlap,
        draft.degrees["cp"] > 1,
    )
    return draft.recipe.schedule in ("zb-h1", "dualpipe") and any(waits)


@many
@given(draft=drafts())
def test_a_breakdown_sums_to_the_iteration(draft: Draft) -> None:
    found = evaluated(draft.setup())
    parts = [getattr(found.breakdown, part.name) for part in fields(found.breakdown)]
    assert math.fsum(parts) == pytest.approx(found.iteration_time_s, rel=1e-12)
    assert min(parts) >= -1e-12
    low, high = found.interval_90_s
    assert low <= found.iteration_time_s <= high
    least, most = found.memory_interval_90_bytes
    assert least <= found.peak_memory_bytes <= most
    assert len(found.memory) == len(found.stage_compute_s) == len(found.stage_communication_s)
    assert all(0 < guess.seconds <= found.iteration_time_s * (1 + 1e-9) for guess in found.guesses)


@pytest.mark.parametrize("which", ["peak", "memory bandwidth", "inside", "fabric", "latency"])
def test_better_hardware_is_never_slower(which: str) -> None:
    @many
    @given(draft=drafts())
    def check(draft: Draft) -> None:
        setup = draft.setup()
        if which in ("peak", "memory bandwidth"):
            assume(not puts_off(draft) and not hides_twice(draft))
        assert_never_faster(setup, faster_hardware(setup, which))

    check()


@many
@given(draft=drafts())
def test_more_memory_never_changes_the_time(draft: Draft) -> None:
    setup = draft.setup()
    more = on_device(setup, lambda device: replace(device, memory_bytes=2 * device.memory_bytes))
    assert evaluated(more).breakdown == evaluated(setup).breakdown


@many
@given(draft=drafts())
def test_less_work_is_never_slower(draft: Draft) -> None:
    assume(not puts_off(draft))
    setup = draft.setup()
    batch = setup.recipe.global_batch
    assert_never_faster(with_recipe(setup, seq_len=1024), setup)
    # More micro-batches of the same size, then as many of twice the size.
    assert_never_faster(with_recipe(setup, global_batch=2 * batch), setup)
    twice = replace(setup, micro_batch=2 * setup.micro_batch, recipe=replace(setup.recipe, global_batch=2 * batch))
    assert_never_faster(twice, setup)


DEEPER: dict[str, Model] = {
    "gpt": gpt("g", hidden=512, layers=16, heads=8, vocab=5000, seq_len=512),
    "llama": llama("l", hidden=512, layers=16, heads=8, kv_heads=4, ffn_hidden=1024, vocab=4096, seq_len=512),
    "experts": mixtral(
        "m", hidden=512, layers=16, heads=8, kv_heads=4, ffn_hidden=1024, experts=8, top_k=2, vocab=4096, seq_len=512
    ),
}


@many
@given(draft=drafts())
def test_fewer_layers_are_never_slower(draft: Draft) -> None:
    assume(draft.degrees["recompute_layers"] is None and not puts_off(draft))
    deeper = build(DEEPER[draft.model], load_cluster(draft.cluster), draft.recipe, **draft.degrees)
    assert_never_faster(deeper, draft.setup())


@pytest.mark.parametrize("kind", ["dp", "tp", "p2p"])
def test_overlap_is_never_slower(kind: str) -> None:
    @many
    @given(draft=drafts())
    def check(draft: Draft) -> None:
        setup = draft.setup()
        assume(not hides_twice(draft))
        # Closed forms of these two are near the events, each with an error of its own.
        near = kind == "p2p" and draft.recipe.schedule in ("dualpipe", "interleaved")
        overlap, tolerance = draft.recipe.overlap, 0.005 if near else 1e-9
        apart, beside = (with_recipe(setup, overlap=kinds) for kinds in (overlap - {kind}, overlap | {kind}))
        assert_never_faster(apart, beside, tolerance)

    check()


@many
@given(draft=drafts())
def test_nodes_are_alike(draft: Draft) -> None:
    """The same ranks on the other nodes of the cluster, and the cluster's nodes under other names."""
    setup = draft.setup()
    shift = 8 * (-(-setup.devices // 8))
    assume(shift + setup.devices <= len(setup.cluster.slots))
    place = {slot: setup.cluster.slots[number + shift] for number, slot in enumerate(setup.cluster.slots[:shift])}
    moved = with_stages(setup, lambda stage: replace(stage, slots=tuple(place[slot] for slot in stage.slots)))
    assert evaluated(moved) == evaluated(setup)
