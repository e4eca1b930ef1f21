"""NETWORK_POLICIES.md: its example runs as it stands there, and its tables name what there is."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from textwrap import dedent

import pytest

from planner import api
from planner.contention.policies.records import Contender, Decision
from tests.imports import ROOT

FOLDER = ROOT / "planner/contention/policies"
GUIDE = (FOLDER / "NETWORK_POLICIES.md").read_text(encoding="utf-8")
CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 8, device: h100, names: "gpu[1-8]"}]
    fabric: {link: roce400, topology: {kind: clos2, leaves: 2, spines: 1, cables: 1}}
"""
JOBS = "schema: cellplan.jobs/1\njobs:\n" + "".join(
    f"  - {{id: {name}, hosts: 'gpu[{first},{first + 4}]', gpus: '0',"
    f" traffic: {{compute_s: 1.0, bytes: {size}, flops: 1.0e+15}}}}\n"
    for name, first, size in (("big", 1, 6.0e10), ("small", 2, 1.0e10), ("middle", 3, 3.0e10))
)


def example() -> str:
    """The guide's first indented block of Python."""
    (block,) = re.findall(r"^    # mine\.py\n((?:    .*\n|\n)*?)(?=\n    \$)", GUIDE, flags=re.MULTILINE)
    return dedent(block)


def test_the_example_is_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(example(), encoding="utf-8")
    (tmp_path / "c.yaml").write_text(CLUSTER, encoding="utf-8")
    (tmp_path / "jobs.yaml").write_text(JOBS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    for alone, expected in ((1, [1, 0, 1]), (2, [2, 0, 1])):
        found = api.contention(
            tmp_path / "jobs.yaml",
            cluster="c.yaml",
            levels=4,
            jitter=0.0,
            policy="mine:SmallestFirst",
            policy_option={"alone": alone},
        )
        assert [job["level"] for job in found["jobs"]] == expected
        assert [job["priority"] for job in found["jobs"]] == [2, 0, 1]


@pytest.mark.parametrize("record", [Contender, Decision])
def test_every_field_is_told(record: type) -> None:
    assert [field.name for field in fields(record) if f"`{field.name}`" not in GUIDE] == []


def test_what_it_links_to_and_names_is_there() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.py")}
    assert set(re.findall(r"\]\((\w+\.py)\)", GUIDE)) <= set(sources)
    rows = GUIDE.split("**What helps**")[1].split("**What it answers**")[0]
    named = set(re.findall(r"`(\w+)\(", rows))
    found = (re.findall(r"^(?:def|class) (\w+)", text, flags=re.MULTILINE) for text in sources.values())
    assert named - {name for its in found for name in its} == set()
    assert len(named) >= 10
