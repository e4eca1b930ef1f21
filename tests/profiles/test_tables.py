"""The parsed form of the tables is that of the tables, and is read only where it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from profiles.tables import main, read_tables, write_tables
from tests.planner.test_project import ROOT

TABLES = sorted([*ROOT.glob("profiles/data/*.toml"), *ROOT.glob("models_zoo/*/*.toml")])


@pytest.mark.parametrize("path", TABLES, ids=lambda path: str(path.name))
def test_the_parsed_form_is_that_of_the_tables(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert repr(read_tables(path)) == repr(tomllib.loads(text))
    write_tables(tmp_path / path.name, text)
    written = (tmp_path / path.name).with_suffix(".json").read_bytes()
    assert path.with_suffix(".json").read_bytes() == written, f"{path.name} was changed: `make tables`"


def test_a_changed_table_counts(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    write_tables(path, "[a]\nb = 1\n")
    assert read_tables(path) == {"a": {"b": 1}}
    path.write_text("[a]\nb = 2\n", encoding="utf-8")
    assert read_tables(path) == {"a": {"b": 2}}
    assert main([str(path)]) == 0
    assert '"b": 2' in path.with_suffix(".json").read_text(encoding="utf-8")
    for damaged in (b"", b"{", b"[]", b"\xff", b'{"tables": {}}'):
        path.with_suffix(".json").write_bytes(damaged)
        assert read_tables(path) == {"a": {"b": 2}}
