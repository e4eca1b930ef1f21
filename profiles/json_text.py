"""What is looked at in a JSON text before it is parsed, and where in it a key stands twice."""

from __future__ import annotations

import re
from itertools import pairwise

from profiles.errors import InputError
from profiles.limits import LIMITS, MIB

_CHUNK_BYTES = 4 * MIB
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG_WHOLE = re.compile(rb"(?<![\d.eE+-])-?\d{%d,}(?![\d.eE])" % (LIMITS.digits.most + 1))
_MANY_DIGITS = re.compile(rb"\d{%d}" % (LIMITS.digits.most + 1))
_EXPONENT = re.compile(rb"[eE]\+?\d{3}")
_HUGE = re.compile(rb"-?\d+(?:\.\d+)?[eE]\+?\d{3,}|\d{300,}")
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]', re.DOTALL)


def check_json_text(text: str, *, where: str) -> None:
    """Raise InputError for a JSON text that is nested too deep, holds too many values, or a number beyond 64 bits."""
    rest = _without_strings(text.encode("utf-8", "surrogatepass"))
    LIMITS.json_values.check(rest.count(b",") + rest.count(b"[") + rest.count(b"{"), where=where)
    _check_depth(rest.translate(None, _NOT_BRACKETS), where=where)
    digits = _MANY_DIGITS.search(rest) is not None
    if digits and (long_whole := _LONG_WHOLE.search(rest)) is not None:
        raise LIMITS.digits.error(len(long_whole[0].lstrip(b"-")), where=where)
    if digits or _EXPONENT.search(rest) is not None:
        for huge in _HUGE.finditer(rest):
            if abs(float(huge[0])) == float("inf"):
                raise InputError(where=where, found=_short(huge[0].decode()), expected="a finite number")


def _without_strings(data: bytes) -> bytes:
    """The text with what stands between quotes left out. Backslashes stand in strings alone: without `\\\\` and
    `\\"`, each second quote ends one."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside: list[bytes] = []
    inside = 0
    for start in range(0, len(data), _CHUNK_BYTES):
        parts = data[start : start + _CHUNK_BYTES].split(b'"')
        outside.append(b'""'.join(parts[inside::2]))
        inside = (inside + len(parts) - 1) % 2
    return b"".join(outside)


def _check_depth(brackets: bytes, *, where: str) -> None:
    """Take away innermost pairs as often as the limit allows: what is left over and still has pairs is deeper."""
    for _ in range(LIMITS.depth.most):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if b"[]" in brackets or b"{}" in brackets or re.search(rb"[\[{]{%d}" % LIMITS.depth.most, brackets):
        raise LIMITS.depth.error(where=where)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def line_of_second(text: str, key: str) -> int | None:
    """Return the line of the first key that its object has already and that reads `key`; None where no such is told
    apart (it may be written with escapes)."""
    seen: list[set[str] | None] = []
    for token, following in pairwise(_TOKEN.finditer(text)):
        mark = token[0]
        if mark in "{[":
            seen.append(set() if mark == "{" else None)
        elif mark in "}]" and seen:
            seen.pop()
        elif mark.startswith('"') and following[0] == ":" and seen and (keys := seen[-1]) is not None:
            if mark[1:-1] == key and key in keys:
                return text.count("\n", 0, token.start()) + 1
            keys.add(mark[1:-1])
    return None
