"""What a user may write for MODEL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimator.frontends.load import load_any_model, load_file_model
from models_zoo.catalogue import load_model
from models_zoo.user_code import UserCode
from profiles.errors import InputError

CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_zoo_name() -> None:
    assert load_file_model("gpt-tiny") == load_model("gpt-tiny")


def test_config_file_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    models = [load_file_model(text) for text in ("my-llama", "my-llama/config.json", str(folder))]
    assert [model.name for model in models] == ["my-llama"] * 3
    assert len({model.layers for model in models}) == 1


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("gpt-tny", "found 'gpt-tny', expected a zoo name such as gpt-tiny"),
        ("gpt-tny", "a path to a config.json, or package.module:factory"),
        ("", "found ''"),
        ("absent.json", "absent.json: found an error (No such file"),
        ("absent/config", "absent/config: found an error (No such file"),
        ("empty", "empty: found a folder without a config.json"),
        ("x" * 5000, "found File name too long"),
    ],
)
def test_anything_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_file_model(reference)
    assert message in str(caught.value)


def test_an_unlisted_module_is_refused() -> None:
    with pytest.raises(InputError, match="no_such_package"):
        load_any_model("no_such_package.models:build", UserCode(named=("no_such_package.models:build",)))
