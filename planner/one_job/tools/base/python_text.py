"""Python source of calls with keywords, for the formats that are code."""

from __future__ import annotations

import json
from collections.abc import Mapping

from profiles.records import dataclass

WIDTH = 110


@dataclass(frozen=True, slots=True)
class Code:
    """An expression to be written as it stands; other values are written as literals."""

    text: str


def literal(value: object) -> str:
    """A value as Python source.

    >>> print(literal((1, "x")), literal(Code("torch.bfloat16")))
    (1, "x") torch.bfloat16
    """
    if isinstance(value, Code):
        return value.text
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def call(name: str, arguments: Mapping[str, object], *, indent: int = 0) -> str:
    """A call with keywords: on one line where it fits, else one keyword a line.

    >>> print(call("f", {"a": 1, "b": "x"}))
    f(a=1, b="x")
    """
    words = [f"{key}={literal(value)}" for key, value in arguments.items()]
    line = f"{name}({', '.join(words)})"
    if indent + len(line) <= WIDTH and "\n" not in line:
        return line
    margin = " " * (indent + 4)
    body = "".join(f"{margin}{word},\n" for word in words)
    return f"{name}(\n{body}{' ' * indent})"


def comment(text: str) -> str:
    """`text` as one line of a comment or docstring, whatever it holds."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(shown.replace('"""', "'''").replace("\\", "/").split())
