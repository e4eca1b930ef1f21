"""Settings that are emitted for jobs on the emulated fabric: its map, its jobs, the plan by ranks, what is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.testbed.fabric.cases import Case
from bench.testbed.fabric.emitted import CLASS_OF_DSCP, Emitted, _choice, _load, config_db, draw_apart, emitted_lines
from bench.testbed.fabric.mixes import job_name, jobs_text
from bench.testbed.fabric.running import Ran, Timed
from bench.testbed.fabric.shape import Shape
from planner.contention.emitting.priority_map import read_priority_map
from profiles.errors import MachineError

SHAPE = Shape(places=4, levels=4, dscps=tuple(CLASS_OF_DSCP))


def test_the_map_of_the_switches_is_that_of_the_queues(tmp_path: Path) -> None:
    file = tmp_path / "config_db.json"
    file.write_text(config_db(), encoding="utf-8")
    levels = read_priority_map(file, reserved=()).levels
    assert [level.dscp for level in levels] == list(SHAPE.dscps)
    assert [level.priority for level in levels] == list(CLASS_OF_DSCP.values())


def test_jobs_have_hosts_of_their_own_and_meet_on_uplinks() -> None:
    jobs = draw_apart(SHAPE, 0)
    assert jobs == draw_apart(SHAPE, 0) != draw_apart(SHAPE, 1)
    hosts = [host for job in jobs for host in job.hosts]
    assert sorted(hosts) == list(range(SHAPE.hosts))
    links = [job.links(SHAPE).keys() for job in jobs]
    assert sum(any(own & other for other in links if other is not own) for own in links) >= 3
    assert all("gpus" not in row for row in json.loads(jobs_text(jobs, apart=True))["jobs"])


def test_a_plan_by_ranks(tmp_path: Path) -> None:
    """Spines out of the names of links, ports as they stand; a file that is not there is no file to load."""
    jobs = draw_apart(SHAPE, 0)

    def path(source: int, target: int, spine: int) -> dict[str, object]:
        way = [f"node{source} -> leaf0", f"leaf0 -> spine{spine}", f"spine{spine} -> leaf1", f"leaf1 -> node{target}"]
        return {
            "from": {"host": f"node{source}"},
            "to": {"host": f"node{target}"},
            "way": way,
            "ports": [50_000 + spine],
        }

    rows = [
        {"id": job_name(job), "level": level, "paths": [path(job.hosts[0], job.hosts[1], level % 2)]}
        for level, job in enumerate(jobs)
    ]
    choice = _choice(SHAPE, jobs, {"jobs": rows})
    assert choice.levels == (0, 1, 2, 3)
    assert [ways[0] for ways in choice.ways] == [(0, (50_000,)), (1, (50_001,)), (0, (50_000,)), (1, (50_001,))]
    assert {ways[1] for ways in choice.ways} == {None}
    (tmp_path / "settings").mkdir()
    index = {"jobs": [{"id": job_name(job), "files": [], "folder": "jobs/x", "notes": ["why"]} for job in jobs]}
    (tmp_path / "settings" / "settings.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(MachineError, match="no nftables file"):
        _load("none-", tmp_path, jobs)


def test_what_is_reported() -> None:
    jobs = draw_apart(SHAPE, 0)
    case = Case(name="as they are", mode="ecmp", jobs=jobs)
    times = tuple(Timed(ended_s=tuple(0.5 * turn for turn in range(9))) for _ in jobs)
    ran = Ran(jobs=times, late_s=0.001, busy=0.9, stolen=0.0)
    share = {"host": "node0", "priority": 6, "planned_share": 1.0, "counted_share": 0.5, "verdict": "less"}
    found = Emitted(
        cases=(case, case),
        ran=(ran, ran),
        simulated=((0.5,) * 4, (0.25,) * 4),
        loaded=("jobs/a/dscp.nft",),
        verified={"agrees": False, "priorities": [{**share, "verdict": "as planned"}, share]},
        crossed={(0, 0, 1): 2_000_000},
        from_s=0.0,
        until_s=10.0,
    )
    said = list(emitted_lines(found))
    assert f"| {job_name(jobs[0])} | 0 | 46 |" in said[2]
    assert "spine1 2.0 MB at level 0" in said[2]
    assert "500 ms | 500 | 250 |" in said[2]
    assert "`--verify`: 1 of 2 shares of hosts and priorities as planned" in said
    assert "node0, priority 6: less" in said[-1]
