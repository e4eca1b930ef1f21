"""Texts that nobody wrote in good faith: readers answer with levels, with addresses, with bytes, or with InputError."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.contention.emitting.addresses import read_addresses
from planner.contention.emitting.counters import ETHTOOL, PERFQUERY, Bytes, CounterForm, read_counters
from planner.contention.emitting.map_files import deal, mlnx_qos_commands, sonic_tables
from planner.contention.emitting.priority_map import for_levels, read_lanes, read_priority_map, warnings_of
from profiles.errors import InputError

DATA = Path(__file__).parents[3] / "data" / "contention"
NIC = (DATA / "mlnx_qos.txt").read_text(encoding="utf-8").splitlines()
BEFORE = (DATA / "ethtool_before.txt").read_text(encoding="utf-8").splitlines()
LANES = (DATA / "perfquery_before.txt").read_text(encoding="utf-8").splitlines()
SUBNET = (DATA / "opensm.conf").read_text(encoding="utf-8").splitlines()
SWITCH = json.loads((DATA / "config_db.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "file"


def _answers(read: Callable[[Path], Any], file: Path, text: str) -> Any:
    file.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    try:
        return read(file)
    except InputError:
        return None


def _counted(path: Path, form: CounterForm) -> Bytes:
    return read_counters([path], form)


CHANGES = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["drop", "twice", "cut", "digits", "noise"]), st.integers(0, 60)),
    max_size=4,
)


def _changed(lines: list[str], changes: list[tuple[int, str, int]]) -> str:
    kept = list(lines)
    for place, what, where in changes:
        number = place % len(kept)
        line = kept[number]
        at = where % (len(line) + 1)
        match what:
            case "drop":
                kept[number] = ""
            case "twice":
                kept.insert(number, line)
            case "cut":
                kept[number] = line[:at]
            case "digits":
                kept[number] = line[:at] + "99999999999999999999" + line[at:]
            case _:
                kept[number] = line[:at] + "\x1b[31m\u0663;$(x)`" + line[at:]
    return "\n".join(kept) + "\n"


@given(changes=CHANGES)
def test_a_damaged_output_of_a_nic_is_read_or_refused(file: Path, changes: list[tuple[int, str, int]]) -> None:
    found = _answers(read_priority_map, file, _changed(NIC, changes))
    if found is not None:
        numbers = [level.traffic_class for level in (*found.levels, *found.reserved)]
        assert len(set(numbers)) == len(numbers)
        assert all(0 <= level.dscp <= 63 and 0 <= level.priority <= 7 for level in found.levels)


@given(changes=CHANGES)
def test_a_damaged_file_of_a_subnet_manager_is_read_or_refused(file: Path, changes: list[tuple[int, str, int]]) -> None:
    found = _answers(read_lanes, file, _changed(SUBNET, changes))
    if found is not None:
        lanes = [level.traffic_class for level in (*found.levels, *found.reserved)]
        assert len(set(lanes)) == len(lanes) <= 15
        assert all(0 <= level.priority <= 15 for level in found.levels)


@given(changes=CHANGES)
def test_damaged_counters_are_read_or_refused(file: Path, changes: list[tuple[int, str, int]]) -> None:
    for lines, form in ((BEFORE, ETHTOOL), (LANES, PERFQUERY)):
        text = _changed([*lines, *lines], changes)
        found = _answers(partial(_counted, form=form), file, text)
        assert found is None or all(sent >= 0 for sent in found.values())
        assert found is None or all(0 <= priority < form.priorities for _, priority in found)


@given(text=st.text(max_size=200))
def test_any_text_is_read_or_refused(file: Path, text: str) -> None:
    safe = text.encode("utf-8", "ignore").decode("utf-8")
    for read in (read_priority_map, read_lanes, read_addresses, lambda path: read_counters([path], PERFQUERY)):
        _answers(read, file, safe)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 99) | st.sampled_from(["3", "AZURE", "3,4", "[X|AZURE]", "STRICT", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["AZURE", "0", "26", "x"]), inner),
    max_leaves=6,
)


@given(table=st.sampled_from(sorted(SWITCH)), value=VALUES)
def test_a_switch_with_a_table_of_anything_is_read_or_refused(file: Path, table: str, value: Any) -> None:
    _answers(read_priority_map, file, json.dumps({**SWITCH, table: value}))


MAPS = st.builds(
    lambda classes, queues, pauses, pfc: json.dumps(
        {
            "DSCP_TO_TC_MAP": {"M": {str(dscp): str(number) for dscp, number in enumerate(classes)}},
            "TC_TO_QUEUE_MAP": {"M": {str(number): str(queue) for number, queue in enumerate(queues)}},
            "MAP_PFC_PRIORITY_TO_QUEUE": {"M": {str(number): str(queue) for number, queue in enumerate(pauses)}},
            "PORT_QOS_MAP": {
                "Ethernet0": {
                    "dscp_to_tc_map": "M",
                    "tc_to_queue_map": "M",
                    "pfc_to_queue_map": "M",
                    "pfc_enable": ",".join(map(str, pfc)),
                }
            },
        }
    ),
    st.lists(st.integers(0, 7), min_size=64, max_size=64),
    st.permutations(range(8)),
    st.permutations(range(8)),
    st.sets(st.integers(0, 7)),
)


@given(text=MAPS)
def test_every_map_is_a_level_for_each_queue_and_what_is_written_of_it_is_read_back(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    whole = read_priority_map(file, reserved=())
    tables = json.loads(text)
    classes = {int(dscp): int(number) for dscp, number in tables["DSCP_TO_TC_MAP"]["M"].items()}
    assert {level.traffic_class for level in whole.levels} == set(classes.values())
    assert all(classes[level.dscp] == level.traffic_class for level in whole.levels)
    for levels in range(1, len(whole.levels) + 1):
        chosen = for_levels(whole, levels)
        lossless = sum(bool(level.pfc) for level in whole.levels)
        assert sum(bool(level.pfc) for level in chosen.levels) == min(levels, lossless)
        warned = sum("has no PFC" in said for said in warnings_of(chosen))
        assert warned == (sum(not level.pfc for level in chosen.levels) if lossless else 0)
    dealt = deal(whole)
    queues = [dealt.queues[level.priority] for level in dealt.levels]
    assert queues == sorted(set(queues), reverse=True)
    assert sorted(dealt.queues) == list(range(8))
    assert all((level.priority in dealt.lossless) == level.pfc for level in dealt.levels)
    assert all(dealt.priority_of_dscp[level.dscp] == level.priority for level in dealt.levels)
    written = json.loads(sonic_tables(whole))
    by_dscp = written["DSCP_TO_TC_MAP"]["CELLPLAN"]
    assert all(by_dscp[str(level.dscp)] == str(level.priority) for level in dealt.levels)
    file.write_text(json.dumps(written), encoding="utf-8")
    again = read_priority_map(file, reserved=())
    queues_again = {level.traffic_class: place for place, level in enumerate(again.levels)}
    classes_again = dict(again.class_of_dscp)
    read = [again.levels[queues_again[classes_again[level.dscp]]] for level in dealt.levels]
    assert [level.pfc for level in read] == [level.pfc for level in dealt.levels]
    places = [queues_again[classes_again[level.dscp]] for level in dealt.levels]
    assert places == sorted(set(places))
    assert {dscp: classes_again[dscp] == classes_again[level.dscp] for level in dealt.levels for dscp in classes} == {
        dscp: classes[dscp] == classes[level.dscp] for level in dealt.levels for dscp in classes
    }
    commands = mlnx_qos_commands(whole)
    assert all(f"--dscp2prio set,{level.dscp},{level.priority}\n" in commands for level in dealt.levels)
