"""The profiling loop on a real store, with a stand-in for the measuring: resume, budget, two at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from estimator.profiling.plan import ProfileTask, plan_profile
from estimator.profiling.run import ProfileReport, predict_cost_s, run_profile
from estimator.profiling.setting import DeviceIdentity, Repeats, Setting, is_stable, layer_key, low_quantile
from profiles.errors import InputError
from profiles.measurements import Measurement, MeasurementKey
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible
from tests.processes import HANGS_S, all_running
from tests.profiling_models import BLOCK, SMALL_GPT

TASKS = plan_profile(SMALL_GPT, degrees=[1, 2, 3], micro_batches_per_rank=[1, 4], dtype="fp32")
FEASIBLE = tuple(task for task in TASKS if task.infeasible is None)
IDENTITY = DeviceIdentity(device="cpu", hardware="none", software="none", threads=1)
RESULT = Measurement(forward_s=(1.0,), backward_s=(2.0,), saved_bytes=1, peak_memory_bytes=1, parameters=1)

Result = Measurement | Infeasible


def key_of(task: ProfileTask) -> MeasurementKey:
    return layer_key(task.layer, task.shard, IDENTITY, optimizer="adamw")


class FakeDevice:
    """A clock that only measuring moves, by a cost of the task, or its time limit where it keeps to one."""

    def __init__(self, cost_s: Callable[[ProfileTask], float], *, keeps_limit: bool = False) -> None:
        self.now_s = 100.0
        self.measured: list[ProfileTask] = []
        self._cost_s, self._keeps_limit = cost_s, keeps_limit

    def clock(self) -> float:
        return self.now_s

    def measure(self, task: ProfileTask, limit_s: float) -> Result:
        self.measured.append(task)
        self.now_s += min(self._cost_s(task), limit_s) if self._keeps_limit else self._cost_s(task)
        return RESULT

    def run(
        self, store: ProfileStore, tasks: Sequence[ProfileTask] = TASKS, *, budget_s: float | None = None
    ) -> ProfileReport:
        return run_profile(
            store, tasks, key_of=key_of, measure=self.measure, budget_s=budget_s, clock=self.clock, progress=None
        )


def test_everything_is_measured_once_in_order_and_a_second_run_measures_nothing(tmp_path: Path) -> None:
    device = FakeDevice(lambda _: 1.0)
    with ProfileStore(tmp_path / "store.db") as store:
        report = device.run(store)
        assert tuple(device.measured) == FEASIBLE
        assert (report.measured, report.reused, report.left_to_model) == (len(FEASIBLE), 0, ())
        assert report.elapsed_s == len(FEASIBLE)
        again = device.run(store)
    assert (again.measured, again.reused) == (0, len(FEASIBLE))
    assert sum(task.layer == BLOCK and task.shard == FEASIBLE[0].shard for task in device.measured) == 1


def test_what_cannot_be_had_is_reported_and_what_the_machine_refuses_too(tmp_path: Path) -> None:
    refusal = Infeasible(reason="needs 3.0 GiB more than are free on cpu", lacking="memory", lacking_bytes=3 << 30)

    def measure(task: ProfileTask, _limit_s: float) -> Result:
        return refusal if task is FEASIBLE[1] else RESULT

    with ProfileStore(tmp_path / "store.db") as store:
        report = run_profile(store, TASKS, key_of=key_of, measure=measure)
        assert store.get(key_of(FEASIBLE[1])) is None
    assert report.measured == len(FEASIBLE) - 1
    assert (FEASIBLE[1], refusal) in report.infeasible
    assert {task.shard.tp for task, _ in report.infeasible if task is not FEASIBLE[1]} == {3}


@pytest.mark.parametrize("budget_s", [0.0, 3.0, 10.0, 17.5])
def test_a_budget_is_kept_and_what_matters_most_is_measured(tmp_path: Path, budget_s: float) -> None:
    heaviest = max(task.work for task in FEASIBLE)
    device = FakeDevice(lambda task: 4.0 * task.work / heaviest + 0.5)
    with ProfileStore(tmp_path / "store.db") as store:
        report = device.run(store, budget_s=budget_s)
    assert device.now_s - 100.0 <= budget_s
    assert report.measured + len(report.left_to_model) == len(FEASIBLE)
    assert bool(report.measured) == (budget_s > 0)
    assert report.left_to_model, "these budgets do not suffice for all"
    assert tuple(device.measured[:1]) == FEASIBLE[: min(1, report.measured)]


def test_a_first_task_keeps_to_the_limit_that_the_budget_leaves(tmp_path: Path) -> None:
    device = FakeDevice(lambda _: 1e6, keeps_limit=True)
    with ProfileStore(tmp_path / "store.db") as store:
        report = device.run(store, budget_s=5.0)
    assert (report.measured, device.now_s) == (1, 105.0)


def test_a_known_rate_of_the_device_keeps_a_task_that_is_too_dear_from_being_started(tmp_path: Path) -> None:
    device = FakeDevice(lambda _: 1e6)
    with ProfileStore(tmp_path / "store.db") as store:
        report = run_profile(
            store, TASKS, key_of=key_of, measure=device.measure, budget_s=60, clock=device.clock, flops_per_s=1.0
        )
    assert (report.measured, len(report.left_to_model)) == (0, len(FEASIBLE))


def test_what_another_run_stored_meanwhile_is_not_measured_again(tmp_path: Path) -> None:
    device = FakeDevice(lambda _: 1.0)
    path = tmp_path / "store.db"

    def measure(task: ProfileTask, limit_s: float) -> Result:
        if task is FEASIBLE[0]:
            with ProfileStore(path) as other:
                other.put(key_of(FEASIBLE[1]), RESULT)
        return device.measure(task, limit_s)

    with ProfileStore(path) as store:
        report = run_profile(store, TASKS, key_of=key_of, measure=measure, clock=device.clock)
    assert FEASIBLE[1] not in device.measured
    assert (report.measured, report.reused) == (len(FEASIBLE) - 1, 1)


def test_progress_counts_up_to_all_and_the_time_left_comes_down_to_nothing(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float, str]] = []
    device = FakeDevice(lambda _: 2.0)
    with ProfileStore(tmp_path / "store.db") as store:
        device.run(store, FEASIBLE[:2])
        run_profile(
            store,
            FEASIBLE,
            key_of=key_of,
            measure=device.measure,
            clock=device.clock,
            progress=lambda *told: seen.append(told),
        )
    total = len(FEASIBLE)
    assert [done for done, _, _, _ in seen] == [*range(2, total), total]
    assert {of for _, of, _, _ in seen} == {total}
    assert seen[0][3] == FEASIBLE[2].label
    assert [left_s for _, _, left_s, _ in seen[-3:]] == [4.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("work", "costs", "expected_s"),
    [
        (3.0, [], 0.0),
        (3.0, [(6.0, 2.0)], 2.0),
        (12.0, [(6.0, 2.0)], 4.0),
        (5.0, [(10.0, 8.0), (6.0, 2.0), (1.0, 0.5)], 2.0),
        (0.5, [(10.0, 8.0), (1.0, 0.5)], 0.5),
        (0.0, [(0.0, 0.5)], 0.5),
        (20.0, [(10.0, 1.0), (1.0, 9.0)], 9.0),
    ],
)
def test_the_cost_of_a_task_is_predicted_from_those_done(
    work: float, costs: list[tuple[float, float]], expected_s: float
) -> None:
    assert predict_cost_s(work, costs) == expected_s


DRIVER = """
import sys, time
from estimator.profiling.run import run_profile
from profiles.store import ProfileStore
from tests.estimator.profiling.test_profiling_run import RESULT, TASKS, key_of

stop_at, pause_s = int(sys.argv[2]), float(sys.argv[3])
count = 0

def measure(task, limit_s):
    global count
    count += 1
    if count == stop_at:
        print("inside", flush=True)
        time.sleep(600)
    time.sleep(pause_s)
    return RESULT

with ProfileStore(sys.argv[1]) as store:
    report = run_profile(store, TASKS, key_of=key_of, measure=measure)
print(report.measured, report.reused, flush=True)
"""


def drivers(
    count: int, path: Path, *, stop_at: int = 0, pause_s: float = 0.0
) -> AbstractContextManager[list[subprocess.Popen[str]]]:
    """So many processes that profile into the store at `path`."""
    arguments = [sys.executable, "-c", DRIVER, str(path), str(stop_at), str(pause_s)]
    root = Path(__file__).parents[3]
    return all_running([arguments] * count, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_run_killed_in_the_middle_of_a_measurement_resumes_there(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with drivers(1, path, stop_at=4) as (driver,):
        assert driver.stdout is not None
        assert driver.stdout.readline() == "inside\n"
        driver.kill()
    device = FakeDevice(lambda _: 1.0)
    with ProfileStore(path) as store:
        report = device.run(store)
        assert all(store.get(key_of(task)) == RESULT for task in FEASIBLE)
    assert report.reused == 3
    assert tuple(device.measured) == FEASIBLE[3:]


def test_two_runs_at_once_on_one_store_both_end_well_and_fill_it_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with drivers(2, path, pause_s=0.02) as both:
        for driver in both:
            output, errors = driver.communicate(timeout=HANGS_S)
            assert driver.returncode == 0, errors
            assert sum(map(int, output.split())) == len(FEASIBLE)
    with ProfileStore(path) as store:
        assert {profile.key for profile in store.profiles()} == {key_of(task) for task in FEASIBLE}


def test_a_measurement_goes_on_until_its_low_quantile_stands() -> None:
    repeats = Repeats(least=4, least_s=0.0, most=20, window=2, limit_s=100.0)
    assert not repeats.enough([1.0, 1.0, 1.0], 1.0), "fewer than the least"
    assert repeats.enough([9.0, 1.0, 1.01, 1.0], 1.0)
    assert not repeats.enough([9.0, 8.0, 1.0, 1.0], 1.0), "still falling"
    assert not repeats.enough([1.0, 2.0, 2.0, 2.0], 1.0), "one lucky sample is not seen again"
    assert repeats.enough([3.0, 2.0], 100.0), "out of time"
    assert repeats.enough([float(n) for n in range(20, 0, -1)], 1.0), "as many as allowed"


def test_the_low_quantile_is_the_minimum_of_a_few_and_the_tenth_percentile_of_many() -> None:
    assert low_quantile([2.0, 3.0, 1.0]) == 1.0
    assert low_quantile([float(n) for n in range(101)]) == 10.0
    assert not is_stable([1.0, 1.0], window=2, tolerance=0.1), "nothing before the window"


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"least=9, most=5.*expected warm_up >= 1, 2 <= least <= most"):
        Repeats(least=9, most=5)
    with pytest.raises(InputError, match=r"--threads: found 0, expected a positive integer"):
        Setting(threads=0)
    with pytest.raises(InputError, match=r"--optimizer: found 'adam', expected one of adamw, sgd"):
        Setting(optimizer="adam")
