"""The tables that are part of the packages: TOML, which people read and write, and beside each the same as JSON, which
is read thirty times as fast. JSON of another TOML than it stands beside is not looked at.

    python -m profiles.tables FILE.toml...    writes the JSON beside each
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from profiles.files import write_atomically

DATA = Path(__file__).with_name("data")
"""The folder of the hardware's and the fits' tables."""

_SOURCE = "sha256 of the TOML"


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of the TOML file at `path`, out of the JSON beside it where that is of this very text."""
    text = path.read_bytes()
    try:
        parsed = json.loads(path.with_suffix(".json").read_bytes())
    except (OSError, ValueError):
        parsed = None
    if isinstance(parsed, dict) and parsed.get(_SOURCE) == sha256(text).hexdigest():
        return dict(parsed["tables"])
    return parse_tables(text.decode("utf-8"))


def parse_tables(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text."""
    import tomllib

    return tomllib.loads(text)


def parsed_form(text: str) -> str:
    """Return the JSON that stands beside a TOML of this text, a line for each of its tables."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(table)}" for name, table in parse_tables(text).items())
    return f'{{\n "{_SOURCE}": "{sha256(text.encode()).hexdigest()}",\n "tables": {{\n{lines}\n }}\n}}\n'


def write_tables(path: Path, text: str) -> None:
    """Write a TOML text to `path` and the JSON beside it. Raise InputError or MachineError as `write_atomically`."""
    parsed = parsed_form(text)
    write_atomically(path, text)
    write_atomically(path.with_suffix(".json"), parsed)


def main(argv: Sequence[str]) -> int:
    """Write the JSON beside each of the files that `argv` names, and return the exit status 0."""
    for name in argv:
        write_tables(Path(name), Path(name).read_bytes().decode("utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
