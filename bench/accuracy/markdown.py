"""Tables in Markdown, and sections of a file that may be kept from an earlier run."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others are set right. ValueError for a row of another length.

    >>> print(table(("source", "rows"), [("VTM", "46")]))
    | source | rows |
    | :-- | --: |
    | VTM | 46 |
    """
    lines = [list(header), [":--", *["--:"] * (len(header) - 1)], *[list(row) for row in rows]]
    for line in lines:
        if len(line) != len(header):
            raise ValueError(f"table: a row of {len(line)} cells {line}, expected {len(header)}")
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share as per cent, `-` for None.

    >>> percent(0.0512), percent(-0.03, signed=True), percent(None)
    ('5.1%', '-3.0%', '-')
    """
    if value is None:
        return "-"
    return f"{value * 100:{'+' if signed else ''}.1f}%"


def section_of(text: str, title: str) -> str | None:
    """What stands under the heading `## title` up to the next such heading; None if there is none."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1).strip("\n") if found else None
