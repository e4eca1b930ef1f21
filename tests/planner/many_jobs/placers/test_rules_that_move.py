"""Rules that move running jobs: what they win beside every way to seat them, in simulations, and when they err."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.many_jobs.jobs.records import Job, NodeCounts
from planner.many_jobs.placers.best_fit import BestFit
from planner.many_jobs.placers.catalogue import MOVING, PLACERS, make_placer
from planner.many_jobs.placers.moves import Move, MoveRequest, MovingPlacer, Seated, SeatedNodes
from planner.many_jobs.placers.ours import Ours
from planner.many_jobs.placers.records import FreeNodes, Price, Request, no_price
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import CheckpointFile, PlacerError, Settings
from planner.many_jobs.simulation.tables import JOB_COLUMNS, job_rows
from planner.many_jobs.simulation.timeline import timeline_events
from profiles.errors import InputError
from profiles.network import PLAIN
from tests.oracles.vacating_oracle import Held, best_net_gain, net_gain
from tests.planner.many_jobs.placers.placer_examples import Nodes
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.planner.many_jobs.simulation.test_simulation_policies import run_policy
from tests.scheduling_examples import FakeCells, make_job, make_pool, two_pools
from tests.seeds import examples, seeds

ROOT = Path(__file__).parents[4]
SMALL_TRACE = ROOT / "planner/many_jobs/traces/small.csv"


class Board(Nodes):
    """A `SeatedNodes` of these jobs."""

    def __init__(self, size: int, nodes: int, jobs: Sequence[Seated]) -> None:
        free = [size] * nodes
        for job in jobs:
            for node, count in job.seats:
                free[node] -= count
        ends = {
            node: [
                (job.end_s, count)
                for job in jobs
                for place, count in job.seats
                if place == node and job.end_s is not None
            ]
            for node in range(nodes)
        }
        super().__init__(free, ends=ends)
        self.jobs = tuple(jobs)

    def seated(self, node: int) -> Sequence[Seated]:
        return [job for job in self.jobs if node in dict(job.seats)]

    def all_seated(self) -> Sequence[Seated]:
        return self.jobs


def seated(
    id_: str,
    seats: NodeCounts,
    *,
    end_s: float | None = None,
    from_s: float = 0.0,
    restart_s: float = 60.0,
    price: Price = no_price,
) -> Seated:
    devices = sum(count for _, count in seats)
    return Seated(
        job=make_job(id_, devices=devices),
        seats=seats,
        devices=devices,
        from_s=from_s,
        end_s=end_s,
        restart_s=restart_s,
        iteration_s=price,
    )


def asked(size: int, now_s: float = 0.0) -> MoveRequest:
    return MoveRequest(pool="a100", size=size, now_s=now_s, network=PLAIN)


def drawn_cluster(draw: Random) -> tuple[int, int, list[Held], Board]:
    """Up to four nodes with up to six jobs, each on one."""
    size, nodes = draw.choice((2, 4, 8)), draw.randint(2, 4)
    held = list[Held]()
    for node in range(nodes):
        left = size
        while left and len(held) < 6 and draw.random() < 0.6:
            devices = draw.randint(1, left)
            left -= devices
            held.append((node, devices, float(draw.randint(1, 50)), devices * draw.choice((1.0, 10.0))))
    jobs = [
        seated(f"j{number}", ((node, devices),), end_s=stays_s, restart_s=paid / devices)
        for number, (node, devices, stays_s, paid) in enumerate(held)
    ]
    return size, nodes, held, Board(size, nodes, jobs)


def gain_of_ours(seed: int) -> tuple[float, float]:
    """What the moves of ours win, and the most that any would."""
    size, nodes, held, board = drawn_cluster(Random(seed))
    targets = {move.job: move.seats[0][0] for move in Ours().moves(board, asked(size))}
    gain = net_gain(size, held, [targets.get(f"j{number}", job[0]) for number, job in enumerate(held)])
    assert gain > 0 if targets else gain == 0
    return gain, best_net_gain(size, nodes, held) if held else 0.0


def test_moves_off_nodes_win_nearly_what_the_best_would() -> None:
    gains = [gain_of_ours(seed) for seed in seeds(400, least=150)]
    assert all(gain <= best + 1e-9 for gain, best in gains)
    assert sum(gain for gain, _ in gains) > 0.93 * sum(best for _, best in gains) > 0
    assert sum(gain >= best - 1e-9 for gain, best in gains) > 0.95 * len(gains)


def test_a_node_is_left_where_that_is_worth_the_restarts() -> None:
    """Two nodes of four, one job of two on each: by the first's end the other is idle for 100 - restart seconds."""
    jobs = [seated("stays", ((0, 2),), end_s=500.0, restart_s=61.0), seated("goes", ((1, 2),), end_s=100.0)]
    assert Ours().moves(Board(4, 2, jobs), asked(4)) == [Move(job="goes", seats=((0, 2),))]
    dear = [replace(job, restart_s=300.0) for job in jobs]
    assert not Ours().moves(Board(4, 2, dear), asked(4))
    assert not Ours().moves(Board(4, 2, [jobs[0], replace(jobs[1], end_s=25.0)]), asked(4))


def test_who_ends_nobody_knows_when_runs_as_long_again() -> None:
    jobs = [seated("old", ((0, 2),), restart_s=61.0), seated("young", ((1, 2),), from_s=900.0)]
    assert Ours().moves(Board(4, 2, jobs), asked(4, now_s=1000.0)) == [Move(job="young", seats=((0, 2),))]
    assert not Ours().moves(Board(4, 2, jobs), asked(4, now_s=920.0))


def by_nodes(counts: NodeCounts) -> float:
    return 1.0 + 0.2 * (len(counts) - 1)


def test_a_scattered_job_is_gathered_where_that_pays() -> None:
    scattered = seated("s", ((0, 2), (1, 2)), end_s=1000.0, price=by_nodes)
    others = [seated("a", ((0, 1),), end_s=2000.0), seated("b", ((1, 1),), end_s=2000.0)]
    board = Board(4, 3, [scattered, *others])
    assert Move(job="s", seats=((2, 4),)) in Ours().moves(board, asked(4))
    # A sixth of 300 seconds is less than the restart; without prices nobody knows what it wins.
    for changed in (replace(scattered, end_s=300.0), replace(scattered, iteration_s=no_price)):
        assert "s" not in {move.job for move in Ours().moves(Board(4, 3, [changed, *others]), asked(4))}


def test_gandiva_moves_off_the_emptiest_nodes_to_fuller_ones() -> None:
    jobs = [seated("a", ((0, 1),)), seated("b", ((1, 5),)), seated("c", ((2, 2),)), seated("d", ((3, 7),))]
    moves = make_placer("gandiva")
    assert isinstance(moves, MovingPlacer)
    assert moves.moves(Board(8, 4, jobs), asked(8)) == [
        Move(job="a", seats=((3, 1),)),
        Move(job="c", seats=((1, 2),)),
    ]
    assert [name for name in sorted(PLACERS) if isinstance(make_placer(name), MovingPlacer)] == list(MOVING)


class Proposing:
    """Best-fit, which proposes what it is told to."""

    name = "proposing"

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.seen: list[tuple[float, tuple[int, ...], tuple[tuple[str, NodeCounts, float, float | None], ...]]] = []

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        return BestFit().place(nodes, request)

    def moves(self, nodes: SeatedNodes, request: MoveRequest) -> Sequence[Move]:
        here = tuple((job.job.id, job.seats, job.from_s, job.end_s) for job in nodes.all_seated())
        self.seen.append((request.now_s, tuple(nodes.free), here))
        assert {job[0] for job in here} == {job.job.id for node in range(len(nodes.free)) for job in nodes.seated(node)}
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]


def run_moving(rule: Proposing, *jobs: Job, defragment_s: float = 100.0, nodes: int = 2) -> Result:
    options = Settings(placer=rule, defragment_s=defragment_s, restart_s=7.0, slices=True, series=True)
    pools = {"a100": make_pool("a100", nodes=nodes)}
    return simulate(jobs, pools, FakeCells(), make_policy("fcfs"), settings=options)


def test_a_move_costs_a_restart_and_its_checkpoint() -> None:
    rule = Proposing([Move(job="one", seats=((1, 3),))])
    alone = run_moving(Proposing(), make_job("one", devices=3, checkpoint_bytes=4 * 10**9, iterations=1e4))
    one = make_job("one", devices=3, checkpoint_bytes=4 * 10**9, iterations=1e4, duration_s=950.0)
    moved = run_moving(rule, one)
    assert moved.table.end_s[0] == pytest.approx(alone.table.end_s[0] + 9.0)
    assert (moved.summary.moves, moved.summary.restarts, alone.summary.moves) == (1, 1, 0)
    assert moved.summary.moves_device_hours == pytest.approx(3 * 9.0 / 3600)
    assert moved.summary.violations == 0
    assert moved.moves == [(0, 100.0, 27.0)]
    names = [event["name"] for event in timeline_events(moved) if event["ph"] == "X"]
    assert names == ["one", "move of one", "one"]
    rows = [dict(zip(JOB_COLUMNS, row, strict=True)) for row in job_rows(moved)][1:]
    assert [(row["moves"], row["restarts"], row["seats"]) for row in rows] == [(1, 1, "a100:1x3")]


def test_what_a_rule_sees_and_that_jobs_change_places() -> None:
    rule = Proposing([], [Move(job="one", seats=((1, 8),)), Move(job="two", seats=((0, 8),))])
    jobs = [make_job(name, submit_s=5.0, devices=8, iterations=1e4, duration_s=900.0) for name in ("one", "two")]
    found = run_moving(rule, *jobs)
    assert rule.seen[0] == (100.0, (0, 0), (("one", ((0, 8),), 5.0, 905.0), ("two", ((1, 8),), 5.0, 905.0)))
    assert rule.seen[1][0] == 200.0
    assert rule.seen[2] == (300.0, (0, 0), (("one", ((1, 8),), 207.0, rule.seen[2][2][0][3]), rule.seen[2][2][1]))
    assert found.summary.moves == 2
    assert found.summary.nodes_in_use_peak == 2


def test_who_stands_still_may_not_be_moved_and_a_move_to_where_it_sits_is_none() -> None:
    rule = Proposing([Move(job="one", seats=((0, 3),))], [Move(job="one", seats=((1, 3),))], [])
    found = run_moving(rule, make_job("one", submit_s=1.0, devices=3, iterations=1e4), defragment_s=4.0)
    assert found.summary.moves == 1
    assert [len(seen[2]) for seen in rule.seen[:5]] == [1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("answer", "said", "about"),
    [
        ([Move(job="gone", seats=((0, 4),))], "found a move of it", ", job gone"),
        ([Move(job="late", seats=((0, 4),))], "found a move of it", ", job late"),
        ([Move(job="one", seats=((1, 4),))] * 2, "found two moves of it", ", job one"),
        ([Move(job="one", seats=((0, 3), (1, 1)))], "found 3 devices of node 0", ", job one"),
        ([Move(job="one", seats=((1, 3),))], "found 3 devices", ", job one"),
        ([Move(job="one", seats=((1, 2), (1, 2)))], "found node 1 twice", ", job one"),
        ([Move(job="one", seats=((0, 4),)), Move(job="two", seats=((0, 6),))], "no more than the 4", ", job two"),
        ([("one", ((1, 4),))], "found [('one'", ""),
        (None, "found None", ""),
        (ValueError("no idea"), "found ValueError: no idea", ""),
    ],
)
def test_a_rule_that_errs_ends_the_run_with_its_name_the_time_and_the_job(
    answer: object, said: str, about: str
) -> None:
    jobs = [
        make_job("gone", devices=2, iterations=1.0, duration_s=1.0),
        make_job("one", submit_s=50.0, devices=4, iterations=1e4, duration_s=1e4),
        make_job("two", submit_s=50.0, devices=6, iterations=1e4, duration_s=1e4),
        make_job("late", submit_s=150.0, devices=2),
    ]
    with pytest.raises(PlacerError, match=re.escape(said)) as caught:
        run_moving(Proposing(answer), *jobs)
    assert caught.value.where.startswith("placer proposing at ")
    assert caught.value.where.endswith(about or " s")


@pytest.mark.parametrize("name", MOVING)
@settings(max_examples=examples(25, least=8), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 30),
    policy=st.sampled_from(["fcfs", "elasticflow", "crius", "gavel", "arnold", "tiresias"]),
    failing=st.booleans(),
    every_s=st.sampled_from([30.0, 500.0, 7000.0]),
)
def test_moves_under_policies_that_stop_grow_and_shrink_jobs(
    name: str, seed: int, count: int, policy: str, failing: bool, every_s: float
) -> None:
    found = run_policy(
        policy, seed, count, None, failing, announced=True, placer=make_placer(name), defragment_s=every_s
    )
    assert found.summary.moves == len(found.moves) <= found.summary.restarts
    assert all(time_s % every_s == 0 for _, time_s, _ in found.moves)


class Shuffling:
    """Best-fit, which moves jobs to places drawn by the time, one at a time."""

    name = "shuffling"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        return BestFit().place(nodes, request)

    def moves(self, nodes: SeatedNodes, request: MoveRequest) -> Sequence[Move]:
        draw, free, moves = Random(f"{request.pool} {request.now_s}"), list(nodes.free), list[Move]()
        for job in nodes.all_seated():
            room = [node for node, count in enumerate(free) if count]
            chosen = draw.sample(room, k=min(len(room), draw.randint(1, 3)))
            counts = dict.fromkeys(chosen, 0)
            for _ in range(job.devices):
                open_nodes = [node for node in chosen if counts[node] < free[node]]
                if open_nodes:
                    counts[draw.choice(open_nodes)] += 1
            if sum(counts.values()) == job.devices:
                seats = tuple((node, count) for node, count in counts.items() if count)
                moves.append(Move(job=job.job.id, seats=seats))
                for node, count in seats:
                    free[node] -= count
        return moves


@settings(max_examples=examples(25, least=8), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(["fcfs", "elasticflow", "arnold"]), failing=st.booleans())
def test_any_moves_that_can_be_keep_the_books(seed: int, policy: str, failing: bool) -> None:
    run_policy(policy, seed, 25, None, failing, announced=True, placer=Shuffling(), defragment_s=400.0)


@pytest.mark.parametrize("name", MOVING)
def test_a_run_that_goes_on_is_the_same(tmp_path: Path, name: str) -> None:
    jobs = draw_workload(Random(3), 40)
    options = Settings(slices=True, until_s=40_000.0, placer=make_placer(name), defragment_s=300.0)
    whole = simulate(jobs, two_pools(), FakeCells(), make_policy("fcfs"), settings=options)
    assert whole.summary.moves
    looks = iter(range(10**9))
    stopping = replace(options, look_every=1, checkpoint=CheckpointFile(path=tmp_path / "c.json", resume=True))
    stopped = replace(stopping, stop=lambda: next(looks) >= 120)
    with pytest.raises(KeyboardInterrupt):
        simulate(jobs, two_pools(), FakeCells(), make_policy("fcfs"), settings=stopped)
    with pytest.raises(InputError, match="a run of other jobs"):
        simulate(jobs, two_pools(), FakeCells(), make_policy("fcfs"), settings=replace(stopping, defragment_s=200.0))
    resumed = simulate(jobs, two_pools(), FakeCells(), make_policy("fcfs"), settings=stopping)
    assert resumed.slices == whole.slices
    assert resumed.moves == whole.moves
    assert resumed.summary == whole.summary


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = ["simulate", str(SMALL_TRACE), "--cluster", "a100-80gb:4x8", "--head", "8"]
    assert main([*command, "--defragment", "600"]) == 2
    assert "found placer best-fit, expected one that moves jobs: gandiva, ours" in capsys.readouterr().err
    assert main([*command, "--placer", "ours", "--defragment", "0"]) == 2
    assert "--defragment" in capsys.readouterr().err
    assert main([*command, "--placer", "ours", "--defragment", "600", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["moves"] >= 0 <= answer["moves_device_hours"]
    text = (ROOT / "planner/many_jobs/policies/POLICIES.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    # to_the_front\.py\n(.*?)(?=^    \$ )", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "to_the_front.py").write_text(re.sub(r"^    ", "", block, flags=re.MULTILINE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    rows = "job_id,submit_time_s,duration_s,gpus\nshort,0,600,6\nlong,10,4000,4\n"
    (tmp_path / "two.csv").write_text(rows, encoding="utf-8")
    command = ["simulate", "two.csv", "--cluster", "a100-80gb:2x8", "--no-model", "keep-durations"]
    mine = ["--placer", "to_the_front:ToTheFront", "--defragment", "1000"]
    assert main([*command, *mine, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["violations"], answer["placer"]) == (0, "to-the-front")
    assert answer["moves"] == 1
    assert answer["moves_device_hours"] == pytest.approx(4 * 60 / 3600)
    assert main([*command, *mine]) == 0
    assert "1, 0.06667 device-hours" in capsys.readouterr().out
