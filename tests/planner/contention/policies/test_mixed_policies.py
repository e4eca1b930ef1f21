"""Policies of parts by name, and the parts that no whole policy tests."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from planner.contention.policies.assembling import assemble_policy
from planner.contention.policies.catalogue import NETWORK_POLICIES, make_network_policy
from planner.contention.policies.compression.catalogue import COMPRESSIONS
from planner.contention.policies.contending_loss import loss_of_sharing
from planner.contention.policies.fairness import order_by_fairness, recent_losses
from planner.contention.policies.keeping import with_paths
from planner.contention.policies.loads import contending_jobs, link_seconds, paths_now
from planner.contention.policies.mixed import OFFSET_NAMES, PARTS_OF, PATH_NAMES, PRIORITY_NAMES, Mixed, mixed_of
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import work_per_s
from profiles.errors import InputError
from tests.contention_examples import contender, random_view, view_of


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", sorted(set(PARTS_OF) - {"ours"}))
def test_a_policy_is_what_its_parts_are(name: str, seed: int) -> None:
    view = random_view(Random(seed))
    whole, mixed = make_network_policy(name).decide(view), mixed_of(name).decide(view)
    assert (mixed.paths, mixed.levels, mixed.offsets_s) == (whole.paths, whole.levels, whole.offsets_s)


def test_every_policy_but_mixed_says_its_parts() -> None:
    assert set(PARTS_OF) == set(NETWORK_POLICIES) - {"mixed"}


@pytest.mark.parametrize("paths", PATH_NAMES)
@pytest.mark.parametrize("priorities", PRIORITY_NAMES)
def test_all_paths_go_with_all_priorities(paths: str, priorities: str) -> None:
    view = random_view(Random(4), jobs=4)
    decision = Mixed(paths=paths, priorities=priorities, plays=20).decide(view)
    contending = set(contending_jobs(link_seconds(view, decision.paths)))
    assert {job for job, level in enumerate(decision.levels) if level is not None} == contending
    assert all(0 <= level < 3 for level in decision.levels if level is not None)


@pytest.mark.parametrize("offsets", OFFSET_NAMES)
@pytest.mark.parametrize("compression", [*COMPRESSIONS, "none"])
def test_all_compressions_go_with_all_offsets(compression: str, offsets: str) -> None:
    view = random_view(Random(5))
    decision = Mixed(compression=compression, offsets=offsets, plays=20).decide(view)
    assert len(decision.offsets_s) == 5
    assert all(offset >= 0 for offset in decision.offsets_s)


def test_levels_that_ours_chooses_are_for_the_paths_of_another_part() -> None:
    view = random_view(Random(6))
    hashed = Mixed(paths="hashed", priorities="ours").decide(view)
    assert hashed.paths == paths_now(view)
    played = Rehearsals(view)
    best = work_per_s(view.jobs, played.rates_of(hashed))
    for priorities in ("crux", "intensity", "sincronia", "varys", "none", "static"):
        other = Mixed(paths="hashed", priorities=priorities).decide(view)
        assert work_per_s(view.jobs, played.rates_of(other)) <= best * (1 + 1e-9)


def test_a_part_that_there_is_not_is_named() -> None:
    for key in ("paths", "priorities", "compression", "offsets"):
        with pytest.raises(InputError, match=f"--{key}.*found best"):
            assemble_policy("crux", **{key: "best"})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"--policy.*mixed"):
        mixed_of("mixed", paths="crux")
    with pytest.raises(InputError, match="plays or seed"):
        assemble_policy("crux", paths="hashed", options={"intensity": "transfers"})
    with pytest.raises(InputError, match="weights best"):
        make_network_policy("crux", weights="best")
    for option in ("compression", "intensity", "traffic"):
        with pytest.raises(InputError, match=f"{option} best: one of"):
            make_network_policy("crux", **{option: "best"})
    for name in ("crux-fair", "sincronia", "tacclstar", "varys"):
        with pytest.raises(InputError, match="compression best: one of algorithm-1, "):
            make_network_policy(name, compression="best")


def test_one_path_for_each_connection_stays_what_it_was() -> None:
    view = random_view(Random(7))
    paths = ((1,), (0,), (None,), (1,), (0,))
    assert link_seconds(with_paths(view, paths), [(0,)] * 5) == link_seconds(view, paths)


def test_who_lost_more_of_late_comes_first_as_far_as_the_weight_goes() -> None:
    jobs = [
        replace(contender("rich", compute_s=1.0, wire_s=1.0, flops=10.0), recent_loss=0.1),
        replace(contender("poor", compute_s=1.0, wire_s=1.0, flops=1.0), recent_loss=0.6),
    ]
    view = view_of(jobs, levels=2)
    seconds = link_seconds(view, paths_now(view))
    # (1 - w) 1 + 0.1 w against (1 - w) 0.1 + 0.6 w: equal at w = 0.9 / 1.4.
    assert order_by_fairness(view, seconds, 0.64) == (0, 1)
    assert order_by_fairness(view, seconds, 0.65) == (1, 0)
    assert make_network_policy("crux-fair", weight=1.0).decide(view).levels == (1, 0)
    with pytest.raises(InputError, match="0 to 1"):
        make_network_policy("crux-fair", weight=1.5)


def test_a_loss_that_nobody_measured_is_played() -> None:
    """One after the other on one link: the second loses, which waits; what was measured is taken as it is."""
    jobs = [contender(name, compute_s=1.0, wire_s=2.0, own_level=level) for level, name in enumerate("ab")]
    view = view_of(jobs, levels=2)
    losses = recent_losses(view)
    assert losses[0] == 0.0
    assert losses[1] == pytest.approx(0.5, abs=0.01)
    assert recent_losses(replace(view, jobs=(replace(jobs[0], recent_loss=0.2), jobs[1])))[0] == 0.2


def test_what_two_jobs_lose_by_sharing_can_weigh_the_edges() -> None:
    """Both always send: first and second do 100 for a second of wire against 1; shared they do half of each."""
    jobs = [
        contender("a", compute_s=1.0, wire_s=2.0, begins_s=0.0, flops=200.0),
        contender("b", compute_s=1.0, wire_s=2.0, begins_s=0.0, flops=2.0),
    ]
    view = view_of(jobs, levels=2)
    assert loss_of_sharing(view, paths_now(view), 0, 1) == pytest.approx(100 - 50.5)
    assert loss_of_sharing(view, paths_now(view), 1, 0) == 0.0
    for seed in range(4):
        drawn = random_view(Random(seed))
        decision = make_network_policy("crux", weights="loss").decide(drawn)
        assert decision.paths == make_network_policy("crux").decide(drawn).paths
