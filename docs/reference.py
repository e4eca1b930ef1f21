"""Pages of the documentation that are written by the program: each command's options, and each function of the API."""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

from planner import api
from planner.cli.main import COMMANDS, make_parser


def write(folder: Path) -> None:
    """Write a page for each command, one of all functions, and one with what leads to them."""
    folder.mkdir(exist_ok=True)
    os.environ["COLUMNS"] = "88"  # which argparse wraps by
    names = []
    for name, summary in COMMANDS.items():
        _write(folder / f"{name}.md", "\n".join(_command_page(name, summary)))
        names.append(name)
    _write(folder / "functions.md", "\n".join(_functions_page()))
    toctree = "\n".join([*names, "functions"])
    _write(folder / "index.md", f"# Reference\n\n```{{toctree}}\n:maxdepth: 1\n\n{toctree}\n```\n")


def _write(path: Path, text: str) -> None:
    """Leave a page that is the same as it was, so that it is not built anew."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def parsers_of(name: str) -> list[tuple[str, argparse.ArgumentParser]]:
    """Return the parsers of a command, and of those below it, by what is typed."""
    found: list[tuple[str, argparse.ArgumentParser]] = []

    def walk(words: str, parser: argparse.ArgumentParser) -> None:
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not below:
            found.append((words, parser))
        for action in below:
            for word, sub in action.choices.items():
                walk(f"{words} {word}", sub)

    root = make_parser(name, alone=True)
    (commands,) = (action for action in root._actions if isinstance(action, argparse._SubParsersAction))
    walk(name, commands.choices[name])
    return found


def _command_page(name: str, summary: str) -> Iterator[str]:
    yield f"# {name}\n"
    yield f"{summary[0].upper()}{summary[1:]}.\n"
    parsers = parsers_of(name)
    for words, parser in parsers:
        if len(parsers) > 1:
            yield f"## {words}\n"
            if parser.description:
                yield f"{parser.description}\n"
        yield f"```text\n{parser.format_usage().removeprefix('usage: ').rstrip()}\n```\n"
        for group in parser._action_groups:
            actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
            if actions:
                yield f"{'###' if len(parsers) > 1 else '##'} {(group.title or 'options').capitalize()}\n"
                yield from (_option(action, parser) for action in actions)


def _option(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    invocation = formatter._format_action_invocation(action)
    said = formatter._expand_help(action) if action.help else ""
    return f"`{invocation}`\n: {said.replace('<', chr(92) + '<').replace('*', chr(92) + '*') or '-'}\n"


def _functions_page() -> Iterator[str]:
    yield "# Functions\n"
    yield "What `planner.api` offers; `import cellplan` gives it for dicts, records and live modules.\n"
    for name in api.__all__:
        function = getattr(api, name)
        yield f"## {name}\n"
        options = getattr(function, "options", None)
        taken = f"({options.__name__} or its fields as keywords)" if options else str(inspect.signature(function))
        yield f"```text\n{name}{taken}\n```\n"
        yield f"{inspect.cleandoc(function.__doc__ or '')}\n"
