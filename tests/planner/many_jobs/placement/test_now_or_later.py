"""An hour of a simulation, what `place` says of now and later then, and the same hour replayed both ways."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from planner import api
from planner.many_jobs.jobs.records import Decision, Grant, Job, Stateless, View, grant_on
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.settings import Placement, Settings
from tests.planner.many_jobs.placement.test_machines import THIN
from tests.scheduling_examples import FakeCells, make_job, make_pool

POOLS = {"a100": make_pool("a100", nodes=4, devices_per_node=4)}
DEVICES, HOUR_S = 4, 3600.0


def as_logged(job: Job, grant: Grant, placement: Placement | None) -> float:
    del grant, placement
    return job.duration_s / job.iterations


def running_at(seed: int, time_s: float) -> list[tuple[str, float, dict[int, list[int]]]]:
    """Jobs that run at a time of a simulation: name, end, and the devices on each node."""
    rng = Random(seed)
    jobs = tuple(
        make_job(f"j{number}", submit_s=rng.uniform(0, 2 * HOUR_S), devices=rng.choice((1, 1, 2)),
                 duration_s=rng.uniform(0.2, 3) * HOUR_S)
        for number in range(14)
    )  # fmt: skip
    options = Settings(truth=as_logged, placer=make_placer("kube-spread"), slices=True)
    run = simulate(jobs, POOLS, FakeCells(), make_policy("fcfs"), settings=options)
    found: dict[str, tuple[float, dict[int, list[int]]]] = {}
    for number, _, node, mask, start_s, _, end_s in run.slices:
        if start_s <= time_s < end_s:
            sits = found.setdefault(run.jobs[number].id, (end_s, {}))[1]
            sits[node] = [index for index in range(4) if mask >> index & 1]
    return [(name, end_s, sits) for name, (end_s, sits) in found.items()]


def asked(folder: Path, running: list[tuple[str, float, dict[int, list[int]]]], now_s: float) -> dict[str, Any]:
    """The answer of `place` beside these jobs."""
    rows = ["job,hosts,end,gpus"]
    for name, end_s, sits in running:
        gpus = "/".join(",".join(map(str, indices)) for _, indices in sorted(sits.items()))
        hosts = ",".join(f"n{node + 1}" for node in sorted(sits))
        rows.append(f'{name},"{hosts}",{end_s:.6f},"{gpus}"')
    (folder / "running.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "c.yaml").write_text(THIN, encoding="utf-8")
    return api.place(
        "gpt-tiny",
        cluster=str(folder / "c.yaml"),
        running=folder / "running.csv",
        now=now_s,
        devices=DEVICES,
        global_batch=24,
        tp=1,
        pp=1,
        dp=DEVICES,
    )


class Starting(Stateless):
    """Those that run go on where they sit; one more starts after a wait, on machines that are named."""

    name = "starting"

    def __init__(self, sits: dict[str, Grant], start: dict[str, Any], now_s: float) -> None:
        self.sits, self.from_s = sits, now_s + start["wait_s"]
        counts = tuple((int(host[1:]) - 1, count) for host, count in start["machines"].items())
        self.own = grant_on("a100", counts)

    def decide(self, view: View) -> Decision:
        grants = {id_: self.sits[id_] for id_ in view.waiting if id_ in self.sits}
        # Ends within a second are one to `place`.
        nodes = view.nodes["a100"].counts
        free = all(nodes[node] >= count for _, counts in self.own.nodes for node, count in counts)
        if "new" in view.waiting and view.now_s >= self.from_s - 1e-3 and not grants and free:
            grants["new"] = self.own
        return Decision(grants=grants)


def replayed_end_s(
    running: list[tuple[str, float, dict[int, list[int]]]], start: dict[str, Any], now_s: float, iterations: float
) -> tuple[float, float]:
    """When the new job starts and ends if the hour is simulated again from then on with this start of it."""
    sits = {
        name: grant_on("a100", tuple((node, len(indices)) for node, indices in sorted(on.items())))
        for name, _, on in running
    }
    jobs = tuple(
        make_job(name, submit_s=now_s, devices=sits[name].devices, duration_s=end_s - now_s)
        for name, end_s, _ in running
    )
    new = make_job(
        "new", submit_s=now_s + 1e-6, devices=DEVICES, iterations=iterations,
        duration_s=iterations * start["iteration_time_s"],
    )  # fmt: skip
    settings = Settings(truth=as_logged)
    run = simulate((*jobs, new), POOLS, FakeCells(), Starting(sits, start, now_s), settings=settings)
    assert run.summary.finished == len(jobs) + 1
    return run.table.start_s[len(jobs)], run.table.end_s[len(jobs)]


@pytest.mark.parametrize("seed", range(8))
def test_now_or_later_comes_true_where_the_hour_is_replayed_both_ways(tmp_path: Path, seed: int) -> None:
    now_s = HOUR_S
    running = running_at(seed, now_s)
    held = sum(len(indices) for _, _, sits in running for indices in sits.values())
    if held > 4 * 4 - DEVICES:
        pytest.skip("the job does not fit now")
    answer = asked(tmp_path, running, now_s)
    if "waiting" not in answer:
        pytest.skip("it fits whole now")
    first, *later = answer["waiting"]["starts"]
    for start in later:
        beyond_s = start["pays_beyond_s"]
        for share, sooner in ((0.9, "now"), (1.1, "later")):
            iterations = share * beyond_s / first["iteration_time_s"]
            starts_s, ends_s = zip(
                *(replayed_end_s(running, one, now_s, iterations) for one in (first, start)), strict=True
            )
            # What is named is free when it was said to be.
            assert starts_s == pytest.approx((now_s, now_s + start["wait_s"]), abs=1.5)
            assert (ends_s[0] < ends_s[1]) == (sooner == "now")


def test_there_are_hours_in_which_waiting_pays(tmp_path: Path) -> None:
    starts = 0
    for seed in range(8):
        running = running_at(seed, HOUR_S)
        if sum(len(indices) for _, _, sits in running for indices in sits.values()) <= 4 * 4 - DEVICES:
            starts += len(asked(tmp_path, running, HOUR_S).get("waiting", {"starts": []})["starts"]) - 1
    assert starts >= 2
