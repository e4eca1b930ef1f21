"""Announced jobs, grants that name nodes, and reservations, as the simulator carries them out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

import pytest

from planner.many_jobs.jobs.records import Announcement, Decision, Job, Reservation, View, grant, grant_on
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import CheckpointFile, PolicyError, Settings
from planner.many_jobs.simulation.totals import SERIES
from tests.scheduling_examples import make_job, make_pool
from tests.simulation_examples import Follow, PowerCells

POOLS = (make_pool("a", nodes=4, devices_per_node=8),)
ZONE = Reservation(job="z", pool="a", nodes=(2, 1), arrival_s=50.0, until_s=60.0)


def job(id_: str, submit_s: float, devices: int = 8, iterations: float = 10.0) -> Job:
    return make_job(id_, submit_s=submit_s, pool="a", devices=devices, iterations=iterations)


def announced(submit_s: float = 50.0, *, cancelled: bool = False) -> Job:
    plan = Announcement(known_s=10.0, arrival_s=50.0, cancelled=cancelled)
    return replace(job("z", submit_s, 16), planned=plan)


def run(jobs: tuple[Job, ...], plan: dict[float, Decision], settings: Settings | None = None) -> Result:
    return simulate(jobs, POOLS, PowerCells(), Follow(plan), settings=settings or Settings(slices=True))


def nodes_of(result: Result, id_: str) -> list[int]:
    return [node for number, _, node, *_ in result.slices if result.jobs[number].id == id_]


class Watching(Follow):
    """Also asks `look` at each call."""

    def __init__(self, plan: dict[float, Decision], look: Callable[[View], None]) -> None:
        super().__init__(plan)
        self.look = look

    def decide(self, view: View) -> Decision:
        self.look(view)
        return super().decide(view)


def test_a_job_is_seen_from_its_announcement_to_its_arrival_and_a_zone_to_its_end() -> None:
    seen: dict[float, tuple[list[str], list[str]]] = {}

    def look(view: View) -> None:
        seen[view.now_s] = (list(view.planned), list(view.reservations))

    jobs = (job("x", 0.0, iterations=100.0), announced(submit_s=55.0))
    plan = {0.0: Decision(grants={"x": grant("a", 8)}), 10.0: Decision(grants={}, reservations={"z": ZONE})}
    plan[60.0] = Decision(grants={"z": grant("a", 16)})
    result = simulate(jobs, POOLS, PowerCells(), Watching(plan, look), settings=Settings(slices=True))
    assert seen == {
        0.0: ([], []),
        10.0: (["z"], []),
        50.0: (["z"], ["z"]),
        55.0: ([], ["z"]),
        60.0: ([], []),
        65.0: ([], []),
        100.0: ([], []),
    }
    assert result.summary.violations == 0
    assert result.summary.finished == 2


def test_unnamed_grants_stay_out_of_zones_and_named_ones_lie_where_they_say() -> None:
    jobs = (job("s", 0.0, 4), announced(), job("x", 20.0, 16), job("y", 30.0, 4, 2.0), job("w", 40.0, 4, 2.0))
    plan = {
        0.0: Decision(grants={"s": grant("a", 4)}),
        10.0: Decision(grants={}, reservations={"z": replace(ZONE, nodes=(3, 0))}),
        20.0: Decision(grants={"x": grant("a", 16)}),
        30.0: Decision(grants={"y": grant_on("a", ((3, 4),))}),
        40.0: Decision(grants={"w": grant_on("a", ((3, 1), (0, 3)))}),
        50.0: Decision(grants={"z": grant_on("a", ((3, 8), (0, 8)))}),
    }
    result = run(jobs, plan)
    assert nodes_of(result, "x") == [1, 2]
    assert nodes_of(result, "y") == [3]
    assert nodes_of(result, "w") == [3, 0]
    assert nodes_of(result, "z") == [3, 0]
    assert result.summary.finished == 5
    assert result.summary.violations == 0


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (
            Decision(grants={"x": grant("a", 24)}),
            "24 devices of a for jobs .* no more than the 16 that are free outside",
        ),
        (Decision(grants={"x": grant_on("a", ((1, 9),))}), "9 devices of node 1 of a, expected no more than the 8"),
        (Decision(grants={"x": grant_on("a", ((4, 8),))}), r"nodes \[4\] of a, expected some of its nodes 0 to 3"),
        (Decision(grants={"x": grant_on("a", ((0, 4), (0, 4)))}), r"nodes \[0, 0\] of a, .* each once"),
        (Decision(grants={"x": grant_on("a", ((0, 0),))}), "0 devices of a, expected a whole number"),
        (Decision(grants={"x": grant_on("b", ((0, 8),))}), "devices of 'b', expected a pool of a"),
        (
            Decision(grants={"x": replace(grant_on("a", ((0, 8),)), parts=(("a", 4),))}),
            r"nodes with \{'a': 8\} devices, expected the grant's \{'a': 4\}",
        ),
        (
            Decision(grants={}, reservations={"x": replace(ZONE, job="x", nodes=(0, 1))}),
            "reservation of node 1 of a, expected one that z has not",
        ),
        (Decision(grants={}, reservations={"q": replace(ZONE, job="q")}), "for this job, which is announced or waits"),
        (Decision(grants={}, reservations={"z": replace(ZONE, until_s=20.0)}), "expected one that ends, after now"),
        (Decision(grants={}, reservations={"z": replace(ZONE, nodes=())}), "some of its nodes 0 to 3, each once"),
        (
            Decision(grants={}, reservations={"z": replace(ZONE, pool="b")}),
            "a reservation on 'b', expected a pool of a",
        ),
    ],
)
def test_what_cannot_be_is_refused(decision: Decision, message: str) -> None:
    plan = {10.0: Decision(grants={}, reservations={"z": ZONE}), 20.0: decision}
    with pytest.raises(PolicyError, match=message):
        run((job("o", 0.0), announced(), job("x", 20.0, 24)), plan)


def test_a_zone_that_is_not_lent_is_for_nobody_else() -> None:
    plan = {10.0: Decision(grants={}, reservations={"z": replace(ZONE, lent=False)})}
    plan[20.0] = Decision(grants={"x": grant_on("a", ((1, 8),))})
    with pytest.raises(PolicyError, match="node 1 of a, expected one that is not kept for z alone"):
        run((job("o", 0.0), announced(), job("x", 20.0)), plan)


def test_what_is_cancelled_never_comes_and_its_zone_ends() -> None:
    seen = []

    def look(view: View) -> None:
        seen.append((view.now_s, list(view.planned), list(view.reservations), list(view.departed)))

    jobs = (job("x", 0.0, iterations=100.0), announced(submit_s=30.0, cancelled=True))
    plan = {0.0: Decision(grants={"x": grant("a", 8)}), 10.0: Decision(grants={}, reservations={"z": ZONE})}
    result = simulate(jobs, POOLS, PowerCells(), Watching(plan, look), settings=Settings())
    assert seen[1:3] == [(10.0, ["z"], [], []), (30.0, [], [], ["z"])]
    assert result.unfinished == {"z": "it was cancelled before it came"}
    assert result.summary.violations == 0


@pytest.mark.parametrize("schema", [2, 3, 4])
def test_runs_go_on_from_checkpoints_old_and_new(tmp_path: Path, schema: int) -> None:
    """With a zone, a job that names nodes and one that is announced; of the second version without these."""
    jobs: tuple[Job, ...] = (
        job("x", 0.0, iterations=100.0),
        job("y", 5.0, iterations=100.0),
        announced(),
        job("w", 70.0),
    )
    plan = {
        0.0: Decision(grants={"x": grant("a", 8)}),
        5.0: Decision(grants={"y": grant_on("a", ((3, 8),))}),
        10.0: Decision(grants={}, reservations={"z": ZONE}),
        50.0: Decision(grants={"z": grant_on("a", ((2, 8), (1, 8)))}),
        70.0: Decision(grants={"w": grant("a", 8)}),
    }
    if schema == 2:
        jobs = tuple(replace(one, planned=None) for one in jobs)
        plan[5.0], plan[10.0] = Decision(grants={"y": grant("a", 8)}), Decision(grants={})
        plan[50.0] = Decision(grants={"z": grant("a", 16)})
    path = tmp_path / "checkpoint.json"
    settings = Settings(slices=True, series=True, look_every=1)
    whole = run(jobs, plan, settings)
    for stop_after in range(2, 6):
        looks = iter(range(10**9))
        stopping = replace(
            settings,
            checkpoint=CheckpointFile(path=path, resume=False),
            stop=lambda looks=looks, last=stop_after: next(looks) + 1 >= last,  # type: ignore[misc]
        )
        with pytest.raises(KeyboardInterrupt):
            run(jobs, plan, stopping)
        if schema < 4:
            path.write_text(as_version(schema, path.read_text(encoding="utf-8")), encoding="utf-8")
        resumed = run(jobs, plan, replace(settings, checkpoint=CheckpointFile(path=path, resume=True)))
        assert resumed.slices == whole.slices
        if schema == 4:
            assert (resumed.summary, resumed.series) == (whole.summary, whole.series)
            continue
        assert asdict(resumed.summary) == asdict(whole.summary) | dict.fromkeys(OF_NODES)
        assert [resumed.series[name] for name in SERIES[:-1]] == [whole.series[name] for name in SERIES[:-1]]
        assert math.isnan(resumed.series["nodes_in_use"][0])
        assert resumed.series["nodes_in_use"][-1] == whole.series["nodes_in_use"][-1]


OF_NODES = (
    "nodes_in_use_mean",
    "nodes_in_use_peak",
    "nodes_least_mean",
    "nodes_idle_mean",
    "machine_hours",
    "fragmentation_mean",
    "scattered_ratio",
    "held_back",
    "cross_node_bytes_per_s",
    "uplinks_load_mean",
    "uplinks_load_peak",
    "device_hours_per_machine_hour",
    "device_hours_as_printed",
    "revenue_per_machine_hour",
    "revenue_as_printed",
)


def test_a_run_from_an_old_checkpoint_is_stopped_and_goes_on_again(tmp_path: Path) -> None:
    jobs = tuple(job(name, start_s, iterations=100.0) for name, start_s in (("x", 0.0), ("y", 5.0), ("z", 9.0)))
    plan = {float(start_s): Decision(grants={name: grant("a", 8)}) for name, start_s in (("x", 0), ("y", 5), ("z", 9))}
    path = tmp_path / "checkpoint.json"
    stopping = Settings(look_every=1, checkpoint=CheckpointFile(path=path, resume=True), stop=lambda: True)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(jobs, plan, stopping)
        text = path.read_text(encoding="utf-8")
        if '"in_use_s": null' not in text:
            path.write_text(as_version(3, text), encoding="utf-8")
    assert '"in_use_s": null' in text
    resumed = run(jobs, plan, Settings(look_every=1, checkpoint=CheckpointFile(path=path, resume=True)))
    assert resumed.summary.machine_hours is None
    assert resumed.summary.finished == 3


def as_version(schema: int, text: str) -> str:
    """The checkpoint as an earlier version wrote it."""
    document = json.loads(text)
    del document["sha256"], document["series"][-1]
    for name in ("nodes", "cross_node_bytes", "revenue", "seats_cost_s"):
        del document["table"][name]
    for name in ("in_use", "idle_nodes", "least_nodes", "devices_in_use"):
        del document["totals"][name], document["totals"][f"{name}_s"]
    for name in ("peak_in_use", "starts_on_several", "scattered", "held_back"):
        del document["totals"][name]
    document["schema"] = f"cellplan.simulation-checkpoint/{schema}"
    for state in (*document["waiting"], *document["running"]):
        if schema > 2:
            break
        del state["predicted_interval_s"]
        if state["grant"] is not None:
            del state["grant"]["nodes"]
    if schema == 2:
        del document["reservations"]
    hashed = sha256(json.dumps(document).encode()).hexdigest()
    return json.dumps({"sha256": hashed, **document})
