"""`cellplan export`: what is printed and written, and wrong input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.exports.plans import make_plan
from planner import api
from planner.cli import main as cli
from planner.one_job.exporting.formats import FORMATS
from planner.shared.plan_file import save_plan
from tests.documents import checked


@pytest.fixture(name="plan")
def _plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    save_plan(make_plan("llama zero 3"), file)
    return file


def test_one_file_goes_to_stdout_and_notes_to_stderr(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(plan), "--to", "accelerate"]) == 0
    out, err = capsys.readouterr()
    assert out == api.export(plan, to="accelerate")["files"][0]["text"]
    assert err.startswith("note: ")


def test_several_files_each_have_their_name(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(plan), "--to", "deepspeed"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("==>")] == [
        "==> ds_config.json <==",
        "==> hostfile <==",
        "==> launch.sh <==",
    ]


def test_json_is_the_files_and_notes_alone(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(plan), "--to", "deepspeed", "--json"]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert list(value) == ["format", "files", "notes"]
    assert value == api.export(plan, to="deepspeed")
    assert value["format"] == "deepspeed"
    assert set(value["files"][0]) == {"name", "text"}
    assert err == ""


def test_files_are_written_where_it_is_said(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder, made = tmp_path / "a.yaml", tmp_path / "there", tmp_path / "made"
    folder.mkdir()
    for output in (file, folder):
        assert cli.main(["export", str(plan), "--to", "accelerate", "-o", str(output)]) == 0
    assert file.read_bytes() == (folder / "accelerate.yaml").read_bytes()
    assert cli.main(["export", str(plan), "--to", "deepspeed", "-o", str(made)]) == 0
    assert sorted(one.name for one in made.iterdir()) == ["ds_config.json", "hostfile", "launch.sh"]
    out = capsys.readouterr().out.split()
    assert out[:3] == ["written", "to", str(file)]
    assert str(made / "launch.sh") in out


def test_the_script_is_named(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(plan), "--to", "accelerate", "--script", "my/train.py"]) == 0
    out, err = capsys.readouterr()
    assert "my/train.py" in out
    assert "stands for the training script" not in err


def test_the_list_has_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in FORMATS)
    assert cli.main(["export", "--list", "--json"]) == 0
    assert [one["format"] for one in json.loads(capsys.readouterr().out)] == list(FORMATS)


def test_a_refusal_ends_with_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    save_plan(make_plan("llama zb-h1"), file)
    output = tmp_path / "out.sh"
    assert cli.main(["export", str(file), "--to", "megatron", "--json", "-o", str(output)]) == 3
    out, err = capsys.readouterr()
    assert checked("export", json.loads(out))["refused"]["key"] == "schedule"
    assert "the nearest plan that it runs" in err
    assert not output.exists()
    assert cli.main(["export", str(file), "--to", "megatron", "--nearest", "-o", str(output)]) == 0
    assert output.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "megatorn"], "--to: found 'megatorn', expected one of megatron, bridge,"),
        (["--to", "megatorn"], "did you mean megatron?"),
        ([], "the following arguments are required: --to"),
        (["--to", "megatron", "-o", "/no/such/folder/x.sh"], "found /no/such/folder/x.sh, expected a path in"),
    ],
)
def test_wrong_words(plan: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(plan), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "--to", "megatron"]) == 2
    assert "required: PLAN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no JSON"),
        ("{}", "schema"),
        ('{"schema": "cellplan.plan/9"}', "schema"),
        ("[1, 2", "no JSON"),
    ],
)
def test_a_broken_plan_file(tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text, encoding="utf-8")
    assert cli.main(["export", str(file), "--to", "megatron"]) == 2
    err = capsys.readouterr().err
    assert str(file) in err
    assert said in err


def test_a_plan_whose_model_has_changed(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = plan.read_text(encoding="utf-8").replace('"hidden": 4096', '"hidden": 4097')
    plan.write_text(text, encoding="utf-8")
    assert cli.main(["export", str(plan), "--to", "megatron"]) == 2
    assert "model.sizes: found hidden=4097, expected 4096, as llama3-8b has now" in capsys.readouterr().err


def test_several_files_do_not_go_into_one(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "one"
    file.write_text("mine", encoding="utf-8")
    assert cli.main(["export", str(plan), "--to", "deepspeed", "-o", str(file)]) == 2
    assert "expected a folder for ds_config.json, hostfile, launch.sh" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_folder_that_cannot_be_written(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    assert cli.main(["export", str(plan), "--to", "deepspeed", "-o", str(folder)]) == 4
    assert "could not be written" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_a_full_disk_leaves_nothing_half_written(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    output = tmp_path / "a.yaml"
    assert cli.main(["export", str(plan), "--to", "accelerate", "-o", str(output)]) == 4
    assert "No space left on device" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]
