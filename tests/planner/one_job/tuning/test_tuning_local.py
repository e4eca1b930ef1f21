"""`plan --profile-budget`: candidates on local workers, measured by a stand-in for running them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimator.host.cpu import cpu_name
from planner import api
from planner.cli.main import main
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.one_job.tuning.local import STEPS, WARM_UPS, choose_by_running, find_candidates
from planner.one_job.tuning.records import OutOfMemory
from planner.shared.inputs import open_existing
from planner.shared.options.search import PlanOptions, SearchOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_to_json
from profiles.errors import InputError, NothingFits
from profiles.measurements import DeviceRates
from profiles.store import ProfileStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that knows how fast this host is, which `local` is described by."""
    path = tmp_path / "store.sqlite"
    with ProfileStore(path) as opened:
        opened.put_rates(
            DeviceRates(
                device="cpu",
                hardware=cpu_name(),
                software="torch",
                threads=1,
                memory_bytes=2**34,
                memory_bandwidth_bytes_per_s=1e10,
                flops_per_s=(("fp32", 1e11),),
                flash_attention=True,
            )
        )
    return path


def read(store: Path, model: str = "gpt-tiny", cluster: str = "local:1x2", **options: Any) -> SearchRequest:
    chosen = SearchOptions(model, cluster=cluster, **{"dtype": "fp32", "global_batch": 16, **options})
    with open_existing(store) as opened:
        return read_search(chosen, store=opened)


class Clock:
    """Time that passes as runs take it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Runs:
    """Stands in for running: a plan takes `factor(plan)` times its estimate, and the run 10 s more."""

    def __init__(self, clock: Clock, factor: Callable[[Plan], float | None] = lambda _: 1.0) -> None:
        self.clock, self.factor = clock, factor
        self.plans: list[Plan] = []

    def __call__(self, plan: Plan) -> float | OutOfMemory:
        self.plans.append(plan)
        factor = self.factor(plan)
        if factor is None:
            self.clock.now_s += 10.0
            return OutOfMemory(reason="full")
        seconds = plan.estimate.iteration_time_s * factor
        self.clock.now_s += 10.0 + (STEPS + WARM_UPS) * seconds
        return seconds


def degrees(plan: Plan) -> tuple[int, int, int]:
    return plan.stages[0].tp, len(plan.stages), plan.stages[0].dp


def test_candidates_are_every_way_to_share_the_workers(store: Path) -> None:
    candidates, priced = find_candidates(read(store))
    found = {(stages[0].tp, len(stages), stages[0].dp) for one in candidates for stages in (one.plan.setup.stages,)}
    assert found >= {(1, 1, 2), (2, 1, 1), (1, 2, 1)}
    assert priced >= len(candidates)
    setups = [one.plan.setup for one in candidates]
    assert len(set(setups)) == len(setups)
    times = [one.estimated_s for one in candidates]
    assert times == sorted(times)


def test_estimates_that_hold_are_soon_believed(store: Path) -> None:
    clock = Clock()
    runs = Runs(clock)
    found = choose_by_running(read(store), budget_s=1e6, measure=runs, clock=clock)
    assert found.tuning.final
    assert 1 <= len(runs.plans) < len(found.candidates)
    assert found.plan.estimate.iteration_time_s == pytest.approx(found.candidates[0].estimated_s)
    assert any(f"running {len(runs.plans)} of {len(found.candidates)}" in line for line in found.plan.assumptions)


def test_measurements_overrule_estimates(store: Path) -> None:
    """Whatever is estimated best runs five times slower."""
    best = degrees(choose_by_running(read(store), budget_s=1e6, measure=Runs(Clock()), clock=Clock()).plan)
    clock = Clock()
    runs = Runs(clock, lambda plan: 5.0 if degrees(plan) == best else 1.0)
    found = choose_by_running(read(store), budget_s=1e6, measure=runs, clock=clock)
    assert degrees(found.plan) != best
    measured = [one.seconds for one in found.tuning.measurements if one.seconds is not None]
    assert found.tuning.best is not None
    assert found.tuning.best.seconds == min(measured)


def test_a_budget_is_kept(store: Path) -> None:
    clock = Clock()
    found = choose_by_running(read(store), budget_s=40.0, measure=Runs(clock, lambda _: 1.3), clock=clock)
    assert clock.now_s <= 40.0
    assert found.tuning.final or any("--profile-budget had no room" in line for line in found.plan.assumptions)


def test_without_room_for_a_run_the_estimate_stands(store: Path) -> None:
    clock = Clock()
    runs = Runs(clock)
    found = choose_by_running(read(store), budget_s=1.0, measure=runs, clock=clock)
    assert runs.plans == []
    assert not found.tuning.final
    assert found.plan.estimate.iteration_time_s == pytest.approx(found.candidates[0].estimated_s)


def test_the_same_measurements_give_the_same_plan(store: Path) -> None:
    one, other = (
        choose_by_running(read(store), budget_s=1e6, measure=Runs(clock), clock=clock) for clock in (Clock(), Clock())
    )
    assert plan_to_json(one.plan) == plan_to_json(other.plan)
    assert not one.plan.provenance.optimality_proved


def test_plans_that_run_out_of_memory_are_passed_over(store: Path) -> None:
    clock = Clock()
    runs = Runs(clock, lambda plan: None if degrees(plan) == (1, 1, 2) else 1.0)
    found = choose_by_running(read(store), budget_s=1e6, measure=runs, clock=clock)
    assert degrees(found.plan) != (1, 1, 2)
    with pytest.raises(NothingFits, match="short of memory"):
        choose_by_running(read(store), budget_s=1e6, measure=Runs(clock, lambda _: None), clock=clock)


def test_only_local_workers_can_be_measured(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "gpt-tiny", "--profile-budget", "60", "--store", str(store)]
    assert main([*words, "--cluster", "a100-80gb:1x2"]) == 2
    assert "expected local:1xWORKERS" in capsys.readouterr().err
    assert main([*words, "--cluster", "local:1x2", "--search", "crius"]) == 2
    assert "--profile-budget" in capsys.readouterr().err
    assert main([*words[:3], "0", "--cluster", "local:1x2"]) == 2


def test_the_interface_takes_the_budget(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    runs = Runs(clock)
    monkeypatch.setattr("planner.one_job.tuning.local.run_here", lambda *_: runs)
    options = PlanOptions(
        "gpt-tiny", cluster="local:1x2", store=store, dtype="fp32", global_batch=16, profile_budget=1e5
    )
    plan = api.plan(options).plan
    assert runs.plans
    assert any(line.startswith("measured ") for line in plan.assumptions)


def test_money_cannot_be_measured(store: Path) -> None:
    request = read(store)
    with pytest.raises(InputError, match="--objective energy"):
        choose_by_running(
            replace(request, objective="energy"),
            budget_s=1.0,
            measure=Runs(Clock()),
        )
