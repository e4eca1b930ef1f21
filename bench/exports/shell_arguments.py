"""The arguments of an exported megatron.sh, read back."""

from __future__ import annotations

import re
import shlex
from typing import Any


def megatron_arguments(text: str) -> tuple[list[str], dict[str, Any]]:
    """The words of MEGATRON_ARGS, and them by name: numbers as numbers, switches as True, several values as a list."""
    found = re.search(r"^MEGATRON_ARGS=\(\n(.*?)^\)$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("megatron.sh: no MEGATRON_ARGS=( ... )")
    words = shlex.split(found.group(1))
    given: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            given[name] = True
        elif given[name] is True:
            given[name] = _value(name, word)
        else:
            earlier = given[name] if isinstance(given[name], list) else [given[name]]
            given[name] = [*earlier, _value(name, word)]
    for several in ("recompute_modules",):
        if several in given and not isinstance(given[several], list):
            given[several] = [given[several]]
    return words, given


def _value(name: str, word: str) -> Any:
    if name in ("moe_layer_freq", "window_attn_skip_freq"):
        return expand_pattern(word)
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    if re.fullmatch(r"-?\d*\.\d+(e-?\d+)?", word):
        return float(word)
    if re.fullmatch(r"\d+,\d+", word):
        return tuple(int(part) for part in word.split(","))
    return word


def expand_pattern(word: str) -> list[int]:
    """A list expression such as `([0]*3+[1]*2)*4`, which Megatron-LM evaluates, without evaluating anything."""
    found = re.fullmatch(r"\((.*)\)(?:\*(\d+))?", word)
    body, times = (found.group(1), int(found.group(2) or 1)) if found else (word, 1)
    flags: list[int] = []
    for part in body.split("+"):
        one = re.fullmatch(r"\[([01])\](?:\*(\d+))?", part)
        if one is None:
            raise ValueError(f"{word}: no list expression")
        flags += [int(one.group(1))] * int(one.group(2) or 1)
    return flags * times
