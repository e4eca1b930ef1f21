"""What is taken from a user and what is not: every limit is told before the work, with its number."""

from __future__ import annotations

import gzip
import os
import socket
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from planner.many_jobs.traces.read import read_trace
from profiles.errors import InputError
from profiles.files import parse_json, read_json, read_text, read_toml, text_lines
from profiles.limits import LIMITS, MIB
from profiles.numerals import read_number, read_whole
from profiles.opening import open_at_once
from profiles.yaml_files import parse_yaml, read_yaml

BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""Nine lines that are 10^9 values."""


def test_every_limit_says_its_number_unit_and_reason() -> None:
    for field in fields(LIMITS):
        limit = getattr(LIMITS, field.name)
        limit.check(limit.most, where="f")
        with pytest.raises(InputError, match=f"{limit.most + 1:,} .* at most {limit.most:,} .*\\(.+\\)"):
            limit.check(limit.most + 1, where="f")


def test_nothing_but_a_regular_file_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        began = time.process_time()
        for path, kind in (("pipe", "a pipe"), ("socket", "a socket"), (".", "a folder"), ("/dev/zero", "a device")):
            for read in (read_text, read_json, read_yaml, read_toml, read_trace):
                if (kind, read) != ("a folder", read_trace):  # PAI's tables stand in one
                    with pytest.raises(InputError, match=f"found {kind}, expected"):
                        read(tmp_path / path)
        assert time.process_time() - began < 5
    with pytest.raises(InputError, match="embedded null"):
        read_text("a\0b")


def test_what_has_no_end_is_not_waited_for(tmp_path: Path) -> None:
    """As the kernel's log, which calls itself a regular file."""
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "log", os.O_WRONLY)
    try:
        os.write(writer, b"so far")
        with open_at_once(tmp_path / "log") as file:
            assert file.read(2) == b"so"
            with pytest.raises(BlockingIOError, match="no end"):
                file.read(100)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**12)
    for read in (read_text, read_json, read_yaml, read_toml):
        with pytest.raises(InputError, match="found 1,000,000,000,000 bytes in"):
            read(tmp_path / "sparse")
    with pytest.raises(InputError, match="NUL byte at offset 0"):
        read_trace(tmp_path / "sparse", format="cellplan")


def test_a_file_that_holds_more_than_its_size_says() -> None:
    with pytest.raises(InputError, match="more than 3 bytes in a file"):
        read_text("/proc/self/status", limit=replace(LIMITS.text_bytes, most=3))


def test_text_is_utf_8_without_nul(tmp_path: Path) -> None:
    for content, message in ((b"ab\0", "a NUL byte at offset 2"), (b"\xff\xfea\0", "byte order mark of UTF-16")):
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_text(tmp_path / "text")
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa = 1")
    assert read_toml(tmp_path / "text") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 65 + "]" * 65, "more than 64 levels"),
        ('{"a":' * 65 + "1" + "}" * 65, "more than 64 levels"),
        ("[" * 10**6, "more than 64 levels"),
        ("[" + "[]," * 4_000_000 + "0]", r"found 8,000,001 values in a JSON file"),
        ('{"a": 1,\n "b": {"a": 2},\n "\\u0061": 3}', "a: found the key twice"),
        ('{"b": [{"a": 1}],\n"a": {"x": "a"},\n "a":\n3}', "line 3: a: found the key twice"),
        ("[1e400]", "found 1e400, expected a finite number"),
        ("[" + "1" * 400 + ".0]", "expected a finite number"),
        ('["' + "[" * 100 + '"', "no JSON"),
        ('"' + '\\"' * 10**6, "no JSON"),
    ],
)
def test_json_beyond_limits(text: str, message: str) -> None:
    began = time.process_time()
    with pytest.raises(InputError, match=message):
        parse_json(text, where="f.json")
    assert time.process_time() - began < 5


def test_brackets_and_digits_in_text_are_text() -> None:
    value = ["[" * 200 + "\\" + '"' + "9" * 400, "]" * 200]
    assert parse_json(f'[{chr(34)}{"[" * 200}\\\\\\"{"9" * 400}{chr(34)}, "{"]" * 200}"]', where="") == value
    nested: object = []
    for _ in range(63):
        nested = [nested]
    assert parse_json(str(nested), where="") == nested


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "line 6, column 11: found more than 200,000 values in a YAML file"),
        ("a: &a [*a]\n", "alias \\*a of what has no end before it"),
        ("- " * 65 + "x", "more than 64 levels"),
        ("[" + "x," * 200_001 + "]", "more than 200,000 values"),
        ("a: " + "1" * 19, "a whole number of 19 characters, more than 18 digits"),
    ],
)
def test_yaml_beyond_limits(text: str, message: str) -> None:
    began = time.process_time()
    with pytest.raises(InputError, match=message):
        parse_yaml(text, where="c.yaml")
    assert time.process_time() - began < 5


def test_aliases_within_the_budget_are_read() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]", where="") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = inf", "inf is no finite number"),
        (".".join("a" * 65) + " = 1", "65 levels"),
        ("a = " + "[" * 5000, "no TOML|levels"),
        ("a = " + "1" * 400, "digits"),
        ("a = 1\na = 2", "Cannot overwrite a value"),
        ("a = 1\nb = \n", "line 2, column 5: found no TOML"),
    ],
)
def test_toml_beyond_limits(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_toml(tmp_path / "t.toml")


def test_gzip_bombs_and_endless_lines(tmp_path: Path) -> None:
    header = b"job_id,submit_time_s,duration_s,gpus\n"
    bombs = {
        "line": (header + b"1" * 100_000_000, "1,04[0-9],[0-9]* characters in a line"),
        "packed": (gzip.compress(header + b"\n" * 100_000_000), "bytes out of each byte of a gzip file"),
        "twice": (gzip.compress(gzip.compress(header)), "NUL byte|not UTF-8"),
        "nul": (header + b"a,0,1,\0", "NUL byte"),
    }
    for name, (content, message) in bombs.items():
        (tmp_path / name).write_bytes(content)
        began = time.process_time()
        with pytest.raises(InputError, match=message):
            read_trace(tmp_path / name)
        assert time.process_time() - began < 5, name


def test_a_job_of_a_philly_trace_that_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('[{"jobid": [' + "[]," * (2 * MIB // 3))
    with pytest.raises(InputError, match=r"characters in a line"):
        read_trace(tmp_path / "log")


def test_lines_are_bounded() -> None:
    assert text_lines("a\nb\r\nc", where="f") == ["a", "b", "c"]
    with pytest.raises(InputError, match="f, line 2: found 1,048,577 characters in a line"):
        text_lines("a\n" + "b" * (MIB + 1), where="f")


@pytest.mark.parametrize("word", ["٣", "３", "1_000", "१.५", "²"])
def test_numbers_are_ascii(word: str) -> None:
    for read in (read_whole, read_number):
        with pytest.raises(ValueError, match=word):
            read(word)
