"""Every rule of placement in simulations: with failures and jobs that grow and shrink, resumed, and when it errs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.many_jobs.jobs.records import Announcement, Decision, Job, NodeCounts, Policy, Reservation, View
from planner.many_jobs.placers.best_fit import BestFit
from planner.many_jobs.placers.catalogue import PLACERS, make_placer
from planner.many_jobs.placers.records import FreeNodes, Placer, Request
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import CheckpointFile, PlacerError, Settings
from profiles.errors import InputError
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.planner.many_jobs.simulation.test_simulation_policies import run_policy
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import examples

ROOT = Path(__file__).parents[4]
SMALL_TRACE = ROOT / "planner/many_jobs/traces/small.csv"


@pytest.mark.parametrize("name", sorted(PLACERS))
@settings(max_examples=examples(12, least=4), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 30),
    policy=st.sampled_from(["fcfs", "elasticflow", "crius", "gavel", "arnold", "tiresias"]),
    failing=st.booleans(),
)
def test_every_rule_under_policies_that_stop_grow_and_shrink_jobs(
    name: str, seed: int, count: int, policy: str, failing: bool
) -> None:
    run_policy(policy, seed, count, None, failing, announced=True, placer=make_placer(name))


@pytest.mark.parametrize("seed", range(4))
def test_best_fit_asked_as_a_rule_is_the_one_that_is_built_in(seed: int) -> None:
    for policy in ("fcfs", "elasticflow", "arnold"):
        built_in = run_policy(policy, seed, 30, None, True, announced=True)
        asked = run_policy(policy, seed, 30, None, True, announced=True, placer=BestFit())
        assert asked.slices == built_in.slices
        assert asked.summary == built_in.summary


@pytest.mark.parametrize("name", sorted(PLACERS))
def test_a_run_that_goes_on_is_the_same(tmp_path: Path, name: str) -> None:
    jobs, options = draw_workload(Random(3), 30), Settings(slices=True, until_s=40_000.0, placer=make_placer(name))
    whole = run_until(jobs, make_policy("elasticflow"), options)
    looks = iter(range(10**9))
    stopping = replace(options, look_every=1, checkpoint=CheckpointFile(path=tmp_path / "c.json", resume=True))
    with pytest.raises(KeyboardInterrupt):
        run_until(jobs, make_policy("elasticflow"), replace(stopping, stop=lambda: next(looks) >= 25))
    resumed = run_until(jobs, make_policy("elasticflow"), stopping)
    assert resumed.slices == whole.slices
    assert resumed.summary == whole.summary


def run_until(jobs: tuple[Job, ...], policy: Policy, options: Settings) -> Result:
    return simulate(jobs, two_pools(), FakeCells(), policy, settings=options)


def test_a_checkpoint_of_another_rule_is_refused(tmp_path: Path) -> None:
    jobs, looks = draw_workload(Random(3), 10), iter(range(10**9))
    options = Settings(look_every=1, checkpoint=CheckpointFile(path=tmp_path / "c.json", resume=True))
    stopping = replace(options, placer=make_placer("titan"), stop=lambda: next(looks) >= 5)
    with pytest.raises(KeyboardInterrupt):
        run_until(jobs, make_policy("fcfs"), stopping)
    for other in (None, make_placer("hived")):
        with pytest.raises(InputError, match="a run of other jobs"):
            run_until(jobs, make_policy("fcfs"), replace(options, placer=other))


class Wrong:
    """Gives what it is told to."""

    name = "wrong"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def place(self, _nodes: FreeNodes, _request: Request) -> NodeCounts:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (((0, 2), (0, 2)), "found node 0 twice"),
        (((0, 9),), "found 9 devices of node 0"),
        (((0, 3),), "found 3 devices"),
        (((7, 4),), "found node 7"),
        (((-1, 4),), "found node -1"),
        (((0, 4), (1, 0)), "found 0 devices of node 1"),
        (None, "found None"),
        (((0, "4"),), "pairs of a node"),
        (ValueError("no idea"), "found ValueError: no idea"),
    ],
)
def test_a_rule_that_errs_ends_the_run_with_its_name_the_time_and_the_job(answer: object, said: str) -> None:
    jobs = (make_job("first", submit_s=25.0, devices=4),)
    with pytest.raises(PlacerError, match=re.escape(said)) as caught:
        run_until(jobs, make_policy("fcfs"), Settings(placer=Wrong(answer)))
    assert caught.value.where == "placer wrong at 25 s, job first"


def test_a_device_that_is_held_is_not_given_again() -> None:
    jobs = (make_job("one", devices=8), make_job("two", submit_s=1.0, devices=8))
    with pytest.raises(PlacerError, match="no more than the 0 that are free there") as caught:
        run_until(jobs, make_policy("fcfs"), Settings(placer=Wrong(((0, 8),))))
    assert caught.value.where == "placer wrong at 1 s, job two"


class Watching:
    """Best-fit, which keeps what it was shown."""

    name = "watching"

    def __init__(self) -> None:
        self.seen: list[tuple[str, tuple[int, ...], tuple[float | None, ...], float | None]] = []

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        ends_s = tuple(nodes.last_end_s(node) for node in range(len(nodes.free)))
        self.seen.append((request.job.id, tuple(nodes.free), ends_s, request.predicted_end_s))
        return BestFit().place(nodes, request)


def test_a_rule_sees_what_is_free_and_when_it_should_come_free() -> None:
    rule = Watching()
    jobs = (
        make_job("one", devices=3, duration_s=500.0),
        make_job("two", submit_s=100.0, devices=4, duration_s=50.0),
        make_job("three", submit_s=200.0, devices=8, duration_s=0.0),
    )
    pools = {"a100": make_pool("a100", nodes=2)}
    simulate(jobs, pools, FakeCells(), make_policy("fcfs"), settings=Settings(placer=rule))
    assert rule.seen == [
        ("one", (8, 8), (None, None), 500.0),
        ("two", (5, 8), (500.0, None), 150.0),
        ("three", (1, 8), (500.0, None), None),
    ]


class Reserving:
    """First come, first served, with a zone for the second job on nodes 0 and 1."""

    name = "reserving"

    def __init__(self) -> None:
        self.policy = make_policy("fcfs")

    def decide(self, view: View) -> Decision:
        decision = self.policy.decide(view)
        if view.now_s == 0.0:
            zone = Reservation(job="late", pool="a100", nodes=(0, 1), arrival_s=50.0, until_s=900.0)
            return replace(decision, reservations={"late": zone})
        return decision

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        pass


def test_reserved_nodes_have_nothing_free_for_a_rule() -> None:
    rule = Watching()
    late = replace(make_job("late", submit_s=50.0, devices=16), planned=Announcement(known_s=0.0, arrival_s=50.0))
    jobs = (make_job("now", devices=2), make_job("next", submit_s=10.0, devices=2), late)
    simulate(jobs, {"a100": make_pool("a100")}, FakeCells(), Reserving(), settings=Settings(placer=rule))
    assert [seen[:2] for seen in rule.seen][:2] == [("now", (0, 0, 8, 8)), ("next", (0, 0, 6, 8))]


def test_several_rules_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", str(SMALL_TRACE), "--cluster", "a100-80gb:4x8", "--head", "8", "--json"]
    command += ["--placers", "best-fit,titan,elasticflow", "--placer-option", "elasticflow.idle_first=false"]
    assert main(command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [run["placer"] for run in answer["runs"]] == ["best-fit", "titan", "elasticflow"]
    assert [mean["placer"] for mean in answer["means"]] == ["best-fit", "titan", "elasticflow"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--placer", "tytan"], "expected one of best-fit"),
        (["--placer", "titan", "--placer-option", "algorithm=3"], "expected text"),
        (["--placers", "titan,titan"], "each once"),
        (["--placers", "titan,hived", "--placer", "titan"], "--placer too"),
        (["--placer", "tiresias", "--placer-option", "skew=-1"], "a share from 0 to 1"),
        (["--placer", "fragmentation-gradient", "--placer-option", "sizes=1:-1"], "shares above 0"),
        (["--placer", "fragmentation-gradient", "--placer-option", "sizes=1:1,1:2"], "each size once"),
        (["--placer", "fragmentation-gradient", "--placer-option", "sizes=٣:1"], "such as 1:0.7,8:0.3"),
        (["--placers", "titan,hived", "--placer-option", "gandiva.x=1"], "titan.NAME, hived.NAME"),
        (["--placer", "nowhere_at_all:Rule"], "nowhere_at_all"),
    ],
)
def test_wrong_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", str(SMALL_TRACE), "--cluster", "a100-80gb:4x8", "--head", "8"]
    assert main([*command, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_rule_of_the_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As POLICIES.md has it, to the letter; then one that errs, under a policy of the user's too."""
    text = (ROOT / "planner/many_jobs/policies/POLICIES.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    # nearest\.py\n(.*?)(?=^    \$ )", text, flags=re.MULTILINE | re.DOTALL)
    code = re.sub(r"^    ", "", block, flags=re.MULTILINE)
    (tmp_path / "nearest.py").write_text(code, encoding="utf-8")
    wrong = code.replace("return tuple(chosen)", "return tuple(chosen) * 2")
    policy = "from planner.many_jobs.policies.fcfs import Fcfs\n"
    (tmp_path / "twice.py").write_text(policy + wrong, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = ["simulate", str(SMALL_TRACE), "--cluster", "a100-80gb:4x8", "--head", "8", "--json"]
    assert main([*command, "--placer", "nearest:NextToTheLast", "--placer-option", "whole=true"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["placer"] == "next-to-the-last"
    assert answer["violations"] == 0
    assert main([*command, "--placer", "twice:NextToTheLast", "--policy", "twice:Fcfs"]) == 2
    assert "placer next-to-the-last at " in capsys.readouterr().out


def test_all_rules_are_rules() -> None:
    for name in PLACERS:
        rule: Placer = make_placer(name)
        assert rule.name == name
