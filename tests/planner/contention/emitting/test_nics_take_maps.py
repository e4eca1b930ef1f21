"""The commands for a NIC, run on a stand-in that keeps what they set: what levels get, what other traffic keeps."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.contention.emitting.map_files import mlnx_qos_commands
from planner.contention.emitting.priority_map import PriorityMap, default_map, for_levels, read_priority_map
from profiles.errors import InputError

EIGHT = range(8)


@dataclass(kw_only=True)
class Nic:
    """What mlnx_qos says and sets: the priority of each DSCP, flow control and class of each priority, each class's
    service."""

    priorities: list[int]
    pfc: list[int]
    classes: list[int]
    services: list[str]

    def text(self) -> str:
        lines = ["Priority trust state: dscp", "dscp2prio mapping:"]
        for priority in EIGHT:
            dscps = [f"{dscp:02d}," for dscp, own in enumerate(self.priorities) if own == priority]
            lines += [f"\tprio:{priority} dscp:{''.join(dscps[at : at + 8])}" for at in range(0, len(dscps), 8)]
        lines += ["PFC configuration:", f"\tenabled     {'   '.join(map(str, self.pfc))}"]
        for number in EIGHT:
            if number in self.classes:
                lines.append(f"tc: {number} ratelimit: unlimited, tsa: {self.services[number]}")
                lines += [f"\t priority:  {priority}" for priority in EIGHT if self.classes[priority] == number]
        return "\n".join(lines) + "\n"

    def run(self, script: str) -> None:
        """Do what the lines say, in their order."""
        for line in script.splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] != ["mlnx_qos", "-i"]:
                continue
            for option, value in zip(words[3::2], words[4::2], strict=True):
                own = value.split(",")
                match option:
                    case "--prio_tc":
                        self.classes = [int(number) for number in own]
                    case "--tsa":
                        self.services = own
                    case "--pfc":
                        self.pfc = [int(bit) for bit in own]
                    case "--dscp2prio":
                        self.priorities[int(own[1])] = int(own[2])

    def place(self, dscp: int) -> tuple[int, int]:
        """How early packets of a DSCP are served: by the kind of their class, then by its number, the highest first."""
        number = self.classes[self.priorities[dscp]]
        return ("vendor", "strict", "ets").index(self.services[number]), -number

    def is_lossless(self, dscp: int) -> bool:
        return bool(self.pfc[self.priorities[dscp]])


NICS = st.builds(
    Nic,
    priorities=st.lists(st.integers(0, 7), min_size=64, max_size=64),
    pfc=st.lists(st.integers(0, 1), min_size=8, max_size=8),
    classes=st.lists(st.integers(0, 7), min_size=8, max_size=8),
    services=st.lists(st.sampled_from(["strict", "ets", "vendor"]), min_size=8, max_size=8),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nic") / "mlnx_qos.txt"


def _maps(file: Path, text: str) -> list[PriorityMap]:
    """What a plan of any number of levels has of a NIC."""
    file.write_text(text, encoding="utf-8")
    try:
        whole = read_priority_map(file)
    except InputError:
        return []
    return [for_levels(whole, levels) for levels in range(1, len(whole.levels) + 1)]


@given(nic=NICS)
def test_levels_are_served_in_turn_and_other_traffic_keeps_its_place(file: Path, nic: Nic) -> None:
    for of in _maps(file, nic.text()):
        told = Nic(**{name: list(own) for name, own in vars(nic).items()})
        told.run(mlnx_qos_commands(of))
        chosen = [level.dscp for level in of.levels]
        places = [told.place(dscp) for dscp in chosen]
        assert places == sorted(set(places)), "each level before the next"
        assert set(told.services) == {"strict"}
        assert told.pfc == nic.pfc
        assert [told.is_lossless(dscp) for dscp in range(64)] == [nic.is_lossless(dscp) for dscp in range(64)]
        assert told.priorities == nic.priorities, "levels are queues that there are, by the DSCPs that lead there"
        for one in range(64):
            before, after = nic.place(one), told.place(one)
            assert all((nic.place(other) < before) == (told.place(other) < after) for other in range(64))


def test_an_assumed_map_leads_where_it_says() -> None:
    nic = Nic(priorities=[0] * 64, pfc=[0] * 8, classes=[0] * 8, services=["ets"] * 8)
    of = default_map(3)
    nic.run(mlnx_qos_commands(of))
    assert [nic.priorities[level.dscp] for level in of.levels] == [5, 4, 3]
    assert [nic.place(level.dscp) for level in of.levels] == [(1, -5), (1, -4), (1, -3)]
    assert nic.pfc == [0] * 8, "which are lossless nobody said"


def test_a_nic_that_was_told_is_read_as_the_same_levels(file: Path, tmp_path: Any) -> None:
    nic = Nic(
        priorities=[dscp // 8 for dscp in range(64)],
        pfc=[0, 0, 0, 1, 1, 0, 0, 0],
        classes=[0, 0, 1, 3, 2, 4, 5, 6],
        services=["ets", "ets", "strict", "strict", "ets", "strict", "strict", "strict"],
    )
    for of in _maps(file, nic.text()):
        told = Nic(**{name: list(own) for name, own in vars(nic).items()})
        told.run(mlnx_qos_commands(of))
        again = tmp_path / "again.txt"
        again.write_text(told.text(), encoding="utf-8")
        read = read_priority_map(again)
        dscps = [level.dscp for level in read.levels]
        assert [dscp for dscp in dscps if dscp in {level.dscp for level in of.levels}] == [
            level.dscp for level in of.levels
        ]
