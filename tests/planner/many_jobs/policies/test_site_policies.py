"""Policies over sites in the simulator: random sites and jobs through all of them, and what each one decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.many_jobs.jobs.records import Decision, Grant, Job, Policy, Pool, View
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.run import load_inputs, run_request
from planner.many_jobs.simulation.settings import CheckpointFile, Settings
from planner.shared.options.simulate import ReplayOptions
from profiles.cluster import SiteLink
from profiles.errors import InputError
from tests.planner.many_jobs.policies.site_policy_examples import (
    NAMES,
    WideSharing,
    WideTruth,
    all_joined,
    draw_jobs,
    draw_sites,
    link,
    site_pools,
)
from tests.scheduling_examples import FakeCells, make_job
from tests.seeds import examples, seeds

FOUR = site_pools({"a": (1, 4), "b": (1, 2), "c": (1, 2), "d": (1, 1)})


class Watch:
    """Passes decisions on; keeps every grant, and checks what holds of all policies."""

    def __init__(self, policy: Policy, truth: WideTruth, *, running: bool = False) -> None:
        self.policy, self.name, self.truth, self.may_stop = policy, policy.name, truth, running
        self.grants: dict[str, list[Grant]] = {}
        self.stopped: list[str] = []

    def decide(self, view: View) -> Decision:
        found = self.policy.decide(view)
        for id_, grant in found.grants.items():
            if grant is None:
                self.stopped.append(id_)
                assert id_ in view.running
                continue
            job = view.waiting[id_].job
            assert grant.devices <= job.devices
            assert grant.devices == job.devices or self.name.startswith("spiderflow")
            assert {view.pools[pool].device for pool, _ in grant.parts} == {view.pools[job.pool].device}
            assert grant.planner in ("even", "tpa", "genetic", "ilp")
            self.grants.setdefault(id_, []).append(grant)
        self._nobody_overtakes(view, found)
        return found

    def _nobody_overtakes(self, view: View, found: Decision) -> None:
        """Who starts stands behind nobody in the queue who could be placed if all that works were free."""
        if self.name == "window":
            return
        held_up = False
        for id_, state in view.waiting.items():
            if found.grants.get(id_) is None:
                held_up = held_up or self.policy._could_run(view, state.job)  # type: ignore[attr-defined]
            else:
                assert not held_up

    def state(self) -> object:
        return self.policy.state()

    def restore(self, state: object) -> None:
        self.policy.restore(state)


def run(
    name: str,
    jobs: list[Job],
    pools: Mapping[str, Pool],
    links: tuple[SiteLink, ...],
    *,
    options: Mapping[str, Any] | None = None,
    least: Mapping[str, int] | None = None,
    **words: Any,
) -> tuple[Result, Watch]:
    """A run under closed-form times."""
    truth = WideTruth(pools, links, least)
    watch = Watch(make_policy(name, **dict(options or {})), truth)
    how = Settings(truth=truth, sharing=WideSharing(truth), site_links=links, slices=True, restart_s=5.0, **words)
    result = simulate(jobs, pools, FakeCells(pools), watch, settings=how)
    assert result.summary.violations == 0
    return result, watch


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(10, least=4), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6), count=st.integers(1, 14), failing=st.booleans(), round_s=st.sampled_from([None, 30.0])
)
def test_random_sites(name: str, seed: int, count: int, failing: bool, round_s: float | None) -> None:
    """Nobody is lost; who fits at home ends; who is too large for all, or for one site where jobs keep to one, never
    runs."""
    rng = Random(seed)
    pools, links = draw_sites(rng)
    jobs = draw_jobs(rng, pools, count)
    failures = Failures(mtbf_s=3000.0, repair_s=100.0, seed=seed) if failing else None
    options: dict[str, Any] = {"until_s": 5_000.0} if failing else {}
    result, watch = run(name, jobs, pools, links, least={"big": 4}, failures=failures, round_s=round_s, **options)
    total = sum(pool.devices for pool in pools.values())
    largest = max(pool.devices for pool in pools.values())
    for number, job in enumerate(result.jobs):
        if job.devices > (largest if name == "mast" else total):
            assert job.id not in watch.grants
            assert result.status(number) == "unfinished"
        grants = watch.grants.get(job.id, [])
        if name == "mast":
            assert all(len(one.parts) == 1 for one in grants)
        fits = job.workload.model != "big" or job.devices >= 4
        home = pools[job.pool]
        if not failing and fits and job.devices <= home.devices:
            assert result.status(number) == "finished", result.unfinished
    if not failing:
        assert result.summary.lost_iterations == 0
        # A guest of two sites may later find none that a link joins: unlike in `simulate`, nobody passes traffic on.
        stopped_for_good = {id_ for id_ in watch.stopped if id_ in result.unfinished}
        assert result.summary.restarts == len(watch.stopped) - len(stopped_for_good)
        assert not watch.stopped or name == "lyra"


@pytest.mark.parametrize("name", NAMES)
def test_the_same_again_and_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    """Two runs are equal to the last bit, and so is one that is stopped in the middle and goes on from its file."""
    rng = Random(3)
    pools, links = site_pools({"a": (2, 2), "b": (1, 4), "c": (3, 1)}), all_joined("abc")
    jobs = draw_jobs(rng, pools, 30)
    failures = Failures(mtbf_s=2000.0, repair_s=50.0, seed=1)
    words: dict[str, Any] = {"failures": failures, "until_s": 5_000.0}
    one, _ = run(name, jobs, pools, links, **words)
    other, _ = run(name, jobs, pools, links, **words)
    assert one.summary == other.summary
    assert one.slices == other.slices
    file, looks = tmp_path / "run.json", iter([False] * 12 + [True] + [False] * 10_000)
    stopping = CheckpointFile(path=file, every_s=0.0)
    with pytest.raises(KeyboardInterrupt):
        run(name, jobs, pools, links, checkpoint=stopping, stop=lambda: next(looks), look_every=2, **words)
    assert any("/d" in str(grant) for grant in file.read_text().split('"grant"'))
    resumed, _ = run(name, jobs, pools, links, checkpoint=CheckpointFile(path=file, resume=True), **words)
    assert resumed.summary == one.summary
    assert resumed.slices == one.slices


def first_grant(
    name: str, job: Job, links: tuple[SiteLink, ...], *, before: list[Job] | None = None, **options: Any
) -> Grant:
    """What the job gets when it comes, `before` being there already."""
    _, watch = run(name, [*(before or []), job], FOUR, links, options=options)
    return watch.grants[job.id][0]


def busy(id_: str, pool: str, devices: int) -> Job:
    """A job that was there before."""
    return make_job(id_, pool=pool, devices=devices, iterations=1e6)


LINKS = (link("a", "b", 1.0), link("a", "c", 5.0), link("b", "c", 15.0), link("c", "d", 1.0))


def test_opportunistic_takes_the_best_connected_site() -> None:
    """Sums of links, Gb/s: c 21, b 16, a 6, d 1."""
    assert first_grant("opportunistic", make_job("x", pool="a/d", devices=2), LINKS).parts == (("c/d", 2),)
    assert first_grant("opportunistic", make_job("x", pool="b/d", devices=4), LINKS).parts == (("a/d", 4),)
    spread = first_grant("opportunistic", make_job("x", pool="a/d", devices=5), LINKS)
    assert dict(spread.parts) == {"c/d": 2, "b/d": 2, "a/d": 1}


def test_opportunistic_waits_for_one_site_if_told_so() -> None:
    jobs = [make_job("w", pool="a/d", devices=3, iterations=30.0), make_job("x", submit_s=1.0, pool="a/d", devices=4)]
    result, watch = run("opportunistic", jobs, FOUR, LINKS, options={"spread": False})
    assert watch.grants["x"][0].parts == (("a/d", 4),)
    assert result.table.start_s[1] == pytest.approx(80.0)
    _, watch = run("opportunistic", jobs, FOUR, LINKS)
    assert len(watch.grants["x"][0].parts) > 1


def test_mast_takes_the_site_with_least_left_over() -> None:
    assert first_grant("mast", make_job("x", pool="a/d", devices=1), LINKS).parts == (("d/d", 1),)
    assert first_grant("mast", make_job("x", pool="c/d", devices=2), LINKS).parts == (("c/d", 2),)
    assert first_grant("mast", make_job("x", pool="d/d", devices=2), LINKS).parts == (("b/d", 2),)


def test_lyra_lends_and_takes_back() -> None:
    """A guest from b on a gives way to a's own job, waits, and goes on when a has ended."""
    guest = make_job("guest", pool="b/d", devices=4, iterations=100.0)
    owner = make_job("owner", submit_s=10.0, pool="a/d", devices=4, iterations=10.0)
    result, watch = run("lyra", [guest, owner], site_pools({"a": (1, 4), "b": (1, 2)}), all_joined("ab"))
    assert dict(watch.grants["guest"][0].parts) == {"a/d": 2, "b/d": 2}
    assert watch.grants["owner"] == [Grant(parts=(("a/d", 4),), planner="even")]
    assert watch.stopped == ["guest"]
    assert result.table.start_s[1] == 10.0
    assert result.table.restarts.tolist() == [1, 0]
    assert result.status(0) == "finished"


def test_lyra_does_not_stop_who_is_at_home() -> None:
    own = make_job("own", pool="a/d", devices=4, iterations=100.0)
    other = make_job("other", submit_s=10.0, pool="a/d", devices=2, iterations=10.0)
    _, watch = run("lyra", [own, other], site_pools({"a": (1, 4), "b": (1, 2)}), all_joined("ab"))
    assert not watch.stopped
    assert watch.grants["other"][0].parts == (("b/d", 2),)


def test_spiderflow_takes_few_wide_sites_and_gives_back_what_is_of_no_use() -> None:
    """Five devices: a and c (5 Gb/s) rather than a and b; with 1 Gb/s links a alone is as fast as two sites."""
    job = make_job("x", pool="a/d", devices=5)
    assert dict(first_grant("spiderflow", job, LINKS).parts) == {"a/d": 4, "c/d": 1}
    thin = all_joined("abcd", 0.5)
    assert first_grant("spiderflow", job, thin).parts == (("a/d", 4),)
    assert first_grant("spiderflow", job, thin, trim=False).devices == 5
    assert first_grant("spiderflow-no-tpa", job, thin).devices == 5


@pytest.mark.parametrize("seed", seeds(30))
def test_giving_back_is_never_slower(seed: int) -> None:
    rng = Random(seed)
    pools, links = draw_sites(rng)
    truth = WideTruth(pools, links)
    jobs = draw_jobs(rng, pools, 6)
    _, kept = run("spiderflow", jobs, pools, links, options={"trim": False})
    _, given = run("spiderflow", jobs[:1], pools, links)
    if jobs[0].id in given.grants and jobs[0].id in kept.grants:
        small, large = given.grants[jobs[0].id][0], kept.grants[jobs[0].id][0]
        one, other = truth(jobs[0], small, None), truth(jobs[0], large, None)
        assert one is not None
        assert other is not None
        assert one <= other * (1 + 1e-9)
        assert {pool for pool, _ in small.parts} <= {pool for pool, _ in large.parts}


@pytest.mark.parametrize("seed", seeds(40))
def test_the_global_choice_is_the_best_of_all(seed: int) -> None:
    """Against every way to share a job over the sites: these times depend on the set of sites alone, and up to five
    sites no smallest set is left out."""
    rng = Random(seed)
    pools, links = draw_sites(rng)
    truth = WideTruth(pools, links)
    job = make_job("x", pool=rng.choice(list(pools)), devices=rng.randint(1, 9))
    _, watch = run("global-ilp", [job], pools, links)
    times = [truth(job, Grant(parts=tuple(shares)), None) for shares in _all_shares(pools, job.devices)]
    best = min((one for one in times if one is not None), default=None)
    found = watch.grants.get("x")
    if found is not None:
        assert best is not None
        assert truth(job, found[0], None) == best


def _all_shares(pools: Mapping[str, Pool], wanted: int) -> list[list[tuple[str, int]]]:
    """Every set of pools that has enough, filled in its order."""
    found = []
    for size in range(1, len(pools) + 1):
        for chosen in combinations(pools, size):
            left, shares = wanted, []
            for name in chosen:
                own = min(left, pools[name].devices)
                if own:
                    shares.append((name, own))
                left -= own
            if not left:
                found.append(shares)
    return found


def test_two_jobs_on_one_link_share_it() -> None:
    """`x` runs over a and b from the start, `y` beside it from 80 s on, when both have room again: over 4 Gb/s two
    devices take 4 (1 + 1/4) seconds alone and 4 (1 + 2/4) beside another."""
    pools, links = site_pools({"a": (2, 2), "b": (2, 2)}), all_joined("ab", 4.0)
    jobs = [
        make_job("at a", pool="a/d", devices=3, iterations=30.0),
        make_job("at b", pool="b/d", devices=3, iterations=30.0),
        make_job("x", pool="a/d", devices=2, iterations=100.0),
        make_job("y", submit_s=1.0, pool="a/d", devices=6, iterations=1e5),
    ]
    result, watch = run("lyra", jobs, pools, links, until_s=1e4)
    assert [len(watch.grants[id_][0].parts) for id_ in ("at a", "at b", "x", "y")] == [1, 1, 2, 2]
    assert result.table.start_s[3] == pytest.approx(80.0)
    assert result.table.end_s[2] == pytest.approx(80.0 + (100 - 80 / 5) * 6)
    alone, _ = run("lyra", jobs[:3], pools, links)
    assert alone.table.end_s[2] == pytest.approx(100 * 5)


def test_a_window_lets_small_jobs_pass() -> None:
    first = make_job("first", pool="a/d", devices=3, iterations=100.0)
    large = make_job("large", submit_s=1.0, pool="a/d", devices=4, iterations=10.0)
    small = make_job("small", submit_s=2.0, pool="a/d", devices=1, iterations=10.0)
    pools = site_pools({"a": (1, 4)})
    result, _ = run("mast", [first, large, small], pools, ())
    assert result.table.start_s[2] > result.table.start_s[1] - 1e-9
    truth = WideTruth(pools, ())
    watch = Watch(make_policy("mast", window=2), truth)
    watch.name = "window"
    result = simulate([first, large, small], pools, FakeCells(pools), watch, settings=Settings(truth=truth))
    assert result.table.start_s[2] == 2.0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("spiderflow", {"spin": "nonsense"}),
        ("mast", {"planner": "tpa"}),
        ("lyra", {"window": 0}),
        ("global-ilp", {"most": 0}),
    ],
)
def test_options_that_cannot_be(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        make_policy(name, **options)


LINKED = """
schema: cellplan.cluster/1
sites:
  - {name: a, nodes: [{count: 1, device: a100-40gb, devices: 2}]}
  - {name: b, nodes: [{count: 1, device: a100-40gb, devices: 2}]}
  - {name: c, nodes: [{count: 1, device: a100-40gb, devices: 4}]}
links_between_sites:
  - {between: [a, b], bandwidth_bytes_per_s: 1.25e9, latency_s: 5.0e-3}
  - {between: [a, c], bandwidth_bytes_per_s: 1.25e9, latency_s: 5.0e-3}
  - {between: [b, c], bandwidth_bytes_per_s: 1.25e9, latency_s: 5.0e-3}
"""
ROWS = """job_id,submit_time_s,duration_s,gpus,model,global_batch,device
first,0,600,2,bert-large,64,c/a100-40gb
six,10,600,6,bert-large,64,c/a100-40gb
eight,20,600,8,bert-large,64,
last,30,600,4,bert-large,64,c/a100-40gb
"""


def test_a_trace_with_jobs_larger_than_any_site(tmp_path: Path) -> None:
    """Joined sites run them; where jobs keep to a site or a pool they are unfinished, and nobody else is; Crius, which
    chooses how many devices a job gets, runs them on fewer."""
    cluster, trace = tmp_path / "sites.yaml", tmp_path / "t.csv"
    cluster.write_text(LINKED, encoding="utf-8")
    trace.write_text(ROWS, encoding="utf-8")
    options = ReplayOptions(trace, cluster=str(cluster), oversize="spread")
    inputs = load_inputs(options)
    assert any(note.startswith("2 jobs ask for more devices than their pool has") for note in inputs.notes)
    wanted: tuple[tuple[str, set[str]], ...] = (
        ("spiderflow", set()),
        ("spiderflow-no-tpa", set()),
        ("crius", set()),
        ("mast", {"six", "eight"}),
        ("fcfs", {"six", "eight"}),
    )
    for policy, left in wanted:
        result = run_request(replace(options, policy=policy), inputs)
        assert set(result.unfinished) == left, policy
        assert result.summary.violations == 0
        assert all(reason == f"policy {policy} leaves it waiting for ever" for reason in result.unfinished.values())
        most = max(len(parts) for parts in result.granted)
        assert most == (3 if policy == "spiderflow-no-tpa" else 1), policy  # SpiderFlow gives back what does not help.
    untrimmed = run_request(replace(options, policy="spiderflow", option={"trim": False}), inputs)
    assert not untrimmed.unfinished
    assert max(len(parts) for parts in untrimmed.granted) == 3
