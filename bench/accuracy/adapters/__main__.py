"""`python -m bench.accuracy.adapters PUBLISHED.csv -o EXPLICIT.csv`: see the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import bench.accuracy.adapters as package
from bench.accuracy.adapters.published import read_published, write_table
from profiles.errors import InputError
from profiles.files import write_atomically


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the explicit table; return 0, or 2 where the published one cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy.adapters",
        description=package.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("published", type=Path, metavar="PUBLISHED.csv")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="EXPLICIT.csv")
    options = parser.parse_args(arguments)
    try:
        rows = read_published(options.published)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    write_atomically(options.out, write_table(row.explicit for row in rows))
    print(f"written: {options.out}, {len(rows)} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
