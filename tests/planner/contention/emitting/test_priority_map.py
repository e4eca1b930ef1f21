"""A fabric's levels out of what NICs and switches say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.contention.emitting.levels import MapLevel
from planner.contention.emitting.priority_map import default_map, for_levels, read_priority_map, warnings_of
from profiles.errors import InputError

DATA = Path(__file__).parents[3] / "data" / "contention"
NIC = (DATA / "mlnx_qos.txt").read_text(encoding="utf-8")
SWITCH = json.loads((DATA / "config_db.json").read_text(encoding="utf-8"))


def _read(tmp_path: Path, text: str, **how: Any) -> Any:
    path = tmp_path / "map"
    path.write_text(text, encoding="utf-8")
    return read_priority_map(path, **how)


def _refused(tmp_path: Path, text: str, **how: Any) -> str:
    with pytest.raises(InputError) as error:
        _read(tmp_path, text, **how)
    return str(error.value)


def test_a_nic_has_its_strict_classes_from_the_top_and_keeps_those_of_routing_and_notices() -> None:
    found = read_priority_map(DATA / "mlnx_qos.txt")
    assert [level.dscp for level in found.levels] == [40, 32, 24, 16, 8, 0]
    assert [level.pfc for level in found.levels] == [True, True, True, False, False, False]
    assert [level.traffic_class for level in found.reserved] == [7, 6]
    assert found.levels[0].tos == 160


def test_a_class_of_several_priorities_is_one_level_by_its_lossless_priority_else_its_least() -> None:
    found = read_priority_map(DATA / "mlnx_qos_few.txt")
    assert [(level.traffic_class, level.dscp) for level in found.levels] == [(3, 24), (0, 0)]
    assert [(level.traffic_class, level.service) for level in found.reserved] == [(6, "vendor")]
    assert any("levels 0 and 1 are served by weight" in said for said in warnings_of(found))


def test_a_switch_has_strict_queues_before_those_of_weights_and_names_what_has_no_flow_control() -> None:
    found = read_priority_map(DATA / "config_db.json")
    assert [(level.traffic_class, level.dscp) for level in found.levels] == [
        (4, 4),
        (3, 3),
        (5, 46),
        (2, 5),
        (1, 0),
        (0, 8),
    ]
    assert [level.traffic_class for level in found.reserved] == [6]
    said = warnings_of(found)
    assert any("level 2 (DSCP 46, traffic class 5) has no PFC, where levels 0 and 1 have it" in each for each in said)
    assert warnings_of(for_levels(found, 2)) == ()


def test_fewer_levels_than_there_are_take_those_with_flow_control_first() -> None:
    found = read_priority_map(DATA / "config_db.json", reserved=())
    assert [level.pfc for level in for_levels(found, 3).levels] == [True, True, False]


def test_flow_control_comes_before_urgency_and_the_order_stays(tmp_path: Path) -> None:
    strict = _with(SWITCH, "SCHEDULER", {"scheduler.0": {"type": "STRICT"}, "scheduler.1": {"type": "STRICT"}})
    found = _read(tmp_path, json.dumps(strict))
    assert [level.traffic_class for level in found.levels] == [5, 4, 3, 2, 1, 0]
    assert [level.traffic_class for level in for_levels(found, 3).levels] == [5, 4, 3]
    assert [level.traffic_class for level in for_levels(found, 2).levels] == [4, 3]


def test_a_map_of_an_older_release_names_its_tables_in_brackets(tmp_path: Path) -> None:
    ports = {
        "Ethernet0,Ethernet4": {
            "dscp_to_tc_map": "[DSCP_TO_TC_MAP|AZURE]",
            "tc_to_queue_map": "[TC_TO_QUEUE_MAP:AZURE]",
            "pfc_enable": "3,4",
        }
    }
    found = _read(tmp_path, json.dumps(_with(SWITCH, "PORT_QOS_MAP", ports)))
    assert [level.pfc for level in found.levels] == [True, True, False, False, False, False]


def test_ports_that_differ_are_named(tmp_path: Path) -> None:
    other = {**SWITCH["PORT_QOS_MAP"], "Ethernet8": {"dscp_to_tc_map": "AZURE", "tc_to_queue_map": "AZURE"}}
    found = _read(tmp_path, json.dumps(_with(SWITCH, "PORT_QOS_MAP", other)))
    assert any("Ethernet8 are set otherwise" in said for said in found.warnings)


def test_a_switch_without_ports_has_its_only_maps(tmp_path: Path) -> None:
    text = json.dumps({"DSCP_TO_TC_MAP": {"A": {"26": "3", "0": "0"}}, "TC_TO_QUEUE_MAP": {"A": {"3": "3", "0": "0"}}})
    found = _read(tmp_path, text)
    assert found.levels == (
        MapLevel(dscp=26, traffic_class=3, priority=3, pfc=False),
        MapLevel(dscp=0, traffic_class=0, priority=0, pfc=False),
    )
    assert warnings_of(found) == ()


def test_a_service_that_may_set_nics_otherwise_is_warned_of(tmp_path: Path) -> None:
    said = "****** WARNING: lldpad service is running and may overwrite your settings ******\n\n"
    nic = (DATA / "mlnx_qos.txt").read_text(encoding="utf-8")
    path = tmp_path / "nics.txt"
    path.write_text(f"{said}{nic}{said}{nic}", encoding="utf-8")
    (warned,) = read_priority_map(path).warnings
    assert "lldpad runs on a host" in warned


def test_a_global_class_is_warned_of_with_its_device(tmp_path: Path) -> None:
    found = _read(tmp_path, NIC + "/sys/class/infiniband/mlx5_2/tc/1/traffic_class:Global tclass=106\n")
    assert any("mlx5_2 has a global traffic_class of 106 (DSCP 26)" in said for said in found.warnings)
    assert any("an mlx5 device" in said for said in _read(tmp_path, "Global tclass=160\n" + NIC).warnings)


def test_nics_that_differ_are_named(tmp_path: Path) -> None:
    assert _read(tmp_path, NIC + NIC).warnings == ()
    other = NIC.replace("enabled     0   0   0   1", "enabled     0   0   0   0")
    assert any("NIC 2 of the file" in said for said in _read(tmp_path, NIC + other).warnings)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("dscp:15,", "dscp:15,26,", "line 7: dscp: found DSCP 26 twice, of priority 1 and 3"),
        ("dscp:63,", "dscp:64,", "found '64', expected a number from 0 to 63"),
        ("prio:7", "prio:8", "prio: found 8"),
        ("Priority trust state: dscp", "Priority trust state: pcp", "trust dscp"),
        ("tsa: strict\n\t priority:  7", "tsa: cbs\n\t priority:  7", "tsa: found cbs"),
        (" priority:  7", " priority:  6", "priority 6 in traffic classes 6 and 7"),
        ("enabled     0   0", "enabled     0", "7 of them"),
    ],
)
def test_what_no_nic_says_is_refused_with_its_line(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert before in NIC
    assert said in _refused(tmp_path, NIC.replace(before, after, 1))


@pytest.mark.parametrize("end", ["Cable len", "Priority trust state", "dscp2prio"])
def test_a_text_cut_short_is_refused(tmp_path: Path, end: str) -> None:
    assert "expected" in _refused(tmp_path, NIC[: NIC.index(end) + len(end) + 3])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found neither"),
        ("interface Ethernet1\n  qos map dscp 26 to traffic-class 3\n", "found neither"),
        ("{}", "found no DSCP_TO_TC_MAP"),
        ("[1, 2]", "found no DSCP_TO_TC_MAP"),
        ('{"DSCP_TO_TC_MAP": {"A": {"26": "3"', "no JSON"),
        ('{"DSCP_TO_TC_MAP": {"A": {"26": "3", "26": "4"}}}', "26: found the key twice"),
        ('{"DSCP_TO_TC_MAP": {"A": {"26": "3", "026": "4"}}}', "26 twice"),
        ('{"DSCP_TO_TC_MAP": {"A": {"64": "3"}}}', "0 to 63"),
        ('{"DSCP_TO_TC_MAP": {"A": {"26": true}}}', "0 to 7"),
        ('{"DSCP_TO_TC_MAP": {"A": {}}}', "found nothing"),
        ('{"DSCP_TO_TC_MAP": {"A": {"1": "1"}, "B": {"1": "1"}}}', "2 maps"),
        ('{"DSCP_TO_TC_MAP": "AZURE"}', "expected an object"),
        ('{"DSCP_TO_TC_MAP": {"A": {"1": "1"}}, "PORT_QOS_MAP": {"Ethernet0": {"dscp_to_tc_map": "B"}}}', "found B"),
        ('{"DSCP_TO_TC_MAP": {"A": {"1": "1"}}, "PORT_QOS_MAP": {"Ethernet0": {"pfc_enable": "3;4"}}}', "pfc_enable"),
        ('{"DSCP_TO_TC_MAP": {"A": {"1": "1"}}, "QUEUE": {"Ethernet0|3": {"scheduler": "x"}}}', "SCHEDULER"),
    ],
)
def test_what_no_switch_says_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in _refused(tmp_path, text)


def test_reserved_classes_are_those_of_the_map_and_leave_one() -> None:
    nic = DATA / "mlnx_qos.txt"
    assert [level.traffic_class for level in read_priority_map(nic, reserved=(7, 5)).levels] == [6, 4, 3, 2, 1, 0]
    with pytest.raises(InputError, match="at least one traffic class left"):
        read_priority_map(nic, reserved=range(8))
    with pytest.raises(InputError, match="found 8 and 9"):
        read_priority_map(nic, reserved=(8, 9))


def test_more_levels_than_the_map_has_are_refused() -> None:
    found = read_priority_map(DATA / "mlnx_qos.txt")
    for levels in (0, -1, 7):
        with pytest.raises(InputError, match="the levels that the fabric leaves free"):
            for_levels(found, levels)


def test_an_assumed_map_says_so_and_takes_the_classes_of_control_last() -> None:
    assert [level.dscp for level in default_map(4).levels] == [40, 32, 24, 16]
    assert [level.dscp for level in default_map(7).levels] == [48, 40, 32, 24, 16, 8, 0]
    assert "48 usually carry" in default_map(7).warnings[0]
    assert default_map(1).assumed
    assert "usually" not in default_map(6).warnings[0]
    for levels in (0, 9):
        with pytest.raises(InputError, match="1 to 8"):
            default_map(levels)


def _with(tables: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    return {**tables, name: value}
