"""`estimate --plan P --network flow --beside JOBS`: a plan that waits by arithmetic, and jobs it cannot be beside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from estimator.network.fabric import fabric_of
from estimator.traffic.on_fabric import alone_on_fabric
from planner import api
from planner.cli.main import main
from planner.one_job.explicit.dispatch import read_any_request
from planner.one_job.explicit.on_fabric import free_traffic, seats_of
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from profiles.records import replace

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 4, device: h100, names: "gpu[1-4]"}]
    fabric: {link: ib-ndr400, topology: {kind: clos2, leaves: 2, spines: 1, cables: 1}}
"""
"""Two leaves of two nodes, one cable of 400 Gb/s up from each."""
AHEAD = "id: ahead, hosts: 'gpu[2,4]', traffic: {compute_s: 0.2, bytes: 2.0e+10}"
WITHIN = "id: within, hosts: 'gpu4', traffic: {compute_s: 0.2, bytes: 2.0e+10}"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan on the first node of each leaf; the others are free."""
    (tmp_path / "c.yaml").write_text(CLUSTER, encoding="utf-8")
    made = tmp_path / "plan.json"
    api.estimate("llama3-8b", cluster=str(tmp_path / "c.yaml"), tp=8, dp=2, devices=16, global_batch=32, output=made)
    recorded = json.loads(made.read_text(encoding="utf-8"))
    for device in recorded["devices"]:
        if device["host"] == "gpu2":
            device["host"], device["node"] = "gpu3", 2
    made.write_text(json.dumps(recorded), encoding="utf-8")
    return made


def beside(plan: Path, *jobs: str) -> dict[str, Any]:
    answer = api.estimate(plan=plan, network="flow", beside_jobs=jobs_file(plan.parent, *jobs))
    jsonschema.validate(answer, api.answer_schema("estimate"))
    found: dict[str, Any] = answer["network_flow"]["beside"]
    assert found["alone_s"] == pytest.approx(answer["network_flow"]["iteration_time_s"], rel=1e-6)
    return found


def jobs_file(folder: Path, *jobs: str) -> Path:
    path = folder / "jobs.yaml"
    rows = "\n".join(f"  - {{{job}}}" for job in jobs)
    path.write_text(f"schema: cellplan.jobs/1\njobs:\n{rows}\n", encoding="utf-8")
    return path


def test_who_always_sends_takes_one_share_of_nine(plan: Path) -> None:
    """The plan's dp has eight groups of two ranks, a ring each, and the other job one ring."""
    always = "id: always, hosts: 'gpu[2,4]', traffic: {compute_s: 0.001, begins_s: 0, bytes: 1.0e+12}"
    found = beside(plan, always)
    setup = read_any_request(EstimateOptions(plan=plan), store=None).setups[0]
    fabric = fabric_of(setup.cluster)
    rates = fabric.links.bytes_per_s.copy()
    rates[[number for number in range(len(rates)) if "spine0" in fabric.links.name(number)]] *= 8 / 9
    narrower = replace(fabric, links=replace(fabric.links, bytes_per_s=rates))
    expected_s = alone_on_fabric(free_traffic(setup, None), seats_of(setup), narrower).iteration_time_s
    assert found["iteration_time_s"] == pytest.approx(expected_s, rel=0.005)
    assert found["iteration_time_s"] > 1.03 * found["alone_s"]
    assert found["jobs"] == 1
    (slower,) = found["slowed_by"]
    assert slower["id"] == "always"
    assert slower["gained_s"] == pytest.approx(found["iteration_time_s"] - found["alone_s"], rel=0.05)
    assert all("spine0" in link for link in slower["links"])
    assert {link["name"] for link in found["links"]} == {
        f"{ends[0]} -> {ends[1]}" for leaf in ("leaf0", "leaf1") for ends in ((leaf, "spine0"), ("spine0", leaf))
    }


def test_who_stays_under_its_leaf_or_behind_the_plan_takes_nothing(plan: Path) -> None:
    within = beside(plan, WITHIN)
    assert within["iteration_time_s"] == within["alone_s"]
    assert (within["slowed_by"], within["slows"], within["links"]) == ([], [], [])
    behind = beside(plan, f"{AHEAD}, level: 1")
    # Compute varies by 1%, so that the mean is not that of one iteration.
    assert behind["iteration_time_s"] == pytest.approx(behind["alone_s"], rel=0.002)
    assert behind["slowed_by"] == []
    assert [each["id"] for each in behind["slows"]] == ["ahead"]
    ahead = beside(plan, AHEAD)
    assert [each["id"] for each in ahead["slowed_by"]] == ["ahead"]
    assert ahead["slows"][0]["lost_s"] < behind["slows"][0]["lost_s"]


def test_people_read_who_slows_it(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = jobs_file(plan.parent, AHEAD)
    assert main(["estimate", "--plan", str(plan), "--network", "flow", "--beside", str(jobs)]) == 0
    shown = capsys.readouterr().out
    assert "beside 1 job:" in shown
    assert "slowed by ahead by" in shown
    assert "slows ahead by" in shown


def test_without_flows_nobody_meets(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = jobs_file(plan.parent, AHEAD)
    assert main(["estimate", "--plan", str(plan), "--beside", str(jobs)]) == 2
    assert "--network flow beside it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("id: on, hosts: 'gpu[3-4]', traffic: {compute_s: 1, bytes: 1}", "device 0 of gpu3, which the plan has"),
        (AHEAD.replace("gpu[2,4]", "gpu[2,9]"), "gpu9"),
        (AHEAD.replace("id: ahead", "id: plan"), "'plan' is the plan that is estimated"),
        ("id: other, hosts: gpu2, plan: plan.json", "a plan for the 8 devices of job other"),
    ],
)
def test_jobs_that_cannot_be_beside_it(plan: Path, job: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        beside(plan, job)
