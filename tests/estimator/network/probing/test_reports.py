"""Traces in the words of mtr and traceroute, and what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from estimator.network.probing.hops import Trace
from estimator.network.probing.reports import read_traces
from profiles.errors import InputError

TRACEROUTE = """traceroute to gpu5 (10.0.9.2), 30 hops max, 60 byte packets
 1  leaf0 (10.0.1.2)  0.215 ms  0.187 ms  0.181 ms
 2  * spine1.dc.example (10.0.3.2)  0.412 ms *
 3  10.0.5.2  0.530 ms !N
 4  * * *
 5  gpu5 (10.0.9.2)  0.690 ms  0.671 ms  0.668 ms
"""
NUMBERS = """traceroute to 10.0.9.2 (10.0.9.2), 30 hops max
 1  10.0.1.2  0.2 ms  0.1 ms
 2  * * *
"""


def mtr(*hosts: str, dst: str = "gpu5") -> dict[str, Any]:
    """What `mtr --json` prints, some of its figures left out."""
    hubs = [{"count": number, "host": host, "Loss%": 0.0, "Avg": 0.3} for number, host in enumerate(hosts, start=1)]
    about = {"src": "gpu1", "dst": dst, "tos": 0, "tests": 10, "psize": "64", "bitpattern": "0x00"}
    return {"report": {"mtr": about, "hubs": hubs}}


def test_traceroute() -> None:
    (trace,) = read_traces(TRACEROUTE, "t.txt", 50_001)
    assert trace == Trace(
        port=50_001,
        hops=(("leaf0", "10.0.1.2"), ("spine1.dc.example", "10.0.3.2"), ("10.0.5.2",), ()),
        arrived=True,
    )
    (silent,) = read_traces(NUMBERS, "t.txt", 7)
    assert silent == Trace(port=7, hops=(("10.0.1.2",),), arrived=False)


def test_mtr() -> None:
    text = json.dumps(mtr("leaf0 (10.0.1.2)", "???", "leaf1", "gpu5"), indent=4)
    assert read_traces(text, "m.json", 50_002) == [
        Trace(port=50_002, hops=(("leaf0", "10.0.1.2"), (), ("leaf1",)), arrived=True)
    ]
    lost = json.dumps(mtr("leaf0", "???", "???"))
    assert read_traces(lost, "m.json", 9) == [Trace(port=9, hops=(("leaf0",),), arrived=False)]


def test_a_script_s_output_has_a_trace_after_each_command() -> None:
    text = "".join(
        [
            "+ traceroute -U --sport=50010 -p 4791 gpu5\n",
            TRACEROUTE,
            "+ sudo /usr/sbin/traceroute -U --sport 50011 -p 4791 10.0.9.2\n",
            NUMBERS,
            "$ mtr --json --udp --localport 50012 --port 4791 gpu5\n",
            json.dumps(mtr("leaf0", "spine0", "leaf1", "gpu5"), indent=2),
            "\n+ mtr -j -u -L 50013 gpu5\n",
            json.dumps(mtr("leaf0", "spine1", "leaf1", "gpu5")),
        ]
    )
    traces = read_traces(text, "log.txt")
    assert [trace.port for trace in traces] == [50_010, 50_011, 50_012, 50_013]
    assert [len(trace.hops) for trace in traces] == [4, 1, 3, 3]


@pytest.mark.parametrize(
    ("text", "port", "found"),
    [
        ("", 1, "no trace"),
        ("hello", 1, "no trace"),
        (TRACEROUTE, None, "no source port"),
        (TRACEROUTE + NUMBERS, 1, "2 traces of port 1"),
        ("+ traceroute --sport=99999 gpu5\n" + NUMBERS, None, "no source port"),
        (TRACEROUTE.replace(" 3  10", " 4  10"), 1, "hop 4 after 2"),
        (TRACEROUTE.replace("0.412 ms *", "0.412 ms spine0 (10.0.2.2)  0.4 ms"), 1, "2 hosts at hop 2"),
        (TRACEROUTE.replace("* * *", "nobody is here"), 1, "'nobody is here' at hop 4"),
        ('{"report": ', 1, "no JSON"),
        ('{"report": {}}', 1, "no report of mtr"),
        ('{"report": {"mtr": {}, "hubs": [1]}}', 1, "no report of mtr"),
        ('{"report": {"mtr": {}, "hubs": [{"count": 1}]}}', 1, "a hub without a host"),
        ("[" * 100_000, 1, "no trace"),
        ("{" * 100_000, 1, "no JSON"),
    ],
)
def test_what_is_no_trace(text: str, port: int | None, found: str) -> None:
    with pytest.raises(InputError) as caught:
        read_traces(text, "here.txt", port)
    assert found in str(caught.value.found)
    assert caught.value.where == "here.txt"
