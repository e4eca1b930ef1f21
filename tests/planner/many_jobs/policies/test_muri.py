"""Muri: who takes turns with whom, and that it is worth it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.many_jobs.jobs.records import Decision, Grant, Job, Policy, Use, View
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.policies.muri import Muri
from planner.many_jobs.scheduling.job_matching import Rules, weight
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import Settings
from planner.many_jobs.traces.read import SMALL_TRACE
from profiles.errors import InputError
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.policy_examples import HandView, runs, waits
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import examples

pytest.importorskip("scipy")

EVEN = Use(iteration_s=1.0, compute_s=0.5, memory_bytes=1, device_memory_bytes=4)
BUSY = replace(EVEN, compute_s=1.0)
GIB = 2**30
ROOT = Path(__file__).parents[4]


def by_model(**uses: Use) -> Callable[[Job, Grant], Use | None]:
    """What jobs need by the first word of their model."""
    return lambda job, _grant: uses.get(job.workload.model.partition("-")[0])


def drawn_uses(cells: FakeCells, seed: int) -> Callable[[Job, Grant], Use | None]:
    """The Cells' own times; how much of them is compute is drawn by what is trained and on how many devices."""

    def use(job: Job, grant: Grant) -> Use | None:
        pool, devices = grant.parts[0]
        best = cells.best(job.workload, pool, devices)
        rng = Random(f"{seed} {job.workload.model} {devices}")
        if best is None or rng.random() < 0.1:
            return None
        compute_s = best.iteration_time_s * rng.uniform(0.1, 1.0)
        return Use(
            iteration_s=best.iteration_time_s,
            compute_s=compute_s,
            hidden_s=compute_s * rng.choice((0.0, 0.3)),
            memory_bytes=rng.randrange(1, 60) * GIB,
            device_memory_bytes=80 * GIB,
        )

    return use


def one_pool(states: list[object], uses: Callable[[Job, Grant], Use | None], devices: int = 8) -> HandView:
    pool = make_pool("a100", nodes=1, devices_per_node=devices)
    return HandView(states=states, pools={"a100": pool}, cells=FakeCells({"a100": pool}), uses=uses)  # type: ignore[arg-type]


def test_nobody_shares_where_all_fit() -> None:
    view = one_pool([waits(make_job(id_, devices=4)) for id_ in "xy"], by_model(bert=EVEN))
    granted = Muri().decide(view).grants
    assert {id_: grant and grant.turns for id_, grant in granted.items()} == {"x": "x", "y": "y"}


def test_those_share_who_gain_by_it() -> None:
    """Two that compute all the time gain nothing together, but each does with one that computes half of its time: two
    such pairs are better than the two others together and these two one after the other."""
    busy = [waits(make_job(id_, devices=4, model="gpt-1b")) for id_ in "vw"]
    even = [waits(make_job(id_, devices=4, model="bert-1b")) for id_ in "xy"]
    uses = by_model(bert=EVEN, gpt=BUSY)
    granted = Muri().decide(one_pool([*busy, *even], uses)).grants
    assert {id_: grant and grant.turns for id_, grant in granted.items()} == {"v": "v", "x": "v", "w": "w", "y": "w"}
    granted = Muri().decide(one_pool([*busy], uses, devices=4)).grants
    assert {id_: grant and grant.turns for id_, grant in granted.items()} == {"v": "v"}
    granted = Muri().decide(one_pool([*busy, *even], by_model(bert=EVEN), devices=8)).grants
    assert {id_: grant and grant.turns for id_, grant in granted.items()} == {"v": "v", "w": "w"}


def test_who_waits_joins_who_runs() -> None:
    """A running job keeps its devices, and its name, and one that waits comes to it."""
    running = replace(runs(make_job("x", devices=8)), grant=Grant(parts=(("a100", 8),), turns="old"))
    view = one_pool([running, waits(make_job("y", devices=8))], by_model(bert=EVEN))
    assert Muri().decide(view).grants == {"y": Grant(parts=(("a100", 8),), turns="old")}


@pytest.mark.parametrize(("alone_s", "together"), [(1.0, "far"), (1.02, "far"), (3.0, "near")])
def test_who_runs_is_paired_by_what_is_measured_of_it(alone_s: float, together: str) -> None:
    """Two run that are alike by their Cells, and who waits goes to the first of them; where that sits so far apart that
    it sends for most of its time, it would get less there than an equal share of the time, and goes to the other."""
    far = replace(runs(make_job("far", devices=4)), grant=Grant(parts=(("a100", 4),), turns="far"))
    near = replace(runs(make_job("near", devices=4)), grant=Grant(parts=(("a100", 4),), turns="near"))
    states = [
        replace(far, iteration_alone_s=alone_s),
        replace(near, iteration_alone_s=1.0),
        waits(make_job("new", devices=4)),
    ]
    assert Muri().decide(one_pool([*states], by_model(bert=EVEN))).grants == {
        "new": Grant(parts=(("a100", 4),), turns=together)
    }


def test_a_name_is_never_taken_twice() -> None:
    """One that was suspended comes back on devices of its own, though others have turns of its name."""
    other = replace(runs(make_job("y", devices=4)), grant=Grant(parts=(("a100", 4),), turns="x"))
    view = one_pool([other, waits(make_job("x", devices=4))], by_model(bert=EVEN))
    assert Muri().decide(view).grants == {"x": Grant(parts=(("a100", 4),), turns="x+")}


def test_between_rounds_only_free_devices_are_given() -> None:
    policy = Muri(round_s=360.0)
    view = one_pool([waits(make_job("x", devices=8))], by_model(bert=EVEN))
    policy.decide(view)
    running = replace(runs(make_job("x", devices=8)), grant=Grant(parts=(("a100", 8),), turns="x"))
    later = one_pool([running, waits(make_job("y", devices=8))], by_model(bert=EVEN))
    later.now_s = 100.0
    assert policy.decide(later).grants == {}
    later.now_s = 360.0
    assert policy.decide(later).grants == {"y": Grant(parts=(("a100", 8),), turns="x")}


def test_the_orders() -> None:
    """Muri-L knows what jobs have had, Muri-S what they should still take."""
    long = waits(make_job("long", devices=8, duration_s=9000.0))
    short = waits(make_job("short", devices=8, duration_s=60.0), attained_device_s=7200.0)
    view = one_pool([long, short], by_model(bert=BUSY))
    assert list(Muri().decide(view).grants) == ["long"]
    assert list(make_policy("muri-s").decide(view).grants) == ["short"]
    assert list(Muri(order="remaining").decide(view).grants) == ["short"]


@pytest.mark.parametrize("options", [{"order": "first"}, {"most_jobs": 0}, {"least_gain": 1.0}, {"most_jobs": 1.5}])
def test_options_that_cannot_be(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        make_policy("muri", **options)


class Watching:
    """Checks each decision's groups by what the view says, before it goes on."""

    def __init__(self, policy: Policy, rules: Rules) -> None:
        self.policy, self.name, self.rules = policy, policy.name, rules

    def decide(self, view: View) -> Decision:
        decision = self.policy.decide(view)
        after = {id_: state.grant for id_, state in view.running.items()} | dict(decision.grants)
        groups: dict[str, list[str]] = {}
        for id_, grant in after.items():
            if grant is not None:
                assert grant.turns
                groups.setdefault(grant.turns, []).append(id_)
        states = dict(view.waiting) | dict(view.running)
        for ids in groups.values():
            granted = {after[id_] for id_ in ids}
            assert len(granted) == 1
            if len(ids) > 1:
                uses = [view.use(states[id_].job, after[id_] or Grant(parts=())) for id_ in ids]
                assert weight([use for use in uses if use is not None], self.rules) > 0
                assert None not in uses
        return decision

    def state(self) -> object:
        return self.policy.state()

    def restore(self, state: object) -> None:
        self.policy.restore(state)


def run_muri(name: str, seed: int, count: int, failing: bool, placer: str = "", **options: float) -> Result:
    rng, cells = Random(seed), FakeCells()
    jobs = draw_workload(rng, count, mean_gap_s=60.0)
    told = Settings(
        restart_s=60.0,
        uses=drawn_uses(cells, seed),
        slices=True,
        placer=make_placer(placer) if placer else None,
        until_s=300_000.0,
        failures=Failures(mtbf_s=20_000.0, repair_s=1000.0, seed=seed) if failing else None,
    )
    policy = make_policy(name, **options)
    rules = Rules(most_jobs=int(options.get("most_jobs", 2)))
    return simulate(jobs, two_pools(), cells, Watching(policy, rules), settings=told)


@settings(max_examples=examples(40, least=10), suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(["muri", "muri-s"]),
    seed=st.integers(0, 10**6),
    count=st.integers(2, 30),
    failing=st.booleans(),
    placer=st.sampled_from(["", "ours", "hived-cells"]),
    most_jobs=st.sampled_from([2, 3, 4]),
)
def test_runs_of_drawn_jobs(name: str, seed: int, count: int, failing: bool, placer: str, most_jobs: int) -> None:
    """The simulator's own checks hold, and of any device never more have a slice at a time than may take turns."""
    result = run_muri(name, seed, count, failing, placer, most_jobs=most_jobs)
    assert result.summary.violations == 0
    begun = [(job, pool, node, mask, from_s, to_s) for job, pool, node, mask, from_s, _, to_s in result.slices]
    for job, pool, node, mask, from_s, to_s in begun:
        beside = {
            other
            for other, pool_of, node_of, others, since_s, until_s in begun
            if (pool_of, node_of) == (pool, node) and others & mask and since_s <= from_s < until_s and from_s < to_s
        }
        assert len(beside | {job}) <= most_jobs


def test_more_is_done_with_turns_than_without() -> None:
    """On the same drawn jobs those that may take turns wait less, and do no less work a second."""
    shared = alone = 0.0
    for seed in range(8):
        together, apart = run_muri("muri-s", seed, 30, False), run_muri("muri-s", seed, 30, False, most_jobs=1)
        assert apart.turns is None
        shared += together.summary.makespan_s
        alone += apart.summary.makespan_s
    assert shared < alone


def test_two_runs_are_equal() -> None:
    for one, other in pairwise([run_muri("muri", 3, 30, True) for _ in range(2)]):
        assert one.summary == other.summary
        assert one.slices == other.slices
        assert one.turns is not None
        assert one.turns == other.turns


def test_the_example_of_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pairs.py` of POLICIES.md does what it says, in a fork as any code of the user's, and its figures come back."""
    page = (ROOT / "planner/many_jobs/policies/POLICIES.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^    # pairs\.py\n(.*?)(?=^- )", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "pairs.py").write_text(re.sub(r"^    ", "", text, flags=re.MULTILINE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = ["simulate", str(SMALL_TRACE), "--cluster", "a100-80gb:2x8", "--policy", "pairs:Pairs", "--load", "20"]
    assert main([*command, "--head", "25", "--unknown-device", "draw", "--oversize", "clip", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["violations"] == 0
    assert answer["turns"]["jobs"] >= 2
    assert answer["turns"]["most_jobs"] == 2
