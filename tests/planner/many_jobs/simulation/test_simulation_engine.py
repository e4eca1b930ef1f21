"""Cases whose figures are known in closed form, wrong decisions, and jobs that never end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from planner.many_jobs.jobs.records import Decision, Grant, Job, Policy, View, grant
from planner.many_jobs.policies.fcfs import Fcfs
from planner.many_jobs.simulation.engine import STALLED_DECISIONS, simulate
from planner.many_jobs.simulation.failures import Failure, Failures, read_failures, up_time_s
from planner.many_jobs.simulation.placing import PoolNodes, shrink
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import PolicyError, Settings
from profiles.errors import InputError
from tests.scheduling_examples import make_job, make_pool
from tests.simulation_examples import Follow, PowerCells, Scripted, draw_jobs, small_pools, speed_over_pools

SERVER = make_pool("a", nodes=1, devices_per_node=1)
NODE = make_pool("a", nodes=1, devices_per_node=8)


def work(id_: str, submit_s: float, span_s: float, devices: int = 1, **more: object) -> Job:
    """A job that takes `span_s` seconds on its devices of "a"."""
    iterations = span_s * devices / 8.0
    return make_job(id_, submit_s=submit_s, pool="a", devices=devices, iterations=iterations, **more)  # type: ignore[arg-type]


def follow(plan: Mapping[float, Mapping[str, Grant | None]], jobs: Sequence[Job], settings: Settings) -> Result:
    policy = Follow({time_s: Decision(grants=grants) for time_s, grants in plan.items()})
    return simulate(jobs, [NODE], PowerCells(), policy, settings=settings)


def test_one_server_equal_jobs() -> None:
    """n jobs of 10 s at once on one server: the k-th ends at 10 k."""
    result = simulate([work(f"{k}", 0.0, 10.0) for k in range(20)], [SERVER], PowerCells(), Fcfs())
    assert result.table.end_s.tolist() == [10.0 * (k + 1) for k in range(20)]
    assert result.summary.jct_mean_s == 105.0
    assert result.summary.queue_mean_s == 95.0
    assert result.summary.makespan_s == 200.0
    assert result.summary.throughput_mean == result.summary.throughput_peak == 1.0
    assert result.summary.utilization_mean == 1.0
    assert (result.summary.restarts, result.summary.violations) == (0, 0)


def test_jobs_on_several_servers() -> None:
    """M equal jobs on k servers go in rounds of k."""
    result = simulate([work(f"{n}", 0.0, 7.0) for n in range(21)], [NODE], PowerCells(), Fcfs())
    assert result.table.end_s.tolist() == [7.0 * (n // 8 + 1) for n in range(21)]
    assert result.summary.utilization_mean == 21 / 24
    assert result.summary.throughput_peak == 8.0


def test_periodic_arrivals_below_capacity_never_wait() -> None:
    """D/D/1: a job of 8 s every 10 s; throughput is the load of 0.8 up to the last job's end."""
    result = simulate([work(f"{n}", 10.0 * n, 8.0) for n in range(100)], [SERVER], PowerCells(), Fcfs())
    assert result.summary.queue_p99_s == 0.0
    assert result.summary.jct_p99_s == 8.0
    assert result.summary.throughput_mean == pytest.approx(100 * 8 / 998)


def test_rounds_start_jobs_at_their_multiples() -> None:
    """A job of 8 s, submitted at 3, 5 and 90 s, in rounds of 10 s."""
    jobs = [work("x", 3.0, 8.0), work("y", 5.0, 8.0), work("z", 90.0, 8.0)]
    result = simulate(jobs, [SERVER], PowerCells(), Fcfs(), settings=Settings(round_s=10.0))
    assert result.table.start_s.tolist() == [10.0, 20.0, 90.0]
    assert result.table.end_s.tolist() == [18.0, 28.0, 98.0]


def test_scaling_changes_speed_and_costs_a_restart() -> None:
    """8 iterations at 8 s; from 16 s on with 4 devices (2 s each), after a restart of 5 s: 16 + 5 + 6 x 2."""
    job, wake = work("x", 0.0, 64.0), work("w", 16.0, 1.0)
    plan = {0.0: {"x": grant("a", 1)}, 16.0: {"x": grant("a", 4), "w": grant("a", 1)}}
    result = follow(plan, [job, wake], Settings(restart_s=5.0, series=True))
    assert result.table.end_s.tolist() == [33.0, 17.0]
    assert result.table.restarts.tolist() == [1, 0]
    assert result.table.attained_device_s[0] == 16.0 + 4 * 17.0
    rate = dict(zip(result.series["time_s"], result.series["throughput"], strict=True))
    assert rate == {0.0: 1.0, 16.0: 1.0, 17.0: 0.0, 21.0: 4.0, 33.0: 0.0}
    assert result.summary.throughput_mean == pytest.approx((16 + 1 + 4 * 12) / 33)


def test_a_suspended_job_waits_and_pays_when_it_returns() -> None:
    """Restart of 5 s and a checkpoint of 6 bytes at 2 bytes/s."""
    job = work("x", 0.0, 64.0, checkpoint_bytes=6)
    jobs = [job, work("w", 16.0, 0.0), work("v", 30.0, 0.0)]
    plan: dict[float, dict[str, Grant | None]] = {
        0.0: {"x": grant("a", 1)},
        16.0: {"x": None, "w": grant("a", 1)},
        30.0: {"x": grant("a", 1), "v": grant("a", 1)},
    }
    result = follow(plan, jobs, Settings(restart_s=5.0, storage_bandwidth_bytes_per_s=2.0))
    assert result.table.end_s[0] == 30.0 + 8.0 + 48.0
    assert (result.table.waited_s[0], result.table.restarts[0]) == (14.0, 1)


def test_the_same_grant_again_is_no_restart() -> None:
    """Neither the same words nor stages that come to the same; other stages are."""
    jobs = [work("x", 0.0, 64.0, 2), *(work(f"w{at}", float(at), 0.0) for at in (8, 16, 24))]
    plan = {
        0.0: {"x": grant("a", 2)},
        8.0: {"x": grant("a", 2), "w8": grant("a", 1)},
        16.0: {"x": grant("a", 2, 1), "w16": grant("a", 1)},
        24.0: {"x": grant("a", 2, 2), "w24": grant("a", 1)},
    }
    result = follow(plan, jobs, Settings(restart_s=1.0))
    assert result.table.restarts[0] == 1
    assert result.table.end_s[0] == 24.0 + 1.0 + 2 * 40.0


def test_a_failed_node_costs_what_came_after_the_last_checkpoint() -> None:
    """Fails at 50 s, checkpoints every 20 s: 10 s are lost; whole again at 60 s, restart of 5 s, 24 s are left."""
    failures = Failures(listed=(Failure(time_s=50.0, pool="a", node=0, repair_s=10.0),))
    settings = Settings(restart_s=5.0, checkpoint_interval_s=20.0, failures=failures)
    result = simulate([work("x", 0.0, 64.0)], [SERVER], PowerCells(), Fcfs(), settings=settings)
    assert result.table.end_s[0] == 60.0 + 5.0 + 24.0
    assert result.summary.lost_iterations == 10.0 / 8.0
    assert (result.table.failures[0], result.summary.node_failures) == (1, 1)
    assert result.summary.utilization_mean == (50 + 29) / (89 - 10)


def test_drawn_failures_have_the_asked_for_mean_and_do_not_depend_on_the_policy() -> None:
    """10,000 draws: the mean's standard error is 1%."""
    failures = Failures(mtbf_s=1000.0, repair_s=10.0, seed=3)
    drawn = [up_time_s(failures, "a", node, number) for node in range(100) for number in range(100)]
    assert sum(drawn) / len(drawn) == pytest.approx(1000.0, rel=0.05)
    assert len(set(drawn)) == len(drawn)
    settings = Settings(failures=failures, until_s=20_000.0, round_s=50.0)
    jobs = [work(f"{n}", 100.0 * n, 1e6, 2) for n in range(20)]
    policies: tuple[Policy, ...] = (Fcfs(), Scripted(1, drops=False))
    runs = [simulate(jobs, [make_pool("a")], PowerCells(), one, settings=settings).summary for one in policies]
    assert runs[0].node_failures == runs[1].node_failures > 20
    assert all(run.violations == 0 for run in runs)


def test_fairness_is_one_where_everybody_has_a_share() -> None:
    """Two jobs that share one server half and half would each take twice as long alone on half of it."""
    jobs = [work("x", 0.0, 10.0), work("y", 0.0, 10.0)]
    result = simulate(jobs, [SERVER], PowerCells(), Fcfs())
    assert result.table.sharing.tolist() == [2.0, 1.5]
    assert result.fairness.tolist() == [0.5, 20 / 15]


def test_deadlines() -> None:
    """Ends at 10, 20, 30 s."""
    jobs = [work(f"{n}", 0.0, 10.0, deadline_s=due) for n, due in enumerate((10.0, 19.0, None))]
    summary = simulate(jobs, [SERVER], PowerCells(), Fcfs()).summary
    assert (summary.deadlines, summary.deadlines_met, summary.deadlines_met_ratio) == (2, 1, 0.5)


@pytest.mark.parametrize(
    ("grants", "words"),
    [
        ({"y": grant("a", 1)}, "job y: found a grant, expected none"),
        ({"x": grant("q", 1)}, "job x: found devices of 'q', expected a pool of a"),
        ({"x": grant("a", 9)}, "found 9 devices of a more than it takes back, for x, expected no more than the 8"),
        ({"x": grant("a", 4), "z": grant("a", 8)}, "found 12 devices of a more"),
        ({"x": grant("a", 0)}, "found 0 devices of a, expected a whole number of 1 or more"),
        ({"x": Grant(parts=())}, "expected some devices"),
        ({"x": Grant(parts=(("a", 1), ("a", 2)))}, "each pool once"),
        ({"x": grant("a", 5)}, "a grant of 5 of a, expected one where the job fits"),
        ({"x": grant("a", 1, 2)}, "a grant of 1 of a in 2 stages, expected one where the job fits"),
    ],
)
def test_a_wrong_decision_says_who_when_and_what(grants: Mapping[str, Grant | None], words: str) -> None:
    policy = Follow({3.0: Decision(grants=grants)})
    book = PowerCells(most=16 if "a more" in words else 4)
    with pytest.raises(PolicyError) as caught:
        simulate([work("x", 3.0, 10.0), work("z", 3.0, 10.0)], [NODE], book, policy)
    assert str(caught.value).startswith("policy follow at 3 s")
    assert words in str(caught.value)


def test_dropping_whom_there_is_not_or_twice() -> None:
    for decision in (
        Decision(grants={}, dropped=("y",)),
        Decision(grants={}, dropped=("x", "x")),
        Decision(grants={"x": grant("a", 1)}, dropped=("x",)),
    ):
        with pytest.raises(PolicyError, match="policy follow at 0 s, job"):
            simulate([work("x", 0.0, 10.0)], [NODE], PowerCells(), Follow({0.0: decision}))


@pytest.mark.parametrize("round_s", [None, 10.0])
def test_jobs_left_waiting_for_ever_are_reported(round_s: float | None) -> None:
    """The policy starts one, and never thinks of the others."""
    jobs = [work("x", 0.0, 10.0), work("y", 1.0, 10.0), work("z", 2.0, 10.0)]
    result = follow({0.0: {"x": grant("a", 1)}}, jobs, Settings(round_s=round_s))
    assert result.unfinished == dict.fromkeys(("y", "z"), "policy follow leaves it waiting for ever")
    assert result.summary.decisions <= STALLED_DECISIONS + 10
    assert (result.summary.finished, result.summary.unfinished, result.summary.violations) == (1, 2, 0)


def test_a_policy_that_restarts_for_ever_is_stopped() -> None:
    class Restless(Fcfs):
        name = "restless"
        devices = 1

        def decide(self, view: View) -> Decision:
            del view
            self.devices = 3 - self.devices
            return Decision(grants={"x": grant("a", self.devices)})

    settings = Settings(round_s=10.0, restart_s=10.0)
    result = simulate([work("x", 0.0, 100.0)], [NODE], PowerCells(), Restless(), settings=settings)
    assert result.unfinished == {"x": "policy restless leaves it restarting for ever"}


def test_until() -> None:
    jobs = [work("x", 0.0, 10.0), work("y", 0.0, 10.0), work("late", 99.0, 1.0)]
    result = simulate(jobs, [SERVER], PowerCells(), Fcfs(), settings=Settings(until_s=15.0))
    assert set(result.unfinished) == {"y", "late"}
    assert "submitted after the end" in result.unfinished["late"]
    assert result.table.attained_device_s.tolist() == [10.0, 5.0, 0.0]
    assert (result.summary.simulated_s, result.summary.throughput_mean) == (15.0, 1.0)


def test_wrong_jobs_and_pools() -> None:
    for jobs, pool, words in (
        ([work("x", 0.0, 1.0)] * 2, NODE, "x twice"),
        ([make_job("x", pool="q")], NODE, "job x: pool: found q"),
        ([make_job("x", pool="a", iterations=float("nan"))], NODE, "nan iterations"),
        ([], make_pool("a", devices=3), "pool a"),
    ):
        with pytest.raises(InputError, match=words):
            simulate(jobs, [pool], PowerCells(), Fcfs())
    assert simulate([], [NODE], PowerCells(), Fcfs()).summary.jobs == 0


def test_a_truth_of_nonsense_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"-1\.0 s for an iteration"):
        simulate([work("x", 0.0, 1.0)], [NODE], PowerCells(), Fcfs(), settings=Settings(truth=lambda *_: -1.0))


def test_failures_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "failures.csv"
    path.write_text("time_s,pool,node,repair_s\n5,a,0,10\n30,b,2,1.5\n")
    assert read_failures(path).listed[1] == Failure(time_s=30.0, pool="b", node=2, repair_s=1.5)
    for text, words in (
        ("time_s,pool,node\n", "repair_s"),
        ("time_s,pool,node,repair_s\n5,a,x,10\n", "line 2"),
        ("time_s,pool,node,repair_s\n5,a,0,inf\n", "line 2"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            read_failures(path)
    for listed, words in (
        ((Failure(time_s=1.0, pool="a", node=4, repair_s=1.0),), "0 to 3"),
        ((Failure(time_s=1.0, pool="q", node=0, repair_s=1.0),), "one of a, b"),
        (tuple(Failure(time_s=at, pool="a", node=0, repair_s=9.0) for at in (1.0, 5.0)), "down already"),
    ):
        with pytest.raises(InputError, match=words):
            simulate([], small_pools(), PowerCells(), Fcfs(), settings=Settings(failures=Failures(listed=listed)))


def test_best_fit() -> None:
    """Whole nodes first, then the node with the least left over."""
    nodes = PoolNodes(4, 8)
    assert nodes.take(12) == ((0, 0xFF), (1, 0x0F))
    assert nodes.take(2) == ((1, 0x30),)
    assert nodes.take(3) == ((2, 0x07),)
    assert nodes.take(2) == ((1, 0xC0),)
    assert nodes.take(13) == ((3, 0xFF), (2, 0xF8))
    nodes.give(((1, 0xFF),))
    assert nodes.take(1) == ((1, 0x01),)
    assert nodes.violations == 0
    nodes.give(((1, 0x03),))
    assert nodes.violations == 1


def test_a_shrinking_job_keeps_its_fullest_nodes() -> None:
    assert shrink(((3, 0b1), (5, 0b1111), (6, 0b11)), 5) == (((5, 0b1111), (6, 0b1)), ((6, 0b10), (3, 0b1)))


def test_the_order_of_jobs_given_does_not_matter() -> None:
    jobs = list({job.submit_s: job for job in draw_jobs(Random(4), 30)}.values())
    settings = Settings(truth=lambda job, grant, _: speed_over_pools(job, grant))
    one = simulate(jobs, small_pools(), PowerCells(), Scripted(2), settings=settings)
    Random(1).shuffle(jobs)
    other = simulate(jobs, list(reversed(small_pools())), PowerCells(), Scripted(2), settings=settings)
    assert one.summary == other.summary
    assert one.table.end_s.tobytes() == other.table.end_s.tobytes()


class Failing(Scripted):
    """Answers what `answer` gives."""

    def __init__(self, answer: Callable[[], object]) -> None:
        super().__init__(0)
        self.answer = answer

    def decide(self, view: View) -> Decision:
        del view
        return self.answer()  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: {}, r"found dict \{\}, expected a Decision"),
        (lambda: [][1], "found IndexError: list index out of range .*test_simulation_engine.py:"),
        (lambda: Decision(grants={"x": "all"}), "job x: found str 'all', expected a Grant"),  # type: ignore[dict-item]
        (lambda: Decision(grants={"x": grant("a", 1.5)}), "found 1.5 devices of a, expected a whole number"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_fails_is_named_with_the_time(answer: Callable[[], object], said: str) -> None:
    with pytest.raises(PolicyError, match=f"policy scripted at 0 s.*{said}"):
        simulate([work("x", 0.0, 8.0)], [NODE], PowerCells(), Failing(answer))
