"""What the command line prints: tables and messages for people, JSON for machines, progress on a terminal.

Units for people (GiB, ms) exist here alone. rich is imported where it is used, because start-up would pay for it.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Protocol

from planner.shared.words import format_bytes as format_bytes
from planner.shared.words import format_count as format_count
from planner.shared.words import format_figure as format_figure
from planner.shared.words import format_range as format_range
from planner.shared.words import format_seconds as format_seconds

WIDTH = 80


def print_json(value: object) -> None:
    """One JSON document on stdout. NaN and infinity are our own bug and raise ValueError."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table of at most 80 columns on stdout, "-" for None. A column of figures is set right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    texts = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    for number, name in enumerate(columns):
        cells = [row[number] for row in texts]
        numeric = bool(cells) and all(cell.lstrip("+-")[:1].isdigit() or cell in ("", "-") for cell in cells)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in texts:
        table.add_row(*map(Text, row))
    console = Console(file=sys.stdout, width=WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().rstrip().splitlines()), end="\n\n")


def print_text(text: str, *, indent: str = "") -> None:
    """A paragraph of at most 80 columns; lines after the first are indented by `indent`."""
    print(textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def print_notes(heading: str, notes: Sequence[str]) -> None:
    """A heading and an indented paragraph for each note; nothing if there are none."""
    if notes:
        print(heading)
        print_items(notes)


def print_items(notes: Iterable[str]) -> None:
    """An indented paragraph for each note."""
    for note in notes:
        print_text(f"  - {note}", indent="    ")


def print_written(output: Path | None, timeline: Path | None) -> None:
    """Say which files of a plan were written."""
    if output is not None:
        print(f"written to {output}")
    if timeline is not None:
        print(f"timeline written to {timeline}")


def spans(numbers: Iterable[int], *, least: int = 2) -> list[str]:
    """Ascending numbers, runs of `least` and more drawn together.

    >>> spans([0, 1, 2, 5]), spans([1, 2, 4], least=3)
    (['0-2', '5'], ['1', '2', '4'])
    """
    shown: list[str] = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        shown += map(str, members) if len(members) < least else [f"{members[0]}-{members[-1]}"]
    return shown


def repeats(values: Iterable[str], times: str = " x ") -> list[str]:
    """Runs of equal values, each as the value or how often it comes.

    >>> repeats(["dp", "dp", "tp"])
    ['2 x dp', 'tp']
    """
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return [value if count == 1 else f"{count}{times}{value}" for value, count in runs]


class Report(Protocol):
    """Tells how far the work is: things done, things in all, seconds left (None: unknown), and what comes next."""

    def __call__(self, done: int, total: int, left_s: float | None, what: str) -> None: ...


@contextmanager
def progress(title: str) -> Iterator[Report | None]:
    """A progress bar with the time left on stderr, if that is a terminal; else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[what]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, left="", what="")

        def report(done: int, total: int, left_s: float | None, what: str) -> None:
            left = "" if left_s is None else f"{format_seconds(left_s)} left"
            bar.update(task, completed=done, total=total, left=left, what=what)

        yield report


@contextmanager
def status(title: str) -> Iterator[Callable[[str], None] | None]:
    """A line on stderr with the seconds so far and what the work last said, if that is a terminal; else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def say(sentence: str) -> None:
            bar.update(task, description=f"{title}: {sentence}"[: WIDTH - 20])

        yield say
