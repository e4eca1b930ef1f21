"""A page as records: what is said and drawn, in which order. How it looks is the templates' matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A figure that the page opens with; `note` says how sure it is or what it is made of."""

    label: str
    value: str
    note: str = ""


def _is_figure(cell: str) -> bool:
    return cell.lstrip("+-")[:1].isdigit() and ", " not in cell


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under named columns; a column of figures is set right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False

    @property
    def figures(self) -> tuple[bool, ...]:
        """Of each column whether it holds figures."""
        return tuple(
            bool(self.rows) and all(_is_figure(row[place]) or row[place] in ("", "-") for row in self.rows)
            for place in range(len(self.columns))
        )


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A Vega-Lite chart; `about` says what is seen to who does not see it, `table` holds its figures."""

    title: str
    about: str
    spec: Mapping[str, Any]
    table: Table | None = None


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An SVG of our own."""

    title: str
    about: str
    svg: str


@dataclass(frozen=True, kw_only=True)
class Words:
    """Paragraphs, or the items of a list."""

    texts: tuple[str, ...]
    listed: bool = False
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """Text to be copied."""

    title: str
    text: str


Part = Table | Chart | Picture | Words | Command


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts under a heading; `lead` says in a sentence what they show."""

    name: str
    title: str
    parts: tuple[Part, ...]
    lead: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page. `answer` is what the command prints with --json: the page carries it."""

    title: str
    subtitle: str
    facts: tuple[Fact, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]
    answer: Any
