"""What each network policy decides, where it is known; and what holds of all."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from planner.contention.policies.catalogue import NETWORK_POLICIES, make_network_policy
from planner.contention.policies.loads import contending_jobs, contending_pairs, link_seconds
from planner.contention.policies.records import Contender, View
from profiles.errors import InputError
from tests.contention_examples import contender, playings, random_view, view_of
from tests.oracles.contention_oracle import iterations_a_second

ANY_LEVELS = {"crux-pa", "crux-ps-pa"}
"""They give each job a level of its own, whatever the fabric has."""


def figure_13() -> View:
    """Jobs 1 and 2 share a link, 3 and 4 another; the importance falls (by size for Varys and Sincronia, by intensity
    for Crux), and there are two levels."""
    return view_of(
        [
            contender(
                f"job{number}", compute_s=1.0, wire_s=0.5 + 0.1 * number, flops=100.0 / 5**number, paths=[(link,)]
            )
            for number, link in ((1, 0), (2, 0), (3, 1), (4, 1))
        ],
        levels=2,
    )


@pytest.mark.parametrize(
    ("policy", "levels"), [("sincronia", (0, 1, 1, 1)), ("varys", (0, 0, 1, 1)), ("crux", (0, 1, 0, 1))]
)
def test_figure_13(policy: str, levels: tuple[int, ...]) -> None:
    decision = make_network_policy(policy).decide(figure_13())
    assert decision.levels == levels


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("name", NETWORK_POLICIES)
def test_every_decision_is_one_that_the_fabric_can_have(name: str, seed: int) -> None:
    view = random_view(Random(seed))
    decision = make_network_policy(name).decide(view)
    seconds = link_seconds(view, decision.paths)  # raises where there is no such path
    contending = set(contending_jobs(seconds))
    assert {job for job, level in enumerate(decision.levels) if level is not None} == contending
    assert all(0 <= level < 3 for level in decision.levels if level is not None) or name in ANY_LEVELS
    assert all(0 <= offset < job.alone_s for offset, job in zip(decision.offsets_s, view.jobs, strict=True))
    if decision.order:
        assert sorted(decision.order) == sorted(contending)
        place = {job: rank for rank, job in enumerate(decision.order)}
        for one, other in contending_pairs(seconds):
            first, second = sorted((one, other), key=place.__getitem__)
            assert (decision.levels[first] or 0) <= (decision.levels[second] or 0)
    assert decision == make_network_policy(name).decide(view)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", sorted(set(NETWORK_POLICIES) - {"cassini", "ours"}))
def test_the_order_in_which_jobs_are_named_changes_nothing(name: str, seed: int) -> None:
    view = random_view(Random(seed))
    shuffled = Random(seed).sample(range(5), 5)
    other = replace(view, jobs=tuple(view.jobs[job] for job in shuffled))
    decision, moved = (make_network_policy(name).decide(it) for it in (view, other))
    if name in ("ecmp", "spray", "static", "sincronia", "varys"):
        assert [moved.levels[place] for place in range(5)] == [decision.levels[job] for job in shuffled]
    assert [moved.paths[place] for place in range(5)] == [decision.paths[job] for job in shuffled]


def test_crux_gives_jobs_of_high_intensity_paths_of_their_own() -> None:
    """Two intensive jobs on the two spines; the third beside the less busy of them."""
    jobs = [
        contender(name, compute_s=1.0, wire_s=wire_s, flops=flops, paths=[(0,), (1,)])
        for name, wire_s, flops in (("light", 0.5, 1.0), ("heavy", 1.0, 30.0), ("middle", 0.6, 9.0))
    ]
    decision = make_network_policy("crux").decide(view_of(jobs, levels=2))
    assert decision.paths == ((1,), (0,), (1,))
    assert decision.levels == (1, None, 0)
    assert decision.order == (2, 0)


def test_a_job_spreads_its_own_connections() -> None:
    one = contender("one", compute_s=1.0, wire_s=1.0, paths=[(0,), (1,)])
    transfer = one.steps[0].transfers[0]
    mover = replace(transfer.movers[0], way=((0, 1.0), (1, 1.0)))
    steps = (replace(one.steps[0], transfers=(replace(transfer, movers=(mover,)),)),)
    two = replace(one, steps=steps, paths=one.paths * 2, now=(0, 0))
    assert make_network_policy("crux").decide(view_of([two])).paths == ((0, 1),)
    assert make_network_policy("ecmp").decide(view_of([two])).paths == ((0, 0),)
    assert link_seconds(view_of([two]), ((None, None),)) == ({0: 1.0, 1: 1.0},)


def test_sincronia_on_one_link_has_the_shortest_first() -> None:
    sizes = (3.0, 1.0, 2.0, 5.0, 4.0)
    jobs = [contender(f"j{number}", compute_s=1.0, wire_s=size) for number, size in enumerate(sizes)]
    assert make_network_policy("sincronia").decide(view_of(jobs, levels=3)).order == (1, 2, 0, 4, 3)


def test_sincronia_lowers_the_weight_of_those_whom_the_last_holds_up() -> None:
    """By hand: link 1 is busy longest, and b's 1/2 the least weight for its time. It goes last, a's weight sinks
    to 0.05, and so c, which is longer than a on link 0, goes first."""
    a, b, c = (
        contender("a", compute_s=1.0, wire_s=1.9, paths=[(0, 1)]),
        contender("b", compute_s=1.0, wire_s=2.0, paths=[(1,)]),
        contender("c", compute_s=1.0, wire_s=1.95, paths=[(0,)]),
    )
    assert make_network_policy("sincronia").decide(view_of([a, b, c])).order == (2, 0, 1)


def test_taccl_star_serves_the_longer_distance_first() -> None:
    jobs = [
        contender("near", compute_s=1.0, wire_s=1.0, flops=100.0, paths=[(0,)]),
        contender("far", compute_s=1.0, wire_s=1.0, paths=[(0, 1, 2)]),
    ]
    decision = make_network_policy("tacclstar").decide(view_of(jobs, levels=2))
    assert decision.order == (1, 0)
    assert decision.levels == (1, 0)


def test_users_levels_beyond_those_of_the_fabric_are_its_last() -> None:
    jobs = [contender(f"j{level}", compute_s=1.0, wire_s=1.0, own_level=level) for level in (0, 1, 7)]
    assert make_network_policy("static").decide(view_of(jobs, levels=2)).levels == (0, 1, 1)


def test_cassini_turns_two_jobs_so_that_they_never_meet() -> None:
    jobs = [contender(name, compute_s=1.0, wire_s=1.0) for name in "ab"]
    view = view_of(jobs)
    decision = make_network_policy("cassini").decide(view)
    assert decision.offsets_s == (0.0, 1.0)
    assert iterations_a_second(playings(view, decision), view.bytes_per_s, 50.0) == [0.5, 0.5]


def chain(name: str, links: tuple[int, ...]) -> Contender:
    return contender(name, compute_s=2.0, wire_s=1.0, begins_s=2.0, paths=[links])


def test_cassini_carries_shifts_over_links_and_leaves_out_what_closes_a_loop() -> None:
    tree = view_of([chain("a", (0,)), chain("b", (0, 1)), chain("c", (1,))])
    offsets = make_network_policy("cassini").decide(tree).offsets_s
    for one, other in ((0, 1), (1, 2)):
        assert 1.0 - 1e-9 <= abs(offsets[one] - offsets[other]) <= 2.0 + 1e-9
    loop = view_of([chain("a", (0, 2)), chain("b", (0, 1)), chain("c", (1, 2))])
    assert len(make_network_policy("cassini").decide(loop).offsets_s) == 3


def test_an_unknown_policy_or_option_is_named() -> None:
    with pytest.raises(InputError, match="cassini, crux, "):
        make_network_policy("best")
    with pytest.raises(InputError, match="compression"):
        make_network_policy("crux", compressor="exact")


def test_what_cannot_be_is_refused() -> None:
    job = contender("a", compute_s=1.0, wire_s=1.0)
    with pytest.raises(ValueError, match="path 3 of 1"):
        replace(job, now=(3,))
    with pytest.raises(ValueError, match="at least 1"):
        view_of([job], levels=0)
    with pytest.raises(ValueError, match="same id"):
        view_of([job, job])
