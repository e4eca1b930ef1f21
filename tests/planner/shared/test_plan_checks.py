"""A plan file against what it names, by every command that reads one: its model, its model's sizes, its places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import api
from planner.cli.main import main

READERS = (
    ("estimate", "--plan", "plan.json"),
    ("export", "plan.json", "--to", "megatron"),
    ("export", "plan.json", "--to", "slurm"),
    ("run", "plan.json", "--device", "cpu", "--threads", "100000"),
)
CONTRADICTIONS = {
    "another model": (("model", "reference"), "llama3-8b", "model.sizes: found layers=6, expected 34, as llama3-8b"),
    "a name of another": (
        ("model", "name"),
        "llama3-8b",
        "model.name: found 'llama3-8b', expected gpt-tiny, as gpt-tiny",
    ),
    "no optimizer": (("optimizer",), "lion", "optimizer: found "),
    "no model": (("model", "reference"), "gpt-tny", "model.reference: found 'gpt-tny', expected a zoo name such as"),
    "fewer parameters": (("model", "sizes", "parameters"), 5, "model.sizes: found parameters=5, expected"),
    "no tokens": (("model", "seq_len"), None, "model.seq_len: found null, expected tokens of a sample, such as 128"),
    "too many tokens": (("model", "seq_len"), 10**7, "model.seq_len: found embedding: 10000000 tokens"),
    "no cluster": (("cluster",), "nonsense", "cluster: found 'nonsense', expected NAME:NODESxDEVICES"),
    "another cluster": (("cluster",), "h100:1x4", "devices[0].device: found a100-80gb, expected h100"),
    "a place beyond": (("devices", 1, "index"), 99, "devices[1]: found node 0, index 99 of site"),
    "a node beyond": (("devices", 1, "node"), 9, "devices[1]: found node 9, index 1 of site"),
    "no site": (("devices", 0, "site"), "mars", "devices[0].site: found 'mars', expected a site of"),
}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    api.estimate("gpt-tiny", cluster="a100-80gb:1x4", dp=4, global_batch=16, output=path)
    value: dict[str, Any] = json.loads(path.read_text())
    return value


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_plan_that_contradicts_what_it_names_is_refused_by_its_file_and_key(
    plan: dict[str, Any],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    *steps, last = CONTRADICTIONS[name][0]
    changed = json.loads(json.dumps(plan))
    part = changed
    for step in steps:
        part = part[step]
    part[last] = CONTRADICTIONS[name][1]
    (tmp_path / "plan.json").write_text(json.dumps(changed))
    monkeypatch.chdir(tmp_path)
    for words in READERS:
        assert main(words) == 2
        assert capsys.readouterr().err.startswith(f"cellplan: error: plan.json: {CONTRADICTIONS[name][2]}")


def test_a_cluster_file_that_is_elsewhere_does_not_stop_an_export(
    plan: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "cluster": "a-colleagues.yaml"}))
    monkeypatch.chdir(tmp_path)
    assert main(READERS[1]) == 0
    assert main(READERS[0]) == 2
