"""Whole-file reading and writing: nothing half-written, and errors that name file, line and column."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles import files
from profiles.errors import InputError, MachineError
from profiles.files import check_folder, parse_json, read_json, read_text, write_atomically
from profiles.yaml_files import parse_yaml, read_yaml

REPOSITORY = Path(__file__).parents[2]


def test_writes_text_and_bytes_and_keeps_permissions(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_atomically(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    path.chmod(0o640)
    write_atomically(str(path), b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_new_file_has_the_permissions_of_any_other_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_atomically(tmp_path / "plan", "x")
    assert (tmp_path / "plan").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match=r"plan\.json: could not be written: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_write_that_the_system_cuts_short(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    code = (
        "import resource, sys; from profiles.files import write_atomically; from profiles.errors import MachineError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: write_atomically(sys.argv[1], 'x' * 100_000)\n"
        "except MachineError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=environment, check=True
    )
    assert "plan.json: could not be written: File too large" in done.stdout
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("missing/plan.json", "found no folder .*missing, expected a path in an existing folder"),
        ("file/plan.json", "found no folder"),
        (".", "found something that is not a regular file"),
    ],
)
def test_places_where_no_file_can_be(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=message):
        write_atomically(tmp_path / place, "x")


def test_reading_what_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_text(tmp_path / "none")
    with pytest.raises(InputError, match="found a folder, expected a readable text file"):
        read_json(tmp_path)
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match="not UTF-8 at offset 2"):
        read_yaml(tmp_path / "bytes")
    (tmp_path / "mark").write_bytes(b"\xef\xbb\xbf{}")
    assert read_json(tmp_path / "mark") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "b" 2}', r"f\.json, line 2, column 6: found no JSON"),
        ('{"a": {"b": 1, "b": 2}}', "f.json, line 1: b: found the key twice"),
        ('{"a": NaN}', "found NaN, expected a finite number"),
        ('{"a": -Infinity}', "found -Infinity"),
        ("[" * 100_000, "more than 64 levels of lists and mappings"),
        ("1" * 5000, "5,000 digits in a whole number, expected at most 18"),
        ("", "line 1, column 1"),
    ],
)
def test_wrong_json(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_json(text, where="f.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", r"c\.yaml, line 3, column 2"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", r"c\.yaml, line 4, column 3: found no YAML \(the key 'c' twice"),
        ("1: x\n", "line 1, column 1.*keys are text"),
        ("[1, 2]: x\n", "keys are text|unhashable"),
        ("a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("a: \x01\n", "no usable YAML"),
        ("[" * 5000, r"line 1, column 65: found more than 64 levels"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1.*another document"),
    ],
)
def test_wrong_yaml(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_yaml(text, where="c.yaml")


def test_yaml_scalars_are_those_of_yaml_1_2() -> None:
    text = "[1.25e9, 5.0e-3, 1e9, .5, 010, -3, no, on, true, ~, 1:30, 2001-01-01, 0x10, 'true']"
    assert parse_yaml(text, where="") == [
        1.25e9, 5e-3, 1e9, 0.5, 10, -3, "no", "on", True, None, "1:30", "2001-01-01", "0x10", "true"
    ]  # fmt: skip


NUMBERS = st.integers(1 - 10**18, 10**18 - 1) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(st.characters(min_codepoint=32, max_codepoint=126))


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner), max_leaves=8))
def test_yaml_reads_json(value: object) -> None:
    text = json.dumps(value)
    assert parse_yaml(text, where="") == parse_json(text, where="") == value


def test_what_a_killed_process_was_writing_is_removed_by_the_next_write(tmp_path: Path) -> None:
    """Not what a process that lives is writing, nor one of another machine, nor what somebody else calls alike."""
    code = (
        "import os, signal, sys; from profiles import files\n"
        "files.os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_atomically(sys.argv[1], 'new')\n"
    )
    path = tmp_path / "plan.json"
    path.write_text("old", encoding="utf-8")
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -signal.SIGKILL
        (unfinished,) = tmp_path.glob(".cellplan-*.tmp")  # The second has removed that of the first.
        assert path.read_text(encoding="utf-8") == "old"
    others = [unfinished.name.replace(f"-{files._host()}-", "-elsewhere-"), ".cellplan-x.tmp", "cellplan-1-0a.tmp"]
    living = f".cellplan-{files._host()}-{os.getpid()}-00000000.tmp"
    for name in (*others, living):
        (tmp_path / name).touch()
    write_atomically(path, "newer")
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name, living, *others}
    assert path.read_text(encoding="utf-8") == "newer"


def test_links_that_lead_to_each_other_are_no_file(tmp_path: Path) -> None:
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("first")
    with pytest.raises(MachineError, match="Too many levels of symbolic links"):
        write_atomically(tmp_path / "first", "x")
    with pytest.raises(InputError, match="--output"):
        check_folder(tmp_path / "first", where="plan", key="--output")
    with pytest.raises(InputError, match="Too many levels of symbolic links"):
        read_text(tmp_path / "first")
