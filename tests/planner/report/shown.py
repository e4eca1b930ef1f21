"""What a page shows, as it is read: figures by their label, tables by their caption, amounts with their unit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

UNITS = {
    "": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "h": 3600.0, "days": 86400.0,
    "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
    "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "%": 0.01,
    "tokens/s": 1.0, "k tokens/s": 1e3, "M tokens/s": 1e6, "/s": 1.0, "k/s": 1e3, "TFLOP/s": 1.0, "kWh": 1.0,
    "Gb/s": 1e9 / 8, "Mb/s": 1e6 / 8, "Tb/s": 1e12 / 8, "kb/s": 1e3 / 8,
}  # fmt: skip
AMOUNT = re.compile(r"^([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*(.*)$")


def amount(text: str) -> float:
    """Return a shown amount in SI.

    >>> amount("24.7 ms"), amount("-3.5%"), amount("1,024"), amount("2 KiB")
    (0.0247, -0.035, 1024.0, 2048.0)
    """
    matched = AMOUNT.match(text.strip())
    assert matched is not None, text
    number, unit = matched.groups()
    return round(float(number.replace(",", "")) * UNITS[unit.strip()], 15)


@dataclass
class Shown(HTMLParser):
    """`facts`: label to value and note; `tables`: caption to rows of cells, the columns' names first."""

    facts: dict[str, tuple[str, str]] = field(default_factory=dict)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self._label = self._caption = ""
        self._text: list[str] | None = None
        self._row: list[str] = []

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("dt", "dd", "caption", "td", "th"):
            self._text = []
        if tag == "tr":
            self._row = []

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        said = "".join(self._text or [])
        if tag == "dt":
            self._label = said
        elif tag == "dd":
            value, _ = self.facts.get(self._label, ("", ""))
            self.facts[self._label] = (value, said) if value else (said, "")
        elif tag == "caption":
            self._caption = said
        elif tag in ("td", "th"):
            self._row.append(said)
        elif tag == "tr":
            self.tables.setdefault(self._caption, []).append(self._row)
        if tag in ("dt", "dd", "caption", "td", "th"):
            self._text = None

    def table(self, begins: str) -> list[dict[str, str]]:
        """Return the rows of the one table whose caption begins so, by column."""
        (rows,) = (rows for caption, rows in self.tables.items() if caption.startswith(begins))
        columns, *others = rows
        return [dict(zip(columns, row, strict=True)) for row in others]


def read_page(text: str) -> Shown:
    """Return what a page shows."""
    shown = Shown()
    shown.feed(text)
    shown.close()
    return shown
