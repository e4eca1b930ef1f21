"""The tables for a SONiC switch, merged into what it has, as `config load` does: what levels get, what others keep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.contention.emitting.map_files import sonic_tables
from planner.contention.emitting.priority_map import for_levels, read_priority_map

Tables = dict[str, Any]
DATA = Path(__file__).parents[3] / "data" / "contention"
PORT = "Ethernet0"


def _switch(
    classes: list[int], queues: list[int], pauses: list[int], pfc: set[int], services: list[str | None]
) -> Tables:
    """A switch of one port; queues of no service have no entry."""
    return {
        "DSCP_TO_TC_MAP": {"M": {str(dscp): str(number) for dscp, number in enumerate(classes)}},
        "TC_TO_QUEUE_MAP": {"M": {str(number): str(queue) for number, queue in enumerate(queues)}},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"M": {str(number): str(queue) for number, queue in enumerate(pauses)}},
        "SCHEDULER": {"S": {"type": "STRICT"}, "W": {"type": "DWRR", "weight": "10"}},
        "QUEUE": {
            f"{PORT}|{queue}": {"scheduler": service} for queue, service in enumerate(services) if service is not None
        },
        "PORT_QOS_MAP": {
            PORT: {
                "dscp_to_tc_map": "M",
                "tc_to_queue_map": "M",
                "pfc_to_queue_map": "M",
                "pfc_enable": ",".join(map(str, sorted(pfc))),
                "pfcwd_sw_enable": "3",
            }
        },
    }


SWITCHES = st.builds(
    _switch,
    st.lists(st.integers(0, 7), min_size=64, max_size=64),
    st.permutations(range(8)),
    st.permutations(range(8)),
    st.sets(st.integers(0, 7)),
    st.lists(st.sampled_from(["S", "W"]), min_size=8, max_size=8),
)


def _loaded(tables: Tables, more: Mapping[str, Any]) -> Tables:
    """Fields of an entry that is there are set, the others stay."""
    merged = {name: {key: dict(own) for key, own in table.items()} for name, table in tables.items()}
    for name, table in more.items():
        for key, own in table.items():
            merged.setdefault(name, {}).setdefault(key, {}).update(own)
    return merged


class Port:
    """Where packets of a DSCP go on the port of a switch."""

    def __init__(self, tables: Tables) -> None:
        bound = tables["PORT_QOS_MAP"][PORT]
        self.kept = bound["pfcwd_sw_enable"]
        self._class = tables["DSCP_TO_TC_MAP"][bound["dscp_to_tc_map"]]
        self._queue = tables["TC_TO_QUEUE_MAP"][bound["tc_to_queue_map"]]
        pauses = tables["MAP_PFC_PRIORITY_TO_QUEUE"][bound["pfc_to_queue_map"]]
        self._lossless = {pauses[priority] for priority in bound.get("pfc_enable", "").split(",") if priority}
        self._service = {
            key.split("|")[1]: tables["SCHEDULER"][own["scheduler"]]["type"] for key, own in tables["QUEUE"].items()
        }

    def queue(self, dscp: int) -> str:
        queue: str = self._queue[self._class[str(dscp)]]
        return queue

    def is_strict(self, dscp: int) -> bool:
        return bool(self._service[self.queue(dscp)] == "STRICT")

    def is_lossless(self, dscp: int) -> bool:
        return self.queue(dscp) in self._lossless

    def place(self, dscp: int) -> tuple[bool, int]:
        """How early its packets are served: strict queues by number, then all others."""
        return not self.is_strict(dscp), -int(self.queue(dscp))


def _alike(port: Port) -> list[tuple[int, int]]:
    """Each DSCP with the first of its queue."""
    first: dict[str, int] = {}
    return [(dscp, first.setdefault(port.queue(dscp), dscp)) for dscp in range(64)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("switch") / "config_db.json"


@given(tables=SWITCHES, levels=st.integers(1, 8), reserved=st.sets(st.integers(0, 7), max_size=3))
def test_levels_are_served_in_turn_and_other_traffic_keeps_its_place(
    file: Path, tables: Tables, levels: int, reserved: set[int]
) -> None:
    file.write_text(json.dumps(tables), encoding="utf-8")
    there = read_priority_map(file, reserved=())
    kept = reserved & {level.traffic_class for level in there.levels}
    whole = read_priority_map(file, reserved=sorted(kept)) if len(kept) < len(there.levels) else there
    of = for_levels(whole, min(levels, len(whole.levels)))
    now, then = Port(tables), Port(_loaded(tables, json.loads(sonic_tables(of))))
    places = [then.place(level.dscp) for level in of.levels]
    assert places == sorted(set(places)), "each level before the next"
    assert all(then.is_strict(level.dscp) for level in of.levels)
    assert [then.is_lossless(dscp) for dscp in range(64)] == [now.is_lossless(dscp) for dscp in range(64)]
    assert then.kept == now.kept
    own = {now.queue(level.dscp) for level in of.levels}
    assert all(then.queue(dscp) == then.queue(other) for dscp, other in _alike(now))
    each = {now.queue(dscp): dscp for dscp in range(64)}.values()
    for one in each:
        for other in each:
            assert (now.queue(one) == now.queue(other)) == (then.queue(one) == then.queue(other))
            strict = all(now.queue(dscp) in own or now.is_strict(dscp) for dscp in (one, other))
            if strict and now.is_strict(one) and now.is_strict(other):
                assert (now.place(one) < now.place(other)) == (then.place(one) < then.place(other))
        if now.queue(one) not in own:
            assert then.is_strict(one) == now.is_strict(one)


def test_a_real_switch_keeps_its_watchdog_and_its_buffers_classes() -> None:
    tables = json.loads((DATA / "config_db.json").read_text(encoding="utf-8"))
    merged = _loaded(tables, json.loads(sonic_tables(for_levels(read_priority_map(DATA / "config_db.json"), 2))))
    assert merged["PORT_QOS_MAP"][PORT]["pfcwd_sw_enable"] == "3,4"
    assert merged["PORT_QOS_MAP"][PORT]["pfc_enable"] == "3,4"
    assert merged["QUEUE"][f"{PORT}|3"]["wred_profile"] == "AZURE_LOSSLESS"
    assert merged["QUEUE"][f"{PORT}|3"]["scheduler"] == "CELLPLAN.strict"
    assert merged["QUEUE"][f"{PORT}|5"]["scheduler"] == "scheduler.0"
