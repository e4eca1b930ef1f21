"""Jobs played beside each other: against fractions, and what must hold however they are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.network.player.play import Played, Settings, play
from estimator.network.player.score import ITERATION_ENDS
from estimator.network.steps import Mover, Playing, Step, Transfer
from profiles.records import replace
from tests.oracles.player_oracle import played_ends
from tests.seeds import seeds

EXACT = Settings(exact=True, jitter=0.0, compiled=False, log_rows=10_000)


def one_transfer(
    compute_s: float,
    communication_s: float,
    *,
    begins_s: float | None = None,
    links: Sequence[int] = (0,),
    level: int = 0,
) -> Playing:
    """A job whose transfer takes so long alone on links of 1 byte/s."""
    mover = Mover(way=tuple((link, 1.0) for link in links), seconds=communication_s)
    begins_s = compute_s if begins_s is None else begins_s
    step = Step(compute_s=compute_s, begins_s=begins_s, transfers=(Transfer(movers=(mover,)),))
    return Playing(steps=(step,), level=level)


def draw_mover(rng: random.Random, links: int) -> Mover:
    way = [(link, rng.choice((0.5, 1.0, 2.0))) for link in rng.sample(range(links), rng.randint(0, links))]
    return Mover(way=tuple(way), seconds=rng.choice((0.0, 0.25, 1.0, 1.5)), most=rng.choice((1.0, 1.0, 0.5)))


def draw_transfer(rng: random.Random, links: int) -> Transfer:
    twin = draw_mover(rng, links)
    movers = [draw_mover(rng, links) for _ in range(rng.randint(0, 2))] + [twin] * rng.randint(1, 2)
    level = rng.choice((None, None, 0, 2))
    return Transfer(movers=tuple(movers), latency_s=rng.choice((0.0, 0.125)), times=rng.randint(1, 2), level=level)


def draw_job(rng: random.Random, links: int) -> Playing:
    steps = tuple(
        Step(
            compute_s=rng.choice((0.5, 1.0, 1.75)),
            begins_s=rng.choice((0.0, 0.25, 1.0)),
            transfers=tuple(draw_transfer(rng, links) for _ in range(rng.randint(0, 2))),
            times=rng.randint(1, 2),
        )
        for _ in range(rng.randint(1, 2))
    )
    return Playing(
        steps=steps,
        starts_s=rng.choice((0.0, 0.0, 3.0)),
        iterations=rng.randint(1, 3),
        level=rng.randint(0, 2),
        weight=rng.choice((1.0, 1.0, 2.0)),
        idle_s=rng.choice((0.0, 0.5)),
        period_s=rng.choice((0.0, 0.0, 1.5, 6.0)),
    )


def draw(seed: int) -> tuple[list[Playing], list[float]]:
    rng = random.Random(seed)
    links = rng.randint(1, 4)
    jobs = [draw_job(rng, links) for _ in range(rng.randint(1, 4))]
    return jobs, [rng.choice((0.5, 1.0, 3.0)) for _ in range(links)]


def ends_of(played: Played, job: int) -> list[float]:
    return [row.time_s for row in played.log if row.job == job and row.what == ITERATION_ENDS]


@pytest.mark.parametrize("seed", seeds(400))
def test_as_in_fractions(seed: int) -> None:
    jobs, rates = draw(seed)
    played = play(jobs, np.array(rates), settings=EXACT)
    for job, ends in enumerate(played_ends(jobs, rates)):
        assert ends_of(played, job) == pytest.approx([float(end) for end in ends], rel=1e-9)
        assert played.jobs[job].ended_s == pytest.approx(float(ends[-1]), rel=1e-9)


@pytest.mark.parametrize("compiled", [False, None])
def test_an_iteration_that_is_held_to_a_period_keeps_its_place_in_it(compiled: bool | None) -> None:
    """By hand: the held job's bytes wait for the other's from 4 s on and pass 5 s, when its next iteration is due; that
    one begins late, at 5.5, and the one after it in time, at 7.5."""
    held = replace(one_transfer(1.0, 1.0, level=1), period_s=2.5, iterations=4)
    other = replace(one_transfer(3.0, 1.5, level=0), iterations=1)
    played = play([held, other], np.array([1.0]), settings=replace(EXACT, compiled=compiled))
    assert ends_of(played, 0) == pytest.approx([2.0, 5.5, 7.5, 9.5])
    for_ever = [replace(held, iterations=None), replace(other, iterations=None)]
    assert play(for_ever[:1], np.array([1.0]), settings=Settings(compiled=compiled)).jobs[0].seconds == 2.5


@pytest.mark.parametrize("seed", seeds(60))
def test_the_order_of_jobs_and_links_changes_nothing(seed: int) -> None:
    jobs, rates = draw(seed)
    rng = random.Random(seed)
    order, links = rng.sample(range(len(jobs)), len(jobs)), rng.sample(range(len(rates)), len(rates))
    turned = [renumbered(jobs[number], links) for number in order]
    turned_rates = [rates[links.index(link)] for link in range(len(rates))]
    how = replace(EXACT, jitter=0.02)
    names = [f"job {number}" for number in range(len(jobs))]
    played = play(jobs, np.array(rates), settings=how, names=names)
    again = play(turned, np.array(turned_rates), settings=how, names=[names[number] for number in order])
    for place, number in enumerate(order):
        assert again.jobs[place].ended_s == pytest.approx(played.jobs[number].ended_s, rel=1e-9)


def renumbered(job: Playing, links: Sequence[int]) -> Playing:
    def of_mover(mover: Mover) -> Mover:
        return replace(mover, way=tuple((links[link], amount) for link, amount in mover.way))

    def of_transfer(transfer: Transfer) -> Transfer:
        return replace(transfer, movers=tuple(map(of_mover, transfer.movers)))

    steps = tuple(replace(step, transfers=tuple(map(of_transfer, step.transfers))) for step in job.steps)
    return replace(job, steps=steps)


@pytest.mark.parametrize("seed", seeds(60))
def test_compiled_as_plain(seed: int) -> None:
    pytest.importorskip("numba")
    jobs, rates = draw(seed)
    for how in (replace(EXACT, jitter=0.02), Settings(jitter=0.0, compiled=False), Settings(compiled=False)):
        plain = play(jobs, np.array(rates), settings=how)
        quick = play(jobs, np.array(rates), settings=replace(how, compiled=True))
        assert quick.events == plain.events
        for one, other in zip(plain.jobs, quick.jobs, strict=True):
            assert (other.seconds, other.ended_s) == pytest.approx((one.seconds, one.ended_s), rel=1e-9)


def steady(jobs: Sequence[Playing], rates: Sequence[float] = (1.0,), **given: float) -> list[float]:
    played = play(jobs, np.array(rates), settings=Settings(compiled=False, **{"jitter": 0.0, **given}))  # type: ignore[arg-type]
    return [job.seconds for job in played.jobs]


def test_equal_jobs_share_a_link() -> None:
    assert steady([one_transfer(0.0, 1.0)] * 5) == [5.0] * 5


def test_the_parking_lot() -> None:
    """A job over three links beside one on each: each link is shared in halves, and nobody computes."""
    jobs = [one_transfer(0.0, 1.0, links=(0, 1, 2)), *(one_transfer(0.0, 1.0, links=(link,)) for link in range(3))]
    assert steady(jobs, [1.0, 1.0, 1.0]) == [2.0] * 4
    # A thinner link gives its own job what it gives the long one; the others take what that leaves.
    assert steady(jobs, [1.0, 0.5, 1.0]) == pytest.approx([4.0, 4 / 3, 4.0, 4 / 3])


def test_shares_are_equal_in_bytes() -> None:
    """A job that sends half as fast when it is alone, held by its own NIC: it has what it wants of a link that it
    shares with one of the whole rate, which gets the rest."""
    slow, fast = (
        Playing(steps=(Step(compute_s=0.0, transfers=(Transfer(movers=(Mover(way=((0, rate),), seconds=1.0),)),)),))
        for rate in (0.5, 1.0)
    )
    assert steady([slow, fast]) == pytest.approx([1.0, 2.0])


def test_in_cast() -> None:
    """Seven senders, each on a link of its own, to one receiver: its link alone counts."""
    jobs = [one_transfer(1.0, 1.0, links=(sender, 7)) for sender in range(7)]
    assert steady(jobs, [1.0] * 8) == [8.0] * 7


@pytest.mark.parametrize(("levels", "seconds"), [((0, 1), (4.0, 4.0)), ((1, 0), (6.0, 2.0)), ((0, 0), (5.0, 2.5))])
def test_crux_example_of_lengths(levels: tuple[int, int], seconds: tuple[float, float]) -> None:
    """Crux, section 4.2, example 1: GPUs are busy 37.5% of the time with job 1 first, 41.7% with job 2 first."""
    jobs = [one_transfer(2.0, 2.0, level=levels[0]), one_transfer(1.0, 1.0, level=levels[1])]
    assert steady(jobs) == pytest.approx(seconds)
    busy = (2.0 / seconds[0] + 1.0 / seconds[1]) / 2
    assert busy == pytest.approx({(0, 1): 0.375, (1, 0): 0.41667, (0, 0): 0.4}[levels], rel=1e-4)


@pytest.mark.parametrize(("levels", "idle_s"), [((0, 1), [0.0, 7.0]), ((1, 0), [1.0, 6.0])])
def test_crux_example_of_overlap(levels: tuple[int, int], idle_s: list[float]) -> None:
    """Crux, section 4.2, example 2: of the 13 s of its figure 12, job 2's GPUs are idle for 7 s if job 1 is first, else
    for 6 s; job 1's, which the paper does not count, for 1 s at its begin."""
    jobs = [
        one_transfer(4.0, 1.0, begins_s=2.0, level=levels[0]),
        one_transfer(2.0, 3.0, begins_s=1.0, level=levels[1]),
    ]
    played = play(jobs, np.array([1.0]), settings=replace(EXACT, until_s=13.0))
    assert [13.0 - busy_s(played, 0, 4.0), 13.0 - busy_s(played, 1, 2.0)] == idle_s


def busy_s(played: Played, job: int, compute_s: float) -> float:
    """Of 13 s, of a job that computes at the begin of each iteration."""
    begins = [0.0, *ends_of(played, job)]
    return sum(min(compute_s, 13.0 - begin) for begin in begins)


def fat_tree_flow(source: int, target: int, *, k: int = 4) -> list[tuple[int, float]]:
    """What goes from host to host at 1 byte/s, evenly over all equal ways of a fat tree of k-port switches. Links: up
    from each host, down to it; up from each edge switch to each aggregation switch, down; up to each core, down."""
    half, hosts = k // 2, k**3 // 4
    edge, pod = [host // half for host in (source, target)], [host // (half * half) for host in (source, target)]
    above, top = 2 * hosts, 2 * hosts + 2 * k * half * half
    way = [(2 * source, 1.0), (2 * target + 1, 1.0)]
    if edge[0] != edge[1]:
        for number in range(half):
            way += [
                (above + 2 * (edge[0] * half + number), 1 / half),
                (above + 2 * (edge[1] * half + number) + 1, 1 / half),
            ]
    if pod[0] != pod[1]:
        for number in range(half * half):
            share = 1 / (half * half)
            way += [(top + 2 * (pod[0] * half**2 + number), share), (top + 2 * (pod[1] * half**2 + number) + 1, share)]
    return way


def test_all_to_all_on_a_fat_tree() -> None:
    """16 hosts, each to 15 others, every link as wide as a host's: a fat tree holds nobody but at the hosts."""
    flows = [
        Mover(way=tuple(fat_tree_flow(source, target)), seconds=1.0)
        for source in range(16)
        for target in range(16)
        if source != target
    ]
    job = Playing(steps=(Step(compute_s=2.0, begins_s=2.0, transfers=(Transfer(movers=tuple(flows)),)),))
    assert steady([job], [1.0] * 96) == pytest.approx([17.0])
    # Half as wide above the hosts' own links: 12 of 15 go through two of 4 links of a pod's 16 hosts' worth.
    thin = [1.0] * 64 + [0.5] * 32
    assert steady([job], thin) == pytest.approx([2.0 + 4 * 12 / (4 * 0.5)])


@pytest.mark.parametrize("seed", seeds(60))
def test_more_bandwidth_never_slows_a_job_that_is_alone(seed: int) -> None:
    jobs, rates = draw(seed)
    rng = random.Random(seed)
    wider = [rate * rng.choice((1.0, 1.5, 4.0)) for rate in rates]
    for job in jobs:
        before = play([job], np.array(rates), settings=EXACT).jobs[0].seconds
        assert play([job], np.array(wider), settings=EXACT).jobs[0].seconds <= before * (1 + 1e-9)


def test_more_bandwidth_may_slow_a_job_beside_others() -> None:
    """B shares a link with A and one with C. Once A's link is wider, B takes more of C's."""
    jobs = [
        one_transfer(0.0, 1.0, links=(0,)),
        one_transfer(0.0, 1.0, links=(0, 1)),
        one_transfer(0.0, 1.0, links=(1,)),
    ]
    assert steady(jobs, [0.5, 1.0])[2] == pytest.approx(4 / 3)
    assert steady(jobs, [1.0, 1.0])[2] == pytest.approx(2.0)


def test_a_job_that_nobody_lets_through() -> None:
    jobs = [one_transfer(0.0, 1.0, level=0), one_transfer(1.0, 1.0, level=1), one_transfer(1.0, 1.0, links=(1,))]
    played = play(jobs, np.array([1.0, 0.0]), settings=Settings(jitter=0.0, compiled=False))
    assert [job.seconds for job in played.jobs] == [1.0, float("inf"), float("inf")]
    assert list(played.bytes_per_s) == [1.0, 0.0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_rates_go_on_as_if_played(seed: int) -> None:
    """Where nothing varies, states that recur are counted on exactly: many iterations end when they do one by one."""
    rng = random.Random(seed)
    jobs = [
        replace(draw_job(rng, 2), starts_s=rng.choice((0.0, 40.0)), iterations=rng.randint(20, 60)) for _ in range(3)
    ]
    rates = np.array([1.0, 0.5])
    exact = play(jobs, rates, settings=EXACT)
    quick = play(jobs, rates, settings=replace(EXACT, exact=False, window=1000))
    assert [job.ended_s for job in quick.jobs] == pytest.approx([job.ended_s for job in exact.jobs], rel=1e-7)


def test_rates_with_jitter() -> None:
    """Two jobs on a link whose compute varies by 1%: the rate after 40 iterations and on is that of 2,000."""
    jobs = [replace(one_transfer(2.0, 1.0), iterations=2000), replace(one_transfer(1.3, 1.1), iterations=2000)]
    exact = play(jobs, np.array([1.0]), settings=replace(EXACT, jitter=0.01))
    quick = play(jobs, np.array([1.0]), settings=replace(EXACT, jitter=0.01, exact=False))
    assert quick.events < exact.events / 5
    assert [job.ended_s for job in quick.jobs] == pytest.approx([job.ended_s for job in exact.jobs], rel=0.01)
    assert play(jobs, np.array([1.0]), settings=replace(EXACT, jitter=0.01)).jobs == exact.jobs


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (Playing(steps=()), "iteration of 0"),
        (Playing(steps=(Step(compute_s=-1.0),)), "-1.0"),
        (replace(one_transfer(1.0, 1.0), weight=0.0), "weight 0.0"),
        (one_transfer(1.0, 1.0, links=(0, 0)), "a link twice"),
        (one_transfer(1.0, 1.0, links=(1,)), "links 1 to 1"),
        (one_transfer(1.0, float("nan")), "nan"),
    ],
)
def test_what_cannot_be_played(job: Playing, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        play([job], np.array([1.0]))


def test_every_iteration_of_what_never_ends() -> None:
    with pytest.raises(ValueError, match="until_s"):
        play([one_transfer(1.0, 1.0)], np.array([1.0]), settings=EXACT)


@pytest.mark.parametrize("compute_s", [50.0, 3000.0])
def test_a_job_that_takes_long_beside_others_is_not_held_up_for_ever(compute_s: float) -> None:
    """Events run out before it ends two iterations, the first of which takes more events than there are, or not."""
    how = Settings(jitter=0.01, compiled=False, most_events=2_000)
    long, short = play([one_transfer(compute_s, 5.0), one_transfer(0.1, 0.02)], np.ones(1), settings=how).jobs
    assert not long.steady
    assert compute_s <= long.seconds < 2 * (compute_s + 5.0)
    assert short.seconds == pytest.approx(0.12, rel=0.1)


def test_a_job_that_gets_nothing_has_no_end() -> None:
    """One that hides what it sends for as long as it computes leaves nothing to a level below."""
    greedy = one_transfer(1.0, 1.0, begins_s=0.0)
    how = Settings(jitter=0.0, compiled=False, most_events=2_000)
    first, last = play([greedy, one_transfer(0.2, 0.3, level=1)], np.ones(1), settings=how).jobs
    assert first.seconds == pytest.approx(1.0)
    assert last.seconds == float("inf")
