"""A plan file on single free GPUs of partly used machines, and what is said where it, or a model, fits on none."""

from __future__ import annotations

import json
import random
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.pricing.evaluate import evaluate
from planner import api
from planner.many_jobs.placement.machines.choices import fewest_machines
from planner.many_jobs.placement.machines.ground import read_machines
from planner.many_jobs.placement.machines.shortage import fewest_to_stop
from planner.shared.options.place import PlaceOptions
from profiles.errors import InputError, NothingFits
from profiles.records import replace
from tests.oracles.machines_oracle import brute_least_time
from tests.planner.many_jobs.placement.test_machines import (
    DEGREES,
    JOBS,
    machine,
    machine_files,
    place_gpt,
    small_ground,
)


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_that_exists_sits_as_fast_as_any_order(tmp_path: Path, seed: int) -> None:
    """Its degrees and stages as they are; the file's own places, on whole machines, change nothing."""
    rng = random.Random(seed)
    pp, dp, tp = DEGREES[seed % len(DEGREES)]
    devices = pp * dp * tp
    free = [0]
    while not devices <= sum(free) <= 7:
        free = [rng.choice((0, 1, 1, 2, 3)) for _ in range(4)]
    options, _ = small_ground(tmp_path, free, devices, pp=pp, dp=dp, tp=tp)
    written = replace(options, free=None, output=tmp_path / "plan.json")
    api.place(written)
    asked = PlaceOptions(plan=tmp_path / "plan.json", cluster=options.cluster, free=options.free)
    found = api.place(asked)
    ground = read_machines(asked, None)
    assert ground is not None
    (plan,) = ground.job.plans
    assert [(stage.dp, stage.tp) for stage in plan.stages] == [(dp, tp)] * pp
    (machines,) = ground.kinds.values()
    least = brute_least_time(plan, machines, partial(evaluate, pricing=ground.job.seats.pricing))
    assert least is not None
    if fewest_machines(machines, devices) != 1:
        assert found["score"]["iteration_time_s"] <= least * (1 + 2e-4)
    score = found["score"]["machines"]
    assert (score["plans"], score["whole"]["machines"]) == (1, -(-devices // 4))
    before = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert [stage["chunks"] for stage in found["plan"]["stages"]] == [stage["chunks"] for stage in before["stages"]]
    taken = {(device["node"], device["index"]) for device in found["plan"]["devices"]}
    assert len(taken) == devices
    assert all(index in machines[node].free for node, index in taken)


def _plan_file(folder: Path, devices: int = 12, **degrees: Any) -> Path:
    """A plan on whole machines of the cluster of `machine_files`, all of them free."""
    files = machine_files(folder, JOBS)
    output, cluster = folder / "whole.json", files["cluster"]
    api.place(
        PlaceOptions(
            model="gpt-tiny", cluster=cluster, devices=devices, global_batch=48, tp=1, output=output, **degrees
        )
    )
    return output


def place_plan(folder: Path, path: Path, **more: Any) -> dict[str, Any]:
    files = machine_files(folder, JOBS)
    told = {key: Path(files[key]) for key in ("free", "running")}
    return api.place(PlaceOptions(plan=path, cluster=files["cluster"], **({"now": 300.0} | told | more)))


def test_a_plan_file_is_placed_now_or_later_or_by_moves(tmp_path: Path) -> None:
    path, output = _plan_file(tmp_path, pp=3, dp=4), tmp_path / "seated.json"
    found = place_plan(tmp_path, path, move=2, output=output)
    assert sum(found["score"]["machines"]["shape"]) == 12
    assert [(stage["dp"], stage["tp"]) for stage in found["plan"]["stages"]] == [(4, 1)] * 3
    assert found["waiting"]["starts"][0]["iteration_time_s"] == found["score"]["iteration_time_s"]
    assert [one["job"] for one in found["moves"][0]["jobs"]] == ["71"]
    assert found["moves"][0]["shape"] == [8, 4]
    assert json.loads(output.read_text(encoding="utf-8"))["devices"] == found["plan"]["devices"]
    # What was seated is a plan like any other, and sits there again.
    again = place_plan(tmp_path, output)
    assert again["score"]["iteration_time_s"] == pytest.approx(found["score"]["iteration_time_s"], rel=1e-3)


def test_a_plan_that_does_not_fit_names_fewer_replicas_later_and_who_would_make_way(tmp_path: Path) -> None:
    path = _plan_file(tmp_path, 16, pp=2, dp=8)
    with pytest.raises(NothingFits) as refused:
        place_plan(tmp_path, path)
    said = str(refused.value)
    assert "16 devices wanted, 13 free now: 3 too few; 20 are in 0.0167 h, when job 74 ends" in said
    assert "the plan with dp=6 (12 devices) would do, on 5 + 4 + 3" in said
    assert "if 1 job that may be moved made way, 71" in said
    held = place_plan(tmp_path, path, reserve=True, output=tmp_path / "held.json")
    assert held["waiting"]["starts"][0]["wait_s"] == 60.0
    assert held["waiting"]["reservation"]["nodes"]


def test_whole_free_machines_without_pods_take_a_plan_file_too(tmp_path: Path) -> None:
    """Where there are pods these place it (test_place_pods.py); here nothing tells the machines apart."""
    path = _plan_file(tmp_path, 16, pp=2, dp=8)
    rows = [f"n{number} gpu:a100:8 gpu:a100:{held} mixed" for number, held in enumerate(("1(IDX:0)", 0, 0, 0), 1)]
    free = tmp_path / "free.txt"
    free.write_text("\n".join(["NODELIST GRES GRES_USED STATE", *rows]) + "\n", encoding="utf-8")
    found = place_plan(tmp_path, path, free=free, running=None, now=None)
    assert [one["name"] for one in found["machines"]] == ["n2", "n3"]
    assert found["score"]["machines"]["whole"]["slower"] == pytest.approx(0.0, abs=1e-9)


def test_options_of_pods_still_want_pods(tmp_path: Path) -> None:
    path = _plan_file(tmp_path, pp=3, dp=4)
    with pytest.raises(InputError, match="expected a plan of whole nodes on a cluster with pods"):
        place_plan(tmp_path, path, alpha=0.5)


# Where nothing fits


def test_too_few_free_says_who_would_have_to_make_way(tmp_path: Path) -> None:
    """3 GPUs are lacking: job 71 holds 4 and loses less than 74, which holds 7; 73 may not be moved."""
    with pytest.raises(NothingFits, match=r"if 1 job that may be moved made way, 71: 0.0667 device-hours lost"):
        place_gpt(tmp_path, 16)
    stay = JOBS.replace("|yes|", "|no|")
    with pytest.raises(NothingFits) as refused:
        place_gpt(tmp_path, 16, jobs=stay)
    assert "made way" not in str(refused.value)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=4),
    st.integers(1, 9),
    st.sets(st.integers(0, 3)),
)
def test_no_fewer_jobs_make_way(rows: list[list[int]], lacking: int, movable: set[int]) -> None:
    """Against every set of jobs; the device-hours of each are its number."""
    machines = [
        machine(node, (), jobs={str(job): tuple(i for i, other in enumerate(row) if other == job) for job in set(row)})
        for node, row in enumerate(rows)
    ]
    cost = {str(job): float(job) for job in movable}
    held = {job: sum(len(one.jobs.get(job, ())) for one in machines) for job in cost}
    enough = [
        some
        for number in range(len(cost) + 1)
        for some in combinations(sorted(cost), number)
        if sum(held[job] for job in some) >= lacking
    ]
    stopped = fewest_to_stop(machines, lacking, cost)
    if stopped is None:
        assert not enough
        return
    assert tuple(sorted(stopped)) in enough
    assert len(stopped) == min(map(len, enough))
