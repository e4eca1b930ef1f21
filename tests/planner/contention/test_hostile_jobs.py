"""What nobody should hand to `contention`: one message with the place, the key, what was found and what was expected;
exit status 2; and no file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 8, device: h100, nics: {count: 1, link: roce400}, names: "gpu[1-8]"}]
    fabric: {link: roce400, topology: {kind: clos2, leaves: 2, spines: 2}}
"""
HEAD = "schema: cellplan.jobs/1\njobs:\n"
TRAFFIC = {"compute_s": "0.3", "bytes": "1.0e+10", "flops": "2.0e+15"}


def one(**keys: str) -> str:
    """A list of a job with these keys in place of its own."""
    traffic = "{" + ", ".join(f"{key}: {value}" for key, value in TRAFFIC.items()) + "}"
    told = {"id": "a", "hosts": "'gpu[1,5]'", "traffic": traffic, **keys}
    return HEAD + "  - {" + ", ".join(f"{key}: {value}" for key, value in told.items() if value) + "}\n"


def sends(**keys: str) -> str:
    return one(traffic="{" + ", ".join(f"{key}: {value}" for key, value in {**TRAFFIC, **keys}.items()) + "}")


def two(**keys: str) -> str:
    """Beside it a second job."""
    return one() + one(**{"id": "b", "hosts": "'gpu[2,6]'", **keys}).removeprefix(HEAD)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CLUSTER, encoding="utf-8")
    (tmp_path / "jobs.yaml").write_text(two(), encoding="utf-8")
    return tmp_path


@pytest.fixture
def refused(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*words: str, jobs: str = "jobs.yaml", cluster: str = "c.yaml") -> str:
        before = sorted(here.iterdir())
        capsys.readouterr()
        asked = ["contention", jobs, "--cluster", cluster, *words]
        if "--network-plan" not in words and "--policy" not in words:
            asked += ["--policy", "crux"]
        assert main(asked) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.count("cellplan: error: ") == 1
        assert "Traceback" not in told.err
        assert "expected" in told.err or "invalid choice" in told.err
        assert len(told.err) < 800
        assert sorted(here.iterdir()) == before
        return told.err

    return run


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "jobs.yaml"),
        ("3", "jobs.yaml"),
        ("[]", "jobs.yaml"),
        ("jobs: []", "schema"),
        ("schema: cellplan.jobs/2\njobs: []", "schema"),
        (HEAD, "jobs"),
        (HEAD + "  - 3\n", "jobs[0]"),
        (HEAD + "  - [a]\n", "jobs[0]"),
        ("schema: cellplan.jobs/1\nx: &a [*a]\njobs: []", "line 2"),
        ("schema: !!python/object/apply:os.system ['true']\njobs: []", "line 1"),
        ("schema: cellplan.jobs/1\njobs: " + "[" * 500 + "]" * 500, "levels"),
        ("schema: cellplan.jobs/1\n\tjobs: []", "line 2"),
        (one(id="''"), "jobs[0].id"),
        (one(id='"a\\nb"'), "jobs[0].id"),
        (one(id='"\\u202e"'), "jobs[0].id"),
        (one(id="x" * 300), "jobs[0].id"),
        (one(id="3"), "jobs[0].id"),
        (two(id="a"), "id"),
        (one(hosts="''"), "jobs[0].hosts"),
        (one(hosts="[]"), "jobs[0].hosts"),
        (one(hosts="'gpu[5-1]'"), "jobs[0].hosts"),
        (one(hosts="'gpu[1'"), "jobs[0].hosts"),
        (one(hosts="'gpu[1,1]'"), "jobs[0].hosts"),
        (one(hosts="'gpu[1-99999999]'"), "jobs[0].hosts"),
        (one(hosts="nowhere"), "jobs[0].hosts"),
        (one(hosts=""), "jobs[0].hosts"),
        (two(hosts="'gpu[1,6]'"), "jobs[1].hosts"),
        (one(gpus="0-99"), "jobs[0].gpus"),
        (one(gpus="-1"), "jobs[0].gpus"),
        (one(traffic=""), "jobs[0]"),
        (one(traffic="3"), "jobs[0].traffic"),
        (one(model="llama3-8b"), "jobs[0]"),
        (one(traffic="", model="gpt5", degrees="{tp: 8}"), "model"),
        (one(traffic="", model="llama3-8b"), "degrees"),
        (one(traffic="", model="llama3-8b", degrees="{tpp: 8}"), "degrees"),
        (one(traffic="", model="llama3-8b", degrees="{tp: 3, global_batch: 8}"), "jobs[0]"),
        (one(traffic="", model="os:system", degrees="{tp: 8}"), "model"),
        (one(traffic="", plan="nowhere.json"), "nowhere.json"),
        (one(surplus="1"), "surplus"),
        (one(level="-1"), "jobs[0].level"),
        (one(level="1.5"), "jobs[0].level"),
        (one(level="1.0e+9"), "jobs[0].level"),
        (one(weight="0"), "jobs[0].weight"),
        (one(weight=".inf"), "jobs[0].weight"),
        *(
            (sends(**{key: value}), f"jobs[0].traffic.{key}")
            for key in TRAFFIC
            for value in (".nan", "-1", ".inf", "x")
        ),
        (sends(compute_s="0"), "jobs[0].traffic.compute_s"),
        (sends(compute_s="1.0e+300"), "jobs[0].traffic.compute_s"),
        (sends(begins_s="0.4"), "jobs[0]"),
        (sends(begins_s="-1"), "jobs[0].traffic.begins_s"),
        (sends(times="0"), "jobs[0].traffic.times"),
        (sends(op="gossip"), "jobs[0].traffic.op"),
        (one(traffic="", surplus="1", hosts="''"), "surplus"),
    ],
)
def test_a_list_of_jobs_that_is_none(refused: Callable[..., str], here: Path, text: str, said: str) -> None:
    (here / "jobs.yaml").write_text(text, encoding="utf-8")
    assert said in refused("-o", "contention.json", "--emit", "settings")


@pytest.mark.parametrize("name", ["nowhere.yaml", "/dev/zero", "/dev/null", "pipe", "bytes", "nul", "."])
def test_a_file_that_cannot_be_read(refused: Callable[..., str], here: Path, name: str) -> None:
    os.mkfifo(here / "pipe")
    (here / "bytes").write_bytes(bytes(range(1, 256)))
    (here / "nul").write_bytes(b"\0" * 100)
    for words in ((), ("--priority-map", name), ("--network-plan", name), ("--running", name)):
        assert name in refused(*words, jobs="jobs.yaml" if words else name)


@pytest.mark.parametrize(
    "words",
    [
        *(["--levels", value] for value in ("0", "-1", "1.5", "nan", "9", "1000000000", "")),
        *(["--slowdown-cap", value] for value in ("0.99", "-1", "nan", "inf", "1e7")),
        *(["--change-at-most", value] for value in ("-1", "1.5", "x")),
        *(["--believe", value] for value in ("", "0", "1", "-0.1", "nan", "0.1,")),
        *(["--jitter", value] for value in ("-1", "0.41", "nan")),
        *(["--seeds", value] for value in ("0", "1.5", "1000000000")),
        ["--policy", "nothing"],
        ["--paths", "nothing"],
        ["--priorities", "nothing"],
        ["--compression", "nothing"],
        ["--offsets", "nothing"],
        ["--policy-option", "plays"],
        ["--policy", "ours", "--policy-option", "plays=-1"],
        ["--policy", "ours", "--policy-option", "plays=NaN"],
        ["--policy", "ours", "--policy-option", "nothing=1"],
        ["--reserved", "5"],
        ["--emit-map"],
        ["--emit", "jobs.yaml"],
        ["--emit", "."],
        ["-o", "nowhere/contention.json"],
        ["-o", "/dev/full"],
        ["-o", "."],
        ["--timeline", "t.txt"],
        ["--plot", "p.bmp"],
        ["--verify", "nowhere.txt"],
        ["--transport", "smoke"],
        ["--user-code-limit", "3"],
    ],
    ids=" ".join,
)
def test_options_that_cannot_be(refused: Callable[..., str], words: list[str]) -> None:
    named = {"-o": "--output", "--verify": words[-1]}.get(words[-2] if len(words) > 1 else words[0])
    assert (named or words[-2:][0]) in refused(*words)


def changed(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda said: said["jobs"][0].update({key: value})


def in_path(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda said: said["jobs"][0]["paths"][0].update({key: value})


@pytest.mark.parametrize(
    "change",
    [
        changed("id", "gone"),
        changed("id", 3),
        changed("hosts", ["gpu1", "gpu6"]),
        changed("level", -1),
        changed("level", 8),
        changed("level", "0"),
        changed("dscp", 64),
        changed("offset_s", -1.0),
        changed("offset_s", float("nan")),
        changed("period_s", 0.0),
        changed("axis_levels", {"zz": 0}),
        in_path("way", ["gpu1 -> leaf0", "leaf0 -> spine9"]),
        in_path("queue_pair", 99),
        in_path("axis", "zz"),
        in_path("from", {"host": "x", "nic": 0}),
        in_path("ports", list(range(49152, 49200))),
        lambda said: said.update(levels=0),
        lambda said: said.update(schema="cellplan.contention/9"),
        lambda said: said.update(surplus=1),
        lambda said: said["cluster"].update(digest="0" * 16),
        *((lambda said, key=key: said.pop(key)) for key in ("jobs", "cluster", "levels", "policy", "links", "proved")),
    ],
)
def test_a_decision_that_does_not_fit(
    refused: Callable[..., str], here: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    said = json.loads(_decided(here))
    change(said)
    (here / "changed.json").write_text(json.dumps(said), encoding="utf-8")
    assert "changed.json" in refused("--network-plan", "changed.json")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.99])
def test_a_decision_that_was_cut_short(refused: Callable[..., str], here: Path, share: float) -> None:
    text = _decided(here).rstrip()
    (here / "cut.json").write_text(text[: int(len(text) * share)], encoding="utf-8")
    assert "cut.json" in refused("--network-plan", "cut.json")


_KEPT: dict[str, str] = {}
"""What `crux` decides here, once for all tests of this process."""


def _decided(folder: Path) -> str:
    if "text" not in _KEPT:
        words = [
            "contention",
            "jobs.yaml",
            "--cluster",
            "c.yaml",
            "--policy",
            "crux",
            "-o",
            "contention.json",
            "--json",
        ]
        assert main(words) == 0
        _KEPT["text"] = (folder / "contention.json").read_text(encoding="utf-8")
    return _KEPT["text"]
