"""How a valid command line and its files are spoilt: by structure (JSON, YAML), by line and cell (tables, text), by
byte, and by option."""

from __future__ import annotations

import copy
import gzip
import json
from argparse import ArgumentParser, _StoreTrueAction, _SubParsersAction
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import yaml

from planner.cli.main import COMMANDS, make_parser

VALUES: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 5, 7, 64, 1000, 4096, 10**6 + 3, 10**9, 10**12, 10**17, 10**18 - 1, 10**19, 10**30,
    -(10**18), 2**31, 2**63, 0.5, -0.5, 1e-300, 1e300, 1e-9, 1e9, 1e18, float("nan"), float("inf"),
    float("-inf"), True, False, None, "", " ", "0", "-1", "1e9", "nan", "\0", "٣", "１", "1_000", "no",
    "a" * 5000, "é", "\u202e", "../x", "nodir/x", "/dev/zero", "gpt-tiny", "a100-80gb", "nvswitch3", "north",
    [], {}, [[]], [0], [None], {"": 0}, {"a": {"b": []}}, [1, 2, 3] * 50,
)  # fmt: skip
"""What stands in the place of a value."""

WORDS: tuple[str, ...] = (
    "", " ", "0", "-1", "1", "2", "3", "5", "7", "8", "16", "64", "1024", "1000003", "1000000000000",
    "100000000000000000", "999999999999999999", "9" * 30, "1e-9", "1e-300", "1e300", "1e999", "nan", "inf",
    "-inf", "0.5", "1.5", "٣", "１２", "1_000", "\0", "a" * 300, "a" * 5000, "nodir/x", ".", "..", "/dev/zero",
    "/dev/null", "/", "out.json", "out.csv", "out.svg", "out.svg/x", "0..99999999999", "0..3", "1:2", "2:1",
    "0:0", "4x2", "0x0", "1x1", "1,2,4", ",", "a,b", "tp=2", "tp=", "=", "x=y", "tp=99999999999", "depth=2",
    "depth=-1", "depth=nan", "full:8", "full:99999", "auto", "none", "bf16", "fp8", "fp32", "gpt-tiny",
    "llama3-8b", "nosuch", "a100-80gb:1x8", "a100-80gb:0x0", "a100-80gb:999999999x9", "a100-80gb:٢x8",
    "h100:1x8+a100-80gb:1x8", "local:1x2", "cluster.yaml", "plan.json", "config.json", "small.csv",
    "tokens.npy", "store.sqlite", "pipe", "%d", "{}", "{0}", "$HOME", "--", "--help", "-o",
)  # fmt: skip
"""What stands in the place of a word of the command line."""

PIECES: tuple[bytes, ...] = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\r", b"\n\n\n", b'"', b",", b",,,,", b"{", b"[",
    b"]" * 9, b"[" * 500, b"'", b"\\", b"1e999", b"-", b"NaN", b"\xd9\xa3", b"9" * 400, b"&a *a",
    b"!!python/object:os.system", b"${A}", b"$(ls)", b"#", b": ", b"|", b"\x1f\x8b\x08",
)  # fmt: skip
"""Bytes that are put in somewhere."""

LEFT_OUT = frozenset({"--workers", "--ray", "--threads", "--ranks"})
"""Options that start processes or threads: chance takes none of them."""


def spoil_bytes(content: bytes, rng: Random) -> bytes:
    """Return `content` with some bytes changed, lost, doubled or put in."""
    spoilt = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(spoilt) + 1)
        end = min(len(spoilt), at + rng.choice((1, 1, 4, 30, 500)))
        match rng.randrange(6):
            case 0:
                spoilt[at:end] = b""
            case 1:
                spoilt[at:at] = rng.choice(PIECES)
            case 2:
                spoilt[at:end] = bytes(rng.randrange(256) for _ in range(end - at))
            case 3:
                del spoilt[at:]
            case 4:
                spoilt[at:at] = spoilt[at:end] * rng.choice((1, 2, 20))
            case _:
                other = rng.randrange(len(spoilt) + 1)
                spoilt[at:end] = spoilt[other : other + end - at]
    return bytes(spoilt)


def spoil_lines(content: bytes, rng: Random) -> bytes:
    """Return a table or text with lines or cells lost, doubled, swapped or replaced."""
    lines = content.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                lines[at : at + 1] = []
            case 1:
                lines[at:at] = [lines[at]] * rng.choice((1, 3))
            case 2:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                between = rng.choice([mark for mark in (b",", b"|", b" ", b"=", b": ") if mark in lines[at]] or [b","])
                cells = lines[at].split(between)
                word = rng.choice(WORDS) if rng.random() < 0.7 else str(rng.choice(VALUES))
                cells[rng.randrange(len(cells))] = word.encode()
                lines[at] = between.join(cells)
        lines = lines or [b""]
    return b"\n".join(lines)


def spoil_value(value: Any, rng: Random) -> Any:
    """Return a value of objects and lists with parts replaced, lost, doubled, renamed, nested or moved."""
    spoilt = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(spoilt))
        if not places:
            return rng.choice(VALUES)
        holder, key = rng.choice(places)
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1:
                other, place = rng.choice(places)
                holder[key] = copy.deepcopy(other[place])
            case 2 if isinstance(holder, list):
                holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 2, 40))
            case 2:
                holder[rng.choice(("x", key + "s", "", "٣"))] = holder.pop(key)
            case 3 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
                holder[key] = holder[key] * rng.choice((-1, 0, 2, 3, 10**6, 1e-6))
            case 4:
                for _ in range(rng.choice((1, 2, 70, 500))):
                    holder[key] = [holder[key]]
            case _:
                holder[key] = copy.deepcopy(rng.choice(VALUES))
    return spoilt


def _places(value: Any) -> Any:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield value, key
        yield from _places(part)


def spoil_file(name: str, content: bytes, rng: Random) -> bytes:
    """Return the file spoilt in one of the ways that its kind offers."""
    if rng.random() < 0.02:
        return rng.choice((b"", b"\0" * 100, b"\xef\xbb\xbf" + content, b"[" * 10**5, b"a" * (2 * 10**6), content * 3))
    if name.endswith(".gz"):
        if rng.random() < 0.5:
            return spoil_bytes(content, rng)
        return gzip.compress(spoil_file(name[:-3], gzip.decompress(content), rng), mtime=0)
    loads: Callable[[bytes], Any] | None = None
    if name.endswith((".json", ".ckpt")):
        loads = json.loads
    elif name.endswith(".yaml"):
        loads = yaml.safe_load
    if loads is not None and rng.random() < 0.8:
        with suppress(RecursionError):  # nested twice at one place, it is deeper than Python goes
            return json.dumps(spoil_value(loads(content), rng)).encode("utf-8", "surrogatepass")
    return (spoil_bytes if rng.random() < 0.35 else spoil_lines)(content, rng)


@cache
def options_of(command: tuple[str, ...]) -> tuple[tuple[str, bool, tuple[str, ...]], ...]:
    """Return the options of a command: flag, whether a value follows, and the words it is one of."""
    parser: ArgumentParser = make_parser(command[0])
    for word in command:
        below = next((action for action in parser._actions if isinstance(action, _SubParsersAction)), None)
        if below is None or word not in below.choices:
            break
        parser = below.choices[word]
    return tuple(
        (flag, not isinstance(action, _StoreTrueAction) and action.nargs != 0, tuple(map(str, action.choices or ())))
        for action in parser._actions
        for flag in action.option_strings
    )


def spoil_words(words: tuple[str, ...], rng: Random) -> tuple[str, ...]:
    """Return a command line with options added, words replaced, lost, doubled or swapped."""
    spoilt = list(words)
    known = options_of(words[:2]) if words and words[0] in COMMANDS else ()
    options = [option for option in known if option[0] not in LEFT_OUT]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(spoilt)) if spoilt else 0
        match rng.randrange(8):
            case 0 if len(spoilt) > 1:
                del spoilt[at]
            case 1 if spoilt:
                spoilt[at:at] = [spoilt[at]]
            case 2 | 3 if len(spoilt) > 1:
                spoilt[max(1, at)] = rng.choice(WORDS)
            case _ if options:
                flag, valued, choices = rng.choice(options)
                word = rng.choice(choices) if choices and rng.random() < 0.8 else rng.choice(WORDS)
                spoilt += [flag, word] if valued else [flag]
    return tuple(word for word in spoilt if word not in LEFT_OUT)
