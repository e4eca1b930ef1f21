"""Maps for NICs, switches and subnet managers, read by their tools where they are here, else held against what these
tools take."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from planner.contention.emitting.map_files import deal, mlnx_qos_commands, sonic_tables
from planner.contention.emitting.opensm import opensm_lines
from planner.contention.emitting.priority_map import (
    default_map,
    for_levels,
    read_priority_map,
    warnings_of,
)
from planner.contention.emitting.transports import service_levels
from profiles.records import replace

DATA = Path(__file__).parents[3] / "data" / "contention"
NIC = read_priority_map(DATA / "mlnx_qos.txt")
SWITCH = read_priority_map(DATA / "config_db.json")
MAPS = {
    "nic": NIC,
    "switch": SWITCH,
    "few": read_priority_map(DATA / "mlnx_qos_few.txt"),
    "two of a nic": for_levels(NIC, 2),
    "two of a switch": for_levels(SWITCH, 2),
    "assumed": default_map(3),
}


def test_commands_for_nics_give_back_the_map(tmp_path: Path) -> None:
    text = mlnx_qos_commands(NIC)
    lines = [line for line in text.splitlines() if line.startswith("mlnx_qos")]
    assert 'mlnx_qos -i "$INTERFACE" --dscp2prio set,40,5' in lines
    assert 'mlnx_qos -i "$INTERFACE" --pfc 0,0,0,1,1,1,0,0' in lines
    assert not any("--trust" in line and "--dscp2prio" in line for line in lines)
    assert "# mlnx_qos" in mlnx_qos_commands(default_map(3))
    path = tmp_path / "mlnx_qos.sh"
    path.write_text(text, encoding="utf-8")
    bash = shutil.which("bash")
    if bash is not None:
        assert subprocess.run([bash, "-n", str(path)], check=False, timeout=60).returncode == 0


def test_tables_for_switches_are_read_back_as_the_same_levels(tmp_path: Path) -> None:
    path = tmp_path / "sonic_qos.json"
    path.write_text(sonic_tables(replace(NIC, ports=("Ethernet0", "Ethernet4"))), encoding="utf-8")
    again = read_priority_map(path, reserved=(6, 7))
    assert [(level.dscp, level.priority, level.pfc) for level in again.levels] == [
        (level.dscp, level.priority, level.pfc) for level in NIC.levels
    ]
    assert {level.service for level in again.levels} == {"strict"}
    unbound = json.loads(sonic_tables(default_map(2)))
    assert "PORT_QOS_MAP" not in unbound
    assert unbound["DSCP_TO_TC_MAP"]["CELLPLAN"]["40"] == "5"


def test_a_written_map_serves_levels_in_turn_and_keeps_flow_control_with_the_level() -> None:
    switch = read_priority_map(DATA / "config_db.json")
    dealt = deal(switch)
    assert dealt.levels == switch.levels
    assert [dealt.queues[level.priority] for level in dealt.levels] == [5, 4, 3, 2, 1, 0]
    assert dealt.lossless == {3, 4}
    assert dealt.moved == (3, 4), "README.md names them: what is set by queue goes with them"
    assert deal(MAPS["two of a switch"]).moved == ()
    assert deal(NIC).levels == NIC.levels
    assert deal(NIC).queues == tuple(range(8))


def test_tables_are_bound_to_the_ports_of_the_switch_that_was_read() -> None:
    tables = json.loads(sonic_tables(read_priority_map(DATA / "config_db.json")))
    assert list(tables["PORT_QOS_MAP"]) == ["Ethernet0", "Ethernet4", "Ethernet8", "Ethernet12"]
    assert tables["PORT_QOS_MAP"]["Ethernet0"]["pfc_enable"] == "3,4"
    assert tables["QUEUE"]["Ethernet4|5"] == {"scheduler": "CELLPLAN.strict"}


@pytest.mark.parametrize("name", MAPS)
def test_commands_are_those_that_mlnx_qos_takes(name: str) -> None:
    facts = json.loads((DATA / "mlnx_qos_options.json").read_text(encoding="utf-8"))
    lines = [line.lstrip("# ") for line in mlnx_qos_commands(MAPS[name]).splitlines()]
    calls = [shlex.split(line, comments=True) for line in lines if line.startswith('mlnx_qos -i "$INTERFACE" --')]
    assert len(calls) == 3 + len(MAPS[name].levels)
    for call in calls:
        own = dict(zip(call[1::2], call[2::2], strict=True))
        assert all(re.fullmatch(facts["options"][option], value) for option, value in own.items())
        assert not any(set(pair) <= set(own) for pair in facts["not_together"])
    order = [call[3] for call in calls]
    assert order[:3] == ["--prio_tc", "--pfc", "--trust"], "nothing leads to a priority before it is what it will be"


def test_priorities_of_one_class_stay_together_and_no_flow_control_goes() -> None:
    dealt = deal(MAPS["few"])
    (shared,) = {dealt.queues[priority] for priority in (0, 1, 2, 4, 5, 7)}
    assert [dealt.queues[level.priority] for level in dealt.levels] == [3, shared]
    assert dealt.lossless == {3}
    for one, lossless in ((NIC, {3, 4, 5}), (SWITCH, {3, 4})):
        for levels in range(1, len(one.levels) + 1):
            chosen = for_levels(one, levels)
            assert deal(chosen).lossless == lossless
            assert {*chosen.levels, *chosen.unused} == set(one.levels)


def test_dscps_of_no_level_stay_where_they_were() -> None:
    tables = json.loads(sonic_tables(MAPS["two of a switch"]))
    now = json.loads((DATA / "config_db.json").read_text(encoding="utf-8"))["DSCP_TO_TC_MAP"]["AZURE"]
    assert tables["DSCP_TO_TC_MAP"]["CELLPLAN"] == now
    assert tables["TC_TO_QUEUE_MAP"]["CELLPLAN"] == {str(number): str(number) for number in range(8)}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("ports", [(), ("Ethernet0", "Ethernet4")])
def test_tables_are_those_of_sonics_models(name: str, ports: tuple[str, ...]) -> None:
    facts = json.loads((DATA / "sonic_fields.json").read_text(encoding="utf-8"))
    tables = json.loads(sonic_tables(replace(MAPS[name], ports=ports)))
    assert set(tables) <= {*facts["maps"], *facts["leaves"]}
    for table, (key, value) in facts["maps"].items():
        for map_name, entries in tables.get(table, {}).items():
            assert re.fullmatch(facts["map_name"], map_name)
            assert all(re.fullmatch(key, one) and re.fullmatch(value, other) for one, other in entries.items())
    for table, leaves in facts["leaves"].items():
        refers = facts["refers"].get(table, {})
        for row in tables.get(table, {}).values():
            for leaf, text in row.items():
                assert text in tables[refers[leaf]] if leaf in refers else re.fullmatch(leaves[leaf], text)
    assert all(re.fullmatch(facts["queue_key"], key) for key in tables.get("QUEUE", {}))
    assert {key.split("|")[0] for key in tables.get("QUEUE", {})} == set(ports)


def _options(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.split(" ") for line in lines)


@pytest.mark.parametrize("levels", range(1, 9))
def test_the_subnet_manager_gives_each_service_level_a_lane(levels: int) -> None:
    of = service_levels(levels)
    options = _options(opensm_lines(of))
    lanes = [int(lane) for lane in options["qos_sl2vl"].split(",")]
    assert len(lanes) == 16
    assert [lanes[level.priority] for level in of.levels] == list(range(levels))[::-1]
    assert set(lanes[levels:]) <= {0}, "what has no level goes with the last one"
    high = dict(pair.split(":") for pair in options["qos_vlarb_high"].split(","))
    low = dict(pair.split(":") for pair in options["qos_vlarb_low"].split(","))
    assert list(high) == [str(levels - 1)]
    assert set(high) | set(low) == {str(lane) for lane in lanes}
    weights = [int(weight) for weight in low.values()]
    assert weights == sorted(weights, reverse=True)
    assert all(weight % 64 == 0 and 0 < weight <= 255 for weight in weights), "whole packets of 4 KiB"
    assert (options["qos"], options["qos_max_vls"], options["qos_high_limit"]) == ("TRUE", str(levels), "255")


def test_more_than_two_levels_of_infiniband_are_not_served_strictly_in_turn() -> None:
    assert not any("by weight" in said for said in warnings_of(service_levels(2)))
    assert any(said.startswith("levels 1, 2 and 3 are served by weight") for said in warnings_of(service_levels(4)))


@pytest.mark.parametrize("levels", [1, 2, 4, 8])
def test_opensm_reads_its_lines(levels: int, tmp_path: Path) -> None:
    opensm = shutil.which("opensm", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if opensm is None:
        pytest.skip("opensm is not installed")
    text = opensm_lines(service_levels(levels))
    asked, read = tmp_path / "asked.conf", tmp_path / "read.conf"
    asked.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [opensm, "-F", str(asked), "-c", str(read)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Warning" not in done.stdout
    assert "Invalid Cached Option: qos_max" not in done.stdout
    kept = {
        words[0]: words[1] for line in read.read_text(encoding="utf-8").splitlines() if len(words := line.split()) == 2
    }
    assert {key: kept[key] for key in _options(text)} == _options(text)
