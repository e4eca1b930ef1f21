"""Virtual lanes of a subnet as its OpenSM has them in its file: levels of a plan, or what is wrong with it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from planner.contention.emitting.fabric_levels import levels_of_fabric
from planner.contention.emitting.folder import Settings, settings_files
from planner.contention.emitting.opensm import opensm_lines
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import PriorityMap, read_lanes, read_priority_map, warnings_of
from planner.contention.emitting.transports import service_levels
from profiles.errors import InputError

DATA = Path(__file__).parents[3] / "data" / "contention"
SUBNET = DATA / "opensm.conf"


def _read(tmp_path: Path, text: str) -> PriorityMap:
    path = tmp_path / "opensm.conf"
    path.write_text(text, encoding="utf-8")
    return read_lanes(path)


def test_lanes_come_as_the_arbiter_serves_them() -> None:
    found = read_lanes(SUBNET)
    assert [(level.priority, level.traffic_class) for level in found.levels] == [(3, 3), (1, 1), (2, 2), (0, 0)]
    assert [level.service for level in found.levels] == ["strict", "weighted", "weighted", "weighted"]
    said = warnings_of(found)
    assert any("qos_swe_high_limit" in each for each in said)
    assert any(each.startswith("levels 1, 2 and 3 are served by weight") for each in said)


@pytest.mark.parametrize("levels", range(1, 9))
def test_what_is_written_is_read_as_the_same_levels(levels: int, tmp_path: Path) -> None:
    of = service_levels(levels)
    again = _read(tmp_path, opensm_lines(of))
    assert [(level.priority, level.traffic_class, level.service) for level in again.levels] == [
        (level.priority, level.traffic_class, level.service) for level in of.levels
    ]


def test_levels_of_a_plan_are_those_of_the_file() -> None:
    two = levels_of_fabric(SUBNET, "infiniband", levels=2, reserved=(1,))
    assert [level.priority for level in two.levels] == [3, 2]
    assert [level.traffic_class for level in two.reserved] == [1]
    with pytest.raises(InputError, match="1 to 4"):
        levels_of_fabric(SUBNET, "infiniband", levels=5)
    with pytest.raises(InputError, match="traffic classes of"):
        levels_of_fabric(SUBNET, "infiniband", levels=None, reserved=(9,))


def test_a_map_of_the_other_kind_is_refused() -> None:
    for other in ("mlnx_qos.txt", "config_db.json"):
        with pytest.raises(InputError, match="a map of DSCPs"):
            read_lanes(DATA / other)
    with pytest.raises(InputError, match="OpenSM's lanes"):
        read_priority_map(SUBNET)
    with pytest.raises(InputError, match="no line of qos"):
        read_lanes(DATA / "perfquery_before.txt")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("qos TRUE", "qos FALSE", "qos: found FALSE"),
        ("qos TRUE\n", "\n", "qos: found nothing"),
        ("0,0,0,15", "0,0,0", "15 lanes"),
        ("0,0,0,15", "0,0,0,16", "0 to 15"),
        ("3:192", "3", "LANE:WEIGHT"),
        ("3:192", "15:192", "0 to 14"),
        ("3:192", "3:256", "0 to 255"),
        ("qos_high_limit 255", "qos_high_limit 300", "0 to 255"),
        ("3:192\nqos_vlarb_low 0:64,1:192,2:128", "3:0\nqos_vlarb_low 0:0", "no lane of a service level"),
    ],
)
def test_what_opensm_would_not_take_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = SUBNET.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(InputError, match=said):
        _read(tmp_path, text.replace(old, new))


def test_lanes_without_a_weight_and_dropped_service_levels_are_no_levels(tmp_path: Path) -> None:
    text = SUBNET.read_text(encoding="utf-8").replace("1:192,", "")
    found = _read(tmp_path, text)
    assert [level.traffic_class for level in found.levels] == [3, 2, 0]
    assert any("virtual lanes 1 are in no table" in said for said in found.warnings)
    assert 15 not in {level.traffic_class for level in found.levels}


def test_what_was_read_is_not_written_anew() -> None:
    job = PlannedJob(id="gpt", hosts=("gpu1", "gpu2"), level=1)
    files = settings_files(
        Settings(jobs=(job,), map=read_lanes(SUBNET), transport="infiniband", addresses={}, with_map=True)
    )
    assert set(files) == {"README.md", "settings.json", "jobs/gpt/environment.sh"}
    assert "export NCCL_IB_SL=1" in files["jobs/gpt/environment.sh"]
    assert "lanes were read" in files["README.md"]


def test_a_file_that_opensm_makes_is_read_once_qos_is_on(tmp_path: Path) -> None:
    opensm = shutil.which("opensm", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if opensm is None:
        pytest.skip("opensm is not installed")
    path = tmp_path / "opensm.conf"
    subprocess.run([opensm, "-c", str(path)], capture_output=True, check=True, timeout=60)
    text = path.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="qos: found FALSE"):
        read_lanes(path)
    found = _read(tmp_path, text.replace("qos FALSE", "qos TRUE"))
    assert len(found.levels) == 15
    assert {level.priority for level in found.levels} == set(range(15))
