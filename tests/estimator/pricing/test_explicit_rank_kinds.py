"""Stages on several types of device: each type priced by itself, with its own share; the slowest counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.pricing.outcome import Evaluation
from estimator.pricing.rank_kinds import rank_kinds
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from tests.explicit_examples import LLAMA, evaluated

BOTH = load_cluster("a100-80gb:1x2+a40:1x2")
LAYERS = len(LLAMA.layers)


def replicas(cluster: Cluster, shares: tuple[int, ...], *, micro_batches: int = 4, **changes: object) -> Setup:
    """One stage on the first devices of the cluster, each a replica."""
    dp = len(shares)
    return Setup(
        model=LLAMA,
        cluster=cluster,
        recipe=Recipe(global_batch=sum(shares) * micro_batches, seq_len=512),
        stages=(
            StageSetup(
                chunks=((0, LAYERS),),
                slots=cluster.free_slots[:dp],
                dp=dp,
                shares=None if len(set(shares)) == 1 else shares,
                **changes,  # type: ignore[arg-type]
            ),
        ),
        micro_batch=sum(shares),
    )


def compute_s(found: Evaluation) -> float:
    """Of a micro-batch."""
    return found.stage_compute_s[0]


def test_one_type_is_the_setup_itself() -> None:
    setup = replicas(load_cluster("a100-80gb:1x4"), (3, 3, 2, 2))
    assert rank_kinds(setup, 0) == (setup,)


def test_every_type_has_its_fullest_replica() -> None:
    kinds = rank_kinds(replicas(BOTH, (5, 4, 2, 1)), 0)
    assert [kind.samples_per_rank(kind.stages[0]) for kind in kinds] == [5, 2]
    assert [kind.cluster.group_of(kind.stages[0].slots[0]).device.name for kind in kinds] == ["a100-80gb", "a40"]
    assert {kind.micro_batches for kind in kinds} == {4}


@pytest.mark.parametrize("shares", [(6, 6, 2, 2), (4, 4, 4, 4), (3, 3, 7, 7), (5, 4, 2, 1)])
def test_the_slowest_type_sets_the_pace(shares: tuple[int, ...]) -> None:
    both = evaluated(replicas(BOTH, shares))
    fast = evaluated(replicas(load_cluster("a100-80gb:1x2"), (max(shares[:2]),) * 2))
    slow = evaluated(replicas(load_cluster("a40:1x2"), (max(shares[2:]),) * 2))
    assert compute_s(both) == pytest.approx(max(compute_s(fast), compute_s(slow)), rel=1e-12)


def test_shares_by_speed_are_faster_than_even_ones() -> None:
    even, uneven = evaluated(replicas(BOTH, (4, 4, 4, 4))), evaluated(replicas(BOTH, (5, 5, 3, 3)))
    assert uneven.iteration_time_s < even.iteration_time_s


def test_memory_is_that_of_the_type_with_least_room() -> None:
    setup = replicas(BOTH, (5, 4, 2, 1))
    roomy = evaluated(setup)
    assert roomy.out_of_memory is None
    (slow,) = roomy.memory  # The a40 have 48 GB.
    assert roomy.device_memory_bytes == (rank_kinds(setup, 0)[1].cluster.sites[0].nodes[0].device.memory_bytes,)
    fast = evaluated(replicas(load_cluster("a100-80gb:1x2"), (5, 5))).memory[0]
    assert slow.activation_bytes < fast.activation_bytes
    site = BOTH.sites[0]
    first = replace(site.nodes[0], device=replace(site.nodes[0].device, memory_bytes=fast.needed_bytes // 2))
    tight = replace(BOTH, sites=(replace(site, nodes=(first, site.nodes[1])),))
    lacking = evaluated(replicas(tight, (5, 4, 2, 1)))
    assert lacking.out_of_memory is not None
    assert lacking.device_memory_bytes == (fast.needed_bytes // 2,)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_state_is_sharded_over_all_types(zero: int) -> None:
    both = evaluated(replicas(BOTH, (5, 5, 3, 3), zero=zero)).memory[0]
    alike = evaluated(replicas(load_cluster("a100-80gb:2x2"), (3, 3, 3, 3), zero=zero)).memory[0]
    assert (both.weight_bytes, both.gradient_bytes, both.optimizer_bytes) == (
        alike.weight_bytes,
        alike.gradient_bytes,
        alike.optimizer_bytes,
    )
