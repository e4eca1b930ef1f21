"""What `cellplan estimate` takes for an explicit plan beside its options: files to read and write, and what to show."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path


def add_explicit_arguments(parser: ArgumentParser) -> None:
    """`--from`, `--plan`, `--output` and `--assumptions`."""
    parser.add_argument(
        "--from",
        nargs=2,
        dest="launcher",
        metavar=("FORMAT", "SETTINGS"),
        help="estimate a launcher's present settings: megatron ARGS or a script, torchtitan FILE.toml, deepspeed"
        " FILE.json (with MODEL)",
    )
    files = parser.add_argument_group("the plan as a file")
    files.add_argument(
        "--plan", type=Path, metavar="FILE", help="estimate the plan in this file, in place of MODEL and options"
    )
    files.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the explicit plan to this file")
    parser.add_argument(
        "--assumptions", action="store_true", help="list what was guessed and the command that would measure it"
    )
