"""What all results of `cellplan` have: a short repr, a table for notebooks and pandas, the document as JSON, a file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.shared.words import format_seconds, three_digits
from profiles.errors import InputError
from profiles.files import write_atomically
from profiles.records import dataclass

if TYPE_CHECKING:
    from cellplan.drawing import Drawing
    from planner.shared.plan import Plan

MOST_ROWS = 40
"""Of a table in a notebook."""

_CELL = "text-align:right;padding:2px 10px;white-space:nowrap"


@dataclass(frozen=True, kw_only=True)
class Result(ABC):
    """What a function of `cellplan` returns. It is not changed by any of its methods."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """One line: what it is of, and the figure that matters most."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """Return the table behind it: stages, Cells, runs or jobs, each by the names of its figures (SI units)."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with --json."""

    @abstractmethod
    def explain(self) -> str:
        """Return in sentences why it is so."""

    @property
    def plan(self) -> Plan:
        """The plan in it. Raise InputError where there is none."""
        raise InputError(where=self._kind, found="no plan", expected="cellplan.plan(...), or a degree such as tp=8")

    def to_json(self) -> str:
        """Return `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the document to `path`, whole or not at all, and return the path: of what has a plan, the plan file."""
        target = Path(path)
        write_atomically(target, self.to_json())
        return target

    def export(self, to: str, **options: Any) -> dict[str, str]:
        """Return the plan as the files that the tool `to` is started with, by their names. `options` as of
        `cellplan export`: `script`, `nearest`, `output`. Raise NothingFits where the tool cannot run it."""
        from cellplan.written import export_files

        return export_files(self.plan, to, **options)

    def timeline(self, path: str | Path | None = None) -> Drawing:
        """Return when each stage of the plan works on which micro-batch; write it to `path` (.svg, .json, .json.gz)."""
        from cellplan.drawing import draw

        return draw(self.plan, path)

    def to_frame(self) -> Any:
        """Return `rows` as a pandas DataFrame. Raise InputError where pandas is not installed."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise InputError(where="to_frame", found=str(error), expected="pip install pandas, or .rows()") from None
        return DataFrame(self.rows())

    @property
    def facts(self) -> tuple[str, ...]:
        """What a notebook shows between headline and table, a line each."""
        return ()

    def shown_rows(self) -> list[dict[str, Any]]:
        """Return the part of `rows` that a notebook's table has room for."""
        return self.rows()

    @property
    def _kind(self) -> str:
        return type(self).__name__.removesuffix("Result").lower()

    def __repr__(self) -> str:
        return f"<cellplan.{type(self).__name__}: {self.headline}>"

    def _repr_html_(self) -> str:
        facts = "".join(f"<br>{escape(fact)}" for fact in self.facts)
        return f"<div><p><b>{escape(self.headline)}</b>{facts}</p>{html_table(self.shown_rows())}</div>"


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML table of `rows`, all text escaped; columns without any figure are left out."""
    shown = rows[:MOST_ROWS]
    names = [name for name in dict.fromkeys(key for row in shown for key in row) if _has_figure(shown, name)]
    head = "".join(f'<th style="{_CELL}">{escape(_title(name))}</th>' for name in names)
    lines = [
        "".join(f'<td style="{_CELL}">{escape(_cell(name, row.get(name)))}</td>' for name in names) for row in shown
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>and {len(rows) - len(shown)} more rows</p>" if len(rows) > len(shown) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _has_figure(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(row.get(name) not in (None, "") for row in rows)


def _title(name: str) -> str:
    for unit in ("_s", "_bytes"):
        if name.endswith(unit) and not name.endswith("per_s"):
            name = name.removesuffix(unit)
    return name.replace("_per_s", "/s").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    """A figure with its unit, which the name ends in.

    >>> _cell("compute_s", 0.5), _cell("memory_bytes", 3 * 2**30), _cell("fits", True), _cell("mfu", 0.4)
    ('500 ms', '3 GiB', 'yes', '40.0%')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("_bytes"):
            return f"{three_digits(value / 2**30)} GiB"
        if name.endswith("_s") and not name.endswith("per_s"):
            return format_seconds(value)
        if name in ("mfu", "error"):
            return f"{value:.1%}"
        return str(value) if isinstance(value, int) else three_digits(value)
    if isinstance(value, list | tuple):
        return ", ".join(_cell(name, part) for part in value)
    return str(value)
